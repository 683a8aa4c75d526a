"""For operators: ``manage.py actor_sql``, files in and out, the admin's panels."""

import io
import json
import sqlite3
import stat
import sys

import pytest
from django.core.management import CommandError, call_command
from django.test import override_settings
from django.urls import reverse

from agents.exceptions import SqlCorruptError, SqlLimitError
from agents.models import Actor, Page, TurnRecord
from agents.sql import cache as caches
from agents.sql import transfer
from agents.sql.overview import COUNTED, FIRST_ROWS, overview, read_overview
from scheduler.audit import audit
from tests.agents.sql.turns import Desk, execute, in_read, in_turn, look, pages, stored_bytes

pytestmark = pytest.mark.django_db(transaction=True)


def run(*args, name="a", kind=Desk.kind, **options):
    out, err = io.StringIO(), io.StringIO()
    call_command("actor_sql", kind, name, *args, stdout=out, stderr=err, **options)
    return out.getvalue() + err.getvalue()


def refused(*args, **where):
    with pytest.raises(CommandError) as caught:
        run(*args, **where)
    return str(caught.value)


@pytest.fixture
def orders(transactional_db):
    execute("a", "CREATE TABLE orders (id INTEGER PRIMARY KEY, what TEXT, cents INTEGER)")
    execute("a", "INSERT INTO orders (what, cents) VALUES ('tea', 350), (NULL, 20), (x'00ff', 1)")


# The command


def test_a_query_is_printed_as_a_table_or_as_json(orders):
    assert run("-c", "SELECT * FROM orders ORDER BY id") == (
        "id  what     cents\n--  -------  -----\n1   tea      350\n2   NULL     20\n3   x'00ff'  1\n"
    )
    lines = run("-c", "SELECT id, what FROM orders ORDER BY id", "--json").splitlines()
    assert json.loads(lines[0]) == {"id": 1, "what": "tea"}
    assert json.loads(lines[2]) == {"id": 3, "what": {"$bytes": "AP8="}}
    assert run("-c", "SELECT 1 AS a", "-c", "SELECT 2 AS b").split() == ["a", "-", "1", "b", "-", "2"]


def test_it_only_reads_unless_it_is_told_to_write(orders):
    version = Actor.objects.get().version
    assert "--write" in refused("-c", "DELETE FROM orders")
    assert Actor.objects.get().version == version
    assert run("-c", "DELETE FROM orders WHERE id > 1", "--write") == "2 rows written\n"
    record = TurnRecord.objects.latest("version")
    assert (record.method, record.outcome, record.version) == ("actor_sql", "done", version + 1)
    assert look("a", "SELECT count(*) FROM orders") == [(1,)]


def test_a_text_is_kept_whole_or_not_at_all(orders):
    message = refused("-c", "DELETE FROM orders; INSERT INTO nowhere VALUES (1)", "--write")
    assert message == "sql_error: no such table: nowhere"
    assert look("a", "SELECT count(*) FROM orders") == [(3,)]


def test_what_is_wrong_is_said(orders):
    assert refused("-c", "SELEC 1").startswith("sql_error: near")
    assert refused("-c", "ATTACH 'x' AS y").startswith("sql_forbidden:")
    assert refused("-c", "SELECT 1", name="nobody") == f"There is no actor {Desk.kind}/nobody."
    assert "invalid_name" in refused("-c", "SELECT 1", name="")
    assert "One of" in refused("-c", "SELECT 1", "--export", "x")
    assert not Actor.objects.filter(name="nobody").exists()


def test_an_actor_of_a_kind_that_is_gone_can_still_be_read(orders):
    Actor.objects.update(kind="gone")
    assert run("-c", "SELECT count(*) AS n FROM orders", "--json", kind="gone") == '{"n": 3}\n'
    assert "unknown_kind" in refused("-c", "DELETE FROM orders", "--write", kind="gone")


def test_statements_that_are_typed_go_over_lines_and_errors_do_not_end_it(orders, monkeypatch):
    typed = (
        "SELECT count(*)\n  AS n\nFROM orders;\nSELEC;\nDELETE FROM orders;\n.tables\n.schema orders\n.what\n"
    )
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed + "SELECT 7 AS last"))
    printed = run()
    assert "n\n-\n3\n" in printed
    assert "sql_error: near" in printed
    assert "--write takes a turn" in printed
    assert "orders  table" in printed
    assert "CREATE TABLE orders" in printed
    assert ".schema [NAME]" in printed
    assert "last\n----\n7\n" in printed
    monkeypatch.setattr(
        sys, "stdin", io.StringIO("INSERT INTO orders (what) VALUES ('x');\n.quit\nSELECT 1;")
    )
    assert run("--write") == "1 rows written\n"


def test_a_terminal_is_greeted_and_prompted(orders, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stdin", Terminal("SELECT\n1 AS x;\n"))
    assert run().startswith(f"Reading only. .help helps.\n{Desk.kind}/a>    ...> x\n-\n1\n{Desk.kind}/a> ")


# Files


def test_an_export_is_a_database_that_any_sqlite_opens(orders, tmp_path):
    execute("a", "CREATE VIRTUAL TABLE f USING fts5 (x); INSERT INTO f VALUES ('hello')")
    execute("a", "INSERT INTO orders (what) VALUES (?)", "x" * 1_500_000)
    file = tmp_path / "a.sqlite"
    assert run("--export", str(file)) == f"{file.stat().st_size:,} bytes in {file}\n"
    assert file.read_bytes() == stored_bytes("a")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    plain = sqlite3.connect(file)
    assert plain.execute("SELECT count(*), max(length(what)) FROM orders").fetchall() == [(4, 1_500_000)]
    assert plain.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    plain.close()
    assert "File exists" in refused("--export", str(file))
    assert "No such file" in refused("--export", str(tmp_path / "no" / "where"))
    in_turn("empty", lambda agent: agent.set_state({"x": 1}))
    assert run("--export", str(tmp_path / "b"), name="empty") == "It has no database yet.\n"
    assert not (tmp_path / "b").exists()


def test_an_export_of_a_damaged_database_leaves_no_file(orders, tmp_path):
    Page.objects.filter(number=2).delete()
    assert "page 2 of" in refused("--export", str(tmp_path / "a"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "pragma",
    ["page_size = 4096", "page_size = 1024", "page_size = 65536", "journal_mode = WAL", "auto_vacuum = FULL",
     "encoding = 'UTF-16'"],
)  # fmt: skip
def test_an_import_takes_the_place_of_the_database(orders, tmp_path, pragma):
    file = tmp_path / "new.sqlite"
    plain = sqlite3.connect(file, isolation_level=None)
    plain.execute(f"PRAGMA {pragma}")
    plain.execute("CREATE TABLE things (a PRIMARY KEY, b)")
    plain.execute("BEGIN")
    plain.executemany("INSERT INTO things VALUES (?, ?)", [(i, "ü" * 500) for i in range(400)])
    plain.execute("COMMIT")
    plain.close()
    look("a", "SELECT * FROM orders")  # remembered pages must go
    assert "are the database of" in run("--import", str(file))
    assert look("a", "SELECT count(*), sum(length(b)) FROM things") == [(400, 200_000)]
    assert look("a", "SELECT name FROM sqlite_schema WHERE type = 'table'") == [("things",)]
    caches.cache.clear()
    assert look("a", "PRAGMA integrity_check") == [("ok",)]
    execute("a", "INSERT INTO things VALUES ('more', 1)")
    assert len(pages("a")) == look("a", "PRAGMA page_count")[0][0]
    # A smaller one leaves nothing of the larger behind.
    small = tmp_path / "small.sqlite"
    plain = sqlite3.connect(small, isolation_level=None)
    plain.execute("CREATE TABLE only (a)")
    plain.close()
    run("--import", str(small))
    assert list(pages("a")) == [1, 2]


def test_an_import_makes_the_actor_and_runs_on_create(tmp_path):
    class Greeter(Desk):
        kind = "test-sql-greeter"

        async def on_create(self):
            await self.set_state({"created": True})

    file = tmp_path / "new.sqlite"
    plain = sqlite3.connect(file, isolation_level=None)
    plain.execute("CREATE TABLE things (a)")
    plain.close()
    run("--import", str(file), kind="test-sql-greeter", name="new")
    assert Actor.objects.get(name="new").state == {"created": True}
    assert Greeter.named("new").sync.run("SELECT count(*) AS n FROM things") == [{"n": 0}]


def test_what_cannot_be_imported_is_refused_and_changes_nothing(orders, tmp_path):
    before = stored_bytes("a")
    for content in (b"", b"no database at all" * 1000, stored_bytes("a")[:5000]):
        file = tmp_path / "bad"
        file.write_bytes(content)
        if content:
            assert "sql_corrupt" in refused("--import", str(file))
    good = tmp_path / "good"
    good.write_bytes(before)
    with override_settings(AGENTS={"MAX_SQL_BYTES": 4096}):
        assert "sql_limit" in refused("--import", str(good))
    assert "no such file" in refused("--import", str(tmp_path / "nowhere"))
    assert stored_bytes("a") == before
    for error, broken in ((SqlCorruptError, tmp_path / "bad"),):
        with pytest.raises(error):
            transfer.load(broken)
    with override_settings(AGENTS={"MAX_SQL_BYTES": 4096}), pytest.raises(SqlLimitError):
        transfer.load(good)


def test_an_import_may_be_larger_than_what_a_turn_changes(orders, tmp_path):
    file = tmp_path / "large"
    plain = sqlite3.connect(file, isolation_level=None)
    plain.execute("CREATE TABLE t (a)")
    plain.execute("INSERT INTO t VALUES (zeroblob(8000000))")
    plain.close()
    with override_settings(AGENTS={"MAX_SQL_COMMIT_BYTES": 1_000_000}):
        run("--import", str(file))
    assert look("a", "SELECT length(a) FROM t") == [(8_000_000,)]


# The overview


def test_the_overview_names_tables_with_sizes_and_first_rows(orders):
    execute("a", "CREATE VIRTUAL TABLE f USING fts5 (body); CREATE INDEX i ON orders (what)")
    execute(
        "a",
        "INSERT INTO f VALUES ('word'); CREATE VIEW v AS SELECT id FROM orders; CREATE TABLE [odd\"name] (x)",
    )
    found = read_overview(Desk.kind, "a")
    tables = {table.name: table for table in found.tables}
    assert list(tables) == ["f", 'odd"name', "orders", "v"]
    orders = tables["orders"]
    assert (orders.type, orders.columns, orders.rows) == ("table", ["id", "what", "cents"], 3)
    assert orders.first == [(1, "tea", 350), (2, None, 20), (3, b"\x00\xff", 1)]
    assert orders.size == 2 * 4096  # with its index
    assert (tables["f"].type, tables["f"].rows, tables["f"].first) == ("virtual", 1, [("word",)])
    assert (tables["f"].size or 0) >= 4 * 4096
    assert (tables["v"].type, tables["v"].size) == ("view", None)
    assert found.size == len(pages("a")) * 4096


def test_the_overview_of_a_large_database_reads_little_of_it():
    execute("a", "CREATE TABLE t (a, b)")
    execute(
        "a",
        "INSERT INTO t WITH RECURSIVE i (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM i LIMIT 20000)"
        " SELECT x, randomblob(900) FROM i",
    )
    assert len(pages("a")) > 4_000
    caches.cache.clear()

    async def body(agent):
        return await overview(agent.sql), agent.sql._pages.fetched

    found, cost = in_read("a", body)
    (table,) = found.tables
    assert (table.rows, table.size, len(table.first)) == (None, None, FIRST_ROWS)
    assert COUNTED == 10_000
    assert cost < 3_000


def test_the_admin_shows_the_database_and_the_keys_to_those_who_may(client, alice, bob, charlie, orders):
    async def keep(agent):
        await agent.storage.put("greeting", {"text": "hello"})

    in_turn("a", keep)
    url = reverse("admin:agents_actor_change", args=[Actor.objects.get().pk])
    for user in (alice, bob):
        client.force_login(user)
        page = client.get(url).content.decode()
        assert "SQL database" in page
        assert "orders" in page
        assert "tea" in page
        assert "2 bytes" in page
        assert "greeting" in page
        assert "hello" in page
    client.force_login(charlie)
    assert client.get(url).status_code == 302


def test_the_admin_says_when_a_database_cannot_be_read(client, alice, orders):
    Page.objects.filter(number=1).update(data=b"x" * 4096)
    caches.cache.clear()
    client.force_login(alice)
    page = client.get(reverse("admin:agents_actor_change", args=[Actor.objects.get().pk])).content.decode()
    assert "sql_corrupt" in page


def test_an_actor_without_database_or_keys_has_no_such_panels(client, alice):
    in_turn("a", lambda agent: agent.set_state({"x": 1}))
    client.force_login(alice)
    page = client.get(reverse("admin:agents_actor_change", args=[Actor.objects.get().pk])).content.decode()
    assert "SQL database" not in page
    assert "Key-value store" not in page


def test_the_audit_finds_lost_pages_and_pages_of_no_commit(orders):
    assert [finding for finding in audit() if finding.check == "pages"] == []
    Page.objects.filter(number=1).delete()
    assert [str(finding) for finding in audit() if finding.check == "pages"] == [
        f"pages: {Desk.kind}/a: 1 pages, the last is number 2"
    ]
    Page.objects.update(number=1, version=99)
    assert [str(finding) for finding in audit() if finding.check == "pages"] == [
        f"pages: {Desk.kind}/a: a page of version 99, the actor is at 2"
    ]
