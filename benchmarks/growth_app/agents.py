from __future__ import annotations

from typing import Any

from agents import Agent, reads


class GrowingAgent(Agent):
    """Receives texts and answers them, and reads its log in the ways that loops do."""

    kind = "growth"

    async def receive(self, message: dict[str, Any]) -> None:
        await self.messages.add("user", message["text"])
        await self.set_state({"last": message["text"], "from": message["from"]})
        await self.queue("process", id="process")

    async def process(self) -> None:
        await self.messages.add("assistant", "Thank you. We look into it.")
        await self.set_state({"answered": True})
        await self.schedule(86_400, "nudge", id="nudge")

    async def nudge(self) -> None:
        pass

    async def append(self) -> None:
        await self.messages.add("user", "One more.")

    @reads
    async def window(self) -> int:
        return len(await self.messages.to_openai(last=40))

    @reads
    async def newest(self) -> str:
        last = await self.messages.last()
        return last.content if last else ""

    @reads
    async def count(self) -> int:
        return await self.messages.count()
