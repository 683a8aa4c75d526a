"""``self.sql.exec``: statements, values, and the cursor."""

import datetime as dt
import uuid
from decimal import Decimal
from enum import IntEnum, StrEnum
from typing import Any

import pytest

from agents.exceptions import (
    LimitError,
    SqlConstraintError,
    SqlError,
    SqlLimitError,
    SqlRowsError,
    SqlTransactionError,
    SqlValueError,
)
from tests.agents.sql.turns import Desk, execute, in_turn, look

pytestmark = pytest.mark.django_db(transaction=True)


def one_value(value, column="?"):
    async def body(agent):
        return (await agent.sql.exec(f"SELECT {column} AS v, typeof({column}) AS t", value, value)).one()

    return in_turn("values", body)


# The cursor


def test_a_cursor_is_gone_through_once():
    async def body(agent):
        await agent.sql.exec("CREATE TABLE t (a, b)")
        await agent.sql.exec("INSERT INTO t VALUES (1, 'x'), (2, 'y'), (3, 'z')")
        whole = await agent.sql.exec("SELECT * FROM t ORDER BY a")
        part = await agent.sql.exec("SELECT * FROM t ORDER BY a")
        return whole.to_array(), whole.to_array(), next(part), part.to_array(), list(part)

    first, second, head, rest, nothing = in_turn("a", body)
    assert first == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}, {"a": 3, "b": "z"}]
    assert second == []
    assert (head, rest) == ({"a": 1, "b": "x"}, first[1:])
    assert nothing == []


def test_iteration_gives_rows_as_dicts_and_raw_gives_tuples():
    async def body(agent):
        cursor = await agent.sql.exec("SELECT 1 AS a, 2 AS a UNION ALL SELECT 3, 4")
        return (
            cursor.column_names,
            [row async for row in _each(cursor)],
            list((await agent.sql.exec("SELECT 1 AS a, 2 AS a")).raw()),
        )

    async def _each(cursor):
        for row in cursor:
            yield row

    assert in_turn("a", body) == (["a", "a"], [{"a": 2}, {"a": 4}], [(1, 2)])


def test_one_wants_exactly_one_row():
    async def body(agent):
        sql = agent.sql
        assert (await sql.exec("SELECT 7 AS n")).one() == {"n": 7}
        for query, rows in (("SELECT 1 WHERE 0", 0), ("SELECT 1 UNION ALL SELECT 2", 2)):
            with pytest.raises(SqlRowsError) as caught:
                (await sql.exec(query)).one()
            assert caught.value.rows == rows
        left = await sql.exec("SELECT 1 AS n UNION ALL SELECT 2")
        next(left)
        assert left.one() == {"n": 2}

    in_turn("a", body)


def test_a_cursor_knows_its_columns_and_how_many_rows_were_written():
    async def body(agent):
        sql = agent.sql
        created = await sql.exec("CREATE TABLE t (a INTEGER PRIMARY KEY, b)")
        inserted = await sql.exec("INSERT INTO t (b) VALUES (1), (2), (3)")
        empty = await sql.exec("SELECT a, b AS bee FROM t WHERE a > 100")
        updated = await sql.exec("UPDATE t SET b = 0 WHERE a > 1 RETURNING a")
        deleted = await sql.exec("DELETE FROM t")
        assert [c.rows_written for c in (created, inserted, empty, updated, deleted)] == [0, 3, 0, 2, 3]
        assert (empty.column_names, empty.to_array()) == (["a", "bee"], [])
        assert updated.to_array() == [{"a": 2}, {"a": 3}]
        assert created.column_names == []

    in_turn("a", body)


def test_a_cursor_stays_as_it_was_when_later_statements_write():
    async def body(agent):
        await agent.sql.exec("CREATE TABLE t (a); INSERT INTO t VALUES (1), (2)")
        cursor = await agent.sql.exec("SELECT a FROM t")
        await agent.sql.exec("DROP TABLE t")
        return cursor.to_array()

    assert in_turn("a", body) == [{"a": 1}, {"a": 2}]


# Several statements


def test_statements_run_in_order_and_the_binds_belong_to_the_last():
    rows = execute(
        "a",
        """CREATE TABLE t (a, b);  -- a comment; with a semicolon
           INSERT INTO t VALUES (1, ';');
           /* another; one */
           INSERT INTO t VALUES (2, 'it''s; fine');
           SELECT a, b FROM t WHERE a >= ? AND b <> ? ORDER BY a;  -- and nothing more ;
        """,
        1,
        "nothing",
    )
    assert rows == [(1, ";"), (2, "it's; fine")]


def test_a_trigger_with_semicolons_inside_is_one_statement():
    execute(
        "a",
        """CREATE TABLE t (a); CREATE TABLE log (n);
           CREATE TRIGGER seen AFTER INSERT ON t BEGIN INSERT INTO log VALUES (new.a);
             INSERT INTO log VALUES (-new.a); END;
           INSERT INTO t VALUES (?)""",
        5,
    )
    assert look("a", "SELECT n FROM log ORDER BY n") == [(-5,), (5,)]


def test_only_the_last_statement_may_have_marks():
    for text in ("SELECT ?; SELECT ?", "SELECT ?; SELECT 1"):
        with pytest.raises(SqlValueError):
            execute("a", text, 1)
    with pytest.raises(SqlValueError):
        execute("a", "SELECT ?; SELECT ?", 1, 2)


@pytest.mark.parametrize("binds", [(), (1,), (1, 2, 3)])
def test_there_are_as_many_values_as_marks(binds):
    with pytest.raises(SqlValueError):
        execute("a", "SELECT ?, ?", *binds)


def test_what_statements_before_a_failing_one_did_stays():
    async def body(agent):
        with pytest.raises(SqlError):
            await agent.sql.exec(
                "CREATE TABLE t (a); INSERT INTO t VALUES (1); INSERT INTO nowhere VALUES (2)"
            )

    in_turn("a", body)
    assert look("a", "SELECT a FROM t") == [(1,)]


def test_an_empty_text_is_no_statement_and_no_error():
    async def body(agent):
        for text in ("", "  \n;", "-- nothing", "/* nothing"):
            cursor = await agent.sql.exec(text)
            assert (cursor.to_array(), cursor.column_names, cursor.rows_written) == ([], [], 0)

    in_turn("a", body)


def test_a_query_is_text():
    query: Any
    for query in (None, 1, b"SELECT 1"):
        with pytest.raises(SqlValueError):
            execute("a", query)


# Values


class Color(IntEnum):
    RED = 1


class Word(StrEnum):
    HI = "hi"


@pytest.mark.parametrize(
    ("value", "stored", "kind"),
    [
        (None, None, "null"),
        (0, 0, "integer"),
        (2**63 - 1, 2**63 - 1, "integer"),
        (-(2**63), -(2**63), "integer"),
        (2**53 + 1, 2**53 + 1, "integer"),
        (0.1, 0.1, "real"),
        (float("inf"), float("inf"), "real"),
        ("", "", "text"),
        ("Zürich 🙂", "Zürich 🙂", "text"),
        (b"", b"", "blob"),
        (b"\x00\xff", b"\x00\xff", "blob"),
        (bytearray(b"ab"), b"ab", "blob"),
        (memoryview(b"abc")[1:], b"bc", "blob"),
        (True, 1, "integer"),
        (False, 0, "integer"),
        (dt.datetime(2026, 11, 30, 18, 4, 5, tzinfo=dt.UTC), "2026-11-30 18:04:05.000000+00:00", "text"),
        (
            dt.datetime(2026, 11, 30, 19, 4, 5, 7, tzinfo=dt.timezone(dt.timedelta(hours=1))),
            "2026-11-30 18:04:05.000007+00:00",
            "text",
        ),
        (dt.date(2026, 2, 28), "2026-02-28", "text"),
        (Decimal("10.50"), "10.50", "text"),
        (Decimal("-0.000000000000000000000001"), "-1E-24", "text"),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001", "text"),
        (Color.RED, 1, "integer"),
        (Word.HI, "hi", "text"),
        ("a\x00b", "a\ufffdb", "text"),
        ("\ud800", "\ufffd", "text"),
    ],
)
def test_values_are_bound_by_one_rule(value, stored, kind):
    row = one_value(value)
    assert row == {"v": stored, "t": kind}
    assert type(row["v"]) is type(stored)


@pytest.mark.parametrize(
    "value",
    [
        2**63,
        -(2**63) - 1,
        float("nan"),
        dt.datetime(2026, 1, 1),
        dt.timedelta(1),
        dt.time(12),
        Decimal("NaN"),
        Decimal("Infinity"),
        [1],
        {"a": 1},
        (1,),
        object(),
        1j,
    ],
)
def test_what_sqlite_would_change_or_cannot_hold_is_refused(value):
    with pytest.raises(SqlValueError):
        one_value(value)


def test_moments_sort_by_time_and_sqlite_reads_them():
    early = dt.datetime(2026, 1, 1, 23, 59, 59, 999999, tzinfo=dt.timezone(dt.timedelta(hours=-3)))
    late = dt.datetime(2026, 1, 2, 3, 0, tzinfo=dt.UTC)
    rows = execute("a", "SELECT ? < ?, strftime('%Y-%m-%d %H:%M', ?)", early, late, early)
    assert rows == [(1, "2026-01-02 02:59")]


def test_now_in_sql_is_the_turns_now():
    async def body(agent):
        row = (await agent.sql.exec("SELECT strftime('%Y-%m-%d %H:%M:%f', 'now') AS now")).one()
        return dt.datetime.fromisoformat(row["now"]).replace(tzinfo=dt.UTC) - agent.now()

    class Later(Desk):
        kind = "test-sql-later"

        def now(self):
            return dt.datetime(2031, 5, 6, 7, 8, 9, tzinfo=dt.UTC)

        async def ask(self):
            return (await self.sql.exec("SELECT datetime('now') AS now, CURRENT_TIMESTAMP AS c")).one()

    assert abs(in_turn("a", body)) < dt.timedelta(seconds=1)
    assert Later.named("a").sync.ask() == {"now": "2031-05-06 07:08:09", "c": "2031-05-06 07:08:09"}


def test_a_bound_value_of_2_mib_is_taken_and_one_byte_more_is_not():
    most = 2 * 1024 * 1024

    async def body(agent):
        await agent.sql.exec("CREATE TABLE t (a, b)")
        await agent.sql.exec("INSERT INTO t VALUES (?, ?)", b"x" * most, "ü" * (most // 2))
        for value in (b"x" * (most + 1), "x" * (most + 1), "ü" * (most // 2) + "x"):
            with pytest.raises(SqlLimitError) as caught:
                await agent.sql.exec("INSERT INTO t (a) VALUES (?)", value)
            assert (caught.value.limit, caught.value.maximum) == ("MAX_SQL_VALUE_BYTES", most)
            assert caught.value.actual == most + 1
            assert isinstance(caught.value, LimitError)
        return (await agent.sql.exec("SELECT length(a) AS a, length(CAST(b AS BLOB)) AS b FROM t")).to_array()

    assert in_turn("a", body) == [{"a": most, "b": most}]
    assert look("a", "SELECT a = zeroblob(0) OR substr(a, -1) = CAST('x' AS BLOB), substr(b, -1) FROM t") == [
        (1, "ü")
    ]


def test_32766_binds_are_taken_and_one_more_is_not():
    def text(count):
        return f"SELECT {' + '.join('(' + '+'.join('?' * 100) + ')' for _ in range(count // 100))}" + (
            "".join("+?" for _ in range(count % 100))
        )

    assert execute("a", text(32_766), *([1] * 32_766)) == [(32_766,)]
    with pytest.raises(SqlLimitError) as caught:
        execute("a", text(32_767), *([1] * 32_767))
    assert caught.value.limit == "MAX_BINDS"
    with pytest.raises(SqlLimitError):
        execute("a", "SELECT ?32767")


# Errors


def test_errors_say_what_sqlite_says_and_the_turn_goes_on():
    async def body(agent):
        sql = agent.sql
        await sql.exec("CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT UNIQUE NOT NULL, c CHECK (c > 0))")
        await sql.exec("CREATE TABLE child (t INTEGER REFERENCES t (a))")
        await sql.exec("INSERT INTO t VALUES (1, 'x', 1)")
        for text, constraint in (
            ("INSERT INTO t VALUES (2, 'x', 1)", "unique"),
            ("INSERT INTO t VALUES (1, 'y', 1)", "primary_key"),
            ("INSERT INTO t VALUES (3, NULL, 1)", "not_null"),
            ("INSERT INTO t VALUES (3, 'z', 0)", "check"),
            ("INSERT INTO child VALUES (9)", "foreign_key"),
            ("DELETE FROM t; INSERT INTO child VALUES (1)", "foreign_key"),
        ):
            with pytest.raises(SqlConstraintError, match="constraint failed") as caught:
                await sql.exec(text)
            assert caught.value.constraint == constraint
        for text, words in (("SELEC 1", "syntax error"), ("SELECT * FROM nowhere", "no such table: nowhere")):
            with pytest.raises(SqlError, match=words):
                await sql.exec(text)
        await sql.exec("INSERT INTO t VALUES (4, 'w', 1)")

    in_turn("a", body)
    assert look("a", "SELECT a FROM t") == [(4,)]


def test_transactions_by_hand_are_refused():
    async def body(agent):
        await agent.sql.exec("CREATE TABLE t (a)")
        for text in ("BEGIN", "BEGIN IMMEDIATE", "COMMIT", "END", "ROLLBACK", "SAVEPOINT x", "RELEASE x",
                     "ROLLBACK TO x", "INSERT INTO t VALUES (1); COMMIT", "/* x */ begin"):  # fmt: skip
            with pytest.raises(SqlTransactionError):
                await agent.sql.exec(text)
        async with agent.sql.transaction():
            for text in (
                "COMMIT",
                "RELEASE transaction_1",
                "ROLLBACK TO transaction_1",
                "SAVEPOINT transaction_2",
            ):
                with pytest.raises(SqlTransactionError):
                    await agent.sql.exec(text)

    in_turn("a", body)


def test_exec_many_runs_for_every_row_or_for_none():
    async def body(agent):
        sql = agent.sql
        await sql.exec("CREATE TABLE t (a INTEGER PRIMARY KEY, b)")
        assert await sql.exec_many("INSERT INTO t VALUES (?, ?)", ((i, str(i)) for i in range(1000))) == 1000
        with pytest.raises(SqlConstraintError):
            await sql.exec_many("INSERT INTO t VALUES (?, ?)", [(5000, "new"), (1, "old")])
        with pytest.raises(SqlValueError):
            await sql.exec_many("INSERT INTO t VALUES (?, ?)", [(5001, "new"), (5002, object())])
        assert await sql.exec_many("UPDATE t SET b = ? WHERE a < ?", [("x", 10), ("y", 5)]) == 15
        assert await sql.exec_many("INSERT INTO t VALUES (?, ?)", []) == 0
        assert await sql.exec_many("DELETE FROM t WHERE a = ?; -- one by one", [(7,), (7,), (8,)]) == 2
        assert await sql.exec_many("INSERT INTO t VALUES (?, 'x'), (? + 1, 'x')", [(7, 7)]) == 2
        for text in ("INSERT INTO t (b) VALUES (?); SELECT 1", "SELECT 1; INSERT INTO t (b) VALUES (?)"):
            with pytest.raises(SqlValueError, match="one statement"):
                await sql.exec_many(text, [("z",)])

    in_turn("a", body)
    assert look("a", "SELECT count(*), sum(b = 'y'), max(a) FROM t") == [(1000, 5, 999)]


def test_fts5_rtree_json_and_math_are_there():
    async def body(agent):
        sql = agent.sql
        await sql.exec("CREATE VIRTUAL TABLE notes USING fts5 (body, tokenize = 'porter')")
        await sql.exec_many("INSERT INTO notes VALUES (?)", [("running water",), ("still life",)])
        await sql.exec("CREATE VIRTUAL TABLE boxes USING rtree (id, x0, x1)")
        await sql.exec("INSERT INTO boxes VALUES (1, 0, 2), (2, 5, 6)")
        found = (await sql.exec("SELECT body FROM notes WHERE notes MATCH ?", "run")).one()
        box = (await sql.exec("SELECT id FROM boxes WHERE x0 < 1")).one()
        json = (await sql.exec("SELECT ? ->> '$.a[1]' AS v", '{"a": [1, 2]}')).one()
        return found, box, json, (await sql.exec("SELECT round(sqrt(2), 3) AS v")).one()

    expected = ({"body": "running water"}, {"id": 1}, {"v": 2}, {"v": 1.414})
    assert in_turn("a", body) == expected
    assert look("a", "SELECT rowid FROM notes('life')") == [(2,)]
    assert look("a", "SELECT id FROM boxes WHERE x1 > 5") == [(2,)]


def test_a_text_that_is_not_utf8_is_an_error_of_its_statement():
    with pytest.raises(SqlValueError, match="UTF-8"):
        execute("a", "SELECT CAST(x'ff' AS TEXT)")
