"""Takeovers: an operator answers in place of the agent."""

from __future__ import annotations

import uuid

from django.db import models
from django.db.models.functions import Now


def _uid() -> str:
    return uuid.uuid4().hex


class Takeover(models.Model):
    """One time that an operator held a conversation. Messages of that time carry its ``uid``."""

    actor = models.ForeignKey("agents.Actor", on_delete=models.CASCADE, related_name="takeovers")
    uid = models.CharField(max_length=32, default=_uid)
    by = models.CharField(max_length=150)
    reason = models.TextField(default="", db_default="")
    after_seq = models.BigIntegerField(help_text="The last message before it.")
    taken_at = models.DateTimeField(db_default=Now())
    # Null: they hold it now.
    released_at = models.DateTimeField(null=True)
    released_by = models.CharField(max_length=150, default="", db_default="")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["actor", "uid"], name="conversations_takeover_uid"),
            models.UniqueConstraint(
                fields=["actor"],
                condition=models.Q(released_at__isnull=True),
                name="conversations_takeover_one",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.by} since {self.taken_at:%Y-%m-%d %H:%M}"
