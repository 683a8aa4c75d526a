"""What an actor's SQL database costs, beside plain SQLite on a file and beside one PostgreSQL row a fact.

    python benchmarks/sql.py [--statements 2000] [--turns 100] [--rows 20000] [--databases sqlite,postgresql]

Three measurements, the same work in each place:

- statements a second inside one turn (one transaction): inserts, inserts in bulk, selects by primary key;
- how long a turn takes (a transaction) that changes rows on 1, 10 and 100 pages;
- bytes stored a row, of rows as a conversation's notes would be: a number, a word, a text of 5 to 40 words,
  a moment, and an index.

"Plain SQLite" is the standard library's on a file, WAL with synchronous=FULL: a commit is on the disk, as
PostgreSQL's is by default (and as an actor's is there; on a SQLite site it is with synchronous=NORMAL, as the
site's settings have it). "PostgreSQL rows" is psycopg with prepared statements on one connection.

It makes databases of its own, on the server that ``DATABASE_URL`` names and in a temporary folder, and
removes them at the end.
"""

from __future__ import annotations

import argparse
import os
import random
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SERVER = os.environ.get("DATABASE_URL", "postgres://postgres@127.0.0.1:5432/postgres")
SCHEMA = "CREATE TABLE notes (id INTEGER PRIMARY KEY, word TEXT, body TEXT, at TEXT)"
INDEX = "CREATE INDEX notes_word ON notes (word)"
PAGES = (1, 10, 100)
APART = 40  # rows: no two of them on one page


def main() -> None:
    options = parse()
    if options.database:
        actors(options)
        return
    plain_sqlite(options)
    name = f"bench_sql_{os.getpid()}"
    url = SERVER.rpartition("/")[0] + f"/{name}"
    if "postgresql" in options.databases:
        admin(f"CREATE DATABASE {name}")
    try:
        if "postgresql" in options.databases:
            postgres_rows(options, url)
        for database in options.databases.split(","):
            with tempfile.TemporaryDirectory() as folder:
                child(
                    options, database, url if database == "postgresql" else f"sqlite:///{folder}/site", folder
                )
    finally:
        if "postgresql" in options.databases:
            admin(f"DROP DATABASE {name} WITH (FORCE)")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--statements", type=int, default=2000, help="a measurement (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=100, help="a measurement (default: %(default)s)")
    parser.add_argument("--rows", type=int, default=20_000, help="in the database (default: %(default)s)")
    parser.add_argument("--databases", default="sqlite,postgresql")
    parser.add_argument("--database", help=argparse.SUPPRESS)
    return parser.parse_args()


def child(options: argparse.Namespace, database: str, url: str, folder: str) -> None:
    environment = {
        **os.environ, "DATABASE_URL": url, "VAR_DIR": folder, "SECRET_KEY": "benchmark", "ENV_FILE": "",
        "AGENT_APPS": "", "DJANGO_SETTINGS_MODULE": "agentsite.settings", "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    counts = [f"--{name}={getattr(options, name)}" for name in ("statements", "turns", "rows")]
    subprocess.run([sys.executable, __file__, "--database", database, *counts], env=environment, check=True)


def admin(statement: str) -> None:
    import psycopg

    with psycopg.connect(SERVER, autocommit=True) as connection:
        connection.execute(statement)


# The work


def facts(count: int, start: int = 1) -> Iterator[tuple[int, str, str, str]]:
    some = random.Random(start)
    words = [
        "".join(some.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(some.randint(2, 9)))
        for _ in range(3000)
    ]
    for number in range(start, start + count):
        body = " ".join(some.choice(words) for _ in range(some.randint(5, 40)))
        at = f"2026-11-30 18:{number // 60 % 60:02}:{number % 60:02}.000000+00:00"
        yield number, some.choice(words), body, at


def spread(pages: int, rows: int) -> list[int]:
    first = random.randint(1, rows - pages * APART)
    return [first + APART * i for i in range(pages)]


def report(place: str, what: str, value: str) -> None:
    print(f"{place:<34} {what:<34} {value}", flush=True)


def a_second(place: str, what: str, count: int, work: Callable[[], Any]) -> None:
    began = time.perf_counter()
    work()
    report(place, what, f"{count / (time.perf_counter() - began):>9,.0f} /s")


def took(place: str, what: str, times: list[float]) -> None:
    late = statistics.quantiles(times, n=20)[-1]
    middle = statistics.median(times)
    report(place, what, f"{middle * 1e3:>9.2f} ms   fastest {min(times) * 1e3:.2f}   p95 {late * 1e3:.2f}")


# Places


def plain_sqlite(options: argparse.Namespace) -> None:
    place, count = "plain SQLite, a file", options.statements
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "plain"
        db = sqlite3.connect(file, isolation_level=None)
        db.executescript(f"PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; {SCHEMA}; {INDEX}")

        def transaction(work: Callable[[], Any]) -> None:
            db.execute("BEGIN IMMEDIATE")
            work()
            db.execute("COMMIT")

        transaction(lambda: db.executemany("INSERT INTO notes VALUES (?, ?, ?, ?)", facts(options.rows)))
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        size = file.stat().st_size / options.rows
        more = list(facts(count, options.rows + 1))

        def inserts() -> None:
            for fact in more:
                db.execute("INSERT INTO notes VALUES (?, ?, ?, ?)", fact)

        def selects() -> None:
            for fact in more:
                db.execute("SELECT body FROM notes WHERE id = ?", (fact[0],)).fetchall()

        a_second(place, "inserts", count, lambda: transaction(inserts))
        a_second(place, "selects by key", count, lambda: transaction(selects))
        for pages in PAGES:
            times = []
            for turn in range(options.turns):
                ids = spread(pages, options.rows)
                began = time.perf_counter()
                transaction(lambda ids=ids, turn=turn: db.execute(update("?", ids), (str(turn),)))
                times.append(time.perf_counter() - began)
            took(place, f"a transaction, {pages} pages", times)
        report(place, "bytes a row", f"{size:>9.0f}")
        db.close()


def postgres_rows(options: argparse.Namespace, url: str) -> None:
    import psycopg

    place, count = "PostgreSQL rows", options.statements
    with psycopg.connect(url) as db:
        db.execute(
            "CREATE TABLE notes (actor_id bigint, id bigint, word text, body text, at timestamptz,"
            " PRIMARY KEY (actor_id, id))"
        )
        db.execute("CREATE INDEX notes_word ON notes (actor_id, word)")
        insert = "INSERT INTO notes VALUES (1, %s, %s, %s, %s)"
        db.cursor().executemany(insert, list(facts(options.rows)))
        db.commit()
        more = list(facts(count, options.rows + 1))

        def inserts() -> None:
            for fact in more:
                db.execute(insert, fact)
            db.commit()

        def selects() -> None:
            for fact in more:
                db.execute("SELECT body FROM notes WHERE actor_id = 1 AND id = %s", (fact[0],)).fetchall()
            db.commit()

        a_second(place, "inserts", count, inserts)
        a_second(place, "selects by key", count, selects)
        for pages in PAGES:
            times = []
            for turn in range(options.turns):
                ids = spread(pages, options.rows)
                began = time.perf_counter()
                db.execute(
                    "UPDATE notes SET at = at + %s * interval '1 second' WHERE actor_id = 1 AND id = ANY(%s)",
                    (turn, ids),
                )
                db.commit()
                times.append(time.perf_counter() - began)
            took(place, f"a transaction, {pages} rows", times)
        db.execute("TRUNCATE notes")
        db.cursor().executemany(insert, list(facts(options.rows)))
        db.commit()
        (size,) = db.execute("SELECT pg_total_relation_size('notes')").fetchone() or (0,)
        report(place, "bytes a row", f"{size / options.rows:>9.0f}")
        db.execute("DROP TABLE notes")


def update(mark: str, ids: list[int]) -> str:
    return f"UPDATE notes SET at = {mark} WHERE id IN ({', '.join(map(str, ids))})"


def actors(options: argparse.Namespace) -> None:
    import django

    django.setup()
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    from agents import Agent
    from agents.runtime import get_runtime, shutdown
    from agents.turn import Turn

    class Bench(Agent):
        kind = "bench"

    place, count = f"an actor's, on {options.database}", options.statements

    def turn(work: Callable[[Any], Any], name: str = "a") -> Any:
        async def body(turn: Turn) -> Any:
            return await work(Bench(turn))

        return get_runtime().run_sync(lambda engine: engine.call(("bench", name), "bench", body, budget=600))

    async def fill(agent: Any) -> None:
        await agent.sql.exec(f"{SCHEMA}; {INDEX}")
        await agent.sql.exec_many("INSERT INTO notes VALUES (?, ?, ?, ?)", facts(options.rows))

    turn(fill)
    size = stored(options.database) / options.rows
    more = list(facts(count, options.rows + 1))

    async def inserts(agent: Any) -> None:
        for fact in more:
            await agent.sql.exec("INSERT INTO notes VALUES (?, ?, ?, ?)", *fact)

    async def bulk(agent: Any) -> None:
        await agent.sql.exec_many(
            "INSERT INTO notes VALUES (?, ?, ?, ?)", facts(count, options.rows + count + 1)
        )

    async def selects(agent: Any) -> None:
        for fact in more:
            (await agent.sql.exec("SELECT body FROM notes WHERE id = ?", fact[0])).one()

    a_second(place, "inserts", count, lambda: turn(inserts))
    a_second(place, "inserts in bulk (exec_many)", count, lambda: turn(bulk))
    a_second(place, "selects by key", count, lambda: turn(selects))

    async def state(agent: Any) -> None:
        await agent.set_state({"n": random.random()})

    times = []
    for _ in range(options.turns):
        began = time.perf_counter()
        turn(state)
        times.append(time.perf_counter() - began)
    took(place, "a turn without SQL (a state)", times)
    for pages in PAGES:
        times = []
        for number in range(options.turns):
            ids = spread(pages, options.rows)

            async def change(agent: Any, ids: list[int] = ids, number: int = number) -> None:
                await agent.sql.exec(update("?", ids), str(number))

            began = time.perf_counter()
            turn(change)
            times.append(time.perf_counter() - began)
        took(place, f"a turn, {pages} pages", times)
    cold(place, options, turn)
    report(place, "bytes a row", f"{size:>9.0f}")
    shutdown(0)


def cold(place: str, options: argparse.Namespace, turn: Callable[..., Any]) -> None:
    """The first turn of a process that has not seen this database: one row by its key, one by its word."""
    from agents.sql import cache

    times, fetched = [], []

    async def look(agent: Any) -> None:
        number = random.randint(1, options.rows)
        (await agent.sql.exec("SELECT body FROM notes WHERE id = ?", number)).one()
        fetched.append(agent.sql._pages.fetched)

    for _ in range(options.turns):
        cache.cache.clear()
        began = time.perf_counter()
        turn(look)
        times.append(time.perf_counter() - began)
    took(place, "a turn that finds a row, cold", times)
    report(place, "pages that it reads", f"{statistics.mean(fetched):>9.1f}")


def stored(database: str) -> float:
    from django.db import connection

    with connection.cursor() as cursor:
        if database == "postgresql":
            cursor.execute("SELECT pg_total_relation_size('agents_page')")
        else:
            cursor.execute("SELECT sum(pgsize) FROM dbstat WHERE name LIKE '%agents_page%'")
        (size,) = cursor.fetchone()
    return float(size)


if __name__ == "__main__":
    main()
