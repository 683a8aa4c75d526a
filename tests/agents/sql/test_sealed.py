"""A database is private, and a statement cannot leave it, weaken it, or take the process with it."""

import resource
import time
from pathlib import Path

import apsw
import pytest
from django.test import override_settings

from agents.exceptions import (
    LimitError,
    ReadOnlyTurnError,
    SqlError,
    SqlForbiddenError,
    SqlLimitError,
    SqlTimeoutError,
)
from agents.sql.guard import MAX_PATCHED_BYTES
from agents.sql.vfs import NAME
from tests.agents.sql.turns import execute, in_read, in_turn, look

pytestmark = pytest.mark.django_db(transaction=True)


def refused(text, *binds, error=SqlForbiddenError):
    """The error of a statement, which is the same in a turn, in a read, and for a model."""

    async def body(agent):
        await agent.sql.exec("CREATE TABLE IF NOT EXISTS t (a)")
        with pytest.raises(error) as caught:
            await agent.sql.exec(text, *binds)
        with pytest.raises(SqlError):
            await agent.sql.query_readonly(text, *binds)
        # And the database is as good as before.
        assert (await agent.sql.exec("PRAGMA integrity_check")).one() == {"integrity_check": "ok"}
        assert (await agent.sql.exec("PRAGMA foreign_keys")).one() == {"foreign_keys": 1}
        return caught.value

    async def reading(agent):
        with pytest.raises((SqlError, ReadOnlyTurnError)):
            await agent.sql.exec(text, *binds)

    error = in_turn("sealed", body)
    in_read("sealed", reading)
    return error


@pytest.mark.parametrize(
    "text",
    [
        "ATTACH '/tmp/elsewhere.db' AS x",
        "ATTACH '' AS x",
        "ATTACH ':memory:' AS x",
        "ATTACH 'file:elsewhere?vfs=unix' AS x",
        "DETACH main",
        "VACUUM INTO '/tmp/elsewhere.db'",
        "VACUUM main INTO 'file:elsewhere?vfs=unix'",
        "VACUUM; ATTACH '' AS x",
        "ATTACH '' AS x; VACUUM",
        "SELECT load_extension('libm.so.6')",
        "SELECT fts3_tokenizer('simple')",
        "CREATE VIRTUAL TABLE v USING csv (filename = '/etc/passwd')",
        "CREATE VIRTUAL TABLE v USING fts4 (body)",
        "CREATE VIRTUAL TABLE v USING geopoly (a)",
        "CREATE VIRTUAL TABLE temp.v USING dbstat",
        "PRAGMA writable_schema = ON",
        "PRAGMA writable_schema = RESET",
        "PRAGMA main.writable_schema(1)",
        "PRAGMA journal_mode = DELETE",
        "PRAGMA journal_mode = WAL",
        "PRAGMA journal_mode = OFF",
        "PRAGMA journal_mode",
        "PRAGMA locking_mode = NORMAL",
        "PRAGMA synchronous = FULL",
        "PRAGMA foreign_keys = OFF",
        "PRAGMA foreign_keys(0)",
        "PRAGMA trusted_schema = ON",
        "PRAGMA ignore_check_constraints = ON",
        "PRAGMA defer_foreign_keys = ON",
        "PRAGMA temp_store = MEMORY",
        "PRAGMA temp_store_directory = '/tmp'",
        "PRAGMA data_store_directory = '/tmp'",
        "PRAGMA mmap_size = 100000000",
        "PRAGMA cache_size = -1000000",
        "PRAGMA cache_spill = OFF",
        "PRAGMA max_page_count = 1000000000",
        "PRAGMA page_size = 65536",
        "PRAGMA auto_vacuum = FULL",
        "PRAGMA encoding = 'UTF-16'",
        "PRAGMA schema_version = 1",
        "PRAGMA hard_heap_limit = 1000000000000",
        "PRAGMA soft_heap_limit = 0",
        "PRAGMA threads = 8",
        "PRAGMA wal_checkpoint",
        "PRAGMA lock_proxy_file = '/tmp/x'",
        "PRAGMA vdbe_trace = ON",
        "PRAGMA recursive_triggers = ON",
        "PRAGMA query_only = OFF",
        "PRAGMA read_uncommitted = 1",
        "PRAGMA case_sensitive_like = 1",
        "PRAGMA shrink_memory",
        "PRAGMA no_such_pragma",
        "SELECT * FROM pragma_journal_mode",
        "SELECT * FROM pragma_temp_store",
        "SELECT 1; PRAGMA foreign_keys = OFF",
        "-- a comment\nPRAGMA foreign_keys = OFF",
    ],
)
def test_what_leaves_or_weakens_the_database_is_refused(text, tmp_path):
    refused(text, error=SqlError)
    assert not Path("/tmp/elsewhere.db").exists()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("ATTACH '' AS x", "ATTACH is not allowed"),
        ("PRAGMA writable_schema = ON", "PRAGMA writable_schema is not allowed"),
        ("SELECT load_extension('x')", r"load_extension\(\) is not allowed"),
        ("CREATE VIRTUAL TABLE v USING csv (x)", "virtual tables of csv are not allowed, only of fts5"),
        ("VACUUM; SELECT 1", "VACUUM runs alone"),
    ],
)
def test_a_refusal_says_why(text, reason):
    error = refused(text)
    assert error.code == "sql_forbidden"
    with pytest.raises(SqlForbiddenError, match=reason):
        raise error


@pytest.mark.parametrize(
    "text",
    [
        "SELECT readfile('/etc/passwd')",
        "SELECT writefile('/tmp/x', 'y')",
        "SELECT edit('x')",
        "SELECT * FROM fsdir('/')",
        "SELECT * FROM sqlite_dbpage",
        "UPDATE sqlite_schema SET sql = 'CREATE TABLE t (b)'",
        "DELETE FROM sqlite_schema",
        "INSERT INTO sqlite_schema VALUES ('table', 'u', 'u', 2, 'CREATE TABLE u (a)')",
        ".shell ls",
        ".import /etc/passwd t",
    ],
)
def test_there_is_no_way_to_a_file_nor_to_the_schema_beneath(text):
    refused(text, error=SqlError)


def test_the_shadow_tables_of_a_search_index_cannot_be_written():
    async def body(agent):
        await agent.sql.exec("CREATE VIRTUAL TABLE f USING fts5 (body)")
        for text in (
            "DELETE FROM f_data",
            "DROP TABLE f_content",
            "INSERT INTO f_config VALUES ('rank', 'x')",
        ):
            with pytest.raises(SqlError):
                await agent.sql.exec(text)

    in_turn("a", body)


def test_pragmas_that_only_report_are_there_and_the_applications_own_version():
    async def body(agent):
        sql = agent.sql
        await sql.exec("CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT UNIQUE)")
        assert [row["name"] for row in await sql.exec("PRAGMA table_info(t)")] == ["a", "b"]
        assert [row["name"] for row in await sql.exec("SELECT name FROM pragma_table_info('t')")] == [
            "a",
            "b",
        ]
        assert (await sql.exec("PRAGMA index_list(t)")).one()["unique"] == 1
        assert (await sql.exec("PRAGMA page_size")).one() == {"page_size": 4096}
        assert (await sql.exec("PRAGMA quick_check")).one() == {"quick_check": "ok"}
        await sql.exec("PRAGMA user_version = 7")

    in_turn("a", body)
    assert look("a", "PRAGMA user_version") == [(7,)]
    assert look("a", "PRAGMA data_version") == [(1,)]


# Time


def test_a_statement_that_runs_too_long_is_cut_and_undone():
    endless = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) "

    async def body(agent):
        await agent.sql.exec("CREATE TABLE t (a); INSERT INTO t VALUES (1)")
        for text in (
            endless + "SELECT count(*) FROM n",
            endless + "INSERT INTO t SELECT i FROM n",
            endless + "UPDATE t SET a = (SELECT sum(i) FROM n)",
            endless + "DELETE FROM t WHERE a IN (SELECT -i FROM n)",
            endless + "SELECT group_concat(hex(zeroblob(1000))) FROM n",
            "SELECT sum(x.a + y.a) FROM (SELECT 1 AS a UNION ALL SELECT 2) x, "
            + ", ".join(f"(SELECT {i} AS a UNION ALL SELECT 2) y{i}" for i in range(40))
            + ", (SELECT 1 AS a UNION SELECT 2) y",
        ):
            began = time.monotonic()
            with pytest.raises(SqlTimeoutError) as caught:
                await agent.sql.exec(text)
            assert isinstance(caught.value, TimeoutError)
            assert time.monotonic() - began < 60
        # The turn goes on.
        return (await agent.sql.exec("SELECT a FROM t")).to_array()

    # On a quick machine what the rows take would end the statements before the time does.
    roomy = {"MAX_SQL_TEMP_BYTES": 2**33, "MAX_SQL_COMMIT_BYTES": 2**33}
    with override_settings(AGENTS={"SQL_BUDGET": 0.3, **roomy}):
        assert in_turn("a", body) == [{"a": 1}]
    assert look("a", "SELECT a FROM t; PRAGMA integrity_check") == [("ok",)]


def test_many_quick_statements_in_one_text_share_the_time():
    text = ";".join(
        ["WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 300000) SELECT max(i) FROM n"]
        * 200
    )
    with override_settings(AGENTS={"SQL_BUDGET": 1.0}), pytest.raises(SqlTimeoutError):
        execute("a", text)


# Size


def heap_and_peak():
    return apsw.memory_used(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("SELECT zeroblob(1000000000)", "MAX_SQL_VALUE_BYTES"),
        ("INSERT INTO t VALUES (zeroblob(1000000000))", "MAX_SQL_VALUE_BYTES"),
        ("SELECT randomblob(1000000000)", "MAX_SQL_VALUE_BYTES"),
        ("SELECT printf('%1000000000d', 1)", "MAX_SQL_VALUE_BYTES"),
        ("SELECT printf('%.*c', 1000000000, 'x')", "MAX_SQL_VALUE_BYTES"),
        ("SELECT hex(zeroblob(5000000))", "MAX_SQL_VALUE_BYTES"),
        ("SELECT replace(hex(zeroblob(1000000)), '0', printf('%.*c', 1000, 'x'))", "MAX_SQL_VALUE_BYTES"),
        (
            "WITH RECURSIVE x (a) AS (SELECT 'x' UNION ALL SELECT a || a FROM x) SELECT length(a) FROM x",
            "MAX_SQL_VALUE_BYTES",
        ),
        ("WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n", "MAX_SQL_ROWS"),
        (
            "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT zeroblob(100000) FROM n",
            "MAX_SQL_RESULT_BYTES",
        ),
        # Sorts and what is gathered go to "files" of a bounded size.
        (
            "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"
            " SELECT i FROM n ORDER BY randomblob(10000) LIMIT 1 OFFSET 100000000",
            "MAX_SQL_TEMP_BYTES",
        ),
        (
            "WITH RECURSIVE n (i) AS (SELECT randomblob(5000) UNION SELECT randomblob(5000) FROM n)"
            " SELECT count(*) FROM n",
            "MAX_SQL_TEMP_BYTES",
        ),
        (
            "CREATE TEMP TABLE big AS WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"
            " SELECT randomblob(10000) FROM n",
            "MAX_SQL_TEMP_BYTES",
        ),
        # Many large values in one row: SQLite's memory of the whole process is bounded.
        (f"SELECT {', '.join(f'length(x{i})' for i in range(150))} FROM "
         + f"(SELECT {', '.join(f'hex(randomblob(2000000)) AS x{i}' for i in range(150))} LIMIT 1 OFFSET 0)",
         "SQL_HEAP_BYTES"),
    ],
)  # fmt: skip
def test_a_statement_that_takes_too_much_is_cut_and_the_process_is_unharmed(text, limit):
    execute("a", "CREATE TABLE t (a)")
    before, peak = heap_and_peak()
    with pytest.raises(SqlLimitError) as caught:
        execute("a", text)
    assert caught.value.limit == limit
    assert isinstance(caught.value, LimitError)
    after, new_peak = heap_and_peak()
    assert after - before < 8 * 1024 * 1024
    assert new_peak - peak < 900 * 1024 * 1024
    assert execute("a", "SELECT count(*) FROM t") == [(0,)]


def test_a_result_of_the_most_rows_is_given_and_one_more_is_not():
    rows = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT {}) SELECT i FROM n"
    with override_settings(AGENTS={"MAX_SQL_ROWS": 50, "MAX_SQL_RESULT_BYTES": 1000}):
        assert len(execute("a", rows.format(50))) == 50
        with pytest.raises(SqlLimitError, match="at most 50 rows"):
            execute("a", rows.format(51))
        assert execute("a", "SELECT zeroblob(1000)") == [(bytes(1000),)]
        with pytest.raises(SqlLimitError, match="at most 1000 bytes"):
            execute("a", "SELECT zeroblob(1001)")


def test_a_result_that_is_too_large_undoes_the_statement_that_made_it():
    async def body(agent):
        await agent.sql.exec("CREATE TABLE t (a)")
        rows = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 100) "
        with pytest.raises(SqlLimitError):
            await agent.sql.exec(
                "INSERT INTO t VALUES (0); " + rows + "INSERT INTO t SELECT i FROM n RETURNING a"
            )

    with override_settings(AGENTS={"MAX_SQL_ROWS": 50}):
        in_turn("a", body)
    assert look("a", "SELECT a FROM t") == [(0,)]


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("SELECT length(trim(?, ?))", 0),
        ("SELECT length(rtrim(?, ?))", 0),
        ("SELECT instr(?, ?)", 0),
        ("SELECT length(replace(?, ?, 'x'))", 2_000_000),
        ("SELECT length(trim(?, 'b' || ?))", 0),
    ],
)
def test_no_function_takes_the_product_of_two_large_values(text, size):
    """SQLite's own would hold a thread for minutes or hours, and could not be cut."""
    many = "a" * 2_000_000
    other = "".join(chr(0x4E00 + i) for i in range(20_000)) if "trim(?, ?)" in text else ""
    began = time.monotonic()
    assert execute("a", text, many, "a" * 600_000 + other + "b" * ("trim" not in text)) == [(size,)]
    assert time.monotonic() - began < 60


def test_a_text_in_which_every_word_matches_cannot_hold_the_thread():
    """SQLite's own snippet() would for ten minutes: an end user can write such a text."""
    execute("a", "CREATE VIRTUAL TABLE f USING fts5 (body); INSERT INTO f VALUES (?)", "a " * 200_000)
    query = "SELECT length(snippet(f, 0, '[', ']', '..', 64)) FROM f WHERE f MATCH 'a'"
    began = time.monotonic()
    with override_settings(AGENTS={"SQL_BUDGET": 0.05}), pytest.raises(SqlTimeoutError):
        look("a", query)
    assert time.monotonic() - began < 60
    with override_settings(AGENTS={"SQL_BUDGET": 100.0}):
        assert look("a", query) == [(64 * 4 + 1,)]


def test_a_pattern_is_not_too_long():
    with pytest.raises(SqlError, match="pattern too complex"):
        execute("a", "SELECT 'a' LIKE printf('%.*c', 257, 'a')")
    assert look("a", "SELECT 'a' LIKE printf('%.*c', 256, 'a')") == [(0,)]


def test_json_patch_compares_no_more_than_it_can_in_a_moment():
    def object_of(size):
        return '{"a":"' + "x" * (size - 8) + '"}'

    query, more = "SELECT length(json_patch(?, '{}'))", object_of(MAX_PATCHED_BYTES + 1)
    assert look("a", query, object_of(MAX_PATCHED_BYTES)) == [(MAX_PATCHED_BYTES,)]
    schema = """
        CREATE TABLE t (body); CREATE VIEW v AS SELECT json_patch(body, '{}') FROM t;
        CREATE TABLE u (body);
        CREATE TRIGGER u_patched AFTER INSERT ON u BEGIN SELECT json_patch(new.body, '{}'); END"""
    execute("a", schema)
    execute("a", "INSERT INTO t VALUES (?)", more)
    for text, values in (
        (query, [more]),
        ("SELECT json_patch('{}', body) FROM t", []),
        ("SELECT * FROM v", []),
        ("INSERT INTO u VALUES (?)", [more]),
    ):
        with pytest.raises(SqlLimitError) as caught:
            execute("a", text, *values)
        assert caught.value.limit == "MAX_PATCHED_BYTES"


def test_statements_beside_one_with_json_patch_see_values_of_any_length():
    async def body(agent):
        exec = agent.sql.exec
        for _ in range(3):  # what is kept compiled says nothing of what it calls
            rows = await exec("SELECT json_array(json_patch('{}', '{\"a\": 1}')) AS a")
            assert rows.one() == {"a": '[{"a":1}]'}
            with pytest.raises(SqlLimitError):
                await exec("SELECT json_patch(?, '{}')", '{"a":"' + "x" * 100_000 + '"}')
            assert (await exec("SELECT length(?) AS n", "x" * 1_000_000)).one() == {"n": 1_000_000}

    in_turn("a", body)


@pytest.mark.parametrize("text", ["SELECT json_patch('{}', '{}')", "SELECT jsonb_patch('{}', '{}')"])
def test_what_cannot_be_cut_is_not_for_models(text):
    async def body(agent):
        await agent.sql.exec(text)
        with pytest.raises(SqlForbiddenError):
            await agent.sql.query_readonly(text)

    in_turn("a", body)


# Statements of a model


def test_query_readonly_reads_what_the_turn_wrote():
    async def body(agent):
        sql = agent.sql
        await sql.exec("CREATE TABLE t (a); INSERT INTO t VALUES (1), (2)")
        async with sql.transaction():
            await sql.exec("INSERT INTO t VALUES (3)")
            return (await sql.query_readonly("SELECT sum(a) AS s FROM t WHERE a > ?", 1)).one()

    assert in_turn("a", body) == {"s": 5}


@pytest.mark.parametrize(
    "text",
    [
        "INSERT INTO t VALUES (2)",
        "UPDATE t SET a = 2",
        "DELETE FROM t",
        "DELETE FROM t RETURNING a",
        "REPLACE INTO t VALUES (1)",
        "WITH x AS (SELECT 1) INSERT INTO t SELECT * FROM x",
        "CREATE TABLE u (a)",
        "CREATE TEMP TABLE u (a)",
        "CREATE INDEX i ON t (a)",
        "CREATE VIEW v AS SELECT 1",
        "CREATE TEMP VIEW v AS SELECT 1",
        "CREATE TRIGGER g AFTER INSERT ON t BEGIN SELECT 1; END",
        "CREATE VIRTUAL TABLE g USING fts5 (body)",
        "ALTER TABLE t ADD COLUMN b",
        "DROP TABLE t",
        "REINDEX",
        "ANALYZE",
        "VACUUM",
        "PRAGMA user_version = 3",
        "PRAGMA query_only = OFF",
        "BEGIN",
        "SELECT 1; DELETE FROM t",
        "SELECT 1; SELECT 2",
        "-- reading\nDELETE FROM t",
        "INSERT INTO f (f) VALUES ('optimize')",
    ],
)
def test_query_readonly_only_reads(text):
    async def body(agent):
        sql = agent.sql
        await sql.exec(
            "CREATE TABLE t (a); INSERT INTO t VALUES (1); CREATE VIRTUAL TABLE f USING fts5 (body)"
        )
        with pytest.raises(SqlForbiddenError):
            await sql.query_readonly(text)
        # The same text as the agent's own may be allowed, and makes no difference to the next one.
        try:
            async with sql.transaction():
                await sql.exec(text)
                raise InterruptedError
        except (SqlError, InterruptedError):
            pass
        with pytest.raises(SqlForbiddenError):
            await sql.query_readonly(text)
        assert (await sql.exec("SELECT a FROM t")).to_array() == [{"a": 1}]
        await sql.exec("INSERT INTO t VALUES (9)")  # writing works as before

    in_turn("a", body)
    assert look("a", "SELECT a FROM t") == [(1,), (9,)]


def test_query_readonly_reads_everything_that_can_be_read():
    async def body(agent):
        sql = agent.sql
        await sql.exec("CREATE VIRTUAL TABLE f USING fts5 (body); INSERT INTO f VALUES ('hello there')")
        await sql.exec("CREATE VIRTUAL TABLE r USING rtree (id, a, b); INSERT INTO r VALUES (1, 2, 3)")
        await sql.exec(
            "CREATE TABLE t (a); INSERT INTO t VALUES (1); CREATE VIEW v AS SELECT a + 1 AS b FROM t"
        )

    async def ask(agent):
        answers = []
        for text in (
            "SELECT highlight(f, 0, '[', ']') AS x FROM f WHERE f MATCH 'hello'",
            "SELECT id AS x FROM r WHERE a < 3",
            "SELECT b AS x FROM v",
            "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 5) SELECT sum(i) FROM n",
            "SELECT name AS x FROM pragma_table_info('t')",
            "VALUES (1)",
        ):
            answers.append((await agent.sql.query_readonly(text)).to_array()[0].popitem()[1])
        assert "SCAN t" in str(
            (await agent.sql.query_readonly("EXPLAIN QUERY PLAN SELECT * FROM t")).to_array()
        )
        return answers

    in_turn("a", body)
    expected = ["[hello] there", 1, 2, 15, "a", 1]
    assert in_turn("a", ask) == expected
    assert in_read("a", ask) == expected


# Files


def test_the_file_system_opens_nothing_that_was_not_announced():
    from agents.sql.connection import _prepare_process

    _prepare_process()
    for name in ("database", "/etc/passwd", "file:/etc/passwd"):
        with pytest.raises(apsw.CantOpenError):
            apsw.Connection(name, vfs=NAME).execute("SELECT * FROM sqlite_schema").fetchall()


def open_files(folder):
    return [path for path in Path("/proc/self/fd").iterdir() if str(folder) in str(path.resolve())]


def test_large_sorts_and_temporary_tables_touch_no_disk(tmp_path, monkeypatch):
    monkeypatch.setenv("SQLITE_TMPDIR", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))

    async def body(agent):
        sql = agent.sql
        await sql.exec("CREATE TABLE t (a, b)")
        await sql.exec(
            "INSERT INTO t WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 3000)"
            " SELECT i, randomblob(2000) FROM n"
        )
        await sql.exec("CREATE TEMP TABLE u AS SELECT * FROM t")
        cursor = await sql.exec("SELECT count(*) AS n FROM (SELECT * FROM t ORDER BY b LIMIT 100000)")
        assert open_files(tmp_path) == []
        await sql.exec("VACUUM")
        return cursor.one()

    assert in_turn("a", body) == {"n": 3000}
    assert list(tmp_path.iterdir()) == []
