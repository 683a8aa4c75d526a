"""How statements travel to PostgreSQL: together, prepared, and the same number whatever the batch's size."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from django.db import DataError, connection, transaction

from agents import clock
from agents.models import Actor
from agents.store.postgres import PostgresStatements
from agents.store.requests import Claim, Claimed, Committed
from agents.store.statements import ConnectionLost
from agents.store.wire import Blobs, Wire, text
from agents.writes import Table, Writes
from conversations.models import Message
from scheduler.models import Task
from tests.agents.store.lines import reconnect
from tests.agents.store.stage import MESSAGE, Stage

pytestmark = pytest.mark.postgres

TASK_KEY = Table("scheduler.Task", ("actor_id", "task_id"))


class Counted:
    """Statements that were said and trips that were made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.statements: list[str] = []
        self.trips = 0
        say, exchange = Wire.say, Wire._send

        def counted_say(wire: Wire, query: str, *params: Any, **options: Any) -> Any:
            self.statements.append(" ".join(query.split())[:60])
            return say(wire, query, *params, **options)

        def counted_send(wire: Wire, statements: Any) -> Any:
            self.trips += 1
            return exchange(wire, statements)

        monkeypatch.setattr(Wire, "say", counted_say)
        monkeypatch.setattr(Wire, "_send", counted_send)

    def of(self, work: Callable[[], Any]) -> tuple[Any, list[str], int]:
        self.statements, self.trips = [], 0
        result = work()
        return result, [*self.statements], self.trips


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(monkeypatch)


@pytest.fixture
def fresh(stage: Stage) -> Iterator[None]:
    """A connection that has prepared nothing, before and after."""
    reconnect()
    yield
    reconnect()


def test_a_batch_of_64_takes_the_statements_and_the_trips_of_one(stage: Stage, counted: Counted) -> None:
    target = stage.actor()
    taken = {}
    for size in (1, 2, 64):
        actors = [stage.actor() for _ in range(size)]
        for actor in actors:
            stage.told(actor, 1, 2)
        claims = [Claim(actor, uuid.uuid4(), drain=True) for actor in actors]
        claimed, *claiming = counted.of(lambda: stage.store.claim(claims))  # noqa: B023
        commits = [
            stage.dirty(
                c, messages=1, events=1, timers=[{}], tells=[stage.tell(target, key=uuid.uuid4().hex)],
                state={"a": 1}, state_changed=True, task=stage.done(c.task), next=stage.next(c),
            )
            for c in claimed
        ]  # fmt: skip
        results, *committing = counted.of(lambda: stage.store.commit(commits))  # noqa: B023
        assert all(isinstance(r, Committed) and r.next for r in results)
        taken[size] = claiming, committing
    assert taken[1] == taken[2] == taken[64]


def test_a_lone_call_is_one_trip_to_claim_and_two_to_commit(stage: Stage, counted: Counted) -> None:
    actor = stage.actor()
    (claimed,), _, trips = counted.of(lambda: stage.store.claim([Claim(actor, uuid.uuid4())]))
    assert trips == 1
    commit = stage.dirty(claimed, messages=3, events=2, timers=[{}], state={}, state_changed=True)
    (committed,), statements, trips = counted.of(lambda: stage.store.commit([commit]))
    assert isinstance(committed, Committed)
    assert trips == 2, statements


def test_a_drain_is_two_trips_to_claim_and_two_for_each_task(stage: Stage, counted: Counted) -> None:
    actor = stage.actor()
    stage.told(actor, 1, 2)
    (claimed,), _, trips = counted.of(lambda: stage.store.claim([Claim(actor, uuid.uuid4(), drain=True)]))
    assert trips == 2
    commit = stage.dirty(claimed, messages=1, task=stage.done(claimed.task), next=stage.next(claimed))
    (committed,), statements, trips = counted.of(lambda: stage.store.commit([commit]))
    assert committed.next is not None
    assert trips == 2, statements


def test_a_tell_is_one_trip_to_find_the_actor_and_two_to_tell_it(stage: Stage, counted: Counted) -> None:
    actors = [stage.actor() for _ in range(8)]
    for size in (1, 8):
        tells = [stage.tell(actor, key=uuid.uuid4().hex) for actor in actors[:size]]
        (accepted, _), statements, trips = counted.of(lambda: stage.store.tell(tells))  # noqa: B023
        assert accepted == [True] * size
        assert trips == 3, statements


def test_rows_of_a_part_go_with_a_tell_in_two_trips(stage: Stage, counted: Counted) -> None:
    actor = stage.actor()
    rows = {MESSAGE: [stage.message(actor, seq, stage.store.sql.now(), f"{seq}") for seq in (1, 2, 3)]}
    tells, ids = [stage.tell(actor, key="a")], {stage.address(actor): actor}
    (written, alarms), statements, trips = counted.of(lambda: stage.store.tell_with(tells, ids, rows))
    assert trips == 2, statements
    assert [alarm.actor_id for alarm in alarms] == [actor]
    kept = Message.objects.filter(actor_id=actor).order_by("seq")
    assert written == {MESSAGE: [message.pk for message in kept]}
    assert [message.content for message in kept] == ["1", "2", "3"]
    kept.delete()


def test_statements_are_prepared_once_a_session(stage: Stage, fresh: None) -> None:
    def flow() -> None:
        stage.turn(stage.actor("alice"), messages=1)
        stage.told(stage.actor("bob"), 1)
        stage.run_all(stage.actor("bob"))

    flow()
    first = prepared()
    assert len(first) > 10
    for _ in range(3):
        flow()
    assert prepared() == first


def test_nothing_is_prepared_where_a_pooler_could_not_follow(
    stage: Stage, fresh: None, settings: Any
) -> None:
    settings.AGENTS = {**settings.AGENTS, "PREPARE_STATEMENTS": False}
    actor = stage.actor()
    stage.turn(actor, messages=1)
    told = stage.told(actor, 1, 2)
    assert stage.run_all(actor) == [t.task_id for t in told]
    stage.store.sweep(["echo"], 10, dt.timedelta())
    assert prepared() == set()


def test_prepared_statements_that_are_gone_are_prepared_again(stage: Stage, fresh: None) -> None:
    """A pooler that gave us another session, or somebody who said DISCARD ALL."""
    actor = stage.actor()
    stage.turn(actor, messages=1)
    with connection.cursor() as cursor:
        cursor.execute("DEALLOCATE ALL")
    claimed = stage.claim(actor)
    with connection.cursor() as cursor:
        cursor.execute("DEALLOCATE ALL")
    assert stage.commit(stage.dirty(claimed, messages=1)).version == 2
    assert stage.store.find([("echo", "nobody")]) == {}


def test_a_migration_under_a_running_process_costs_one_try(stage: Stage, fresh: None) -> None:
    """A column that the prepared statements return changes its type."""
    actor = stage.actor()
    stage.turn(actor)
    widen, narrow = (f"ALTER TABLE agents_actor ALTER COLUMN name TYPE varchar({n})" for n in (300, 255))
    for alter in (widen, narrow):
        with connection.cursor() as cursor:
            cursor.execute(alter)
        claimed = stage.claim(actor)
        stage.commit(stage.dirty(claimed))
        stage.told(actor, 1)
    assert stage.row(actor).version == 3


def test_a_session_keeps_its_prepared_statements_over_a_visit_to_the_pool(stage: Stage, fresh: None) -> None:
    actor = stage.actor()
    stage.turn(actor)
    pid, before = session(), prepared()
    connection.close()
    stage.turn(actor)
    if session() == pid:
        assert prepared() == before


def test_plans_that_were_made_for_empty_tables_do_for_full_ones(stage: Stage, fresh: None) -> None:
    """No statement of the store reads a table from one end to the other, whatever was in it at first."""
    tables = ("agents_actor", "agents_turnrecord", "scheduler_task", "scheduler_attempt", "scheduler_step")
    for _ in range(3):
        with connection.cursor() as cursor:
            cursor.execute(f"VACUUM ANALYZE {', '.join(tables)}")
        actors = [stage.actor() for _ in range(2)]
        for actor in actors:
            stage.told(actor, 1, 2, key=None)
        stage.run_all(actors[0])
        claims = [Claim(actor, uuid.uuid4(), drain=True) for actor in actors]
        idle, claimed = stage.store.claim(claims)
        assert isinstance(idle, Claimed) and isinstance(claimed, Claimed)
        assert claimed.task is not None
        end = stage.failed(claimed.task, 0, claimed.actor.now)
        tells = [stage.tell(actors[0], key=uuid.uuid4().hex)]
        stage.store.commit([stage.release(idle), stage.dirty(claimed, tells=tells, task=end)])
        stage.drain(actors[1])
        stage.expire(actors[1])
        taken = stage.claim(actors[1])
        stage.store.renew([(actors[1], taken.token)])
        stage.store.mark_waiting(actors[1])
        stage.store.stop(actors[1])
        stage.turn(actors[0], timers=[{"task_id": "a"}], writes=deleting(actors[0], "a"))
        assert stage.store._commits._happened(stage.dirty(taken)) is None
        Actor.objects.all().delete()
    plans = {statement: explained(name) for name, statement in planned()}
    assert len(plans) > 20
    for statement, plan in plans.items():
        said = f"{statement}\n{plan}"
        assert "Seq Scan" not in plan, said
        # A walk through a whole index is no better; and no join compares all rows with all.
        assert plan.count("Index Scan") + plan.count("Index Only Scan") == plan.count("Index Cond"), said
        assert "Join Filter" not in plan, said
        # A unique key is used whole.
        for index in plan.split("Index Scan using scheduler_task_id")[1:]:
            assert "task_id" in index.split("Index Cond")[1].splitlines()[0], said


def deleting(actor_id: int, task_id: str) -> Writes:
    writes = Writes()
    writes.delete(TASK_KEY, {"actor_id": actor_id, "task_id": task_id})
    return writes


def planned() -> list[tuple[str, str]]:
    with connection.cursor() as cursor:
        cursor.execute(
            """SELECT name, statement FROM pg_prepared_statements
                WHERE statement ~* '(from|update|into) +(agents|scheduler|conversations)_'"""
        )
        return list(cursor.fetchall())


def explained(name: str) -> str:
    """The generic plan of a prepared statement, as the store's transactions would make it."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL plan_cache_mode = force_generic_plan")
        for setting in ("enable_seqscan", "enable_hashjoin", "enable_mergejoin", "jit"):
            cursor.execute(f"SET LOCAL {setting} = off")
        cursor.execute("SELECT parameter_types FROM pg_prepared_statements WHERE name = %s", [name])
        count = len(cursor.fetchone()[0])
        cursor.execute(f"EXPLAIN EXECUTE {name}({', '.join(['NULL'] * count)})")
        return "\n".join(line for (line,) in cursor.fetchall())


def test_an_error_in_the_middle_of_a_trip_undoes_all_of_it_and_leaves_the_line_in_order(stage: Stage) -> None:
    actor = stage.actor()
    sql = stage.store.sql
    with pytest.raises(Exception, match="null value"), sql.transaction():
        sql.insert(MESSAGE, [stage.message(actor, 1, sql.now())])
        sql.insert(MESSAGE, [stage.message(actor, None, sql.now())])  # type: ignore[arg-type]
        sql.insert(MESSAGE, [stage.message(actor, 2, sql.now())])
    assert stage.turn(actor, messages=1).version == 1


def test_what_was_said_before_an_error_of_ours_is_never_sent(stage: Stage) -> None:
    actor = stage.actor()
    sql = stage.store.sql
    with pytest.raises(ValueError, match="ours"), sql.transaction():
        sql.insert(MESSAGE, [stage.message(actor, 1, sql.now())])
        raise ValueError("ours")
    assert stage.turn(actor, messages=1).version == 1


def test_a_connection_that_is_closed_already_is_replaced(stage: Stage) -> None:
    actor = stage.actor()
    for close in (lambda: connection.connection.close(), lambda: connection.close()):
        close()
        assert stage.turn(actor).version
    connection.connection.close()
    with pytest.raises(ConnectionLost):
        stage.store.sql.now()
    assert isinstance(stage.store.sql.now(), dt.datetime)


def test_a_serializable_application_can_use_the_store(stage: Stage) -> None:
    """Its own transactions are at its level; the store's are READ COMMITTED whatever the connection says."""
    actor = stage.actor()
    connection.ensure_connection()
    raw = connection.connection
    raw.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
    try:
        with transaction.atomic():
            stage.store.tell_here([stage.tell(actor)])
            with connection.cursor() as cursor:
                cursor.execute("SHOW transaction_isolation")
                assert cursor.fetchone() == ("serializable",)
        with stage.store.sql.transaction():
            assert isinstance(stage.store.sql, PostgresStatements)
            levels = stage.store.sql._ask("SHOW transaction_isolation", convert=list)
        assert levels == [("read committed",)]
    finally:
        raw.isolation_level = None
    assert Task.objects.count() == 1


def test_a_moved_clock_prepares_nothing(stage: Stage, fresh: None) -> None:
    """Its offset is part of the text of a statement."""
    actor = stage.actor()
    stage.turn(actor)
    before = prepared()
    for _ in range(3):
        clock.shift(dt.timedelta(seconds=1))
        stage.turn(actor)
    assert prepared() == before


def test_a_large_batch_passes_both_ways_at_once(stage: Stage) -> None:
    """More than the buffers of the line hold, in both directions: neither side may wait for the other."""
    actors = [stage.actor() for _ in range(40)]
    state = {"text": "x" * 200_000}
    for _ in range(2):
        claims = [Claim(actor, uuid.uuid4()) for actor in actors]
        claimed = stage.store.claim(claims)
        results = stage.store.commit(
            [stage.dirty(c, state=state, state_changed=True) for c in claimed]  # type: ignore[arg-type]
        )
        assert all(isinstance(r, Committed) for r in results)
    assert Actor.objects.filter(state=state).count() == 40


@pytest.mark.parametrize(
    ("value", "on_the_line"),
    [
        (None, None), (5, b"5"), (1.5, b"1.5"), (True, b"True"), ("é", "é".encode()), (b"{}", b"{}"),
        ([1, 2], b"{1,2}"), ([], b"{}"), (dt.timedelta(minutes=1, milliseconds=5), b"60.005000 seconds"),
        (uuid.UUID(int=1), b"00000000-0000-0000-0000-000000000001"),
        (dt.datetime(2026, 1, 2, tzinfo=dt.UTC), b"2026-01-02T00:00:00+00:00"),
    ],
)  # fmt: skip
def test_parameters_go_over_as_text(value: Any, on_the_line: bytes | None) -> None:
    assert text(value) == on_the_line


def test_a_value_that_is_no_parameter_is_refused() -> None:
    with pytest.raises(TypeError, match="dict"):
        text({})
    with pytest.raises(DataError, match="U\\+0000"):
        text("a\0b")
    assert text(Blobs()) is not None


def prepared() -> set[str]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT statement FROM pg_prepared_statements")
        return {statement for (statement,) in cursor.fetchall()}


def session() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


@pytest.mark.django_db(transaction=True)
def test_a_lease_does_not_wait_for_the_disk_and_everything_else_does() -> None:
    sql = PostgresStatements()

    def waits() -> str:
        return sql._ask("SELECT current_setting('synchronous_commit')", convert=lambda rows: rows[0][0])

    with connection.cursor() as cursor:
        cursor.execute("SET synchronous_commit = on")  # tests' own sessions wait for no disk
    try:
        with sql.transaction(brief=True):
            brief = waits()
        with sql.transaction():
            other = waits()
        assert (brief, other, waits()) == ("off", "on", "on")
    finally:
        with connection.cursor() as cursor:
            cursor.execute("RESET synchronous_commit")


def test_an_attempt_is_counted_on_the_disk_before_its_method_runs(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A drain's claim records the attempt: it is no brief transaction."""
    brief: list[bool] = []
    begin = PostgresStatements.transaction

    def seen(self: PostgresStatements, **options: Any) -> Any:
        brief.append(options.get("brief", False))
        return begin(self, **options)

    actor = stage.actor()
    stage.told(actor, "hello")
    monkeypatch.setattr(PostgresStatements, "transaction", seen)
    claimed = stage.drain(actor)
    assert claimed.task is not None and brief == [False]
    stage.run_drain(claimed)
