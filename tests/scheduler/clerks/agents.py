"""Agents whose methods leave a trace."""

from __future__ import annotations

import asyncio
import datetime as dt
from pathlib import Path
from typing import Any

import httpx

from agents import Agent, exposed, reads
from tests.waiting import there_is


def model_client() -> httpx.AsyncClient:
    """What a deployment binds as ``env.MODEL_CLIENT``."""
    return httpx.AsyncClient()


async def tool(path: str) -> None:
    with Path(path).open("a") as out:  # noqa: ASYNC230
        out.write("begun\n")
        out.flush()
        await asyncio.sleep(1)
        out.write("ended\n")


class ClerkAgent(Agent[dict[str, Any]]):
    """Keeps a count; sleeps when it is told to."""

    kind = "test-clerk"

    def initial_state(self) -> dict[str, Any]:
        return {"count": 0}

    @exposed
    async def add(self, n: int = 1, *, times: int = 1) -> int:
        state = await self.get_state()
        return (await self.set_state({"count": state["count"] + n * times}))["count"]

    async def nap(self, seconds: float) -> None:
        await self.set_state({"napped": True})
        await asyncio.sleep(seconds)

    async def rest(self, path: str) -> None:
        """Naps until there is such a file."""
        await self.set_state({"rested": True})
        await there_is(path)

    async def work(self, path: str) -> None:
        """A tool, then a model: each takes its time, and is done once however often this is begun."""
        await self.step("tool", tool, path)
        await self.step("model", there_is, f"{path}.answer")
        await self.set_state({"worked": True})

    async def charge(self, path: str) -> None:
        """A tool that must never run twice: that it is called is committed before it is."""
        if not any(message.tool_calls for message in await self.messages.all()):
            call = {"id": "c1", "name": "tool", "args": {"path": path}}
            await self.messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
            await self.checkpoint()
            await tool(path)
            await self.messages.append({"role": "tool", "tool_call_id": "c1", "content": "charged"})
        rendered = await self.messages.to_openai()
        results = [message["content"] for message in rendered if message["role"] == "tool"]
        await self.messages.add("assistant", f"The tool said: {', '.join(results)}")

    async def ask(self, url: str) -> None:
        (await self.env.MODEL_CLIENT.get(url)).raise_for_status()

    async def fail(self) -> None:
        raise ValueError("no such order")

    @reads
    async def echo(self, value: Any = None) -> Any:
        return value

    async def odd(self) -> Any:
        return {"tags": {"a"}, "on": dt.date(2026, 11, 30)}
