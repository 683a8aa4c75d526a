"""``manage.py chat`` as a process, with a server of sockets that the tests play."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agents.sockets.tokens import read_token
from conversations.management.commands.chat import AGAIN
from tests.browser.talkers.agents import TalkAgent
from tests.scripted import Scripted, message, scripted
from tests.waiting import wait_until

pytestmark = pytest.mark.processes
ROOT = Path(__file__).resolve().parents[2]
NAME = "日本 +1"


class Terminal:
    """The command, and what is on its screen."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.screen = ""

    def type(self, line: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(f"{line}\n".encode())

    def end_input(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    async def read(self) -> None:
        assert self.process.stdout
        while data := await self.process.stdout.read(4096):
            self.screen += data.decode()

    async def shows(self, text: str) -> None:
        await asyncio.to_thread(wait_until, lambda: text in self.screen, message=f"{text!r} on the screen")

    async def ends(self) -> int:
        async with asyncio.timeout(30):
            return await self.process.wait()


@asynccontextmanager
async def chatting(server: Scripted, *arguments: str) -> AsyncIterator[Terminal]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "manage.py", "chat", TalkAgent.kind, NAME, "--url", server.url, *arguments),
        cwd=ROOT,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings", "AGENT_APPS": "tests.browser.talkers"},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    terminal = Terminal(process)
    reading = asyncio.create_task(terminal.read())
    try:
        yield terminal
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await reading
        process._transport.close()  # type: ignore[attr-defined]


async def test_lines_are_said_and_what_comes_is_shown() -> None:
    async with scripted() as server, chatting(server) as terminal:
        link = await server.link()
        earlier = [message(0, seq, role="user")["message"] for seq in range(1, 13)]
        attach = await link.accept(12, messages=earlier)
        assert read_token(attach["token"], TalkAgent.kind, NAME).claims == {"terminal": True}
        await terminal.shows("user: m12\n")
        assert "user: m3\n" in terminal.screen and "m2\n" not in terminal.screen.replace("m12\n", "")
        terminal.type("  hello  ")
        terminal.type("")
        said = await link.next("say")
        assert said["text"] == "hello"
        await link.send(
            {"kind": "ack", "id": said["id"]},
            message(13, role="user", content="hello", metadata={"id": said["id"]}),
            {"kind": "status", "status": "thinking"},
            message(14, content="", tool_calls=[{"id": "1", "name": "lookup", "args": {"n": 1}}]),
            message(15, content="two\nlines\x1b[2J"),
        )
        await terminal.shows("two\nlines\\x1b[2J\n")
        assert "(thinking)\nassistant: uses lookup {'n': 1}\nassistant: two\n" in terminal.screen
        assert "user: hello" not in terminal.screen  # it stands there as it was typed
        terminal.end_input()
        assert await terminal.ends() == 0


async def test_a_reply_is_written_as_it_comes_and_stands_there_once() -> None:
    def delta(index: int, text: str, **more: bool) -> dict[str, object]:
        return {"kind": "delta", "stream": "s", "index": index, "text": text, **more}

    async with scripted() as server, chatting(server) as terminal:
        link = await server.link()
        await link.accept()
        await link.send(delta(0, "Once "), delta(1, "upon "))
        await terminal.shows("assistant: Once upon ")
        await link.send(delta(2, "a time", done=True))
        await link.send(message(1, content="Once upon a time", metadata={"stream": "s"}), message(2))
        await terminal.shows("assistant: m2\n")
        assert terminal.screen == "assistant: Once upon a time\nassistant: m2\n"


async def test_a_stream_that_starts_again_is_written_again() -> None:
    async with scripted() as server, chatting(server) as terminal:
        link = await server.link()
        await link.accept()
        for frame in ({"index": 0, "text": "wrong"}, {"index": 0, "text": "right", "reset": True}):
            await link.send({"kind": "delta", "stream": "s", **frame})
        await link.send(message(1, content="right", metadata={"stream": "s"}))
        await terminal.shows("right\n")
        assert terminal.screen == "assistant: wrong\nassistant: right\n"


async def test_the_end_of_the_input_waits_for_an_answer() -> None:
    async with scripted() as server, chatting(server) as terminal:
        terminal.type("hello")
        terminal.end_input()
        link = await server.link()
        await link.accept()
        said = await link.next("say")
        await link.send({"kind": "ack", "id": said["id"]})
        await asyncio.sleep(0.3)
        assert terminal.process.returncode is None
        await link.send(message(1, content="hi"))
        assert await terminal.ends() == 0
        await terminal.shows("assistant: hi\n")


async def test_it_waits_no_longer_than_it_was_told() -> None:
    async with scripted() as server, chatting(server, "--wait", "1.5") as terminal:
        terminal.type("hello")
        terminal.end_input()
        await (await server.link()).accept()
        assert await terminal.ends() == 0
        await terminal.shows("(no answer within 1.5 s)")


async def test_ctrl_c_stops_the_turn_and_twice_leaves() -> None:
    async with scripted() as server, chatting(server) as terminal:
        link = await server.link()
        await link.accept()
        await link.send({"kind": "status", "status": "thinking"})
        await terminal.shows("(thinking)")
        terminal.interrupt()
        stop = await link.next("stop")
        await link.send({"kind": "ack", "id": stop["id"], "stopped": True})
        await terminal.shows("(stopping)")
        await asyncio.sleep(AGAIN + 0.1)
        terminal.interrupt()
        stop = await link.next("stop")
        await link.send({"kind": "ack", "id": stop["id"], "stopped": False})
        await terminal.shows("(nothing is running; Ctrl+C again to leave)")
        ended = asyncio.create_task(terminal.ends())
        for _ in range(5):
            terminal.interrupt()
            late = asyncio.create_task(link.next("stop"))  # behind those seconds it asks once more
            await asyncio.wait([ended, late], return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                break
            await link.send({"kind": "ack", "id": (await late)["id"], "stopped": False})
        late.cancel()
        assert await ended == 0


async def test_what_the_server_refuses_is_said(tmp_path: Path) -> None:
    async with scripted() as server, chatting(server, "--token", "mine") as terminal:
        link = await server.link()
        attach = await link.accept()
        assert attach["token"] == "mine"
        terminal.type("hello")
        said = await link.next("say")
        await link.send({"kind": "error", "id": said["id"], "code": "inbox_full", "message": "later"})
        await terminal.shows("(not sent: inbox_full: later)")
        await link.close(4403, "not admitted")
        assert await terminal.ends() == 1
        await terminal.shows("CommandError: denied: not admitted")


async def test_a_connection_that_ends_comes_back() -> None:
    async with scripted() as server, chatting(server) as terminal:
        await (await server.link()).accept()
        terminal.type("hello")
        await asyncio.sleep(0.1)
        server.cut()
        await terminal.shows("trying again)")
        link = await server.link()
        await link.accept()
        said = await link.next("say")
        assert said["text"] == "hello"


@pytest.mark.parametrize("arguments", [["Support", "x"], ["talk", ""], ["talk", "x", "--url", "nowhere"]])
async def test_an_address_that_is_none_is_refused_at_once(arguments: list[str]) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "manage.py", "chat", *arguments),
        cwd=ROOT,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode == 1
    assert b"CommandError" in output
