"""Streams: text that readers see while it is being written, and that becomes a message when it ends.

    async with self.messages.stream("assistant") as out:
        async for token in model:
            await out.write(token)

A stream in progress is a row of its own with the pieces of its text. What is written is gathered for
STREAM_INTERVAL, saved under the turn's fence, and only then shown: whoever comes later reads the same. When
the block ends, the text is a message of the turn's buffer, with a seq, and its rows go in the turn's commit.

What becomes of a stream whose turn fails depends on its task. One that will be tried again leaves it as it
is; the retry takes it over and begins anew. One that is stopped or parked leaves an assistant message with
what readers saw, marked ``interrupted``. A call leaves nothing. Where a process died, this is made up for by
the next turn that takes its lease over (``mend``), or, if nobody wants the actor, by a sweep.
"""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import logging
import time
import uuid
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from django.db.models import F, Q
from django.db.models.functions import Now

from agents import codec, conf
from agents.exceptions import AgentsError, LimitError, MessageError
from agents.sockets.publisher import publisher
from agents.sockets.signals import Delta
from agents.turn import Identity, Turn
from agents.writes import Table, Writes
from conversations.messages import ROLES
from conversations.models import Stream, StreamChunk

if TYPE_CHECKING:
    from agents.engine import Engine
    from conversations.log import MessageLog

logger = logging.getLogger("conversations.streams")

_KEY = ("actor_id", "uid")
STREAM = Table(
    "conversations.Stream",
    (*_KEY, "turn_id", "task_pk", "number", "take", "chunks", "role", "written_at"),
    conflict=_KEY,
)
CHUNK = Table("conversations.StreamChunk", (*_KEY, "position", "text"), conflict=(*_KEY, "position"))
STREAM_KEY = Table("conversations.Stream", _KEY)
CHUNKS_KEY = Table("conversations.StreamChunk", _KEY)

#: Characters of one piece; more goes in several.
PIECE = 16 * 1024
#: Characters that wait to be saved before ``write`` waits, too.
UNSAVED = 64 * 1024
#: A stream that nobody has written for this long, and whose turn is over, is looked after by the sweep.
ABANDONED = 30.0  # seconds
#: Streams that one sweep looks after.
SWEEP = 100


class MessageStream:
    """One stream, as its agent writes it. What ends as the message besides the text may be set on the way.

    ``name``, ``tool_calls``, ``parts``, ``metadata`` are as in ``append``. ``text`` is what was written;
    ``seq`` is the message's, once the block has ended (None where nothing was written).
    """

    def __init__(self, log: MessageLog, role: str) -> None:
        if role not in ROLES or role == "tool":
            raise MessageError(f"a stream has the role assistant, user or system, got {role!r:.100}")
        self.role = role
        self.name: str | None = None
        self.tool_calls: list[Any] | None = None
        self.parts: list[Any] | None = None
        self.metadata: dict[str, Any] = {}
        self.seq: int | None = None
        self.uid = ""
        self._log = log
        self._turn = log.turn
        self._open = False
        self._number = 0
        self._take = 1
        self._saved = 0  # pieces
        self._pieces: list[str] = []
        self._bytes = 0
        self._unsaved = ""
        self._half = ""  # the first half of a surrogate pair, whose other half is still to come
        self._saving: asyncio.Task[None] | None = None
        self._saved_at = float("-inf")
        self._error: Exception | None = None
        self._hurry = asyncio.Event()

    @property
    def text(self) -> str:
        """What was written so far."""
        return "".join(self._pieces)

    @property
    def shown(self) -> bool:
        """Whether anything of it is in the database, for readers to see."""
        return self._saved > 0

    async def __aenter__(self) -> MessageStream:
        self._turn.writing(0)
        self._number = self._log.next_stream()
        self.uid, self._take = uuid.uuid4().hex, 1
        if (task := self._turn.task) is not None:
            begun = await self._turn.read(_begun, self._turn.actor.id, task.pk, self._number)
            if begun is not None:
                self.uid, self._take = begun[0], begun[1] + 1
        self._open = True
        return self

    async def write(self, text: str) -> None:
        """Adds to the text. Raises MessageError for what is no text, LimitError past MAX_MESSAGE_BYTES.

        Returns at once, unless more waits to be saved than should.
        """
        if not self._open:
            raise MessageError("a stream is written inside its async with block")
        if not isinstance(text, str):
            raise MessageError(f"a stream takes text, got {type(text).__name__}")
        self._turn.writing(0)
        if self._error is not None:
            raise self._error
        self._add(text)
        if self._turn.session is not None and self._unsaved:
            if self._saving is None or self._saving.done():
                self._saving = asyncio.get_running_loop().create_task(self._save(), name="agents-stream")
            if len(self._unsaved) > UNSAVED:
                await self._saved_all()

    async def __aexit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self._open = False
        if self._half:
            self._half, half = "", self._half
            self._add(codec.clean_text(half))
        if kind is not None:
            if issubclass(kind, Exception) and not self._turn.ended:
                await self._broken()
            return
        await self._saved_all()
        text = self.text
        if not text and not self.tool_calls and not self.parts:
            return
        metadata = {**self.metadata, "stream": self.uid} if self.shown else self.metadata
        message: dict[str, Any] = {"role": self.role, "content": text, "metadata": metadata}
        message |= {"name": self.name, "tool_calls": self.tool_calls, "parts": self.parts}
        self.seq = self._log.end_stream(self, message)
        if self.shown:
            self._signal(Delta(self.uid, self._take, self._saved, "", done=True))

    async def _broken(self) -> None:
        """The block raised. Perhaps the agent goes on without it; else the turn fails, and its task decides.

        Then what was written may be all that is left of it: it is saved to the end.
        """
        with suppress(Exception):
            await self._saved_all()
        if self.shown:
            self._turn.writing()
            self._log.drop_stream(self.uid)

    def _add(self, text: str) -> None:
        text = self._half + text
        self._half = ""
        if text and "\ud800" <= text[-1] <= "\udbff":
            text, self._half = text[:-1], text[-1]
        text = codec.clean_text(text)
        size, maximum = self._bytes + len(text.encode()), conf.get("MAX_MESSAGE_BYTES")
        if size > maximum:
            raise LimitError(
                f"a message may have {maximum} bytes, this one would have {size}",
                limit="MAX_MESSAGE_BYTES",
                maximum=maximum,
                actual=size,
            )
        self._bytes = size
        if text:
            self._pieces.append(text)
            self._unsaved += text

    # Saving and showing

    async def _saved_all(self) -> None:
        """Saves what waits without gathering more. Raises what the saving raised."""
        if self._turn.session is None:
            return
        if self._saving is None or (self._saving.done() and self._unsaved):
            if not self._unsaved:
                return
            self._saving = asyncio.get_running_loop().create_task(self._save(), name="agents-stream")
        self._hurry.set()
        try:
            await asyncio.shield(self._saving)
        finally:
            self._hurry.clear()
        if self._error is not None:
            raise self._error

    async def _save(self) -> None:
        """Saves and shows until nothing waits; the first piece at once, what follows as it gathers."""
        try:
            while self._unsaved:
                await self._gather()
                piece, self._unsaved = self._unsaved[:PIECE], self._unsaved[PIECE:]
                await self._save_piece(piece)
        except Exception as error:
            self._error = error  # the next write raises it

    async def _gather(self) -> None:
        left = self._saved_at + conf.get("STREAM_INTERVAL") - time.monotonic()
        if left > 0 and len(self._unsaved) < PIECE:
            try:
                async with asyncio.timeout(left):
                    await self._hurry.wait()
            except TimeoutError:
                pass
        self._saved_at = time.monotonic()

    async def _save_piece(self, text: str) -> None:
        turn, position = self._turn, self._saved
        assert turn.session is not None
        key = {"actor_id": turn.actor.id, "uid": self.uid}
        anew = position == 0 and self._take > 1
        writes = Writes()
        if anew:
            writes.delete(CHUNKS_KEY, key)
        writes.upsert(
            STREAM,
            {
                **key,
                "turn_id": turn.id,
                "task_pk": turn.task.pk if turn.task else None,
                "number": self._number,
                "take": self._take,
                "chunks": position + 1,
                "role": self.role,
                "written_at": turn.database_now(),
            },
        )
        writes.upsert(CHUNK, {**key, "position": position, "text": text})
        self._log.begin_stream(self.uid)
        await turn.session.save(writes)
        self._saved = position + 1
        self._signal(Delta(self.uid, self._take, position, text, reset=anew))

    def _signal(self, delta: Delta) -> None:
        publisher.signal(self._turn.actor, delta)


def forget(writes: Writes, actor_id: int, uids: Iterable[str]) -> None:
    """The rows of these streams go with a commit."""
    for uid in uids:
        writes.delete(STREAM_KEY, {"actor_id": actor_id, "uid": uid})
        writes.delete(CHUNKS_KEY, {"actor_id": actor_id, "uid": uid})


def discarded(turn: Turn, uid: str) -> None:
    """Readers throw away what they have of a stream."""
    publisher.signal(turn.actor, Delta(uid, _LAST_TAKE, 0, "", reset=True, done=True))


_LAST_TAKE = 2**31  # later than any

# What a turn leaves that failed


async def undo(turn: Turn, uids: Iterable[str]) -> None:
    """A call failed: what its readers saw of these streams goes, as everything does."""
    writes = Writes()
    forget(writes, turn.actor.id, uids)
    try:
        assert turn.session is not None
        await turn.session.save(writes, last=True)
    except AgentsError as error:
        logger.info("streams of turn %s are left to whoever takes over: %s", turn.id, error)
    for uid in uids:
        discarded(turn, uid)


async def kept(engine: Engine, turn: Turn) -> Turn | None:
    """What a task that ended without success, and for good, leaves of its streams: a buffer to commit.

    None where there is nothing. ``turn`` is the one that has just failed; its buffer is void.
    """
    task = turn.task
    assert task is not None
    streams = await engine.run(in_progress, turn.actor.id, None, task.pk)
    if not streams:
        return None
    row = dataclasses.replace(turn.actor, seq=turn.committed_seq, cursor=turn.committed_cursor)
    identity = Identity(turn.origin, turn.method, turn.id, turn.framework)
    after = Turn(row, identity, engine, task=task)
    from conversations.log import MessageLog

    log = MessageLog(after)
    for stream, text in streams:
        log.keep_stream(stream.role, stream.uid, text)
    return after


async def mend(log: MessageLog) -> None:
    """Ends what dead processes left of this actor's streams. Part of the turn's next commit."""
    turn = log.turn
    for stream, text, keeps in await turn.read(_orphans, turn.actor.id, turn.id):
        turn.writing()
        if keeps:
            log.keep_stream(stream.role, stream.uid, text)
        else:
            log.drop_stream(stream.uid)


def unattended() -> list[tuple[str, str]]:
    """Addresses of actors with streams that nobody writes any more, for the sweep."""
    old = Stream.objects.filter(written_at__lt=Now() - dt.timedelta(seconds=ABANDONED))
    held = Q(actor__turn_id=F("turn_id"), actor__lease_expires_at__gt=Now())
    rows = old.exclude(held).order_by("written_at").values_list("actor__kind", "actor__name")[:SWEEP]
    return list(dict.fromkeys(rows))


# Rows: synchronous


def in_progress(
    actor_id: int, uid: str | None = None, task_pk: int | None = None
) -> list[tuple[Stream, str]]:
    """An actor's streams in progress (that one; those of a task), each with its text so far."""
    streams = Stream.objects.filter(actor_id=actor_id)
    if uid is not None:
        streams = streams.filter(uid=uid)
    if task_pk is not None:
        streams = streams.filter(task_pk=task_pk)
    found = []
    for stream in streams.order_by("id"):
        # The pieces that the row knows of: a save may happen between the two queries.
        chunks = StreamChunk.objects.filter(
            actor_id=actor_id, uid=stream.uid, position__lt=stream.chunks
        ).order_by("position")
        found.append((stream, "".join(chunks.values_list("text", flat=True))))
    return found


def _begun(actor_id: int, task_pk: int, number: int) -> tuple[str, int] | None:
    """What an earlier attempt of this task left of the same stream: (uid, take)."""
    streams = Stream.objects.filter(actor_id=actor_id, task_pk=task_pk, number=number)
    return streams.order_by("-id").values_list("uid", "take").first()


def _orphans(actor_id: int, turn_id: uuid.UUID) -> list[tuple[Stream, str, bool]]:
    """Streams of turns that are over and whose tasks will not go on: (row, text, whether it is kept)."""
    from scheduler.models import Attempt, AttemptOutcome, Task

    orphans = []
    for stream, text in in_progress(actor_id):
        if stream.turn_id == turn_id:
            continue
        if stream.task_pk is None:
            orphans.append((stream, text, False))
            continue
        if Task.objects.pending().filter(pk=stream.task_pk).exists():
            continue
        attempts = Attempt.objects.filter(actor_id=actor_id, task_pk=stream.task_pk).order_by("-id")
        outcome = attempts.values_list("outcome", flat=True).first()
        orphans.append((stream, text, outcome not in (None, AttemptOutcome.DONE)))
    return orphans


async def sweep(engine: Engine) -> None:
    """Mends actors that nobody has wanted since a process died in the middle of a stream."""
    from agents import kinds

    for kind, name in await engine.run(unattended):
        if kind not in kinds.installed():
            continue
        cls = kinds.get(kind)

        async def body(turn: Turn, cls: Any = cls) -> None:
            await mend(cls(turn).messages)

        try:
            budget = conf.get("CALL_BUDGET")
            await engine.call((kind, name), "mend_streams", body, budget=budget, patience=0, framework=True)
        except AgentsError as error:
            logger.info("the streams of %s/%s are left for later: %s", kind, name, error)
