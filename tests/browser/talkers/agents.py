"""An agent that does what it is told, so that a test decides what a page is shown."""

from __future__ import annotations

import asyncio
from typing import Any

from agents import Agent, GiveUp, exposed, reads
from tests.waiting import there_is

PICTURE = (  # one red pixel
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
)


class TalkAgent(Agent[dict[str, Any]]):
    """``stream 20 0.1`` writes 20 words, one each 0.1 s; other words are below; anything else is echoed."""

    kind = "talk"

    async def receive(self, message: dict[str, Any]) -> None:
        metadata = {"id": message["id"]} if message.get("channel") == "web" else {}
        await self.messages.append({"role": "user", "content": message["text"], "metadata": metadata})
        await self.queue("answer", message["text"])

    async def answer(self, text: str) -> None:
        word, *more = text.split()
        match word:
            case "stream":
                await self._stream(int(more[0]), float(more[1]))
            case "think":
                self.status("thinking")
                await (there_is(more[0]) if more[0][0] == "/" else asyncio.sleep(float(more[0])))
                await self.messages.add("assistant", "Thought.")
            case "tool":
                await self._use_a_tool()
            case "picture":
                await self.messages.append({"role": "assistant", "parts": parts()})
            case "silent":
                pass
            case "stuck":
                raise GiveUp("402: the model wants to be paid")
            case "flood":  # messages, and events that a page does not show
                for number in range(1, int(more[0]) + 1):
                    await self.messages.add("assistant", f"line {number}")
                for number in range(int(more[1])):
                    await self.emit("tick", number)
            case _:
                await self.messages.add("assistant", f"You said: {text}")

    async def _stream(self, count: int, pause: float) -> None:
        async with self.messages.stream("assistant") as out:
            for number in range(1, count + 1):
                await out.write(f"word{number} ")
                await asyncio.sleep(pause)

    async def _use_a_tool(self) -> None:
        call = {"id": "call_1", "name": "lookup_order", "args": {"order_id": "1042", "note": "<b>"}}
        await self.messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        await self.messages.append(
            {"role": "tool", "tool_call_id": "call_1", "content": "Order 1042: shipped."}
        )
        await self.messages.add("assistant", "It is on its way.")

    @exposed
    @reads
    async def count(self) -> int:
        return await self.messages.count()

    @exposed
    @reads
    async def windows(self) -> int:
        return await self.connections.count()

    @exposed
    async def broken(self) -> None:
        raise ValueError("the back office is closed")

    async def hidden(self) -> str:
        return "not for browsers"


class OpenAgent(TalkAgent):
    """Anybody who is signed in may chat."""

    kind = "talk-open"

    async def authorize(self, request: Any) -> bool:
        return bool(request.user.is_authenticated)


class DeafAgent(Agent[dict[str, Any]]):
    """Has no ``receive``."""

    kind = "talk-deaf"


def parts() -> list[dict[str, Any]]:
    return [
        {"type": "text", "text": "Here is a picture:"},
        {"type": "image", "base64": PICTURE, "mime_type": "image/png"},
        {"type": "reasoning", "reasoning": "They want to see it."},
    ]
