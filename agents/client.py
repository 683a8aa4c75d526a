"""A client of the socket protocol (docs/protocol.md) for scripts and tests: the verbs of agent-client.js.

::

    async with AgentClient("support", "+15550001111", token=token) as client:
        client.on("message", lambda message: print(message["role"], message["content"]))
        await client.say("Where is my order?")
        await client.wait_for("message", lambda message: message["role"] == "assistant", timeout=60)

It connects, comes back after a pause that depends on the close code, and resumes from its cursor: every
message is given once and in order. Needs no settings.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import inspect
import json
import random
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlsplit, urlunsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidURI

from agents.exceptions import ClientError
from agents.merge_patch import merge_patch
from agents.names import check_kind, escape_name

PROTOCOL = 1
KINDS = (
    "message",
    "state",
    "delta",
    "event",
    "broadcast",
    "status",
    "connection",
    "gap",
    "reset",
    "error",
)

# Seconds.
ESTABLISH = 20.0  # from opening a socket to the server's "attached"
PING_EVERY = 20.0
PING_ANSWER = 10.0
STABLE = 10.0  # a connection that lived this long starts the pauses anew
SEEN_EVERY = 1.0

SEEN_EVENTS = 64
SEEN_CHARACTERS = 128 * 1024
MAX_FRAME_BYTES = 1024 * 1024
# The server closes at 256 frames or 1 MiB that wait for it.
IN_FLIGHT = 32
IN_FLIGHT_BYTES = 512 * 1024
STREAMS_KEPT = 200

ABNORMAL = 1006  # no close frame came
TOO_BIG = 1009
UNAUTHORIZED = 4401
FINAL = {4403: "denied", 4404: "not_found"}
TOKENS_REFUSED = 3  # in a row, before the client gives up
# By close code: the first pause and the longest, in seconds. They double.
PAUSES = {1001: (0.4, 30.0), 1011: (2.0, 60.0), 1013: (5.0, 120.0)}
PAUSE = (0.5, 30.0)

Token = str | Callable[[], str | Awaitable[str]]
Listener = Callable[[Any], object]


@dataclass(frozen=True, slots=True)
class Ack:
    """What the server said to something said: it is in the actor's inbox."""

    id: str
    duplicate: bool  # it was there before


@dataclass(frozen=True, slots=True)
class Delta:
    """A part of a stream."""

    stream: str
    index: int
    text: str  # everything the stream said so far
    added: str
    reset: bool  # what it had said before is void; with done: all of it, and no message follows
    done: bool  # its message follows
    whole: bool  # False when a part was lost on the way


@dataclass(frozen=True, slots=True)
class Connection:
    """Where the connection stands."""

    state: str  # connecting | open | waiting | closed
    code: int | None = None  # the close code that led here
    reason: str = ""
    retry_in: float | None = None  # seconds


@dataclass(slots=True)
class _Stream:
    index: int
    whole: bool
    text: str = ""
    ended: bool = False


@dataclass(slots=True)
class _Post:
    """A frame that has an answer."""

    id: str
    text: str
    size: int
    once: bool  # not to be sent again: nobody knows whether it was done
    answer: asyncio.Future[dict[str, Any]]
    sent: bool = False


@dataclass(slots=True)
class _Seen:
    """What the server was told about how far we are, and what came since."""

    cursor: int = 0
    at: float = 0.0
    events: int = 0
    characters: int = 0
    timer: asyncio.TimerHandle | None = None


class AgentClient:
    """One actor's client. ``async with`` it, or ``connect()`` and ``await close()``; all in one event loop.

    ``url`` is the site's; ``token`` a text or a function (perhaps ``async``) that is asked before the first
    connection and again whenever the server refuses what it gave; ``headers`` such as ``Authorization``.
    ``cursor`` and ``seq`` say what is there already. Listeners are plain functions of one argument.
    """

    def __init__(
        self,
        kind: str,
        name: str,
        *,
        url: str = "http://127.0.0.1:8000",
        token: Token | None = None,
        headers: Mapping[str, str] | None = None,
        cursor: int | None = None,
        seq: int = 0,
        streams: Sequence[str] | None = None,
        call_timeout: float = 30.0,
    ) -> None:
        self.kind = check_kind(kind)
        self.name = name
        self.url = socket_url(url, kind, name)
        self.cursor = cursor  # of the last event that came
        self.seq = seq  # of the newest message
        self.state: Any = None
        self.status = ""
        self.connection = Connection("closed")
        self.call_timeout = call_timeout  # seconds
        self._ask_token = token if callable(token) else None
        self._token = None if callable(token) else token
        self._headers = dict(headers or {})
        self._streams = list(streams) if streams is not None else None
        self._socket: ClientConnection | None = None
        self._running: asyncio.Task[None] | None = None
        self._attached = asyncio.Event()
        self._ended: ClientError | None = None
        self._tokens_refused = 0
        self._texts: dict[str, _Stream] = {}
        self._posts: dict[str, _Post] = {}
        self._stops: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._seen = _Seen()
        self._listeners: dict[str, list[Listener]] = {kind: [] for kind in KINDS}
        self._outgoing: asyncio.Queue[str] = asyncio.Queue()

    async def __aenter__(self) -> Self:
        self.connect()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    @property
    def refused(self) -> ClientError | None:
        """Why it does not connect any more; None while it does."""
        return self._ended

    # The verbs

    def connect(self) -> None:
        """Begins to connect, and to come back whenever the connection ends."""
        if self._ended is not None and self._ended.code == "closed":
            raise self._ended
        if self._running is None or self._running.done():
            if self._ended is not None:
                # Given up, perhaps for its tokens: the last of them was refused, and all tries are used up.
                self._tokens_refused = 0
                self._token = None if self._ask_token is not None else self._token
            self._ended = None
            self._running = asyncio.get_running_loop().create_task(self._run(), name="agent-client")

    def on(self, kind: str, listener: Listener) -> Callable[[], None]:
        """Calls ``listener`` with everything of this kind from now on; returns the function that ends it.

        ``message``: as in the protocol, each once and in order. ``state``: the whole state. ``delta``: a
        Delta. ``event``: ``{"type", "payload", "cursor"}``. ``broadcast``: text or bytes. ``status``: the
        mark. ``connection``: a Connection. ``gap``: ``{"after", "before"}``, the numbers of two messages
        between which some were not sent. ``reset``: what came before is void. ``error``: a ClientError that
        nobody waits for.
        """
        if kind not in KINDS:
            raise ValueError(f"there is no {kind!r} to listen for, only {', '.join(KINDS)}")
        listeners = self._listeners[kind]
        listeners.append(listener)

        def off() -> None:
            with contextlib.suppress(ValueError):
                listeners.remove(listener)

        return off

    async def wait_for(
        self, kind: str, condition: Callable[[Any], object] = lambda value: True, timeout: float = 10.0
    ) -> Any:
        """The next of its kind that fits, from now on. Raises TimeoutError after ``timeout`` seconds."""
        found: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def look(value: Any) -> None:
            if not found.done() and condition(value):
                found.set_result(value)

        off = self.on(kind, look)
        try:
            return await asyncio.wait_for(found, timeout)
        finally:
            off()

    async def opened(self, timeout: float = ESTABLISH) -> None:
        """Waits until the server has let the client in. Raises ClientError once it is refused for good."""
        if self._ended is not None:
            raise self._ended
        assert self._running is not None, "connect() first"
        waiting = asyncio.ensure_future(self._attached.wait())
        try:
            await asyncio.wait([waiting, self._running], timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        if self._ended is not None:
            raise self._ended
        if not self._attached.is_set():
            raise ClientError("timeout", f"{self.url} did not let us in within {timeout:g} s")

    async def say(self, text: str, *, id: str | None = None, metadata: Any = None) -> Ack:
        """Says something to the agent; returns when it is safe in the actor's inbox.

        Without a connection it waits for one. The same ``id`` twice is one message. Raises ClientError.
        """
        id = id or uuid.uuid4().hex
        frame: dict[str, Any] = {"kind": "say", "id": id, "text": text}
        if metadata is not None:
            frame["metadata"] = metadata
        ack = await asyncio.shield(self._post(frame, once=False))
        return Ack(id, bool(ack.get("duplicate")))

    async def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Calls an exposed method and returns its result (plain JSON).

        Raises ClientError: with the server's code, ``timeout`` after ``call_timeout`` seconds (waiting for a
        connection included), or ``connection_lost`` when nobody knows whether it was done.
        """
        id = uuid.uuid4().hex
        frame: dict[str, Any] = {"kind": "call", "id": id, "method": method, "args": list(args)}
        if kwargs:
            frame["kwargs"] = kwargs
        answer = self._post(frame, once=True)
        try:
            result = await asyncio.wait_for(answer, self.call_timeout)
        except TimeoutError:
            raise ClientError("timeout", f"{method} was not answered in {self.call_timeout:g} s") from None
        finally:
            self._posts.pop(id, None)
            self._flush()
        return result["value"]

    async def stop(self, turn: str | None = None, *, timeout: float = 10.0) -> bool:
        """Asks the running turn to stop (only ``turn``, if given); whether there was one.

        Never kept for later: raises ClientError (``offline``) without a connection.
        """
        if not self._attached.is_set():
            raise ClientError("offline", "there is no connection to stop over")
        id = uuid.uuid4().hex
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._stops[id] = answer
        self._send({"kind": "stop", "id": id, **({"turn": turn} if turn else {})})
        try:
            return bool((await asyncio.wait_for(answer, timeout)).get("stopped"))
        except TimeoutError:
            raise ClientError("timeout", "the stop was not answered") from None
        finally:
            self._stops.pop(id, None)

    async def close(self) -> None:
        """Ends the connection for good. What waits for an answer fails with the code ``closed``."""
        self._end(ClientError("closed", "the client was closed"))
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])

    def drop(self) -> None:
        """Cuts the link, as a bad network does; the client comes back by itself. For tests."""
        if self._socket is not None:
            self._socket.transport.abort()

    # The connection

    async def _run(self) -> None:
        try:
            await self._come_back()
        except Exception as error:  # a mistake of ours: nobody shall wait for ever for an answer
            self._end(ClientError("client_error", f"{type(error).__name__}: {error}"))
            raise

    async def _come_back(self) -> None:
        failures = 0
        while self._ended is None:
            began = time.monotonic()
            code, reason = await self._once()
            attached = self._attached.is_set()
            self._attached.clear()
            self._socket = None
            if attached and time.monotonic() - began >= STABLE:
                failures = 0
            self._interrupted(code)
            if self._ended is not None or self._is_final(code, reason):
                return
            first = code == UNAUTHORIZED and self._tokens_refused == 1
            pause = 0.0 if first else retry_pause(code, failures)
            failures += 1
            self._tell(Connection("waiting", code, reason, pause))
            await asyncio.sleep(pause)

    async def _once(self) -> tuple[int, str]:
        """One connection, from beginning to end: the close code and reason."""
        self._tell(Connection("connecting"))
        try:
            async with asyncio.timeout(ESTABLISH) as establishing:
                if self._token is None and self._ask_token is not None:
                    given = self._ask_token()
                    self._token = await given if inspect.isawaitable(given) else given
                async with connect(
                    self.url,
                    additional_headers=self._headers,
                    open_timeout=None,
                    ping_interval=PING_EVERY,
                    ping_timeout=PING_ANSWER,
                    close_timeout=2,
                    max_size=None,
                ) as socket:
                    self._socket = socket
                    self._outgoing = asyncio.Queue()
                    sending = asyncio.create_task(self._send_all(socket), name="agent-client-sender")
                    try:
                        self._attach()
                        async for data in socket:
                            self._receive(data)
                            if self._attached.is_set():
                                establishing.reschedule(None)
                    finally:
                        sending.cancel()
                        await asyncio.wait([sending])
            return socket.close_code or ABNORMAL, socket.close_reason or ""
        except ConnectionClosed as error:
            return (error.rcvd.code, error.rcvd.reason) if error.rcvd else (ABNORMAL, str(error))
        except TimeoutError:
            return ABNORMAL, "no answer"
        except (OSError, InvalidHandshake) as error:
            return ABNORMAL, str(error)
        except InvalidURI as error:
            self._end(ClientError("bad_url", str(error)))
            return ABNORMAL, str(error)
        except Exception as error:  # the token's function: whatever it calls may be away for a while
            if self._socket is not None:
                raise
            return ABNORMAL, f"no token: {error}"

    async def _send_all(self, socket: ClientConnection) -> None:
        with contextlib.suppress(ConnectionClosed):
            while True:
                await socket.send(await self._outgoing.get())

    def _attach(self) -> None:
        known = {"token": self._token, "cursor": self.cursor, "streams": self._streams}
        self._send({"kind": "attach", **{key: value for key, value in known.items() if value is not None}})

    def _is_final(self, code: int, reason: str) -> bool:
        if code in FINAL:
            self._end(ClientError(FINAL[code], reason or f"the server refused ({code})"), code)
            return True
        if code == UNAUTHORIZED:
            self._tokens_refused += 1
            if self._ask_token is None or self._tokens_refused >= TOKENS_REFUSED:
                self._end(ClientError("unauthorized", reason or "no valid token"), code)
                return True
            self._token = None
        return False

    def _interrupted(self, code: int) -> None:
        """What was under way: sent again later, or nobody knows what became of it."""
        lost = ClientError("connection_lost", "the connection ended before the answer came")
        for stop in self._stops.values():
            _fail(stop, lost)
        sent = [post for post in self._posts.values() if post.sent]
        if code == TOO_BIG and sent:
            largest = max(sent, key=lambda post: post.size)
            del self._posts[largest.id]
            _fail(largest.answer, ClientError("too_large", "the server takes no frame so big"))
        for post in sent:
            post.sent = False
            if post.once:
                self._posts.pop(post.id, None)
                _fail(post.answer, lost)
        self._set_status("")

    def _end(self, error: ClientError, code: int | None = None) -> None:
        if self._ended is not None and self._ended.code == "closed":
            return
        self._ended = error
        self._attached.clear()
        for answer in [*(post.answer for post in self._posts.values()), *self._stops.values()]:
            _fail(answer, error)
        self._posts.clear()
        self._no_timer()
        self._set_status("")
        self._tell(Connection("closed", code, error.code))

    def _tell(self, connection: Connection) -> None:
        self.connection = connection
        self._emit("connection", connection)

    # What comes in

    def _receive(self, data: str | bytes) -> None:
        try:
            frame = json.loads(data)
        except ValueError:
            return  # not of this protocol: a class that speaks raw frames
        if not isinstance(frame, dict):
            return
        try:
            self._take(frame, len(data))
        except (LookupError, TypeError, ValueError) as error:
            self._emit("error", ClientError("bad_frame", f"{type(error).__name__}: {error}"))

    def _take(self, frame: dict[str, Any], size: int) -> None:
        match frame.get("kind"):
            case "attached":
                self._on_attached(frame)
            case "message":
                self._numbered(frame, size, lambda: self._on_message(frame["message"]))
            case "state":
                self._numbered(frame, size, lambda: self._on_state(frame))
            case "event":
                value = {key: frame.get(key) for key in ("type", "payload", "cursor")}
                self._numbered(frame, size, lambda: self._emit("event", value))
            case "broadcast":
                text, raw = frame.get("data"), frame.get("base64")
                given = text if raw is None else base64.b64decode(raw)
                if frame.get("cursor") is None:
                    self._emit("broadcast", given)
                else:
                    self._numbered(frame, size, lambda: self._emit("broadcast", given))
            case "delta":
                self._on_delta(frame)
            case "status":
                self._set_status(frame.get("status") or "")
            case "ack" | "result":
                self._answered(frame)
            case "error":
                self._on_error(frame)

    def _on_attached(self, frame: dict[str, Any]) -> None:
        cursor, snapshot = frame["cursor"], frame.get("snapshot")
        self._tokens_refused = 0
        messages = (snapshot or {}).get("messages") or []
        fewer = bool(messages) and messages[-1]["seq"] < self.seq
        if (self.cursor is not None and cursor < self.cursor) or fewer:
            # Shorter than what we have: the actor was erased, or its database restored.
            self._forget_texts()
            self.seq, self.state, self.cursor = 0, None, None
            self._emit("reset", {})
            if not snapshot:
                self._attach()
                return
        self._forget_texts()
        self.cursor = self._seen.cursor = cursor
        self._seen.events = self._seen.characters = 0
        if snapshot:
            self._on_snapshot(snapshot)
        self._attached.set()
        self._tell(Connection("open"))
        self._flush()

    def _on_snapshot(self, snapshot: dict[str, Any]) -> None:
        messages = snapshot.get("messages") or []
        if messages and self.seq and messages[0]["seq"] > self.seq + 1:
            self._emit("gap", {"after": self.seq, "before": messages[0]["seq"]})
        for message in messages:
            self._on_message(message)
        if "state" in snapshot:
            self.state = snapshot["state"]
            self._emit("state", self.state)

    def _numbered(self, frame: dict[str, Any], size: int, then: Callable[[], object]) -> None:
        """Events in the order of their numbers, each once."""
        if self.cursor is not None and frame["cursor"] <= self.cursor:
            return
        self.cursor = frame["cursor"]
        then()
        self._count(size)

    def _on_message(self, message: dict[str, Any]) -> None:
        if message["seq"] <= self.seq:
            return
        self.seq = message["seq"]
        stream = (message.get("metadata") or {}).get("stream")
        if stream:
            self._texts[stream] = _Stream(0, True, ended=True)
        self._emit("message", message)

    def _on_state(self, frame: dict[str, Any]) -> None:
        self.state = frame["snapshot"] if "snapshot" in frame else merge_patch(self.state, frame["patch"])
        self._emit("state", self.state)

    def _on_delta(self, frame: dict[str, Any]) -> None:
        id, index, added = frame["stream"], frame["index"], frame.get("text") or ""
        reset, done = bool(frame.get("reset")), bool(frame.get("done"))
        known = self._texts.get(id)
        if known is not None and known.ended:
            return  # it is a message already
        if reset and done and not added:
            self._discard(id)  # it ended without a message
            return
        if known is None or reset:
            # Who comes in the middle gets the text so far as a reset; without one, the beginning is missing.
            known = self._texts[id] = _Stream(index - 1, reset or index == 0)
            while len(self._texts) > STREAMS_KEPT:
                del self._texts[next(iter(self._texts))]
        if index <= known.index:
            return
        known.whole &= index == known.index + 1
        known.index = index
        known.text += added
        self._emit("delta", Delta(id, index, known.text, added, reset, done, known.whole))

    def _forget_texts(self) -> None:
        """The server gives those in progress whole after "attached"; the others ended while we were away."""
        for id in [id for id, stream in self._texts.items() if not stream.ended]:
            self._discard(id)

    def _discard(self, id: str) -> None:
        if self._texts.pop(id, None) is not None:
            self._emit("delta", Delta(id, 0, "", "", reset=True, done=True, whole=True))

    def _set_status(self, status: str) -> None:
        if status or self.status:
            self.status = status
            self._emit("status", status)

    def _answered(self, frame: dict[str, Any]) -> None:
        post = self._posts.pop(str(frame.get("id")), None)
        answer = post.answer if post is not None else self._stops.get(str(frame.get("id")))
        if answer is not None and not answer.done():
            answer.set_result(frame)
        self._flush()

    def _on_error(self, frame: dict[str, Any]) -> None:
        id = str(frame.get("id"))
        error = ClientError(frame.get("code") or "error", frame.get("message"), turn_id=frame.get("turn"))
        post = self._posts.pop(id, None)
        answer = post.answer if post is not None else self._stops.get(id)
        if answer is None:
            self._emit("error", error)
        else:
            _fail(answer, error)
            self._flush()

    # What goes out

    def _send(self, frame: dict[str, Any]) -> None:
        self._outgoing.put_nowait(json.dumps({"v": PROTOCOL, **frame}, ensure_ascii=False))

    def _post(self, frame: dict[str, Any], *, once: bool) -> asyncio.Future[dict[str, Any]]:
        if self._ended is not None:
            raise self._ended
        id = frame["id"]
        if id in self._posts:
            return self._posts[id].answer
        text = json.dumps({"v": PROTOCOL, **frame}, ensure_ascii=False)
        size = len(text.encode())
        if size > MAX_FRAME_BYTES:
            raise ClientError("too_large", f"a frame may have {MAX_FRAME_BYTES} bytes, this one has {size}")
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._posts[id] = _Post(id, text, size, once, answer)
        self._flush()
        return answer

    def _flush(self) -> None:
        """Sends what waits, in order, as much as the server lets wait on its side."""
        if not self._attached.is_set():
            return
        size = 0
        for frames, post in enumerate(self._posts.values(), 1):
            size += post.size
            if frames > IN_FLIGHT or (frames > 1 and size > IN_FLIGHT_BYTES):
                return
            if not post.sent:
                post.sent = True
                self._outgoing.put_nowait(post.text)

    def _count(self, size: int) -> None:
        """Tells the server how far we are, not more often than it needs to know."""
        seen = self._seen
        seen.events += 1
        seen.characters += size
        urgent = seen.events >= SEEN_EVENTS or seen.characters >= SEEN_CHARACTERS
        due = seen.at + SEEN_EVERY - time.monotonic()
        if urgent or due <= 0:
            self._send_seen()
        elif seen.timer is None:
            seen.timer = asyncio.get_running_loop().call_later(due, self._send_seen)

    def _send_seen(self) -> None:
        seen = self._seen
        self._no_timer()
        if self._attached.is_set() and self.cursor is not None and self.cursor != seen.cursor:
            seen.at, seen.cursor = time.monotonic(), self.cursor
            seen.events = seen.characters = 0
            self._send({"kind": "seen", "cursor": self.cursor})

    def _no_timer(self) -> None:
        if self._seen.timer is not None:
            self._seen.timer.cancel()
            self._seen.timer = None

    def _emit(self, kind: str, value: Any) -> None:
        for listener in list(self._listeners[kind]):
            try:
                listener(value)
            except Exception as error:
                # A listener's mistake is its own: the others, and the cursor, go on.
                asyncio.get_running_loop().call_exception_handler(
                    {"message": f"a listener for {kind} failed", "exception": error}
                )


def retry_pause(code: int, failures: int) -> float:
    """Seconds before the next connection, by the close code of the last and how many failed in a row."""
    first, longest = PAUSES.get(code, PAUSE)
    pause: float = min(first * 2 ** min(failures, 30), longest)
    return pause * random.uniform(0.5, 1.0)


def socket_url(site: str, kind: str, name: str) -> str:
    """The address of an actor's socket. Raises InvalidKindError, InvalidNameError, and ValueError."""
    parts = urlsplit(site)
    scheme = {"http": "ws", "https": "wss"}.get(parts.scheme, parts.scheme)
    if scheme not in ("ws", "wss") or not parts.netloc:
        raise ValueError(f"the address of a site is needed, such as https://example.org, got {site!r}")
    path = f"{parts.path.rstrip('/')}/ws/agents/{check_kind(kind)}/{escape_name(name)}/"
    return urlunsplit((scheme, parts.netloc, path, "", ""))


def _fail(answer: asyncio.Future[Any], error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)
        answer.exception()  # nobody may be waiting any more
