"""Everything at once, at random: claims, commits, tells, deaths and broken lines on a few actors.

What each thread was told about its own requests must be what the database holds at the end.
"""

from __future__ import annotations

import random
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import OperationalError, connections

from agents.exceptions import TurnLostError
from agents.models import TurnRecord
from agents.store.requests import Claim, Claimed, Commit, Committed, Next, TaskEnd
from agents.turn import StartedTask, Tell
from scheduler.models import Attempt, Task
from tests.agents.store.lines import AFTER, BEFORE, LATE, Breaker, Line, breakable_line
from tests.agents.store.stage import KIND, Stage, in_threads, on_postgres

ACTORS, THREADS, STEPS = 3, 4, 40


class Player:
    """One thread: what it asked for, and what it was told came of it."""

    def __init__(self, stage: Stage, seed: int, names: list[str], line: Line | Breaker | None) -> None:
        self.stage = stage
        self.random = random.Random(seed)
        self.names = names
        self.line = line
        self.told: dict[str, tuple[str | None, bool]] = {}  # task: its key, and whether it was new
        self.committed: Counter[tuple[int, int, uuid.UUID]] = Counter()
        self.lost: list[tuple[int, int, uuid.UUID]] = []
        self.errors: list[BaseException] = []
        self.seqs: dict[uuid.UUID, int] = {}  # by token: how far the log had come at its last commit

    def play(self) -> None:
        moves = [self.tell, self.call, self.drain, self.batch, self.cut]
        for _ in range(STEPS):
            self.random.choices(moves, weights=[4, 3, 5, 2, 2])[0]()

    def ids(self, count: int) -> list[int]:
        chosen = self.random.sample(self.names, count)
        found = self.stage.store.ensure([(KIND, name) for name in chosen])
        return [found[KIND, name] for name in chosen]

    # Moves

    def tell(self) -> None:
        tells = [self.a_tell() for _ in range(self.random.randint(1, 3))]
        accepted, _ = self.stage.store.tell(tells)
        for tell, new in zip(tells, accepted, strict=True):
            self.told[tell.task_id] = (tell.key, new)

    def a_tell(self) -> Tell:
        key = f"key-{self.random.randint(1, 30)}" if self.random.random() < 0.4 else None
        return Tell(KIND, self.random.choice(self.names), "go", {"n": 1}, key=key, max_retries=1)

    def call(self) -> None:
        (id,) = self.ids(1)
        for claimed in self.claim(Claim(id, uuid.uuid4())):
            if self.dies(claimed):
                return
            if self.random.random() < 0.2:
                self.send(self.stage.release(claimed))
                return
            first = self.a_commit(claimed, release=self.random.random() < 0.7)
            (committed,) = self.send(first)
            if isinstance(committed, Committed) and not first.release:
                self.send(self.a_commit(claimed, after=committed))

    def batch(self) -> None:
        claims = [Claim(id, uuid.uuid4(), drain=self.random.random() < 0.3) for id in self.ids(ACTORS)]
        commits = []
        for claimed in self.claim(*claims):
            end = None if claimed.task is None else self.stage.done(claimed.task)
            commits.append(self.a_commit(claimed, task=end))
        self.send(*commits)

    def drain(self) -> None:
        (id,) = self.ids(1)
        for claimed in self.claim(Claim(id, uuid.uuid4(), drain=True, wants_on_parked=True)):
            if claimed.task is None:
                self.send(self.stage.release(claimed))
                return
            task: StartedTask | None = claimed.task
            after, turn_id, due = None, claimed.turn_id, claimed.due
            while task is not None:
                if self.dies(claimed):
                    return
                assert claimed.due_before is not None
                following = Next(uuid.uuid4(), due, claimed.due_before)
                commit = self.a_commit(
                    claimed, after=after, turn_id=turn_id, task=self.an_end(task, claimed), next=following
                )
                (after,) = self.send(commit)
                if not isinstance(after, Committed):
                    return
                task, turn_id = after.next, following.turn_id
                if task is not None:
                    due = due[due.index(task.pk) + 1 :]

    def an_end(self, task: Any, claimed: Claimed) -> TaskEnd:
        chance = self.random.random()
        if chance < 0.7:
            return self.stage.done(task)
        if chance < 0.8:
            return TaskEnd(task.pk, task.attempt_pk, "released", "release")
        if task.attempt > task.max_retries:
            return TaskEnd(task.pk, task.attempt_pk, "failed", "park", error="no more")
        return self.stage.failed(task, 0.0, claimed.actor.now)

    def dies(self, claimed: Claimed) -> bool:
        if self.random.random() > 0.1:
            return False
        if self.random.random() < 0.5:
            self.stage.store.free(claimed.actor.id, claimed.token)
        else:
            self.expire(claimed.actor.id)  # and somebody may have it before we commit
            if self.random.random() < 0.5:
                self.send(self.a_commit(claimed, turn_id=uuid.uuid4()))
        return True

    def expire(self, id: int) -> None:
        while True:
            try:
                return self.stage.expire(id)
            except OperationalError:  # the line was cut: this query is the test's own
                connections["default"].close()

    def cut(self) -> None:
        if self.line is not None:
            how = self.random.choice([BEFORE, AFTER, LATE] if on_postgres() else [BEFORE, AFTER])
            self.line.cut(self.random.randint(1, 12), how)

    # Requests

    def claim(self, *claims: Claim) -> Iterator[Claimed]:
        for outcome in self.stage.store.claim(claims):
            if isinstance(outcome, BaseException):
                self.errors.append(outcome)
            elif outcome is not None:
                yield outcome

    def a_commit(self, claimed: Claimed, **options: Any) -> Commit:
        tells = [self.a_tell() for _ in range(self.random.choice([0, 0, 1, 2]))]
        seq = self.seqs.get(claimed.token, claimed.actor.seq)
        messages = self.random.randint(0, 2)
        return self.stage.dirty(claimed, seq_before=seq, messages=messages, tells=tells, **options)

    def send(self, *commits: Commit) -> list[Any]:
        outcomes = self.stage.store.commit(commits)
        for commit, outcome in zip(commits, outcomes, strict=True):
            if not commit.dirty:
                continue
            key = (commit.actor_id, commit.version + 1, commit.turn_id)
            if isinstance(outcome, Committed):
                self.committed[key] += 1
                if commit.seq is not None:
                    self.seqs[commit.token] = commit.seq
                for tell in commit.tells:
                    self.told[tell.task_id] = (tell.key, tell.key is None)
            elif isinstance(outcome, TurnLostError):
                self.lost.append(key)
            else:
                self.errors.append(outcome)
        return outcomes


def finish(stage: Stage) -> None:
    """Runs everything that is left: no lease is alive, and retries are due."""
    for id in stage.store.ensure([(KIND, name) for name in stage.names]).values():
        stage.expire(id) if stage.row(id).token else None
        for _ in range(50):
            claimed = stage.claim(id, drain=True)
            if claimed.task is None:
                stage.commit(stage.release(claimed))
                Task.objects.filter(actor_id=id, status="pending").update(due_at=claimed.actor.now)
                stage.store.realarm(id)
                if not Task.objects.filter(actor_id=id, status="pending").exists():
                    break
            else:
                stage.run_drain(claimed)


def check(stage: Stage, players: list[Player]) -> None:
    assert [e for p in players for e in p.errors] == []
    committed = sum((p.committed for p in players), Counter())
    assert set(committed.values()) <= {1}
    records = set(TurnRecord.objects.values_list("actor_id", "version", "turn_id"))
    assert set(committed) <= records
    assert not {key for p in players for key in p.lost} & records
    parked = set(Task.objects.filter(status="parked").values_list("task_id", flat=True))
    done = Counter(Attempt.objects.filter(outcome="done").values_list("task_id", flat=True))
    assert set(done.values()) <= {1}
    for player in players:
        for task, (key, new) in player.told.items():
            if new:
                assert (done[task] == 1) != (task in parked), f"{task} (key {key})"


@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_at_once_is_what_everybody_was_told(stage: Stage, seed: int) -> None:
    stage.names = [stage.name() for _ in range(ACTORS)]
    with breakable_line() as line:
        # SQLite's faults are raised in whichever thread passes: they need no line of one's own.
        players = [Player(stage, seed * 100 + n, stage.names, line) for n in range(THREADS)]
        in_threads(*[player.play for player in players], timeout=100)
        line.cut(0, BEFORE)
    finish(stage)
    stage.audit(quiet=True)
    check(stage, players)


def test_without_faults_nobody_is_ever_told_of_trouble(stage: Stage) -> None:
    before = threading.active_count()
    stage.names = [stage.name() for _ in range(ACTORS)]
    players = [Player(stage, n, stage.names, None) for n in range(THREADS)]
    in_threads(*[player.play for player in players], timeout=100)
    finish(stage)
    stage.audit(quiet=True)
    check(stage, players)
    assert threading.active_count() < before + 10
    assert connections["default"].connection is not None
