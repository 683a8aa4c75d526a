"""What an operator sees of an actor's database: its tables, how large they are, their first rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agents.sql.cache import PAGE_SIZE
from agents.sql.database import Sql
from agents.sql.values import Value

if TYPE_CHECKING:
    from agents.turn import Turn

# Rows shown of each table, tables shown, and how far rows are counted.
FIRST_ROWS = 5
MOST_TABLES = 50
COUNTED = 10_000
# Sizes of tables come from a look at every page: only of a database of at most so many.
MEASURED = 2_000
BUDGET = 10.0  # seconds


@dataclass(frozen=True, slots=True)
class TableOverview:
    name: str
    type: str  # table, view, virtual
    columns: list[str]
    rows: int | None  # None: more than COUNTED
    size: int | None  # bytes, with its indexes; None: not measured
    first: list[tuple[Value, ...]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Overview:
    size: int  # bytes
    tables: list[TableOverview]
    more: int = 0  # tables that are not listed


async def overview(sql: Sql) -> Overview:
    """Reads little, however large the database is."""
    (pages,) = (await sql.query_readonly("PRAGMA page_count")).one().values()
    sizes = await _sizes(sql) if pages <= MEASURED else {}
    listed = (await sql.query_readonly("PRAGMA table_list")).to_array()
    found = sorted(
        (row["name"], row["type"])
        for row in listed
        if row["schema"] == "main" and row["type"] != "shadow" and not row["name"].startswith("sqlite_")
    )
    tables = [
        await _table(sql, name, type, sizes.get(name, 0) if sizes else None)
        for name, type in found[:MOST_TABLES]
    ]
    return Overview(pages * PAGE_SIZE, tables, len(found) - len(tables))


def read_overview(kind: str, name: str) -> Overview:
    """The same for synchronous code, as a read of its own."""
    from agents.runtime import get_runtime

    async def body(turn: Turn) -> Overview:
        return await overview(Sql(turn))

    result: Overview = get_runtime().run_sync(
        lambda engine: engine.reads.read((kind, name), "sql_overview", body, budget=BUDGET)
    )
    return result


async def _table(sql: Sql, name: str, type: str, size: int | None) -> TableOverview:
    quoted = '"' + name.replace('"', '""') + '"'
    first = await sql.query_readonly(f"SELECT * FROM {quoted} LIMIT {FIRST_ROWS}")
    count = await sql.query_readonly(
        f"SELECT count(*) AS n FROM (SELECT 1 FROM {quoted} LIMIT {COUNTED + 1})"
    )
    rows: Any = count.one()["n"]
    return TableOverview(
        name, type, first.column_names, rows if rows <= COUNTED else None,
        None if type == "view" else size, list(first.raw()),
    )  # fmt: skip


async def _sizes(sql: Sql) -> dict[str, int]:
    """Bytes by table; what belongs to a table (indexes, the tables behind a search index) counts with it."""
    rows = await sql.query_readonly(
        """WITH parts AS (SELECT name, pgsize FROM dbstat('main', 1))
           SELECT coalesce(v.name, s.tbl_name) AS owner, sum(parts.pgsize) AS size
             FROM parts JOIN sqlite_schema s ON s.name = parts.name
             LEFT JOIN pragma_table_list l ON l.name = s.tbl_name AND l.schema = 'main' AND l.type = 'shadow'
             LEFT JOIN pragma_table_list v ON l.name IS NOT NULL AND v.schema = 'main' AND v.type = 'virtual'
                   AND l.name GLOB v.name || '_*'
            GROUP BY 1"""
    )
    return {row["owner"]: row["size"] for row in rows}
