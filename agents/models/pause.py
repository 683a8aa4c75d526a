"""Kinds of which no turn begins, and whether any does."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now

from agents import conf


class Pause(models.Model):
    """No turn begins of any actor of this kind; of any at all where the kind is empty.

    Claims look at these rows (``agents/store``), whatever process they come from.
    """

    EVERYTHING = ""

    kind = models.CharField(max_length=conf.KIND_MAX_LENGTH, unique=True)
    paused_at = models.DateTimeField(db_default=Now())
    by = models.CharField(max_length=150, default="")
    reason = models.TextField(default="")

    def __str__(self) -> str:
        return self.kind or "everything"
