"""A database of a benchmark's own, and what the server counts in it."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

SERVER = os.environ.get("DATABASE_URL", "")
#: Benchmarks that run on PostgreSQL alone.
POSTGRES = SERVER if SERVER.startswith("postgres") else "postgres://postgres@127.0.0.1:5432/postgres"


@contextmanager
def own_database(purpose: str, server: str = POSTGRES) -> Iterator[str]:
    """The address of a new, empty database on the server; dropped at the end, whoever is connected."""
    import psycopg

    server = server.rpartition("/")[0]
    name = f"bench_{purpose}_{os.getpid()}"
    with psycopg.connect(f"{server}/postgres", autocommit=True) as admin:
        admin.execute(f'CREATE DATABASE "{name}"')  # type: ignore[call-overload]
    try:
        yield f"{server}/{name}"
    finally:
        with psycopg.connect(f"{server}/postgres", autocommit=True) as admin:
            admin.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')  # type: ignore[call-overload]


@contextmanager
def own_file(purpose: str, folder: Path) -> Iterator[str]:
    yield f"sqlite:///{folder / f'{purpose}.sqlite3'}"


def own(purpose: str, folder: Path) -> Any:
    """On the server that ``DATABASE_URL`` names, or a SQLite file in ``folder`` where it names none."""
    return own_database(purpose) if SERVER.startswith("postgres") else own_file(purpose, folder)


def close_django() -> None:
    """Ends this process's connections, so that the database can be dropped without a complaint."""
    from django.db import connections

    connections.close_all()
    for connection in connections.all():
        if hasattr(connection, "close_pool"):
            connection.close_pool()


def rows(url: str, statement: str, *values: Any) -> list[tuple[Any, ...]]:
    """Values are marked with ``%s``."""
    if url.startswith("sqlite:///"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=30)) as file:
            return file.execute(statement.replace("%s", "?"), values).fetchall()
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(statement, values).fetchall()  # type: ignore[call-overload]


def moment(url: str, column: str) -> str:
    """SQL: seconds since 1970 of a column."""
    if url.startswith("sqlite"):
        return f"((julianday({column}) - 2440587.5) * 86400.0)"
    return f"extract(epoch FROM {column})::float8"


def now(url: str) -> str:
    """SQL: the moment, as columns have it."""
    return "strftime('%Y-%m-%d %H:%M:%f', 'now')" if url.startswith("sqlite") else "clock_timestamp()"


def processor(url: str) -> float:
    """Milliseconds of processor that the server's processes for this database have used so far; of those that
    are there, and 0 where the server is another machine."""
    total = 0
    for (pid,) in rows(
        url,
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()",
    ):
        with suppress(OSError):
            total += int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])
    return total / 1e6


def counters(url: str) -> dict[str, float]:
    """What was done in the database so far: transactions, rows written, bytes of write-ahead log (the whole
    server's), and statements where the server loads ``pg_stat_statements``."""
    if url.startswith("sqlite"):
        return {}
    ((commits, written, wal),) = rows(
        url,
        """SELECT xact_commit, tup_inserted + tup_updated + tup_deleted, pg_current_wal_lsn() - '0/0'
             FROM pg_stat_database WHERE datname = current_database()""",
    )
    counted = {
        "transactions": float(commits),
        "rows": float(written),
        "wal_bytes": float(wal),
        "postgres_cpu_ms": processor(url),
    }
    if "pg_stat_statements" in rows(url, "SHOW shared_preload_libraries")[0][0]:
        rows_of = "(SELECT oid FROM pg_database WHERE datname = current_database())"
        query = f"SELECT coalesce(sum(calls), 0) FROM pg_stat_statements WHERE dbid = {rows_of}"
        counted["statements"] = float(rows(url, query)[0][0])
    return counted


def watch_statements(url: str) -> None:
    """Lets :func:`counters` count statements, where the server can."""
    if "pg_stat_statements" in rows(url, "SHOW shared_preload_libraries")[0][0]:
        import psycopg

        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
