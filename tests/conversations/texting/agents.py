"""The agents that the tests of texts talk to."""

from __future__ import annotations

from typing import Any

from agents import Agent


class TextedAgent(Agent):
    """Keeps what it gets, and answers when it is told to."""

    kind = "texting"

    async def receive(self, message: dict[str, Any]) -> None:
        await self.messages.add_received(message)
        if message["text"].startswith("say "):
            await self.sms.send(message["text"].removeprefix("say "))

    async def say(self, text: str, **how: Any) -> str:
        return await self.sms.send(text, **how)

    async def say_as_task(self, text: str) -> None:
        await self.sms.send(text)

    async def unwanted(self) -> bool:
        return await self.sms.opted_out()

    async def keep(self, key: str, data: bytes, content_type: str) -> None:
        await self.blobs.put(key, data, content_type)

    async def for_models(self) -> dict[str, Any]:
        return {
            "openai": await self.messages.to_openai(),
            "anthropic": await self.messages.to_anthropic(),
            "langchain": await self.messages.to_langchain(),
            "langchain_messages": await self.messages.to_langchain_messages(),
        }

    async def on_delivery_failed(self, text: dict[str, Any]) -> None:
        await self.messages.add("system", f"failed: {text['text']}: {text['code']} {text['status']}")

    async def on_consent(self, change: dict[str, Any]) -> None:
        await self.messages.add("system", f"{change['state']}: {change['word']}")


class ElsewhereAgent(Agent):
    """Another kind, for our other number; it names its actors by itself."""

    kind = "texting-elsewhere"

    @classmethod
    def name_for_text(cls, theirs: str, ours: str) -> str:
        if theirs == "+15550006666":
            raise LookupError("nobody knows them")
        return f"customer {theirs[-4:]}"

    async def receive(self, message: dict[str, Any]) -> None:
        await self.messages.add("user", message["text"])
