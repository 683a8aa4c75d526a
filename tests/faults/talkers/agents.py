"""Agents that answer every text once, and leave a trace of everything that a commit can carry."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from agents import Agent

# The model thinks this long, in seconds.
THINKS = 0.05, 0.6
REMIND_AFTER = 0.5  # seconds
TICK = 6.0  # seconds between two ticks
TALLIES = 5


class TalkerAgent(Agent[dict[str, Any]]):
    """One run answers all texts that came since the last answer."""

    kind = "test-talker"

    def initial_state(self) -> dict[str, Any]:
        return {"answers": 0, "ticks": 0}

    async def on_create(self) -> None:
        await self.sql.exec("CREATE TABLE answered (text TEXT PRIMARY KEY)")
        await self.every(TICK, "tick", id="tick")

    async def receive(self, message: dict[str, Any]) -> None:
        await self.messages.add("user", message["text"])
        await self.queue("process", id="process")

    async def process(self) -> None:
        texts: list[str] = []
        for message in reversed(await self.messages.last(100)):
            if message.role == "assistant":
                break
            if message.role == "user":
                texts.insert(0, message.content)
        if not texts:
            return  # all of them were answered by the run before
        await self.set_state({"thinking": True})
        await self.checkpoint()
        answer = await self.step("think", think, texts)
        for text in texts:
            await self.sql.exec("INSERT INTO answered VALUES (?)", text)  # fails for one that is there
        await self.messages.add("assistant", answer)
        await self.sms.send(answer)
        state = await self.get_state()
        await self.set_state({"answers": state["answers"] + 1, "thinking": None})
        await self.schedule(REMIND_AFTER, "remind", answer)
        tally = TallyAgent.named(str(int(self.name[-4:]) % TALLIES))
        await tally.tell("count", {"by": self.name, "texts": len(texts)})

    async def remind(self, answer: str) -> None:
        await self.messages.add("system", f"reminder: {answer}")

    async def tick(self) -> None:
        state = await self.get_state()
        await self.set_state({"ticks": state["ticks"] + 1})


class TallyAgent(Agent[dict[str, Any]]):
    """What the turns of many others tell: one of these is in many commits."""

    kind = "test-tally"

    def initial_state(self) -> dict[str, Any]:
        return {"answers": 0, "texts": 0}

    async def count(self, told: dict[str, Any]) -> None:
        state = await self.get_state()
        await self.set_state({"answers": state["answers"] + 1, "texts": state["texts"] + told["texts"]})


async def think(texts: list[str]) -> str:
    await asyncio.sleep(random.uniform(*THINKS))
    return f"answer to {', '.join(texts)}"
