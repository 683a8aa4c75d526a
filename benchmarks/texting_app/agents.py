from __future__ import annotations

import asyncio
import os
from typing import Any

from agents import Agent

SECONDS = float(os.environ.get("BENCHMARK_SECONDS_A_TEXT", "0"))


class AnsweringAgent(Agent):
    """Answers each text once; may take its time."""

    async def receive(self, message: dict[str, Any]) -> None:
        if SECONDS:
            await asyncio.sleep(SECONDS)
            return
        await self.messages.add_received(message)
        await self.messages.add("assistant", f"answer to {message['text']}")
        await self.sms.send(f"answer to {message['text']}")
