"""What the store's tests are played with: actors, turns as the engine would commit them, and the audit."""

from __future__ import annotations

import datetime as dt
import itertools
import threading
import uuid
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from django.db import connection, connections
from django.db.models import Count, Max

from agents.models import Actor, Event, TurnRecord
from agents.store.base import TASK, Store
from agents.store.requests import Claim, Claimed, Commit, Committed, Next, TaskEnd
from agents.turn import EVENT, StartedTask, Tell
from agents.writes import Table, Writes
from conversations.models import Message
from scheduler.models import Attempt, Task

T = TypeVar("T")

MESSAGE = Table(
    "conversations.Message",
    ("actor_id", "seq", "role", "content", "parts", "name", "tool_calls", "tool_call_id", "metadata", "at"),
)  # fmt: skip

KIND = "echo"


class Stage:
    """Makes actors and plays turns on them. ``store`` is the real one, on the real database."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.names: list[str] = []
        self._numbers = itertools.count(1)

    # Actors

    def name(self) -> str:
        return f"{next(self._numbers)}-{uuid.uuid4().hex[:8]}"

    def actor(self, name: str | None = None) -> int:
        name = name or self.name()
        return self.store.ensure([(KIND, name)])[KIND, name]

    def row(self, actor_id: int) -> Actor:
        return Actor.objects.get(pk=actor_id)

    def address(self, actor_id: int) -> tuple[str, str]:
        row = self.row(actor_id)
        return row.kind, row.name

    # Claims

    def claim(self, actor_id: int, **options: Any) -> Claimed:
        claimed = self.try_claim(actor_id, **options)
        assert claimed is not None, "the actor is busy"
        return claimed

    def try_claim(self, actor_id: int, **options: Any) -> Claimed | None:
        (claimed,) = self.store.claim([Claim(actor_id, uuid.uuid4(), **options)])
        if isinstance(claimed, BaseException):
            raise claimed
        return claimed

    def drain(self, actor_id: int, **options: Any) -> Claimed:
        return self.claim(actor_id, drain=True, **options)

    # Tells

    def tell(self, actor_id: int, method: str = "go", payload: Any = None, **options: Any) -> Tell:
        return self.tell_to(*self.address(actor_id), method, payload, **options)

    def tell_to(self, kind: str, name: str, method: str = "go", payload: Any = None, **options: Any) -> Tell:
        return Tell(kind, name, method, payload, **options)

    def told(self, actor_id: int, *payloads: Any, **options: Any) -> list[Task]:
        """Tells the actor one task a payload; the rows, in order."""
        tells = [self.tell(actor_id, payload=payload, **options) for payload in payloads]
        self.store.tell(tells)
        rows = {t.task_id: t for t in Task.objects.filter(task_id__in=[t.task_id for t in tells])}
        return [rows[t.task_id] for t in tells]

    # Commits

    def dirty(
        self,
        claimed: Claimed,
        *,
        after: Committed | None = None,
        turn_id: uuid.UUID | None = None,
        seq_before: int | None = None,
        messages: int = 0,
        events: int = 0,
        timers: Sequence[dict[str, Any]] = (),
        outcome: str = "done",
        **options: Any,
    ) -> Commit:
        """A commit with a record, and what it was asked to write. ``after``: a commit of the same lease."""
        actor = claimed.actor
        version = after.version if after else actor.version
        row = self.row(actor.id) if after and seq_before is None else actor
        seq = (row.seq if seq_before is None else seq_before) + messages
        cursor = row.cursor + events
        turn_id = turn_id or claimed.turn_id
        writes = options.pop("writes", None) or Writes()
        for at in range(seq - messages + 1, seq + 1):
            writes.insert(MESSAGE, self.message(actor.id, at, actor.now))
        for at in range(cursor - events + 1, cursor + 1):
            event = {"actor_id": actor.id, "cursor": at, "type": "note", "payload": {"at": at}}
            writes.insert(EVENT, event | {"created_at": actor.now})
        for timer in timers:
            writes.insert(TASK, self.timer(actor.id, actor.now, **timer))
        return Commit(
            actor.id,
            claimed.token,
            turn_id,
            version,
            dirty=True,
            starts=outcome == "done",
            seq=seq,
            cursor=cursor,
            writes=writes,
            record=self.record(actor.id, version + 1, turn_id, actor.now, outcome),
            **options,
        )

    def message(self, actor_id: int, seq: int, at: dt.datetime, content: str = "hello") -> dict[str, Any]:
        return {
            "actor_id": actor_id, "seq": seq, "role": "user", "content": content, "parts": None, "name": "",
            "tool_calls": None, "tool_call_id": "", "metadata": None, "at": at,
        }  # fmt: skip

    def timer(
        self, actor_id: int, due_at: dt.datetime, task_id: str | None = None, **options: Any
    ) -> dict[str, Any]:
        row = {
            "actor_id": actor_id, "task_id": task_id or uuid.uuid4().hex, "lane": "timer", "method": "tick",
            "payload": None, "status": "pending", "due_at": due_at, "every_seconds": None, "cron": "",
            "tz": "", "attempts": 0, "max_retries": 5, "created_at": due_at, "parked_at": None, "error": "",
            "carried": "",
        }  # fmt: skip
        return row | options

    def record(
        self, actor_id: int, version: int, turn_id: uuid.UUID, at: dt.datetime, outcome: str = "done"
    ) -> dict[str, Any]:
        return {
            "actor_id": actor_id, "version": version, "turn_id": turn_id, "origin": "call", "method": "m",
            "outcome": outcome, "started_at": at, "duration_seconds": 0.1, "first_seq": None,
            "last_seq": None, "state_change": None, "state_undo": None, "wrote": None,
        }  # fmt: skip

    def release(self, claimed: Claimed, **options: Any) -> Commit:
        return Commit(
            claimed.actor.id, claimed.token, claimed.turn_id, claimed.actor.version, dirty=False, **options
        )

    def done(self, task: StartedTask) -> TaskEnd:
        return TaskEnd(task.pk, task.attempt_pk, "done", "delete")

    def failed(self, task: StartedTask, after: float, now: dt.datetime) -> TaskEnd:
        return TaskEnd(
            task.pk, task.attempt_pk, "failed", "retry", due_at=now + dt.timedelta(seconds=after),
            error="boom", traceback="Traceback ...",
        )  # fmt: skip

    def next(self, claimed: Claimed, due: Sequence[int] | None = None) -> Next:
        assert claimed.due_before is not None
        return Next(uuid.uuid4(), list(claimed.due if due is None else due), claimed.due_before)

    def commit(self, commit: Commit) -> Committed:
        """The commit's result; its error is raised."""
        result = self.store.commit([commit])[0]
        if isinstance(result, BaseException):
            raise result
        return result

    def refused(self, commit: Commit) -> BaseException:
        result = self.store.commit([commit])[0]
        assert isinstance(result, BaseException), result
        return result

    def turn(self, actor_id: int, **options: Any) -> Committed:
        """A whole turn that wrote something."""
        return self.commit(self.dirty(self.claim(actor_id), **options))

    def run_all(self, actor_id: int) -> list[str]:
        """Drains the actor as the engine does, each task once; the ids of the tasks, in order."""
        ran: list[str] = []
        while (claimed := self.try_claim(actor_id, drain=True)) is not None:
            if claimed.task is None:
                self.commit(self.release(claimed))
                return ran
            ran += self.run_drain(claimed)
        return ran

    def run_drain(self, claimed: Claimed) -> list[str]:
        """Ends the claim's task and all that follow it under the same lease; their ids, in order."""
        ran, task, after, turn_id, due = [], claimed.task, None, claimed.turn_id, claimed.due
        while task is not None:
            ran.append(task.task_id)
            following = self.next(claimed, due)
            after = self.commit(
                self.dirty(claimed, after=after, turn_id=turn_id, task=self.done(task), next=following)
            )
            task, turn_id = after.next, following.turn_id
            if task is not None:
                due = due[due.index(task.pk) + 1 :]
        return ran

    # Time and locks

    def expire(self, actor_id: int) -> None:
        """Ends a lease as time would, for every process."""
        Actor.objects.filter(pk=actor_id).update(
            lease_expires_at=dt.datetime.now(dt.UTC) - dt.timedelta(seconds=1)
        )

    # The audit

    def audit(self, *, quiet: bool = False) -> None:
        """What must be true of every actor at any moment between two transactions.

        ``quiet``: and nobody holds a turn.
        """
        for actor in Actor.objects.all():
            self._audit_numbers(actor)
            self._audit_lease(actor, quiet)
            self._audit_tasks(actor)

    def _audit_numbers(self, actor: Actor) -> None:
        versions = list(TurnRecord.objects.filter(actor=actor).order_by("version").values_list("version"))
        assert versions == [(n,) for n in range(1, actor.version + 1)], f"{actor}: versions {versions}"
        seqs = Message.objects.filter(actor=actor).aggregate(n=Count("id"), top=Max("seq"))
        assert (seqs["n"], seqs["top"] or 0) == (actor.seq, actor.seq), f"{actor}: {actor.seq} vs {seqs}"
        cursors = Event.objects.filter(actor=actor).aggregate(n=Count("id"), top=Max("cursor"))
        assert (cursors["n"], cursors["top"] or 0) == (actor.cursor, actor.cursor), f"{actor}: {cursors}"
        if actor.version:
            last = TurnRecord.objects.get(actor=actor, version=actor.version)
            assert actor.committed_by == last.turn_id, f"{actor}: {last}"

    def _audit_lease(self, actor: Actor, quiet: bool) -> None:
        held = {actor.token is None, actor.lease_expires_at is None, actor.turn_id is None}
        assert len(held) == 1, f"{actor}: half a lease"
        assert actor.stop_turn_id in (None, actor.turn_id), f"{actor}: a stop for another turn"
        if quiet:
            assert actor.token is None, f"{actor}: a lease was left behind"
        for attempt in Attempt.objects.filter(actor=actor, outcome="running"):
            assert actor.turn_id == attempt.turn_id, f"{actor}: {attempt} is open and nobody runs it"

    def _audit_tasks(self, actor: Actor) -> None:
        tasks = list(Task.objects.filter(actor=actor, status="pending").order_by("id"))
        moments = [t.due_at for t in tasks if t.lane != "inbox"]
        moments += [t.due_at for t in tasks if t.lane == "inbox"][:1]
        assert actor.alarm == min(moments, default=None), f"{actor}: {actor.alarm}, not {moments}"
        for task in tasks:
            if task.every_seconds is None and not task.cron:
                tries = Attempt.objects.filter(actor=actor, task_pk=task.pk).exclude(outcome="released")
                assert task.attempts == tries.count(), f"{actor}: {task} was tried {tries.count()} times"


def in_threads(*works: Callable[[], T], timeout: float = 60.0) -> list[T]:
    """Runs each function in a thread of its own, all started at one moment; their results, in order.

    The first error is raised here. Each thread closes its connections.
    """
    gate = threading.Barrier(len(works))
    results: list[Any] = [None] * len(works)
    errors: list[BaseException] = []

    def play(at: int, work: Callable[[], T]) -> None:
        try:
            gate.wait(timeout)
            results[at] = work()
        except BaseException as error:  # the test's thread raises it
            errors.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=play, args=(at, work)) for at, work in enumerate(works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout)
        assert not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]
    return results


def on_postgres() -> bool:
    return connection.vendor == "postgresql"
