"""What operators did: who, when, what, why."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now

from agents import conf


class Operation(models.Model):
    """One deed of an operator, written in the transaction that did it. Nothing changes it but an erasure."""

    # Null: about no one actor, or about one that is gone.
    actor = models.ForeignKey("agents.Actor", on_delete=models.SET_NULL, related_name="operations", null=True)
    # pause | resume | take_over | release | answer | replay | erase | export | import | fork ...
    verb = models.CharField(max_length=32)
    kind = models.CharField(max_length=conf.KIND_MAX_LENGTH, default="", db_default="")
    # Empty once the actor was erased.
    name = models.CharField(max_length=conf.NAME_MAX_LENGTH, default="", db_default="")
    by = models.CharField(max_length=150)
    reason = models.TextField(default="", db_default="")
    detail = models.JSONField(null=True)
    at = models.DateTimeField(db_default=Now())

    def __str__(self) -> str:
        return f"{self.verb} by {self.by}"
