"""An agent that answers texts by a model, and breaks in words of its own when it is asked to."""

from __future__ import annotations

from typing import Any

from agents import Agent


class ObservedAgent(Agent):
    kind = "observed"

    async def receive(self, message: dict[str, Any]) -> None:
        await self.messages.add_received(message)
        await self.queue("process", message["text"], max_retries=0)

    async def process(self, text: str) -> None:
        reply = await self.step("reply", self.ask, text)
        await self.messages.add("assistant", reply)
        await self.sms.send(reply)
        if "break" in text:
            raise ValueError(f"cannot do {text!r} for {self.name}")

    async def ask(self, text: str) -> str:
        answer = await self.env.OPENAI.chat.completions.create(
            model=self.env.MODEL, messages=[{"role": "user", "content": text}]
        )
        return str(answer.choices[0].message.content)
