"""One client's socket: from its handshake to its end.

Phases: *deciding* (who is it, may it come in?), *waiting* for a token where a session or a header was not
enough, *admitted*. What comes in before it is admitted is held. Afterwards frames go into lanes: what is
said, what is called, raw frames; and one for what is answered at once. Nothing here waits for a turn but
those lanes do.
"""

from __future__ import annotations

import asyncio
import logging
import math
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from django.core.exceptions import PermissionDenied

from agents import codec, conf
from agents.agent import Agent
from agents.engine import Engine
from agents.exceptions import (
    ActorPausedError,
    ActorStoppedError,
    AgentsError,
    FrameError,
    FrameTooLargeError,
    RuntimeShutdownError,
    TokenError,
    TooManyFramesError,
)
from agents.masking import masked
from agents.observing import metrics
from agents.runtime import get_runtime
from agents.saying import RECEIVE, key_of, saying
from agents.sockets import admission, frames
from agents.sockets.admission import ConnectionRequest
from agents.sockets.connections import Connection, Facts, greet
from agents.sockets.feed import Closed, Feed, Viewer
from agents.sockets.frames import Attach, Call, Frame, Ping, Say, Seen, Stop
from agents.sockets.hub import Hub
from agents.sockets.identity import Identity
from agents.sockets.lanes import Lane, Waiting
from agents.sockets.tokens import Grant, read_token
from agents.sockets.topic import Topic
from agents.turn import Turn
from agents.work import Work

logger = logging.getLogger("agents.sockets")

GOING_AWAY = 1001
TOO_BIG = 1009
FAILED = 1011
TRY_LATER = 1013
NOT_SIGNED_IN = 4401
NOT_ADMITTED = 4403
NOT_FOUND = 4404

Raw = str | bytes
Send = Callable[[str | bytes], Awaitable[None]]
Close = Callable[[int, str], Awaitable[None]]
Body = Callable[[Turn], Any]


class Refused(Exception):  # noqa: N818 - how a handshake ends
    """The client is not admitted; the socket closes with ``code``."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason


class Socket:
    """Lives on the hub's event loop. ``send`` and ``close`` are the server's."""

    def __init__(
        self,
        hub: Hub,
        cls: type[Agent[Any]],
        name: str,
        headers: dict[str, str],
        send: Send,
        close: Close,
        server: Work,
    ) -> None:
        self.address = (cls.kind, name)
        self.identity = Identity()
        #: What is known of the connection; None until it is admitted.
        self.facts: Facts | None = None
        self._hub = hub
        self._cls = cls
        self._stub = cls.named(name)
        self._headers = headers
        self._send = send
        self._close = close
        self._server = server
        self._raw = cls.on_message is not Agent.on_message
        self._ended = False
        self._began = asyncio.get_running_loop().time()
        self._topic: Topic | None = None
        self._feed: Feed | None = None
        self._hello = 0  # the head that hello named
        self._attached = False
        self._grant: Grant | None = None
        # Fresh tokens that are being looked at: what came behind them waits for what comes of it.
        self._renewals = 0
        self._renewed = asyncio.Event()
        self._renewed.set()
        self._tasks: set[asyncio.Task[Any]] = set()
        # Frames that came before the client was admitted: (what came, its bytes).
        self._held: list[tuple[Raw, int]] = []
        self._came = asyncio.Event()
        self._waiting = Waiting()
        # Set once on_connect has run: only then is anything begun that the client asked for.
        self._greeted = asyncio.Event()
        self._control: Lane[Callable[[], Awaitable[None]]] = self._lane("control", lambda work: work())
        self._saying: Lane[Say] = self._lane("say", self._say)
        self._calling: Lane[Call] = self._lane("call", self._call)
        self._framing: Lane[Raw] = self._lane("frame", self._frame)

    def _lane(self, name: str, work: Callable[[Any], Awaitable[None]]) -> Lane[Any]:
        async def careful(item: Any) -> None:
            try:
                if name != "control":
                    await self._greeted.wait()
                await work(item)
            except asyncio.CancelledError:
                raise
            except RuntimeShutdownError:
                await self.close(GOING_AWAY, "")
            except Exception:
                logger.exception("a frame of %s/%s could not be handled", *self.address)
                await self.close(FAILED, "")

        return Lane(f"socket-{name}", careful, self._waiting, self._server)

    def _start(self, work: Any, name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=f"agents-socket-{name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # The server's side

    def open(self, identify: Callable[[], Awaitable[Identity]]) -> None:
        """The handshake is accepted; ``identify`` says who came. Decides what becomes of them."""
        self._start(self._admit(identify), "admit")

    async def receive(self, frame: Raw) -> None:
        """A frame came. Never waits for a turn."""
        if self._ended:
            return
        size = len(frame.encode()) if isinstance(frame, str) else len(frame)
        try:
            if size > conf.get("MAX_FRAME_BYTES"):
                raise FrameTooLargeError
            if self.facts is None:
                self._waiting.add(size)
                self._held.append((frame, size))
                self._came.set()
            else:
                self._take(frame, size)
        except FrameTooLargeError:
            await self.close(TOO_BIG, "a frame is too large")
        except TooManyFramesError:
            await self.close(TRY_LATER, "too many frames wait")

    async def close(self, code: int, reason: str) -> None:
        """Closes the socket from here; what the client sends after that is not heard."""
        if not self._ended:
            self._ended = True
            metrics.sockets_closed.labels(self._cls.kind, str(code)).inc()
            self._held.clear()
            for lane in (self._saying, self._calling, self._framing):
                lane.drop()
            await self._close(code, reason)

    async def expel(self) -> None:
        """The session, the key or the token that let the client in is no longer good."""
        await self.close(NOT_SIGNED_IN, "sign in again")

    async def end(self) -> None:
        """The socket is closed, by whomever: forgets the client."""
        self._ended = True
        for lane in (self._control, self._saying, self._calling, self._framing):
            lane.end()
        for task in self._tasks:
            task.cancel()
        if self._topic is not None and self._feed is not None:
            self._topic.feeds.discard(self._feed)
        if self.facts is not None:
            facts, self.facts = self.facts, None
            await self._hub.leave(self, facts)

    # Admission

    async def _admit(self, identify: Callable[[], Awaitable[Identity]]) -> None:
        try:
            self.identity = await identify()
            signed_in = self.identity.user.is_authenticated
            # Of a program that is nobody the class is not asked: it must come with a token.
            known = signed_in or "origin" in self._headers
            if not (known and await self._authorize(None)):
                self._grant = await self._token(signed_in)
                self.identity.expires_at = self._grant.expires_at
                if not await self._authorize(self._grant):
                    raise Refused(NOT_ADMITTED, "not admitted")
            await self._welcome()
        except Refused as refused:
            origin = self._headers.get("origin")
            admission.refuse(origin, f"{self.address[0]}/{self.address[1]}: {refused.reason}")
            await self.close(refused.code, refused.reason)
        except RuntimeShutdownError:
            await self.close(GOING_AWAY, "")
        except Exception:
            logger.exception("a socket of %s/%s could not be opened", *self.address)
            await self.close(FAILED, "")

    async def _authorize(self, grant: Grant | None) -> bool:
        request = ConnectionRequest(
            user=self.identity.user,
            claims=None if grant is None else grant.claims,
            headers=admission.shown_headers(self._headers),
            kind=self.address[0],
            name=self.address[1],
            is_operator=self.identity.is_operator,
        )
        return await get_runtime().run(lambda engine: admission.authorize(engine, self._cls, request))

    async def _token(self, signed_in: bool) -> Grant:
        """What the client's first frame grants: it must be ``attach`` with a token, and come soon."""
        code = NOT_ADMITTED if signed_in else NOT_SIGNED_IN
        patience = conf.get("SOCKET_ATTACH_TIMEOUT")
        try:
            async with asyncio.timeout_at(self._began + patience):
                while not self._held:
                    await self._came.wait()
        except TimeoutError:
            raise Refused(code, f"no token within {patience:g} s") from None
        frame, _ = self._held[0]
        try:
            attach = frames.parse(frame) if isinstance(frame, str) else None
        except FrameError:
            attach = None
        if not isinstance(attach, Attach) or attach.token is None:
            raise Refused(code, "the first frame brought no token")
        try:
            return read_token(attach.token, *self.address)
        except TokenError as error:
            raise Refused(NOT_SIGNED_IN, str(error)) from None

    async def _welcome(self) -> None:
        identity = self.identity
        facts = Facts(
            id=uuid.uuid4().hex,
            kind=self.address[0],
            name=self.address[1],
            user_id=identity.user_id,
            claims=None if self._grant is None else self._grant.claims,
            headers=admission.shown_headers(self._headers),
        )
        self._topic, self._hello = await self._hub.join(self, facts)
        if self._ended:
            await self._hub.leave(self, facts)
            return
        self.facts = facts
        viewer = Viewer(facts.id, identity.is_operator, self._cls.share_state, self._raw)
        self._feed = Feed(self._topic, viewer, self._send, self._begin)
        self._topic.feeds.add(self._feed)
        await self._send(
            frames.build(
                "hello",
                actor={"kind": facts.kind, "name": facts.name},
                connection=facts.id,
                cursor=self._hello,
                protocol=frames.PROTOCOL,
            )
        )
        self._start(self._run_feed(self._feed), "feed")
        if self._cls.on_connect is not Agent.on_connect:
            self._start(self._greet(), "connect")
        else:
            self._greeted.set()
        self._release()
        if self._raw:
            self._attach(Attach(cursor=self._hello))
        elif not self._attached:
            asyncio.get_running_loop().call_later(conf.get("SOCKET_ATTACH_TIMEOUT"), self._attach_from_hello)

    def _release(self) -> None:
        """What came before the client was admitted. Its token has been read; in raw frames that was all."""
        held, self._held = self._held, []
        if self._raw and self._grant is not None:
            self._waiting.take(held.pop(0)[1])
        for frame, size in held:
            self._waiting.take(size)
            self._take(frame, size)

    async def _greet(self) -> None:
        assert self._feed is not None
        # What on_connect sends is an event: a snapshot that is taken behind it would leave it out.
        await self._feed.begun.wait()
        try:
            await self._turn("on_connect", self._greeting)
            self._greeted.set()
        except PermissionDenied as error:
            await self.close(NOT_ADMITTED, str(error) or "not admitted")
        except RuntimeShutdownError:
            await self.close(GOING_AWAY, "")
        except ActorStoppedError:
            await self.close(FAILED, "stopped")
        except ActorPausedError:
            self._greeted.set()  # admitted without it: they read, and what they say is kept
        except Exception:
            logger.exception("on_connect of %s/%s failed", *self.address)
            await self.close(FAILED, "")

    async def _greeting(self, agent: Agent[Any], connection: Connection) -> None:
        if self._cls.on_disconnect is not Agent.on_disconnect:
            # In this turn's commit: what on_connect did and what on_disconnect undoes go together.
            assert self.facts is not None
            agent.at_commit(greet, self.facts)
        await agent.on_connect(connection)

    # Frames

    def _take(self, frame: Raw, size: int) -> None:
        """Gives a frame to its lane. Raises TooManyFramesError."""
        if self._raw:
            self._framing.put(frame, size)
            return
        try:
            if isinstance(frame, bytes):
                raise FrameError("binary frames are for agents that take raw frames")
            self._take_frame(frames.parse(frame), size)
        except FrameError as error:
            self._attach_from_hello()
            self._answer(frames.error(error.code, str(error), id=error.id), size)

    def _take_frame(self, frame: Frame, size: int) -> None:
        if not isinstance(frame, Attach):
            self._attach_from_hello()
        match frame:
            case Attach():
                self._attach_or_renew(frame, size)
            case Say():
                self._saying.put(frame, size)
            case Call():
                self._calling.put(frame, size)
            case Stop():
                self._control.put(lambda: self._stop(frame), size)
            case Ping():
                self._answer(frames.build("pong", id=frame.id), size)
            case Seen():
                assert self._feed is not None
                self._feed.seen(frame.cursor)

    def _attach_or_renew(self, frame: Attach, size: int) -> None:
        if frame.token is not None and self._grant is not None:
            try:
                grant = read_token(frame.token, *self.address)
            except TokenError as error:
                self._answer(frames.error(error.code, str(error)), size)
                return
            if grant != self._grant:
                self._control.put(lambda: self._renew(frame, grant), size)
                self._renewals += 1
                self._renewed.clear()
                return
        self._attach(frame)

    async def _renew(self, frame: Attach, grant: Grant) -> None:
        """Admits the client anew, as whom the fresh token says; where it doesn't, the old token stands."""
        try:
            if not await self._authorize(grant):
                error = TokenError("the token admits nobody here")
                await self._send(frames.error(error.code, str(error)))
                return
            if self.facts is None:  # closed meanwhile
                return
            self._grant, self.identity.expires_at = grant, grant.expires_at
            if self.facts.claims != grant.claims:
                self.facts = replace(self.facts, claims=grant.claims)
                await self._hub.renew(self.facts)
        finally:
            self._renewals -= 1
            if not self._renewals:
                self._renewed.set()
        self._attach(frame)

    def _attach(self, frame: Attach) -> None:
        assert self._feed is not None
        self._attached = True
        self._feed.attach(frame)

    def _attach_from_hello(self) -> None:
        """A client that does not ask for anything older is shown what has come since ``hello``."""
        if not self._attached and not self._ended:
            self._attach(Attach(cursor=self._hello))

    def _answer(self, text: str, size: int) -> None:
        self._control.put(lambda: self._send(text), size)

    async def _is_welcome(self, *, behind_renewals: bool = False) -> bool:
        if not behind_renewals:
            await self._renewed.wait()
        if await self._hub.is_valid(self.identity):
            return True
        await self.expel()
        return False

    async def _say(self, frame: Say) -> None:
        if not await self._is_welcome():
            return
        facts = self.facts
        claims = facts.claims if facts else None
        payload = saying(frame.id, frame.text, self.identity.user, claims=claims, metadata=frame.metadata)
        try:
            accepted = await self._stub.tell(RECEIVE, payload, key=key_of(frame.id))
        except RuntimeShutdownError:
            raise
        except AgentsError as error:
            await self._send(frames.error(error.code, str(error), id=frame.id))
            return
        await self._send(frames.build("ack", id=frame.id, duplicate=not accepted or None))

    async def _call(self, frame: Call) -> None:
        if not await self._is_welcome():
            return
        try:
            call = self._stub._prepare(
                frame.method,
                frame.args,
                frame.kwargs,
                math.inf,
                "call",
                from_outside=True,
                wanted=self._wanted,
            )
        except AgentsError as error:
            await self._send(frames.error(error.code, str(error), id=frame.id))
            return
        except TypeError as error:
            await self._send(frames.error("bad_arguments", str(error), id=frame.id))
            return
        try:
            answer = frames.result(frame.id, codec.encode(await get_runtime().run(call)))
        except RuntimeShutdownError:
            raise
        except Exception as error:
            answer = self._error_of_call(frame, error)
        await self._send(answer)

    def _error_of_call(self, frame: Call, error: Exception) -> str:
        """What the client is told: our own errors as they are, the application's without their insides."""
        operator = self.identity.is_operator
        turn = getattr(error, "turn_id", None) if operator else None
        turn = None if turn is None else str(turn)
        if isinstance(error, AgentsError):
            return frames.error(error.code, str(error), id=frame.id, turn=turn)
        if isinstance(error, PermissionDenied):
            return frames.error("permission_denied", str(error) or "not allowed", id=frame.id, turn=turn)
        logger.warning("%s of %s/%s failed", frame.method, *self.address, exc_info=error)
        said = f"{type(error).__name__}: {error}" if operator else f"{frame.method} failed"
        return frames.error("method_error", said, id=frame.id, turn=turn)

    async def _stop(self, frame: Stop) -> None:
        if await self._is_welcome(behind_renewals=True):  # in the same lane
            stopped = await self._stub.stop(frame.turn)
            await self._send(frames.build("ack", id=frame.id, stopped=stopped))

    async def _frame(self, frame: Raw) -> None:
        if not await self._is_welcome():
            return
        try:
            await self._turn("on_message", lambda agent, connection: agent.on_message(connection, frame))
        except ActorStoppedError:
            pass  # somebody asked for it: the socket goes on

    # Turns

    def _wanted(self) -> bool:
        """Whether somebody still waits for a turn that has not begun."""
        return not self._ended

    async def _turn(self, method: str, hook: Callable[[Agent[Any], Connection], Awaitable[None]]) -> None:
        """A turn of the actor for this client. Waits for the actor as long as the socket lives."""
        cls, facts = self._cls, self.facts
        assert facts is not None

        async def body(turn: Turn) -> None:
            agent = cls(turn)
            await agent._begin()
            await hook(agent, Connection(turn, facts.id, facts.user_id, facts.claims, facts.headers))

        async def work(engine: Engine) -> None:
            await engine.call(
                self.address,
                method,
                body,
                origin="frame",
                budget=cls.call_budget or conf.get("CALL_BUDGET"),
                patience=math.inf,
                wanted=self._wanted,
            )

        await get_runtime().run(work)

    # The feed

    async def _begin(self, address: Any, wanted: Any) -> Any:
        start = await self._hub.start(address, wanted)
        if start.initial_state and start.snapshot is not None:
            try:
                start.snapshot["state"] = await self._initial_state()
            except Exception:
                # The class cannot say: the client is shown everything else.
                logger.exception("%s.initial_state failed", self._cls.__qualname__)
                del start.snapshot["state"]
        return start

    async def _initial_state(self) -> Any:
        """What the state of an actor is that has written none: the class says so, in a read."""

        async def body(turn: Turn) -> Any:
            return masked(self._cls.kind, codec.encode(self._cls(turn).initial_state()))

        budget = conf.get("CALL_BUDGET")
        return await get_runtime().run(
            lambda engine: engine.reads.read(self.address, "initial_state", body, budget=budget)
        )

    async def _run_feed(self, feed: Feed) -> None:
        try:
            await feed.run()
        except Closed as closed:
            await self.close(closed.code, closed.reason)
        except TooManyFramesError as error:
            await self.close(TRY_LATER, str(error))
