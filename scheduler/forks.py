"""Forks: a conversation, as it was before one of its turns, runs on from there in a copy that texts nobody.

The copy is a new actor of the same kind, marked as a sandbox: its texts are written and never sent, what it
tells other actors is dropped, calls of other actors' turns raise SandboxError, and functions of ``at_commit``
are left out. What came in from that turn on comes to it again, in order and at its old distances, up to
LONGEST_PAUSE: the turn's own task first, then what the inbox had.

State and messages are those of that moment. The SQL database, keys and files have no past: they are as they
are now, and the fork says so where they have changed since.
"""

from __future__ import annotations

import datetime as dt
import uuid
from dataclasses import dataclass, field
from typing import Any

from django.core.files.storage import default_storage
from django.db import connection, transaction
from django.db.models import AutoField, Max, QuerySet

from agents import past
from agents.blobs import FOLDER
from agents.exceptions import ForkError
from agents.models import Actor, Blob, Page, StoredValue, TurnRecord
from agents.operations import note
from agents.store import announce, get_store
from conversations import standing
from conversations.models import Correspondent, Message
from scheduler.models import Attempt, AttemptOutcome, Lane, Task

#: Seconds at most between two inputs of a fork.
LONGEST_PAUSE = 5.0
#: Inputs of one fork.
MOST = 1000
BATCH = 1000
#: Pages of the database that are copied at a time, 4 KiB each.
PAGES = 250


@dataclass(frozen=True)
class Fork:
    """The copy, how many inputs wait for it, and what is not as it was."""

    actor: Actor
    inputs: int
    as_of_now: list[str] = field(default_factory=list)  # sql, keys, files
    left_out: int = 0  # turns that no task began: calls, frames


def fork(kind: str, name: str, version: int, *, by: str, reason: str = "") -> Fork:
    """Copies an actor as it was before the commit that made ``version``, and runs it on from that turn.

    Raises ForkError where there is no such turn or nothing that could be run again, PastUnknownError where
    the records since then are not kept.
    """
    paths: list[str] = []
    try:
        with transaction.atomic():
            if connection.vendor == "postgresql":
                with connection.cursor() as cursor:
                    # One moment of the database's, without a lock: the actor goes on while it is copied.
                    cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            made = _fork(kind, name, version, by, reason, paths)
            announce(get_store().realarm(made.actor.pk))
    except BaseException:
        for path in paths:
            default_storage.delete(path)
        raise
    return made


def _fork(kind: str, name: str, version: int, by: str, reason: str, paths: list[str]) -> Fork:
    actor = Actor.objects.filter(kind=kind, name=name).first()
    if actor is None:
        raise ForkError(f"there is no {kind}/{name}")
    turn = TurnRecord.objects.filter(actor=actor, version=version).first()
    if turn is None:
        raise ForkError(f"there is no record of version {version}")
    # A turn that checkpointed has several: from its first one on.
    first = TurnRecord.objects.filter(actor=actor, turn_id=turn.turn_id).order_by("version").first() or turn
    inputs = _inputs(actor, first)
    if not inputs:
        raise ForkError(
            "no task began that turn, and nothing came into the inbox since: nothing can be run again"
        )
    since = TurnRecord.objects.filter(actor=actor, version__gte=first.version)
    seqs = [seq for seq in since.values_list("first_seq", flat=True) if seq is not None]
    seq = min(seqs) - 1 if seqs else actor.seq
    copy = Actor.objects.create(
        kind=kind,
        name=f"fork-{uuid.uuid4().hex[:12]}",
        sandbox=True,
        # As if one commit had made all of it: an actor at version 0 has written nothing, and is not looked
        # into for pages of a database.
        version=1,
        started=first.version > 1,
        state=past.state_at(actor, first.version - 1),
        seq=seq,
    )
    _copy_messages(actor, copy, seq)
    for row in Correspondent.objects.filter(actor=actor):
        row.pk, row.actor = None, copy
        row.save(force_insert=True)
    as_of_now = _copy_present(actor, copy, first, paths)
    _give(copy, inputs)
    standing.refresh([copy.pk])
    calls = since.exclude(origin__in=["task", "takeover"]).values("turn_id").distinct().count()
    note("fork", by=by, reason=reason, actor=actor, detail={"version": first.version, "fork": copy.name})
    return Fork(copy, len(inputs), as_of_now, calls)


def _inputs(actor: Actor, turn: TurnRecord) -> list[Attempt]:
    """The attempt of the turn itself, then what came into the inbox and was dealt with."""
    own = Attempt.objects.filter(actor=actor, turn_id=turn.turn_id).first()
    came = Attempt.objects.filter(
        actor=actor, lane=Lane.INBOX, outcome=AttemptOutcome.DONE, started_at__gte=turn.started_at
    )
    if own is not None:
        came = came.exclude(pk=own.pk)
    found = list(came.order_by("pk")[:MOST])
    return ([own] if own is not None and own.lane != Lane.HOOK else []) + found


def _copy_messages(actor: Actor, copy: Actor, seq: int) -> None:
    _copy_rows(Message.objects.filter(actor=actor, seq__lte=seq).order_by("seq"), copy, BATCH)


def _copy_rows(rows: QuerySet[Any], copy: Actor, size: int, **changed: Any) -> None:
    """Gives the copy rows like these, so many at a time."""
    batch: list[Any] = []
    counted = isinstance(rows.model._meta.pk, AutoField)
    for row in rows.iterator(chunk_size=size):
        row.actor = copy
        if counted:
            row.pk = None
        for column, value in changed.items():
            setattr(row, column, value)
        batch.append(row)
        if len(batch) >= size:
            rows.model._default_manager.bulk_create(batch)
            batch = []
    rows.model._default_manager.bulk_create(batch)


def _copy_present(actor: Actor, copy: Actor, turn: TurnRecord, paths: list[str]) -> list[str]:
    """What has no past, as it is now; the names of what has changed since."""
    changed = []
    newest = Page.objects.filter(actor=actor).aggregate(version=Max("version"))["version"] or 0
    if newest >= turn.version:
        changed.append("sql")
    _copy_rows(Page.objects.filter(actor=actor).order_by("number"), copy, PAGES, version=copy.version)
    wrote = TurnRecord.objects.filter(actor=actor, version__gte=turn.version).values_list("wrote", flat=True)
    names = {name for what in wrote if what for name in what}
    changed += [word for name, word in (("keys", "keys"), ("files", "files")) if name in names]
    _copy_rows(StoredValue.objects.filter(actor=actor).order_by("key"), copy, BATCH)
    for blob in Blob.objects.filter(actor=actor):
        try:
            source = default_storage.open(blob.path, "rb")
        except FileNotFoundError as error:
            raise ForkError("a file of the actor was replaced meanwhile: fork it again") from error
        with source as file:
            path = default_storage.save(f"{FOLDER}/{copy.pk}/{uuid.uuid4().hex}", file)
        paths.append(path)
        blob.pk, blob.actor, blob.path = None, copy, path
        blob.save(force_insert=True)
    return changed


def _give(copy: Actor, inputs: list[Attempt]) -> None:
    due_at = get_store().sql.now()
    before: dt.datetime | None = None
    rows: list[Task] = []
    for attempt in inputs:
        if before is not None:
            pause = (attempt.started_at - before).total_seconds()
            due_at += dt.timedelta(seconds=min(max(pause, 0.0), LONGEST_PAUSE))
        before = attempt.started_at
        values: dict[str, Any] = {"method": attempt.method, "payload": attempt.payload, "lane": attempt.lane}
        rows.append(Task(actor=copy, task_id=uuid.uuid4().hex, due_at=due_at, **values))
    Task.objects.bulk_create(rows)
