"""``manage.py chat``: a conversation with an agent, in the terminal."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import threading
import time
from collections import deque
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from agents.client import AgentClient, Connection, Delta
from agents.exceptions import AgentsError, ClientError
from agents.sockets import connect_token
from agents.terminal import shown

AGAIN = 2.0  # seconds in which a second Ctrl+C leaves
HISTORY = 10  # messages shown at the beginning


def seconds(text: str) -> float:
    """A number of seconds, zero or more."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise argparse.ArgumentTypeError(f"seconds are needed, got {text!r}")
    return value


class Command(BaseCommand):
    help = (
        "Chats with an agent of a running site: each line that you type is said to it, what comes is "
        "shown as it comes. Ctrl+C asks the running turn to stop; twice, or the end of the input, leaves."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("kind", help="The agent's kind, such as support.")
        parser.add_argument("name", help="The actor's name, such as +15550001111.")
        parser.add_argument(
            "--url", default="http://127.0.0.1:8000", help="The site. Default: http://127.0.0.1:8000."
        )
        parser.add_argument(
            "--token", help="What admits you. Default: a token made with this project's SECRET_KEY."
        )
        parser.add_argument(
            "--wait",
            type=seconds,
            default=60.0,
            metavar="SECONDS",
            help="How long to wait for an answer when the input has ended. Default: 60.",
        )

    def handle(self, *args: Any, kind: str, name: str, url: str, token: str | None, **options: Any) -> None:
        try:
            client = AgentClient(
                kind, name, url=url, token=token or (lambda: connect_token(kind, name, {"terminal": True}))
            )
        except (AgentsError, ValueError) as error:
            raise CommandError(str(error)) from error
        try:
            asyncio.run(Conversation(client, self.stdout, options["wait"]).run())
        except ClientError as error:
            raise CommandError(f"{error.code}: {error}") from error


class Conversation:
    """One client, a terminal, and the lines between them."""

    def __init__(self, client: AgentClient, out: Any, wait: float) -> None:
        self._client = client
        self._out = out
        self._wait = wait  # seconds
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()
        self._said: set[asyncio.Task[None]] = set()
        self._mine: set[str] = set()  # ids of what was typed here: it is on the screen already
        self._stream = ""  # the one whose text the last line of the screen is
        self._shown = ""  # of it
        self._asked_at = float("-inf")
        # What was said before: held until all of it is there, since only its end is shown.
        self._earlier: deque[dict[str, Any]] | None = deque(maxlen=HISTORY)
        self._answered = asyncio.Event()
        self._leaving = asyncio.Event()
        self._failed: ClientError | None = None

    async def run(self) -> None:
        """Until the input ends, or somebody leaves. Raises ClientError once the server has refused."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._interrupt)
        for kind, listener in (
            ("message", self._on_message),
            ("delta", self._on_delta),
            ("status", self._on_status),
            ("connection", self._on_connection),
        ):
            self._client.on(kind, listener)
        threading.Thread(target=self._read, args=[loop], name="chat-input", daemon=True).start()
        try:
            async with self._client:
                await self._talk()
        finally:
            loop.remove_signal_handler(signal.SIGINT)

    async def _talk(self) -> None:
        while (line := await self._lines.get()) is not None and not self._leaving.is_set():
            if line.strip():
                self._answered.clear()
                id = f"terminal-{time.time_ns():x}-{len(self._mine)}"
                self._mine.add(id)
                task = asyncio.create_task(self._say(id, line.strip()))
                self._said.add(task)
                task.add_done_callback(self._said.discard)
        if self._mine and not self._leaving.is_set():
            await self._last_words()
        if self._failed is not None:
            raise self._failed

    async def _last_words(self) -> None:
        """The input has ended: waits for what was said to be taken, and for an answer to it."""
        answered = asyncio.create_task(self._everything_answered())
        leaving = asyncio.create_task(self._leaving.wait())
        await asyncio.wait([answered, leaving], timeout=self._wait, return_when=asyncio.FIRST_COMPLETED)
        if not answered.done() and not leaving.done():
            self._line(f"(no answer within {self._wait:g} s)")
        answered.cancel()
        leaving.cancel()

    async def _everything_answered(self) -> None:
        await asyncio.gather(*self._said)
        await self._answered.wait()

    async def _say(self, id: str, text: str) -> None:
        try:
            await self._client.say(text, id=id)
        except ClientError as error:
            self._line(f"(not sent: {error.code}: {error})")

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        """A thread: nothing else waits for a terminal, a pipe and a file alike."""
        for line in sys.stdin:
            loop.call_soon_threadsafe(self._lines.put_nowait, line)
        loop.call_soon_threadsafe(self._lines.put_nowait, None)

    def _leave(self) -> None:
        self._leaving.set()
        self._lines.put_nowait(None)

    def _interrupt(self) -> None:
        now = time.monotonic()
        if now - self._asked_at < AGAIN:
            self._line("")
            self._leave()
            return
        self._asked_at = now
        task = asyncio.create_task(self._stop())
        self._said.add(task)
        task.add_done_callback(self._said.discard)

    async def _stop(self) -> None:
        try:
            stopped = await self._client.stop()
        except ClientError as error:
            self._line(f"(not stopped: {error}; Ctrl+C again to leave)")
        else:
            self._line("(stopping)" if stopped else "(nothing is running; Ctrl+C again to leave)")

    # What comes

    def _on_message(self, message: dict[str, Any]) -> None:
        if self._earlier is not None:
            self._earlier.append(message)
            return
        metadata = message.get("metadata") or {}
        if message["role"] == "assistant" and not message.get("tool_calls"):
            self._answered.set()
        if metadata.get("id") in self._mine:
            return
        if self._stream and metadata.get("stream") == self._stream and message["content"] == self._shown:
            self._end_stream()
            return
        self._end_stream()
        if message["content"]:
            self._line(f"{message['role']}: {lines(message['content'])}")
        for call in message.get("tool_calls") or []:
            self._line(f"{message['role']}: uses {shown(call['name'])} {shown(str(call['args']), 100)}")

    def _on_delta(self, delta: Delta) -> None:
        if self._stream != delta.stream or not delta.text.startswith(self._shown):
            self._end_stream()
            if not delta.text:
                return
            self._write(f"assistant: {lines(delta.text)}")
        else:
            self._write(lines(delta.text[len(self._shown) :]))
        self._stream, self._shown = delta.stream, delta.text

    def _end_stream(self) -> None:
        if self._stream:
            self._write("\n")
        self._stream = self._shown = ""

    def _on_status(self, status: str) -> None:
        if status and not self._stream:
            self._line(f"({shown(status, 100)})")

    def _on_connection(self, connection: Connection) -> None:
        if connection.state == "open" and self._earlier is not None:
            earlier, self._earlier = self._earlier, None
            for message in earlier:
                self._on_message(message)
            self._answered.clear()
        elif connection.state == "waiting":
            self._line(f"(no connection: {shown(connection.reason, 200)}; trying again)")
        elif connection.state == "closed" and connection.reason != "closed":
            self._failed = self._client.refused
            self._leave()

    def _line(self, text: str) -> None:
        self._end_stream()
        self._write(f"{text}\n")

    def _write(self, text: str) -> None:
        self._out.write(text, ending="")
        self._out.flush()


def lines(text: str) -> str:
    """A text of several lines, without anything that a terminal would obey."""
    return "\n".join(shown(line) for line in text.split("\n"))
