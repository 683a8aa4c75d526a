"""``self.sql.transaction()``: a group that is kept or undone, without the turn failing."""

import asyncio

import pytest
from django.test import override_settings

from agents.exceptions import (
    SqlConstraintError,
    SqlError,
    SqlLimitError,
    SqlTimeoutError,
    SqlTransactionError,
)
from tests.agents.sql.turns import execute, in_read, in_turn, look

pytestmark = pytest.mark.django_db(transaction=True)


async def numbers(agent):
    return [n for (n,) in (await agent.sql.exec("SELECT n FROM t ORDER BY n")).raw()]


@pytest.fixture(autouse=True)
def _table(transactional_db):
    execute("a", "CREATE TABLE t (n INTEGER PRIMARY KEY)")


def test_a_block_that_raises_is_undone_and_the_turn_goes_on():
    async def body(agent):
        await agent.sql.exec("INSERT INTO t VALUES (1)")
        with pytest.raises(ZeroDivisionError):
            async with agent.sql.transaction():
                await agent.sql.exec("INSERT INTO t VALUES (2)")
                await agent.sql.exec("CREATE TABLE u (a)")
                assert await numbers(agent) == [1, 2]
                raise ZeroDivisionError
        assert await numbers(agent) == [1]
        with pytest.raises(SqlError, match="no such table"):
            await agent.sql.exec("SELECT * FROM u")
        async with agent.sql.transaction():
            await agent.sql.exec("INSERT INTO t VALUES (3)")

    in_turn("a", body)
    assert look("a", "SELECT n FROM t") == [(1,), (3,)]


def test_transactions_nest():
    async def body(agent):
        async with agent.sql.transaction():
            await agent.sql.exec("INSERT INTO t VALUES (1)")
            with pytest.raises(KeyError):
                async with agent.sql.transaction():
                    await agent.sql.exec("INSERT INTO t VALUES (2)")
                    async with agent.sql.transaction():
                        await agent.sql.exec("INSERT INTO t VALUES (3)")
                    assert await numbers(agent) == [1, 2, 3]
                    raise KeyError
            assert await numbers(agent) == [1]
            async with agent.sql.transaction():
                await agent.sql.exec("INSERT INTO t VALUES (4)")
        with pytest.raises(KeyError):
            async with agent.sql.transaction():
                async with agent.sql.transaction():
                    await agent.sql.exec("INSERT INTO t VALUES (5)")
                raise KeyError

    in_turn("a", body)
    assert look("a", "SELECT n FROM t") == [(1,), (4,)]


def test_a_statement_that_fails_inside_undoes_only_itself():
    async def body(agent):
        async with agent.sql.transaction():
            await agent.sql.exec("INSERT INTO t VALUES (1)")
            with pytest.raises(SqlConstraintError):
                await agent.sql.exec("INSERT INTO t VALUES (2), (1)")
            await agent.sql.exec("INSERT INTO t VALUES (3)")

    in_turn("a", body)
    assert look("a", "SELECT n FROM t") == [(1,), (3,)]


def test_nothing_of_a_transaction_is_written_when_the_turn_fails_in_it():
    async def body(agent):
        await agent.sql.exec("INSERT INTO t VALUES (1)")
        async with agent.sql.transaction():
            await agent.sql.exec("INSERT INTO t VALUES (2)")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        in_turn("a", body)
    assert look("a", "SELECT n FROM t") == []


def test_a_deferred_foreign_key_fails_at_the_end_and_undoes_the_block():
    execute("a", "CREATE TABLE c (n REFERENCES t (n) DEFERRABLE INITIALLY DEFERRED)")

    async def body(agent):
        with pytest.raises(SqlConstraintError) as caught:
            async with agent.sql.transaction():
                await agent.sql.exec("INSERT INTO c VALUES (7)")
                await agent.sql.exec("INSERT INTO t VALUES (1)")
        assert caught.value.constraint == "foreign_key"
        async with agent.sql.transaction():
            await agent.sql.exec("INSERT INTO c VALUES (7)")
            await agent.sql.exec("INSERT INTO t VALUES (7)")

    in_turn("a", body)
    assert look("a", "SELECT (SELECT group_concat(n) FROM t), (SELECT count(*) FROM c)") == [("7", 1)]


def test_a_checkpoint_inside_a_transaction_is_refused():
    async def body(agent):
        with pytest.raises(SqlTransactionError):
            async with agent.sql.transaction():
                await agent.sql.exec("INSERT INTO t VALUES (1)")
                await agent.checkpoint()
        await agent.sql.exec("INSERT INTO t VALUES (2)")
        await agent.checkpoint()

    in_turn("a", body)
    assert look("a", "SELECT n FROM t") == [(2,)]


def test_when_sqlite_undoes_the_whole_transaction_what_is_left_of_it_is_refused():
    endless = (
        "WITH RECURSIVE n (i) AS (SELECT 10 UNION ALL SELECT i + 1 FROM n) INSERT INTO t SELECT i FROM n"
    )

    async def body(agent):
        await agent.sql.exec("INSERT INTO t VALUES (1)")
        with pytest.raises(SqlTransactionError):
            async with agent.sql.transaction():
                await agent.sql.exec("INSERT INTO t VALUES (2)")
                async with agent.sql.transaction():
                    with pytest.raises(SqlTimeoutError):
                        await agent.sql.exec(endless)
                    with pytest.raises(SqlTransactionError):
                        await agent.sql.exec("INSERT INTO t VALUES (3)")
        with pytest.raises(KeyError):  # the block's own error stands
            async with agent.sql.transaction():
                await agent.sql.exec("INSERT INTO t VALUES (4)")
                with pytest.raises(SqlTimeoutError):
                    await agent.sql.exec(endless)
                raise KeyError
        await agent.sql.exec("INSERT INTO t VALUES (5)")
        return await numbers(agent)

    with override_settings(AGENTS={"SQL_BUDGET": 1.0}):
        assert in_turn("a", body) == [1, 5]
    assert look("a", "SELECT n FROM t") == [(1,), (5,)]


def test_a_transaction_that_changes_too_much_is_undone_whole_and_the_turn_goes_on():
    async def body(agent):
        await agent.sql.exec("CREATE TABLE b (d); INSERT INTO b VALUES (randomblob(100000))")
        for changes in (
            ["INSERT INTO b VALUES (randomblob(900000))", "INSERT INTO b VALUES (randomblob(900000))"],
            ["UPDATE b SET d = randomblob(100000)"] * 2 + ["INSERT INTO b VALUES (randomblob(1700000))"],
        ):
            with pytest.raises(SqlLimitError) as caught:
                async with agent.sql.transaction():
                    for text in changes:
                        await agent.sql.exec(text)
            assert caught.value.limit == "MAX_SQL_COMMIT_BYTES"
        await agent.sql.exec("INSERT INTO b VALUES (randomblob(100000))")
        return (await agent.sql.exec("SELECT count(*) AS n, sum(length(d)) AS size FROM b")).one()

    with override_settings(AGENTS={"MAX_SQL_COMMIT_BYTES": 1_600_000}):
        assert in_turn("a", body) == {"n": 2, "size": 200_000}
    assert look("a", "SELECT count(*) FROM b; PRAGMA integrity_check") == [("ok",)]


# Several tasks of one turn


def test_statements_of_other_tasks_wait_until_a_transaction_is_over():
    async def body(agent):
        entered, order = asyncio.Event(), []

        async def group():
            with pytest.raises(KeyError):
                async with agent.sql.transaction():
                    await agent.sql.exec("INSERT INTO t VALUES (1)")
                    entered.set()
                    await asyncio.sleep(0.05)
                    order.append("end")
                    raise KeyError

        async def other():
            await entered.wait()
            await agent.sql.exec("INSERT INTO t VALUES (2)")
            order.append("other")

        await asyncio.gather(group(), other())
        return order, await numbers(agent)

    assert in_turn("a", body) == (["end", "other"], [2])


def test_tasks_that_a_block_starts_are_inside_of_it():
    async def body(agent):
        with pytest.raises(KeyError):
            async with agent.sql.transaction():
                await asyncio.gather(*(agent.sql.exec("INSERT INTO t VALUES (?)", i) for i in range(20)))
                assert len(await numbers(agent)) == 20
                raise KeyError

        async def nested(i):
            async with agent.sql.transaction():
                await agent.sql.exec("INSERT INTO t VALUES (?)", i)
                await asyncio.sleep(0)
                if i % 2:
                    raise KeyError

        async with agent.sql.transaction():
            await asyncio.gather(*(nested(i) for i in range(6)), return_exceptions=True)
        return await numbers(agent)

    assert in_turn("a", body) == [0, 2, 4]


def test_a_task_that_outlives_its_transaction_is_refused():
    async def body(agent):
        async def late(gate):
            await gate.wait()
            await agent.sql.exec("INSERT INTO t VALUES (1)")

        gate = asyncio.Event()
        async with agent.sql.transaction():
            task = asyncio.create_task(late(gate))
        gate.set()
        with pytest.raises(SqlTransactionError, match="over"):
            await task
        return await numbers(agent)

    assert in_turn("a", body) == []


def test_many_tasks_at_once_run_one_at_a_time_in_order():
    async def body(agent):
        await agent.sql.exec("CREATE TABLE o (i INTEGER PRIMARY KEY, n)")
        await asyncio.gather(*(agent.sql.exec("INSERT INTO o (n) VALUES (?)", n) for n in range(100)))
        return [n for (n,) in (await agent.sql.exec("SELECT n FROM o ORDER BY i")).raw()]

    assert in_turn("a", body) == list(range(100))


# Cancelling


def test_a_statement_whose_caller_is_cancelled_is_cut_undone_and_the_turn_goes_on():
    endless = (
        "WITH RECURSIVE n (i) AS (SELECT 10 UNION ALL SELECT i + 1 FROM n) INSERT INTO t SELECT i FROM n"
    )

    async def body(agent):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await agent.sql.exec(endless)
        assert await numbers(agent) == []
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1), agent.sql.transaction():
                await agent.sql.exec("INSERT INTO t VALUES (1)")
                await asyncio.sleep(60)
        await agent.sql.exec("INSERT INTO t VALUES (2)")
        # Ones that wait for their turn leave the queue.
        slow = asyncio.create_task(
            agent.sql.exec("WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 2000000)"
                           " SELECT count(*) FROM n")
        )  # fmt: skip
        await asyncio.sleep(0)
        waiting = [asyncio.create_task(agent.sql.exec("INSERT INTO t VALUES (?)", i)) for i in (3, 4, 5)]
        await asyncio.sleep(0.01)
        waiting[1].cancel()
        await asyncio.gather(slow, *waiting, return_exceptions=True)
        return await numbers(agent)

    assert in_turn("a", body) == [2, 3, 5]
    assert look("a", "SELECT count(*) FROM t; PRAGMA integrity_check") == [("ok",)]


def test_a_read_may_group_its_statements_too():
    async def body(agent):
        async with agent.sql.transaction():
            return await numbers(agent)

    assert in_read("a", body) == []
