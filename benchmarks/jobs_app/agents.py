from __future__ import annotations

import datetime as dt
from typing import Any

from agents import Agent


class IngestingAgent(Agent):
    """Job A: a text goes to the log, two keys to the state, and ``process`` is queued, which does nothing."""

    kind = "ingest"

    async def receive(self, message: dict[str, Any]) -> None:
        await self.messages.add_received(message)
        await self.set_state({"last": message["text"], "from": message["from"]})
        await self.schedule(0, "process")

    async def process(self, payload: None = None) -> None:
        pass


class AnsweringAgent(IngestingAgent):
    """Job B: ``process`` answers in the log, patches the state, and sets a timer that replaces the last."""

    kind = "answer"

    async def process(self, payload: None = None) -> None:
        await self.messages.add("assistant", "Thank you. We look into it.")
        await self.set_state({"answered": True})
        await self.schedule(86_400, "nudge", id="nudge")

    async def nudge(self, payload: None = None) -> None:
        pass


class EchoingAgent(Agent):
    """Job C: logs each raw frame and tells everybody its number."""

    kind = "echo"

    async def authorize(self, request: Any) -> bool:
        return True

    async def on_message(self, connection: Any, frame: str | bytes) -> None:
        seq = await self.messages.add("user", frame)
        await self.broadcast(str(seq))


class TimedAgent(Agent):
    """Job D: the text "timers 5 1790000000.5" sets five timers, due at that moment."""

    kind = "timed"

    async def receive(self, message: dict[str, Any]) -> None:
        _, count, due = message["text"].split()
        at = dt.datetime.fromtimestamp(float(due), dt.UTC)
        for number in range(int(count)):
            await self.schedule_at(at, "fire", {"number": number})

    async def fire(self, timer: dict[str, Any]) -> None:
        await self.set_state({"fired": timer["number"]})
