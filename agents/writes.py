"""What a turn's commit will write, as rows of named tables.

Parts of a turn (messages, tasks, texts ...) describe their rows here; the store writes the rows of many
turns in a few statements. Nothing in this module touches the database.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from django.apps import apps
from django.utils.functional import cached_property

Row = Mapping[str, Any]

#: Rows of one subject that a turn's record names.
NOTED = 50


@dataclass(frozen=True, eq=False)
class Table:
    """A model's table as the store writes it: the columns that a row gives, in order.

    A row is a dict with exactly these columns (``actor_id``, not ``actor``). JSON columns take plain JSON
    trees (already codec-encoded), moments are aware datetimes. ``conflict`` names the columns of the unique
    constraint that an upsert replaces a row by.
    """

    model: str  # "conversations.Message"
    columns: tuple[str, ...]
    conflict: tuple[str, ...] = ()

    @cached_property
    def name(self) -> str:
        return apps.get_model(self.model)._meta.db_table

    @cached_property
    def json_columns(self) -> frozenset[str]:
        fields = apps.get_model(self.model)._meta.concrete_fields
        return frozenset(f.column for f in fields if f.get_internal_type() == "JSONField")

    @cached_property
    def binary_columns(self) -> frozenset[str]:
        """Columns that take bytes."""
        fields = apps.get_model(self.model)._meta.concrete_fields
        return frozenset(f.column for f in fields if f.get_internal_type() == "BinaryField") & {*self.columns}


@dataclass
class Writes:
    """The rows of one commit. ``deletes`` go first, then ``inserts``, then ``upserts``."""

    deletes: list[tuple[Table, Row]] = field(default_factory=list)
    inserts: list[tuple[Table, Row]] = field(default_factory=list)
    upserts: list[tuple[Table, Row]] = field(default_factory=list)
    #: What the turn's record says of these rows: a subject ("tasks", "texts" ...) and JSON for each.
    notes: dict[str, list[Any]] = field(default_factory=dict)

    def insert(self, table: Table, row: Row) -> None:
        self.inserts.append((table, row))

    def upsert(self, table: Table, row: Row) -> None:
        """Replaces the row with the same ``table.conflict`` columns, or inserts it."""
        self.upserts.append((table, row))

    def delete(self, table: Table, key: Row) -> None:
        """Deletes the rows whose columns equal ``key``, which has exactly ``table.columns``."""
        self.deletes.append((table, key))

    def note(self, subject: str, about: Any) -> None:
        """Says in the turn's record that something was written; the first NOTED of a subject are kept."""
        notes = self.notes.setdefault(subject, [])
        if len(notes) < NOTED:
            notes.append(about)

    @property
    def touches_tasks(self) -> bool:
        """Whether the actor's alarm may have changed."""
        return any(t.model == "scheduler.Task" for rows in (self.deletes, self.inserts) for t, _ in rows)

    def __len__(self) -> int:
        return len(self.deletes) + len(self.inserts) + len(self.upserts)
