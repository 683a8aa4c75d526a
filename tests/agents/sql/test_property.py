"""Whatever fails, and wherever: the database is as if only the committed turns had run.

Random turns in two "processes" (two caches) with statements, transactions, checkpoints, VACUUM; some raise,
some crash between two page writes of their commit, or right after it. Beside them a plain SQLite that runs
what was committed.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import apsw
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agents import faults
from agents.exceptions import SqlError
from agents.models import Actor
from agents.sql import cache as caches
from agents.sql.cache import PageCache
from agents.store import commits
from agents.testing import CrashError
from tests.agents.sql.turns import Desk, execute, in_turn, look, pages

pytestmark = pytest.mark.django_db(transaction=True)

ids = st.integers(1, 40)
sizes = st.sampled_from([0, 10, 900, 5_000, 60_000])

statements = st.one_of(
    st.tuples(st.just("INSERT OR REPLACE INTO t VALUES (?, ?, zeroblob(?))"), ids, st.integers(-9, 9), sizes),
    st.tuples(st.just("INSERT INTO t VALUES (?, ?, zeroblob(?))"), ids, st.integers(0, 5), sizes),
    st.tuples(st.just("UPDATE t SET b = zeroblob(?) WHERE a % 3 = ?"), sizes, st.integers(0, 2)),
    st.tuples(st.just("DELETE FROM t WHERE id > ?"), ids),
    st.tuples(st.just("DELETE FROM t WHERE a % 2 = ?"), st.integers(0, 1)),
    st.tuples(st.just("CREATE TABLE IF NOT EXISTS u (a, b UNIQUE)")),
    st.tuples(st.just("INSERT INTO u SELECT id, a FROM t")),  # fails as often as not
    st.tuples(st.just("DROP TABLE IF EXISTS u")),
    st.tuples(st.just("CREATE INDEX IF NOT EXISTS i ON t (a, id)")),
    st.tuples(st.just("DROP INDEX IF EXISTS i")),
    st.tuples(st.just("INSERT INTO f SELECT id, 'word' || a FROM t LIMIT ?"), st.integers(1, 9)),
    st.tuples(st.just("DELETE FROM f WHERE f MATCH 'word1'")),
)
many = st.lists(statements, max_size=6)
actions = st.one_of(
    statements.map(lambda s: ("run", s)),
    statements.map(lambda s: ("run", s)),
    many.map(lambda s: ("kept transaction", s)),
    many.map(lambda s: ("undone transaction", s)),
    st.tuples(st.just("nested"), st.tuples(many, many)),
    st.just(("checkpoint", None)),
    st.just(("vacuum", None)),
    st.just(("forget", None)),
)
POINTS = [
    "commit.begin",
    "commit.locked",
    "commit.rows",
    "commit.written",
    "commit.commit",
    "commit.committed",
]
ends = st.one_of(
    st.just("done"),
    st.just("done"),
    st.just("raises"),
    st.tuples(st.sampled_from(POINTS), st.integers(0, 12)),
)
turns = st.lists(st.tuples(st.lists(actions, max_size=8), ends, st.integers(0, 1)), max_size=5)

SCHEMA = """CREATE TABLE t (id INTEGER PRIMARY KEY, a, b); CREATE VIRTUAL TABLE f USING fts5 (id, body)"""


class Model:
    """A plain SQLite that is told what was done, and keeps a copy of each state that was committed."""

    def __init__(self) -> None:
        self.now = apsw.Connection(":memory:")
        self.now.execute(SCHEMA)

    def copy(self) -> bytes:
        return self.now.serialize("main")

    def restore(self, data: bytes) -> None:
        self.now.close()
        self.now = apsw.Connection(":memory:")
        self.now.deserialize("main", data)

    def run(self, statement: tuple[Any, ...]) -> str | None:
        try:
            self.now.execute(statement[0], statement[1:]).fetchall()
        except apsw.Error as error:
            return str(error)
        return None

    def rows(self) -> list[Any]:
        return [
            self.now.execute("SELECT id, a, length(b) FROM t ORDER BY id").fetchall(),
            self.now.execute("SELECT id, body FROM f ORDER BY rowid").fetchall(),
            self.now.execute("SELECT name FROM sqlite_schema ORDER BY name").fetchall(),
        ]


def committed_rows(name: str) -> list[Any]:
    return [
        look(name, "SELECT id, a, length(b) FROM t ORDER BY id"),
        look(name, "SELECT id, body FROM f ORDER BY rowid"),
        look(name, "SELECT name FROM sqlite_schema ORDER BY name"),
    ]


async def play(agent: Desk, model: Model, script: list[Any], states: list[bytes]) -> None:
    async def run(statement: tuple[Any, ...]) -> None:
        try:
            await agent.sql.exec(*statement)
            ours = None
        except SqlError as error:
            ours = str(error)
        assert ours == model.run(statement), statement

    for verb, what in script:
        if verb == "run":
            await run(what)
        elif verb == "kept transaction":
            async with agent.sql.transaction():
                for statement in what:
                    await run(statement)
        elif verb == "undone transaction":
            before = model.copy()
            with pytest.raises(KeyError):
                async with agent.sql.transaction():
                    for statement in what:
                        await run(statement)
                    raise KeyError
            model.restore(before)
        elif verb == "nested":
            async with agent.sql.transaction():
                for statement in what[0]:
                    await run(statement)
                before = model.copy()
                with pytest.raises(KeyError):
                    async with agent.sql.transaction():
                        for statement in what[1]:
                            await run(statement)
                        raise KeyError
                model.restore(before)
        elif verb == "checkpoint":
            if agent._turn.wrote:
                states.append(model.copy())
            await agent.checkpoint()
        elif verb == "vacuum":
            await agent.sql.exec("VACUUM")
        else:
            caches.cache.clear()
    if agent._turn.wrote:
        states.append(model.copy())


@given(turns=turns)
@settings(
    max_examples=60, deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
def test_only_committed_turns_leave_anything(turns: list[Any]) -> None:
    Actor.objects.all().delete()
    processes = [PageCache(), PageCache()]
    kept_cache, kept_rows = caches.cache, commits.BINARY_ROWS
    commits.BINARY_ROWS = 1  # a point between every two pages
    try:
        execute("p", SCHEMA)
        model = Model()
        for script, end, process in turns:
            caches.cache = processes[process]
            turn_by_turn(model, script, end)
    finally:
        caches.cache, commits.BINARY_ROWS = kept_cache, kept_rows


def turn_by_turn(model: Model, script: list[Any], end: Any) -> None:
    states = [model.copy()]
    before = Actor.objects.get().version

    async def body(agent: Desk) -> None:
        await play(agent, model, script, states)
        if end == "raises":
            raise ZeroDivisionError

    with ExitStack() as stack:
        if isinstance(end, tuple):
            point, passes = end
            left = [passes]

            def crash() -> None:
                left[0] -= 1
                if left[0] == -1:
                    raise CrashError(point)

            stack.enter_context(faults.at(point, crash))
        try:
            in_turn("p", body)
        except (ZeroDivisionError, CrashError):
            pass

    # A crash may have left the lease: its time is up.
    Actor.objects.update(token=None, lease_expires_at=None)
    # Each commit that happened moved the version by one.
    happened = Actor.objects.get().version - before
    model.restore(states[happened])
    assert committed_rows("p") == model.rows()
    assert look("p", "PRAGMA integrity_check") == [("ok",)]
    assert look("p", "PRAGMA page_count") == [(len(pages("p")),)]
    caches.cache = PageCache()  # and as a process reads it that knows nothing
    assert committed_rows("p") == model.rows()
