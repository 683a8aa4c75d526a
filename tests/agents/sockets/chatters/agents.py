"""Agents that talk: in pytest's process and in those of the servers that tests start."""

from __future__ import annotations

import asyncio
import datetime as dt
import os
from pathlib import Path
from typing import Any

from django.core.exceptions import PermissionDenied

from agents import Agent, GiveUp, Retry, exposed, reads
from tests.waiting import there_is


class ChatterAgent(Agent[dict[str, Any]]):
    """Answers what it is told. By default operators and token bearers may talk to it."""

    kind = "test-chatter"
    share_state = True
    sensitive = ("pin",)

    def initial_state(self) -> dict[str, Any]:
        return {"mood": "calm", "since": dt.date(2026, 11, 30)}

    async def receive(self, message: dict[str, Any]) -> None:
        await self.messages.append(
            {"role": "user", "content": message["text"], "metadata": {"id": message["id"]}}
        )
        await self.set_state({"last": {k: message[k] for k in ("channel", "from", "user_id", "claims")}})
        word = message["text"].partition(" ")[0]
        if word == "stream":
            await self.queue("reply", message["text"], id="reply", max_retries=0)
        if word == "tale":
            await self.queue("tell_a_tale", id="tale", max_retries=0)
        if word == "twice":
            await self.broadcast(f"{message['text']}: first")
            await self.broadcast(f"{message['text']}: second")

    async def reply(self, text: str) -> None:
        """``stream <pieces> <seconds between>``, or ``stream <pieces> <path>``.

        Of those the first seven come at once, the others when there is such a file. Behind a path that ends
        with a slash each piece waits until the one before it has a file there, by its number.
        """
        _, pieces, pause = text.split()
        self.status("writing")
        async with self.messages.stream() as out:
            for n in range(int(pieces)):
                await out.write(f"[{n}]")
                if pause[0] != "/":
                    await asyncio.sleep(float(pause))
                elif pause[-1] == "/":
                    await there_is(f"{pause}{n}")
                elif n < 6:
                    await asyncio.sleep(0.05)
                else:
                    await there_is(pause)

    async def tell_a_tale(self) -> None:
        """Says the beginning, and is then at a loss for words."""
        async with self.messages.stream() as out:
            await out.write("Once upon")
            await out.write(" a time")
            await asyncio.sleep(600)

    @exposed
    async def add(self, role: str, content: str) -> int:
        return await self.messages.add(role, content)

    @exposed
    async def many(self, count: int, text: str = "m") -> int:
        for n in range(count):
            await self.messages.add("user", f"{text}{n}")
        return count

    @exposed
    async def shout(self, data: str, now: bool = False) -> Any:
        return await self.broadcast(data, now=now)

    @exposed
    async def shout_many(self, count: int, length: int = 1) -> None:
        for n in range(count):
            await self.broadcast(f"{n}".ljust(length, "."))

    async def shout_bytes(self, data: bytes, now: bool = False) -> None:
        await self.broadcast(data, now=now)

    @exposed
    async def tell_all(self, type: str, payload: Any) -> int:
        return await self.emit(type, payload)

    @exposed
    async def set(self, patch: dict[str, Any]) -> dict[str, Any]:
        return await self.set_state(patch)

    @exposed
    async def nap(self, seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "rested"

    @exposed
    async def rest(self, path: str) -> str:
        """Naps until there is such a file."""
        await there_is(path)
        return "rested"

    @exposed
    @reads
    async def echo(self, value: Any = None, **more: Any) -> Any:
        return [value, more] if more else value

    @exposed
    @reads
    async def today(self) -> dt.date:
        return dt.date(2026, 11, 30)

    @exposed
    @reads
    async def who(self) -> list[dict[str, Any]]:
        return [
            {"id": c.id, "user_id": c.user_id, "claims": c.claims, "headers": c.headers}
            for c in await self.connections.list()
        ]

    @exposed
    @reads
    async def count(self) -> int:
        return await self.connections.count()

    @exposed
    async def whisper(self, id: str, data: str, now: bool = False) -> None:
        for connection in await self.connections.list():
            if connection.id == id:
                await connection.send(data, now=now)

    @exposed
    async def hang_up(self, id: str, code: int, reason: str, words: str = "") -> None:
        for connection in await self.connections.list():
            if connection.id == id:
                if words:
                    await connection.send(words)
                await connection.close(code, reason)

    @exposed
    async def fail(self) -> None:
        await self.broadcast("never sent")
        raise ValueError("the secret of the insides")

    @exposed
    async def forbid(self) -> None:
        raise PermissionDenied("not you")

    @exposed
    async def mark(self, text: str, seconds: float) -> None:
        self.status(text)
        await asyncio.sleep(seconds)

    async def secret(self) -> str:
        return "not exposed"

    @exposed
    async def stream_call(self, text: str, fails: bool = False) -> int | None:
        async with self.messages.stream() as out:
            for letter in text:
                await out.write(letter)
                await asyncio.sleep(0.02)
        if fails:
            raise ValueError("after the stream")
        return out.seq

    @exposed
    async def stream_two(self) -> None:
        async def write(letter: str) -> None:
            async with self.messages.stream() as out:
                for _ in range(20):
                    await out.write(letter)
                    await asyncio.sleep(0.02)

        await asyncio.gather(write("a"), write("b"))

    @exposed
    @reads
    async def contents(self) -> list[str]:
        return [m.content for m in await self.messages.all()]

    async def rendered(self) -> list[dict[str, Any]]:
        return await self.messages.to_openai()

    async def stream_task(self, plan: dict[str, Any]) -> None:
        """Streams ``text`` and fails as often as ``failures`` says; dies in the middle if asked to."""
        attempt = self._turn.task.attempt  # type: ignore[union-attr]
        async with self.messages.stream() as out:
            await out.write(f"take {attempt}: ")
            for letter in plan["text"]:
                await out.write(letter)
                await asyncio.sleep(plan.get("pause", 0.02))
            if plan.get("dies"):
                os._exit(9)
            if attempt <= plan.get("failures", 0):
                raise Retry("not yet", after=plan.get("after", 0.2))
            if plan.get("gives_up"):
                raise GiveUp("no use")


class RawAgent(Agent[dict[str, Any]]):
    """Takes raw frames. Answers each with what it was, ``slow <seconds>`` so much later.

    And ``slow <path>`` when there is such a file.
    """

    kind = "test-raw"

    async def shout_bytes(self, data: bytes, now: bool = False) -> None:
        await self.broadcast(data, now=now)

    async def on_message(self, connection: Any, frame: str | bytes) -> None:
        if isinstance(frame, bytes):
            await connection.send(frame)
            return
        if frame.startswith("bytes "):
            await connection.send(frame[6:].encode())
            return
        if frame.startswith("slow "):
            how = frame.split()[1]
            await (there_is(how) if how[0] == "/" else asyncio.sleep(float(how)))
        if frame == "boom":
            await connection.send("never sent")
            raise ValueError("boom")
        if frame.startswith("close "):
            await connection.send("goodbye")
            await connection.close(int(frame.split()[1]), "as asked")
        if frame.startswith("all "):
            await self.broadcast(frame[4:])
            await self.messages.add("user", frame)
            await self.emit("shown", "to nobody here")
        if frame.startswith("now "):
            await connection.send("at once", now=True)
            await connection.send("", now=True)
            await there_is(frame.split()[1])
        await connection.send(frame)


class DoormanAgent(Agent[dict[str, Any]]):
    """Keeps a book of who came and went; lets nobody in who says so."""

    kind = "test-doorman"

    def initial_state(self) -> dict[str, Any]:
        return {"came": [], "went": []}

    async def authorize(self, request: Any) -> bool:
        if request.headers.get("x-error"):
            raise RuntimeError("cannot say")
        if request.headers.get("x-denied"):
            raise PermissionDenied
        if (await self.get_state()).get("closed"):
            return False
        return request.user.is_authenticated or request.claims is not None

    async def on_connect(self, connection: Any) -> None:
        if path := connection.headers.get("x-until"):
            Path(f"{path}.begun").touch()  # noqa: ASYNC240 - says that it has begun
            await there_is(path)
        if connection.claims.get("refuse"):
            raise PermissionDenied("no shoes")
        if connection.claims.get("broken"):
            raise ValueError("the door is broken")
        state = await self.get_state()
        await self.set_state({"came": [*state["came"], connection.id]})
        await connection.send(f"welcome {connection.claims.get('name', '')}")

    async def on_disconnect(self, connection: Any) -> None:
        state = await self.get_state()
        await self.set_state({"went": [*state["went"], connection.id]})

    @exposed
    async def close_up(self) -> None:
        await self.set_state({"closed": True})

    async def receive(self, message: dict[str, Any]) -> None:
        await self.messages.add("user", message["text"])


class OpenAgent(ChatterAgent):
    """Everybody may talk to it."""

    kind = "test-open"
    share_state = False

    async def authorize(self, request: Any) -> bool:
        return True


class SilentAgent(Agent[dict[str, Any]]):
    """Receives nothing that is said, and cannot say what its state is before anything was written."""

    kind = "test-silent"
    share_state = True

    def initial_state(self) -> dict[str, Any]:
        raise RuntimeError("who knows")
