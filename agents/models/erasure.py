"""The line that an erasure leaves."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now

from agents import conf


class Erasure(models.Model):
    """One erasure of an actor: that it happened, when, by whom. Of whom can be checked, not read."""

    kind = models.CharField(max_length=conf.KIND_MAX_LENGTH)
    # A keyed hash of the address: tells whether this one was erased.
    address = models.CharField(max_length=64, db_index=True)
    by = models.CharField(max_length=150)
    reason = models.TextField(default="", db_default="")
    # How many rows of each table.
    counts = models.JSONField(default=dict)
    erased_at = models.DateTimeField(db_default=Now())

    def __str__(self) -> str:
        return f"{self.kind} by {self.by}"
