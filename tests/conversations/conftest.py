"""Turns for the log's tests, without the engine: a buffer, a reader, and a commit through the ORM."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

import pytest
from django.apps import apps
from django.db import connections, transaction

from agents.models import Actor
from agents.turn import ActorRow, Identity, Reader, Turn
from conversations.log import MessageLog

T = TypeVar("T")


async def in_thread(fn: Callable[..., T], *args: Any) -> T:
    """Runs ORM code off the event loop and closes its thread's connection."""

    def run() -> T:
        try:
            return fn(*args)
        finally:
            connections.close_all()

    return await asyncio.to_thread(run)


class ThreadReader(Reader):
    """A turn's reader, which also counts what it was asked."""

    def __init__(self) -> None:
        self.reads = 0

    async def run(self, fn: Callable[..., T], *args: Any) -> T:
        self.reads += 1
        return await in_thread(fn, *args)


class Conversation:
    """One actor's log over several turns."""

    def __init__(self, actor: Actor) -> None:
        self.actor = actor
        self.reader = ThreadReader()

    def turn(self, *, read_only: bool = False) -> MessageLog:
        """A new turn's log, as the last commit left it."""
        actor = self.actor
        row = ActorRow(
            id=actor.pk,
            kind=actor.kind,
            name=actor.name,
            version=actor.version,
            seq=actor.seq,
            cursor=actor.cursor,
            state=None,
            started=True,
            now=dt.datetime.now(dt.UTC),
        )
        return MessageLog(Turn(row, Identity("call", "m"), self.reader, read_only=read_only))

    async def commit(self, log: MessageLog) -> int:
        """Writes what the turn collected; returns the number of messages written."""
        turn = log.turn
        writes = turn.collect()
        messages = [row for table, row in writes.inserts if table.model == "conversations.Message"]

        def write() -> None:
            with transaction.atomic():
                for table, row in writes.inserts:
                    assert tuple(row) == table.columns or set(row) == set(table.columns)
                    apps.get_model(table.model).objects.create(**row)
                Actor.objects.filter(pk=self.actor.pk).update(seq=turn.seq, cursor=turn.cursor)

        await in_thread(write)
        turn.settle_buffer(turn.actor.version + 1, turn.seq, turn.cursor, None)
        self.actor.seq, self.actor.cursor = turn.seq, turn.cursor
        return len(messages)

    async def append(self, *messages: Any) -> None:
        """Messages appended and committed in a turn of their own."""
        log = self.turn()
        await log.append_many(
            [{"role": m[0], "content": m[1]} if isinstance(m, tuple) else m for m in messages]
        )
        await self.commit(log)


@pytest.fixture
async def conversation(transactional_db: None) -> AsyncIterator[Conversation]:
    yield Conversation(await in_thread(lambda: Actor.objects.create(kind="support", name="+15550001111")))
