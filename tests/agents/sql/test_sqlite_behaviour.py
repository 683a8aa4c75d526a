"""SQLite's own behaviour is kept: random scripts give what the standard library's sqlite3 gives.

Whole test sets of SQLite's (sqllogictest) were run by hand beside this; docs/sql.md says which.
"""

import random
import sqlite3

import apsw
import pytest

from agents.exceptions import SqlError
from tests.agents.sql.scripts import Script
from tests.agents.sql.turns import execute, in_turn, look, pages, stored_bytes

pytestmark = pytest.mark.django_db(transaction=True)

TURNS = 8
STATEMENTS = 60  # a turn


def typed(rows):
    return [tuple((type(value).__name__, value) for value in row) for row in rows]


def standard():
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


def bundled():
    """The SQLite that ours is, on its own in memory."""
    connection = apsw.Connection(":memory:")
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


def answer_of(connection, text, values):
    """(columns, rows), or the error's message."""
    cursor = connection.cursor()
    try:
        if isinstance(connection, apsw.Connection):
            columns: list[str] = []

            def traced(cursor, *_):
                columns.extend(c[0] for c in cursor.description)
                return True

            cursor.exec_trace = traced
            return columns, typed(cursor.execute(text, values, can_cache=False).fetchall())
        cursor.execute(text, values)
        return [column[0] for column in cursor.description or ()], typed(cursor.fetchall())
    except (sqlite3.Error, apsw.Error) as error:
        return str(error)


async def our_answer(agent, text, values):
    try:
        cursor = await agent.sql.exec(text, *values)
        return cursor.column_names, typed(cursor.raw())
    except SqlError as error:
        return str(error)


@pytest.mark.parametrize("seed", range(10))
def test_random_scripts_give_the_same_results_and_the_same_errors(seed):
    """Exactly what the same SQLite gives in memory; and what the standard library's gives, whose version may
    answer a few things in another way (then it does so beside the bundled one too)."""
    same, other, script = bundled(), standard(), Script(seed)
    answered = failed = differed = 0
    for _ in range(TURNS):
        statements = list(script.statements(STATEMENTS))

        async def body(agent, statements=statements):
            return [await our_answer(agent, text, values) for text, values in statements]

        for (text, values), ours in zip(statements, in_turn("a", body), strict=True):
            expected = answer_of(same, text, values)
            assert ours == expected, (text, values)
            failed += isinstance(ours, str)
            answered += not isinstance(ours, str)
            differed += ours != answer_of(other, text, values)
    assert answered > 200
    assert failed > 5
    assert differed < 0.1 * (answered + failed)
    # Table for table, as a later turn reads it.
    for (name,) in same.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall():
        query = f"SELECT * FROM {name} ORDER BY id"
        assert typed(look("a", query)) == typed(same.execute(query).fetchall())
    assert look("a", "PRAGMA integrity_check") == [("ok",)]
    other.close()


def test_what_is_stored_is_a_database_that_sqlite_itself_reads(tmp_path):
    script = Script(99)

    async def body(agent):
        for text, values in script.statements(300):
            try:
                await agent.sql.exec(text, *values)
            except SqlError:
                pass

    in_turn("a", body)
    file = tmp_path / "a.sqlite3"
    file.write_bytes(stored_bytes("a"))
    plain = sqlite3.connect(file)
    assert plain.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert plain.execute("PRAGMA page_count").fetchone() == (len(pages("a")),)
    for (name,) in plain.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall():
        query = f"SELECT * FROM {name} ORDER BY id"
        assert typed(look("a", query)) == typed(plain.execute(query).fetchall())
    plain.close()


def test_our_functions_give_what_sqlites_own_give():
    plain, some = bundled(), random.Random(5)
    values = [
        None, "", 0, 1, -5, 1.5, 1e300, 0.1, 2.0, b"", b"abc", b"\0a", "abc", "aabbcc", "é", "éaé", "  x  ",
        "中文", "a" * 50, "🙂x🙂", 12345678901234567, float("inf"),
    ]  # fmt: skip
    calls = []
    for function, arguments in (("instr", 2), ("replace", 3), ("trim", 2), ("ltrim", 2), ("rtrim", 2)):
        for _ in range(300):
            binds = tuple(
                some.choice(values)
                if some.random() < 0.5
                else "".join(some.choice("aé b中") for _ in range(some.randint(0, 6)))
                for _ in range(arguments)
            )
            marks = ", ".join("?" * arguments)
            calls.append((f"SELECT {function}({marks}) AS v, typeof({function}({marks})) AS t", binds * 2))

    async def body(agent):
        return [typed((await agent.sql.exec(text, *binds)).raw()) for text, binds in calls]

    for (text, binds), ours in zip(calls, in_turn("a", body), strict=True):
        assert ours == typed(plain.execute(text, binds).fetchall()), (text, binds)


WORDS = [
    "a", "b", "c", "dog", "cat.", "The", "fox:", "jumps", "over!", "lazy", "é", "中文", "x.y", "and", "or",
    "running", "runs",
]  # fmt: skip
QUERIES = [
    "a", "dog", "a OR b", "dog AND cat", '"a b"', '"dog cat" OR fox', "run*", "fox NEAR lazy", "NEAR(a b, 3)",
    "x:a", "y : dog", "the fox", "a b c", "(a OR b) NOT c", '"dog" + "cat"', "^a", "é OR 中文", "no",
]  # fmt: skip


@pytest.mark.parametrize("tokenizer", ["unicode61", "porter", "trigram"])
def test_our_snippet_is_fts5s_own(tokenizer):
    plain, some = bundled(), random.Random(7)
    schema = f"CREATE VIRTUAL TABLE f USING fts5 (x, y, tokenize = '{tokenizer}')"
    ends = ["", "", ".", ":", " \n", "..", "  "]
    rows = [
        tuple(
            some.choice([" ", "", ". "])
            + " ".join(
                some.choice(WORDS) + some.choice(ends) for _ in range(some.choice([0, 1, 3, 10, 40, 150]))
            )
            for _ in range(2)
        )
        for _ in range(30)
    ]
    calls = [
        (column, "[", "]", some.choice(["...", "", None]), some.choice([1, 2, 5, 10, 30, 64, 99]), query)
        for query in QUERIES
        for column in (-1, -1, 0, 0, 1, 1)
    ]
    select = "SELECT rowid, snippet(f, ?, ?, ?, ?, ?) FROM f WHERE f MATCH ? ORDER BY rowid"

    async def body(agent):
        await agent.sql.exec(schema)
        await agent.sql.exec_many("INSERT INTO f VALUES (?, ?)", rows)
        return [list((await agent.sql.exec(select, *call)).raw()) for call in calls]

    plain.execute(schema)
    plain.executemany("INSERT INTO f VALUES (?, ?)", rows)
    found = 0
    for call, ours in zip(calls, in_turn("a", body), strict=True):
        expected = plain.execute(select, call).fetchall()
        assert ours == expected, call
        found += len(expected)
    assert found > 500
    assert look("a", "SELECT snippet(f, 0, '', '', '', 5) FROM f WHERE f MATCH 'no'") == []
    with pytest.raises(SqlError, match="wrong number of arguments"):
        look("a", "SELECT snippet(f, 0) FROM f WHERE f MATCH 'dog'")


def test_our_functions_work_in_indexes_triggers_views_and_checks():
    execute(
        "a",
        """CREATE TABLE t (a TEXT CHECK (instr(a, 'bad') = 0), b AS (trim(a, 'x')) STORED);
           CREATE INDEX i ON t (replace(a, 'o', '0'));
           CREATE TABLE log (a);
           CREATE TRIGGER g AFTER INSERT ON t BEGIN INSERT INTO log VALUES (rtrim(new.a, 'x')); END;
           CREATE VIEW v AS SELECT ltrim(a, 'x') AS a FROM t;
           INSERT INTO t VALUES ('xfoox')""",
    )
    rows = look("a", "SELECT t.a, b, log.a, v.a FROM t, log, v WHERE replace(t.a, 'o', '0') = 'xf00x'")
    assert rows == [("xfoox", "foo", "xfoo", "foox")]
    with pytest.raises(SqlError):
        execute("a", "INSERT INTO t VALUES ('bad')")
