"""The sections of an actor's admin page for what it keeps: its SQL database, its key-value store."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.http import HttpRequest

from agents.adminkit import Panel
from agents.display import as_json
from agents.exceptions import AgentsError
from agents.models import Actor, Page, StoredValue
from agents.sql.overview import COUNTED, Overview, TableOverview, read_overview
from agents.terminal import shown

KEYS = 20
WIDEST = 80  # characters of a value


def kept_panels(request: HttpRequest, actor: Actor) -> Iterable[Panel]:
    """For those who may see pages and stored values, where there are any."""
    pages = Page.objects.filter(actor_id=actor.pk, number=1)
    if request.user.has_perm("agents.view_page") and pages.exists():
        yield Panel("SQL database", "agents/_sql.html", _database(actor))
    values = StoredValue.objects.filter(actor_id=actor.pk).order_by("key")
    if request.user.has_perm("agents.view_storedvalue") and (first := list(values[:KEYS])):
        rows = [(row.key, as_json(row.value)) for row in first]
        title = f"Key-value store, the first {KEYS} keys" if len(first) == KEYS else "Key-value store"
        yield Panel(title, "agents/_storage.html", {"values": rows})


def _database(actor: Actor) -> dict[str, Any]:
    try:
        found = read_overview(actor.kind, actor.name)
    except AgentsError as error:
        return {"problem": f"{error.code}: {error}"}
    tables = [_readable(table) for table in found.tables]
    return {"database": Overview(found.size, tables, found.more), "counted": f"{COUNTED:,}"}


def _readable(table: TableOverview) -> TableOverview:
    first: Any = [tuple(_value(value) for value in row) for row in table.first]
    return TableOverview(table.name, table.type, table.columns, table.rows, table.size, first)


def _value(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return f"{len(value):,} bytes"
    return shown(str(value), WIDEST)
