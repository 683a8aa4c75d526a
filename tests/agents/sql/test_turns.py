"""The database as part of the turn: written by its commit, whole or not at all; read at one version."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from django.conf import settings
from django.db import connection
from django.test import override_settings

from agents import faults
from agents.exceptions import (
    ActorMethodTimeoutError,
    ReadOnlyTurnError,
    SqlCorruptError,
    SqlLimitError,
    SqlTimeoutError,
    StepWriteError,
    TurnEndedError,
    TurnLostError,
)
from agents.models import Actor, Page, TurnRecord
from agents.sql import cache as caches
from agents.sql.cache import PageCache, StoredPage
from agents.testing import CrashError, advance, crash_at, drain, on_runtime, reset_clock
from tests.agents.sql.turns import Desk, execute, in_read, in_turn, look, pages, stored_bytes

pytestmark = pytest.mark.django_db(transaction=True)


# The commit


def test_a_database_is_made_by_the_first_write_and_reading_makes_none():
    assert look("a", "SELECT 1 + 1") == [(2,)]
    assert not Actor.objects.exists()
    assert execute("a", "SELECT count(*) FROM sqlite_schema") == [(0,)]
    assert pages("a") == {}
    assert Actor.objects.get().version == 0
    assert not TurnRecord.objects.exists()
    execute("a", "CREATE TABLE t (a)")
    assert pages("a") == {1: 1, 2: 1}


def test_only_pages_that_changed_are_written_and_page_one():
    execute("a", "CREATE TABLE t (a); CREATE TABLE u (a); CREATE TABLE v (a)")
    execute("a", "INSERT INTO u VALUES (1)")
    assert pages("a") == {1: 2, 2: 1, 3: 2, 4: 1}


def test_a_turn_that_fails_writes_nothing():
    execute("a", "CREATE TABLE t (a); INSERT INTO t VALUES (1)")
    before = stored_bytes("a")

    async def body(agent):
        await agent.sql.exec("INSERT INTO t VALUES (2)")
        await agent.sql.exec("DROP TABLE t")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        in_turn("a", body)
    assert stored_bytes("a") == before
    assert execute("a", "SELECT a FROM t") == [(1,)]


def test_a_stale_turn_writes_no_page():
    execute("a", "CREATE TABLE t (a)")
    before = pages("a")

    async def body(agent):
        await agent.sql.exec("INSERT INTO t VALUES (1)")
        actor = Actor.objects.filter(name="a")
        await actor.aupdate(version=7)  # as if somebody else had committed

    with pytest.raises(TurnLostError):
        in_turn("a", body)
    assert pages("a") == before


def test_a_turn_whose_actor_somebody_else_holds_now_reads_none_of_his_pages():
    execute("a", "CREATE TABLE t (a); INSERT INTO t VALUES (randomblob(100000))")
    caches.cache.clear()

    async def body(agent):
        await agent.sql.exec("SELECT 1 FROM sqlite_schema")
        await Actor.objects.filter(name="a").aupdate(version=7, committed_by=None)
        with pytest.raises(TurnLostError):
            await agent.sql.exec("SELECT sum(instr(a, x'ff')) FROM t")
        refused.append(True)

    refused: list[bool] = []
    with pytest.raises(TurnLostError):
        in_turn("a", body)
    assert refused == [True]


@pytest.mark.parametrize(
    "point", ["commit.begin", "commit.locked", "commit.rows", "commit.written", "commit.commit"]
)
def test_a_crash_anywhere_in_the_commit_leaves_the_old_database(point):
    execute("a", "CREATE TABLE t (a); INSERT INTO t VALUES (1)")
    before = stored_bytes("a")
    with pytest.raises(CrashError), crash_at(point):
        execute("a", "INSERT INTO t VALUES (2)")
    assert stored_bytes("a") == before
    assert execute("a", "INSERT INTO t VALUES (3); SELECT a FROM t") == [(1,), (3,)]


def test_a_checkpoint_keeps_what_was_done_so_far():
    execute("a", "CREATE TABLE t (a)")

    async def body(agent):
        await agent.sql.exec("INSERT INTO t VALUES (1)")
        await agent.checkpoint()
        await agent.sql.exec("INSERT INTO t VALUES (2)")
        assert len((await agent.sql.exec("SELECT a FROM t")).to_array()) == 2
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        in_turn("a", body)
    assert execute("a", "SELECT a FROM t") == [(1,)]


def test_statements_beside_a_checkpoint_are_kept_whole_or_not_yet():
    execute("a", "CREATE TABLE t (a INTEGER PRIMARY KEY, b)")

    async def body(agent):
        async def write():
            for i in range(60):
                async with agent.sql.transaction():
                    await agent.sql.exec("INSERT INTO t VALUES (?, randomblob(9000))", 2 * i)
                    await asyncio.sleep(0)
                    await agent.sql.exec("INSERT INTO t VALUES (?, randomblob(9000))", 2 * i + 1)

        async def keep(writing):
            while not writing.done():
                await agent.checkpoint()
                # What another process would find now.
                caches.cache.clear()
                rows = await agent_read(agent)
                assert rows[0] % 2 == 0
                assert rows[1] == "ok"

        writing = asyncio.create_task(write())
        await keep(writing)
        await writing

    async def agent_read(agent):
        from agents.runtime import get_runtime

        engine = get_runtime().engine

        async def count(turn):
            reader = Desk(turn)
            n = (await reader.sql.exec("SELECT count(*) AS n FROM t")).one()["n"]
            return n, (await reader.sql.exec("PRAGMA integrity_check")).one()["integrity_check"]

        return await engine.reads.read((Desk.kind, agent.name), "count", count, budget=20)

    in_turn("a", body)
    assert look("a", "SELECT count(*) FROM t") == [(120,)]


def test_a_page_that_is_written_again_while_a_checkpoint_is_on_its_way_is_kept():
    execute("a", "CREATE TABLE t (a); INSERT INTO t VALUES (0)")

    async def body(agent):
        under_way, go_on = threading.Event(), threading.Event()

        def hold():
            under_way.set()
            go_on.wait(60)

        await agent.sql.exec("UPDATE t SET a = 1")
        with faults.at("commit.locked", hold):
            checkpoint = asyncio.create_task(agent.checkpoint())
            await asyncio.to_thread(under_way.wait, 10)
            await agent.sql.exec("UPDATE t SET a = 2")
            await agent.sql.exec("CREATE TABLE u (a)")
            go_on.set()
            await checkpoint

    in_turn("a", body)
    assert look("a", "SELECT a FROM t; SELECT a FROM t, (SELECT count(*) FROM u)") == [(2,)]


def test_a_database_that_is_first_looked_at_while_a_checkpoint_is_on_its_way_stays():
    execute("a", "CREATE TABLE t (a); INSERT INTO t VALUES (0)")

    async def body(agent):
        under_way, go_on = threading.Event(), threading.Event()

        def hold():
            under_way.set()
            go_on.wait(60)

        _ = agent.sql
        await agent.set_state({"x": 1})
        with faults.at("commit.locked", hold):
            checkpoint = asyncio.create_task(agent.checkpoint())
            await asyncio.to_thread(under_way.wait, 10)
            await agent.sql.exec("UPDATE t SET a = 2")
            go_on.set()
            await checkpoint
        await agent.sql.exec("UPDATE t SET a = a + 1")

    in_turn("a", body)
    assert look("a", "SELECT a FROM t") == [(3,)]


def test_a_retried_task_writes_once():
    class Clerk(Desk):
        kind = "test-sql-clerk"

        async def work(self):
            await self.sql.exec("CREATE TABLE IF NOT EXISTS t (a)")
            await self.sql.exec("INSERT INTO t VALUES (1)")
            assert self._turn.task is not None
            if self._turn.task.attempt == 1:
                raise RuntimeError("the first time")

        async def count(self):
            return (await self.run("SELECT count(*) AS n FROM t"))[0]["n"]

    stub = Clerk.named("c")
    stub.sync.tell("work")
    drain()
    assert stub.sync.run("SELECT name FROM sqlite_schema") == []
    try:
        advance(5)
        drain()
    finally:
        reset_clock()
    assert stub.sync.count() == 1


def test_steps_move_the_version_under_a_turn_and_its_reads_go_on():
    class Stepper(Desk):
        kind = "test-sql-stepper"

        async def work(self, payload):
            await self.sql.exec("CREATE TABLE IF NOT EXISTS t (a, b)")
            await self.sql.exec("INSERT INTO t VALUES (1, randomblob(200000))")
            await self.checkpoint()
            await self.step("a", lambda: 1)
            caches.cache.clear()
            (row,) = await self.run("SELECT length(b) AS n FROM t")
            assert row == {"n": 200_000}
            await self.step("b", lambda: 2)
            with pytest.raises(StepWriteError):
                await self.step("c", lambda: self.sql.exec("INSERT INTO t VALUES (3, 3)"))
            assert await self.step("d", lambda: self.run("SELECT a FROM t")) == [{"a": 1}]
            await self.sql.exec("INSERT INTO t VALUES (2, 2)")

        async def all(self):
            return [row["a"] for row in await self.run("SELECT a FROM t")]

    stub = Stepper.named("s")
    stub.sync.tell("work")
    drain()
    assert stub.sync.all() == [1, 2]


def test_a_statement_after_the_turn_is_refused():
    kept = []

    async def body(agent):
        await agent.sql.exec("CREATE TABLE t (a)")
        kept.append(agent)

    in_turn("a", body)
    with pytest.raises(TurnEndedError):
        on_runtime(lambda engine: kept[0].sql.exec("SELECT 1"))


def test_a_turn_that_is_cancelled_cuts_its_statement():
    execute("a", "CREATE TABLE t (a)")
    endless = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) INSERT INTO t SELECT i FROM n"

    async def body(agent):
        await agent.sql.exec(endless)

    began = time.monotonic()
    with override_settings(AGENTS={"SQL_BUDGET": 60.0}), pytest.raises(ActorMethodTimeoutError):
        in_turn("a", body, budget=0.3)
    assert time.monotonic() - began < 30
    assert execute("a", "SELECT count(*) FROM t") == [(0,)]


def test_the_database_goes_with_its_actor():
    execute("a", "CREATE TABLE t (a)")
    execute("b", "CREATE TABLE t (a)")
    Actor.objects.get(name="a").delete()
    assert set(Page.objects.values_list("actor__name", flat=True)) == {"b"}
    Actor.objects.all().delete()
    assert not Page.objects.exists()


# Reads


def test_a_read_cannot_write():
    execute("a", "CREATE TABLE t (a); CREATE VIRTUAL TABLE f USING fts5 (b)")

    async def body(agent):
        for text in ("INSERT INTO t VALUES (1)", "CREATE TABLE u (a)", "DROP TABLE t", "VACUUM", "REINDEX",
                     "DELETE FROM t", "INSERT INTO f VALUES ('x')", "PRAGMA user_version = 1"):  # fmt: skip
            with pytest.raises(ReadOnlyTurnError):
                await agent.sql.exec(text)
        return (await agent.sql.exec("SELECT count(*) AS n FROM t")).one()

    assert in_read("a", body) == {"n": 0}
    assert Actor.objects.get().version == 1


def test_a_read_sees_one_version_whole_while_turns_commit():
    """Each turn rewrites every row: a mixture of two versions would show two numbers, or be no database."""
    execute("a", "CREATE TABLE t (id INTEGER PRIMARY KEY, n, pad)")
    execute(
        "a",
        "INSERT INTO t WITH RECURSIVE i (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM i LIMIT 300)"
        " SELECT x, 0, randomblob(1000) FROM i",
    )
    stop, wrong, seen = threading.Event(), [], set()

    async def read(agent):
        first = (await agent.sql.exec("SELECT min(n) AS a, max(n) AS b FROM t WHERE id < 100")).one()
        await asyncio.sleep(0.002)
        second = (await agent.sql.exec("SELECT min(n) AS a, max(n) AS b FROM t WHERE id > 100")).one()
        return {*first.values(), *second.values()}

    def reader():
        while not stop.is_set():
            caches.cache.clear()
            try:
                numbers = in_read("a", read)
            except Exception as error:
                wrong.append(error)
                return
            seen.update(numbers)
            if len(numbers) != 1:
                wrong.append(numbers)

    threads = [threading.Thread(target=reader) for _ in range(2)]
    for thread in threads:
        thread.start()
    for n in range(1, 40):
        execute("a", "UPDATE t SET n = ?", n)
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(seen) > 1


def test_a_read_beside_a_turn_that_thinks_does_not_wait_and_sees_the_version_before():
    execute("a", "CREATE TABLE t (a)")
    wrote, go_on = threading.Event(), threading.Event()

    async def thinking(agent):
        await agent.sql.exec("INSERT INTO t VALUES (1)")
        wrote.set()
        await asyncio.to_thread(go_on.wait, 10)

    thread = threading.Thread(target=in_turn, args=("a", thinking))
    thread.start()
    assert wrote.wait(60)
    assert look("a", "SELECT a FROM t") == []
    go_on.set()
    thread.join()
    assert look("a", "SELECT a FROM t") == [(1,)]


def test_a_method_of_a_client_reads_through_the_stub():
    stub = Desk.named("a")
    stub.sync.many([["CREATE TABLE t (a, b)"], ["INSERT INTO t VALUES (?, ?)", 1, b"x"]])
    assert stub.sync.look("SELECT * FROM t") == [{"a": 1, "b": b"x"}]
    assert stub.sync.run("SELECT a FROM t WHERE b = ?", b"x") == [{"a": 1}]


# Pages on demand


def grown(name, rows):
    execute(name, "CREATE TABLE t (id INTEGER PRIMARY KEY, word TEXT, pad)")
    execute(
        name,
        f"INSERT INTO t WITH RECURSIVE i (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM i LIMIT {rows})"
        " SELECT x, 'w' || (x * 7919 % 1000003), randomblob(900) FROM i",
    )
    execute(name, "CREATE INDEX w ON t (word)")


def fetched(name, text, *binds, read=in_turn):
    async def body(agent):
        rows = list((await agent.sql.exec(text, *binds)).raw())
        return rows, agent.sql._pages.fetched

    return read(name, body)


@pytest.mark.parametrize("read", [in_turn, in_read])
def test_one_row_of_a_large_database_costs_a_few_pages(read):
    grown("a", 20_000)
    total = Page.objects.count()
    assert total > 5_000
    caches.cache.clear()
    rows, cost = fetched("a", "SELECT id FROM t WHERE word = ?", "w7919", read=read)
    assert rows == [(1,)]
    assert cost < 30
    # The same again costs nothing: the pages are remembered.
    assert fetched("a", "SELECT id FROM t WHERE word = ?", "w7919", read=read) == (rows, 0)


def test_a_scan_reads_ahead_in_few_queries():
    grown("a", 4_000)
    total = Page.objects.count()
    caches.cache.clear()
    counts = []

    async def body(agent):
        query = agent.sql._pages._query

        def counted(rows):
            counts.append(1)
            return query(rows)

        agent.sql._pages._query = counted
        return (await agent.sql.exec("SELECT sum(length(pad)) AS s FROM t NOT INDEXED")).one()

    assert in_turn("a", body) == {"s": 4_000 * 900}
    assert len(counts) < total / 20


def test_a_page_fetch_does_not_block_the_event_loop():
    grown("a", 500)
    caches.cache.clear()

    async def body(agent):
        loop, query, fetches = asyncio.get_running_loop(), agent.sql._pages._query, []

        def waits_for_the_loop(rows):
            turned = threading.Event()
            loop.call_soon_threadsafe(turned.set)
            fetches.append(turned.wait(60))
            return query(rows)

        agent.sql._pages._query = waits_for_the_loop
        await agent.sql.exec("SELECT count(*) FROM t NOT INDEXED WHERE pad IS NULL")
        return fetches

    fetches = in_turn("a", body, budget=100)
    assert len(fetches) > 5
    assert all(fetches)


@pytest.mark.parametrize("inside", [False, True])
def test_a_statement_that_is_cut_while_it_waits_for_pages_is_undone(inside):
    grown("a", 3_000)

    async def cut(agent, text):
        query = agent.sql._pages._query

        def slow(rows):
            time.sleep(0.2)
            return query(rows)

        caches.cache.clear()
        agent.sql._pages._query = slow
        try:
            with pytest.raises(SqlTimeoutError):
                await agent.sql.exec(text)
        finally:
            agent.sql._pages._query = query

    async def body(agent):
        await agent.sql.exec("SELECT 1 FROM t LIMIT 1")
        for text in (
            "UPDATE t SET word = 'x'",
            "DELETE FROM t WHERE pad > ''",
            "SELECT sum(instr(pad, 'x')) FROM t",
        ):
            if inside:
                with pytest.raises(KeyError):
                    async with agent.sql.transaction():
                        await agent.sql.exec("INSERT INTO t (word) VALUES ('y')")
                        await cut(agent, text)
                        raise KeyError
            else:
                await cut(agent, text)
        await agent.sql.exec("INSERT INTO t (word) VALUES ('z')")

    with override_settings(AGENTS={"SQL_BUDGET": 1.0}):
        in_turn("a", body)
    assert look("a", "SELECT count(*), sum(word = 'x'), sum(word = 'y'), sum(word = 'z') FROM t") == [
        (3_001, 0, 0, 1)
    ]
    assert look("a", "PRAGMA integrity_check") == [("ok",)]


def test_a_lost_page_is_an_error_and_no_other_data():
    grown("a", 500)
    caches.cache.clear()
    Page.objects.filter(actor__name="a", number__in=range(20, 40)).delete()
    with pytest.raises(SqlCorruptError, match="is missing"):
        look("a", "SELECT sum(length(pad)) FROM t NOT INDEXED")
    Page.objects.filter(actor__name="a", number=1).update(data=b"x" * 4096)
    caches.cache.clear()
    with pytest.raises(SqlCorruptError):
        look("a", "SELECT 1 FROM t")


# Growing, shrinking, limits


def test_vacuum_and_drop_shrink_the_database_and_it_can_grow_again():
    grown("a", 3_000)
    large = len(pages("a"))
    execute("a", "DELETE FROM t WHERE id > 10")
    assert len(pages("a")) == large
    execute("a", "VACUUM")
    small = pages("a")
    assert len(small) < 10
    assert list(small) == list(range(1, len(small) + 1))
    execute("a", "INSERT INTO t SELECT id + 100, word, randomblob(40000) FROM t")
    assert look("a", "SELECT count(*), sum(length(pad)) FROM t; ") == [(20, 10 * 900 + 400_000)]
    assert look("a", "PRAGMA integrity_check") == [("ok",)]


def test_shrinking_and_growing_in_one_turn_leaves_no_old_page():
    grown("a", 1_000)

    async def body(agent):
        await agent.sql.exec("DELETE FROM t")
        await agent.sql.exec("VACUUM")
        await agent.sql.exec("INSERT INTO t VALUES (1, 'x', zeroblob(300000))")
        await agent.checkpoint()
        await agent.sql.exec("DELETE FROM t")
        await agent.sql.exec("VACUUM")
        await agent.sql.exec("INSERT INTO t VALUES (2, 'y', randomblob(3000000))")

    in_turn("a", body)
    caches.cache.clear()
    assert look("a", "SELECT id, length(pad) FROM t; ") == [(2, 3_000_000)]
    assert look("a", "PRAGMA integrity_check") == [("ok",)]
    numbers = list(pages("a"))
    assert numbers == list(range(1, len(numbers) + 1))
    assert look("a", "PRAGMA page_count") == [(len(numbers),)]


def test_a_database_that_is_full_says_so_and_stays_usable():
    async def body(agent):
        await agent.sql.exec("CREATE TABLE t (a)")
        with pytest.raises(SqlLimitError) as caught:
            for _ in range(100):
                await agent.sql.exec("INSERT INTO t VALUES (randomblob(10000))")
        assert (caught.value.limit, caught.value.maximum) == ("MAX_SQL_BYTES", 40 * 4096)
        await agent.sql.exec("DELETE FROM t WHERE rowid > 2")
        await agent.sql.exec("INSERT INTO t VALUES (randomblob(10000))")

    with override_settings(AGENTS={"MAX_SQL_BYTES": 40 * 4096}):
        in_turn("a", body)
        assert len(pages("a")) == 40
        assert look("a", "SELECT count(*) FROM t") == [(3,)]


def test_a_turn_may_change_so_many_pages_and_not_one_more():
    execute("a", "CREATE TABLE t (a); INSERT INTO t VALUES (zeroblob(40000))")

    async def change(agent):
        await agent.sql.exec("UPDATE t SET a = randomblob(40000)")
        return len(agent.sql._pages._finished)

    async def go_on(agent):
        for _ in range(3):
            with pytest.raises(SqlLimitError) as caught:
                await change(agent)
            assert caught.value.limit == "MAX_SQL_COMMIT_BYTES"
        await agent.sql.exec("INSERT INTO t VALUES (2)")

    in_turn("a", change)
    used = in_turn("a", change)
    with override_settings(AGENTS={"MAX_SQL_COMMIT_BYTES": used * 4096}):
        assert in_turn("a", change) == used
    with override_settings(AGENTS={"MAX_SQL_COMMIT_BYTES": used * 4096 - 1}):
        in_turn("a", go_on)
    assert look("a", "SELECT count(*) FROM t") == [(2,)]
    assert look("a", "PRAGMA integrity_check") == [("ok",)]


def test_checkpoints_let_a_turn_change_more_in_pieces():
    async def body(agent):
        await agent.sql.exec("CREATE TABLE t (a)")
        for _ in range(10):
            await agent.sql.exec("INSERT INTO t VALUES (randomblob(50000))")
            await agent.checkpoint()

    with override_settings(AGENTS={"MAX_SQL_COMMIT_BYTES": 20 * 4096}):
        in_turn("a", body)
    assert look("a", "SELECT count(*) FROM t") == [(10,)]


def test_vacuum_of_more_than_a_turn_may_change_is_refused_at_once():
    execute("a", "CREATE TABLE t (a); INSERT INTO t VALUES (randomblob(200000))")
    for limit in ("MAX_SQL_COMMIT_BYTES", "MAX_SQL_TEMP_BYTES"):
        with override_settings(AGENTS={limit: 100_000}), pytest.raises(SqlLimitError) as caught:
            execute("a", "VACUUM")
        assert caught.value.limit == limit
    execute("a", "VACUUM")


# What a process remembers


def test_what_another_process_wrote_is_seen_and_what_it_left_alone_is_not_read_again():
    grown("a", 2_000)
    for word in ("w7919", "w15838", "w23757"):
        fetched("a", "SELECT id, pad FROM t WHERE word = ?", word)
    kept = caches.cache
    caches.cache = PageCache()
    try:
        execute("a", "UPDATE t SET pad = 'new' WHERE id = 2")
    finally:
        caches.cache = kept
    rows, cost = fetched("a", "SELECT id, pad FROM t WHERE word = ?", "w15838")
    assert rows == [(2, "new")]
    assert cost <= 4


def test_turns_that_write_no_sql_leave_the_pages_good():
    grown("a", 200)
    fetched("a", "SELECT pad FROM t WHERE id = 5")

    async def other(agent):
        await agent.messages.add("user", "hello")

    in_turn("a", other)
    assert fetched("a", "SELECT length(pad) FROM t WHERE id = 5") == ([(900,)], 0)


def test_a_process_remembers_a_bounded_amount():
    with override_settings(AGENTS={"SQL_CACHE_BYTES": 400_000}):
        for name in "abcde":
            grown(name, 300)
            look(name, "SELECT sum(length(pad)) FROM t NOT INDEXED")
            assert caches.cache.size <= 400_000
        assert look("a", "SELECT sum(length(pad)) FROM t NOT INDEXED") == [(300 * 900,)]
    with override_settings(AGENTS={"SQL_CACHE_BYTES": 0}):
        assert look("b", "SELECT sum(length(pad)) FROM t NOT INDEXED") == [(300 * 900,)]
        execute("b", "UPDATE t SET pad = 'x'")
        assert caches.cache.size <= 4096 + 200
        assert look("b", "SELECT sum(length(pad)) FROM t NOT INDEXED") == [(300,)]


def test_the_cache_forgets_what_nobody_used_for_longest():
    cache = PageCache()

    def page(n, version=1):
        return {n: StoredPage(bytes(4096), version)}

    with override_settings(AGENTS={"SQL_CACHE_BYTES": 8 * (4096 + 200)}):
        for actor in (1, 2, 3, 4):
            for number in (1, 2):
                cache.add(actor, 1, page(number))
        assert cache.get(1, 1, 1) is not None
        cache.add(5, 1, page(1))
        assert cache.get(2, 1, 1) is None
        assert cache.get(1, 1, 1) is not None
        # No actor takes more than its share.
        for number in range(1, 20):
            cache.add(1, 1, page(number))
        assert cache.get(1, 1, 19) is not None
        assert cache.get(3, 1, 2) is not None
        # Another version is never given.
        assert cache.get(1, 2, 19) is None
        cache.moved(1, 1, 2, page(3, 2), gone=[19])
        assert cache.get(1, 1, 3) is None
        assert cache.get(1, 2, 3) is not None
        assert cache.get(1, 2, 19) is None
        cache.moved(1, 5, 6, page(4, 6))  # it missed something: only what was just written is known
        assert cache.versions(1, 10) == (6, {4: 6})
        cache.add(1, 3, page(9))  # of an old version: ignored
        assert cache.get(1, 6, 9) is None


# Two processes


def test_two_processes_on_two_copies_of_the_code_see_each_others_writes(tmp_path):
    root = Path(settings.BASE_DIR)
    copy = tmp_path / "copy"
    for package in ("agents", "agentsite", "conversations", "scheduler", "tests", "examples"):
        shutil.copytree(root / package, copy / package, ignore=shutil.ignore_patterns("__pycache__"))
    for folder in ("static", "templates"):
        shutil.copytree(root / folder, copy / folder)
    program = """
import sys, json, django
django.setup()
import agents, tests.agents.sql.turns as turns
from agents.runtime import shutdown
print(json.dumps(agents.__file__), flush=True)
for line in sys.stdin:
    text, binds = json.loads(line)
    print(json.dumps(turns.execute("shared", text, *binds)), flush=True)
shutdown(0)
"""
    database = settings.DATABASES["default"]
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "TEST_DATABASE_NAME": str(connection.settings_dict["NAME"]),
    }
    if database["ENGINE"].endswith("sqlite3"):
        environment["DATABASE_URL"] = f"sqlite:///{connection.settings_dict['NAME']}"
    else:
        at = connection.settings_dict
        environment["DATABASE_URL"] = (
            f"postgres://{at['USER']}:{at['PASSWORD']}@{at['HOST']}:{at['PORT']}/{at['NAME']}"
        )

    def start(folder):
        return subprocess.Popen(
            [sys.executable, "-c", program], cwd=folder, env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def ask(process, text, *binds):
        process.stdin.write(json.dumps([text, binds]) + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    one, two = start(root), start(copy)
    try:
        assert json.loads(one.stdout.readline()) == str(root / "agents" / "__init__.py")
        assert json.loads(two.stdout.readline()) == str(copy / "agents" / "__init__.py")
        ask(one, "CREATE TABLE t (a, b)")
        assert ask(two, "SELECT * FROM t") == []
        for n in range(10):
            writer, reader = (one, two) if n % 2 else (two, one)
            ask(writer, "INSERT INTO t VALUES (?, ?)", n, "x" * 3000)
            assert ask(reader, "SELECT count(*), max(a) FROM t") == [[n + 1, n]]
            assert ask(reader, "UPDATE t SET a = a WHERE a = ? RETURNING a", n) == [[n]]
        assert ask(two, "PRAGMA integrity_check") == [["ok"]]
    finally:
        for process in (one, two):
            process.stdin.close()
            process.wait(timeout=60)
            process.stdout.close()
    assert look("shared", "SELECT count(*) FROM t") == [(10,)]
