"""The pages of actors' SQL databases, and the rows of their key-value stores."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper

from agents import conf


class Page(models.Model):
    """One page of one actor's SQLite database. Written only by turns' commits (``agents/sql``)."""

    pk = models.CompositePrimaryKey("actor_id", "number")
    actor = models.ForeignKey("agents.Actor", on_delete=models.CASCADE, related_name="pages", db_index=False)
    number = models.IntegerField(help_text="From 1, as SQLite counts.")
    version = models.BigIntegerField(help_text="The version of the actor whose commit wrote it.")
    data = models.BinaryField()

    def __str__(self) -> str:
        return f"page {self.number}"


class KeyField(models.CharField):
    """Text in the order of its characters' numbers, on every database: listings depend on it."""

    def db_parameters(self, connection: BaseDatabaseWrapper) -> Any:
        parameters: dict[str, Any] = {**super().db_parameters(connection)}
        if connection.vendor == "postgresql":
            parameters["collation"] = "C"  # SQLite's own is that
        return parameters


class StoredValue(models.Model):
    """One key of an actor's key-value store (``agents/storage.py``). The row is part of a turn's commit."""

    actor = models.ForeignKey(
        "agents.Actor", on_delete=models.CASCADE, related_name="stored_values", db_index=False
    )
    key = KeyField(max_length=conf.STORAGE_KEY_MAX_LENGTH)
    value = models.JSONField(null=True, help_text="As the codec writes it.")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["actor", "key"], name="agents_storedvalue_key")]

    def __str__(self) -> str:
        return self.key
