"""The event log: everything clients may see, numbered by cursor."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now


class Event(models.Model):
    """One event of an actor. The last ``EVENTS_KEPT`` an actor are kept; cursors are never used again."""

    actor = models.ForeignKey("agents.Actor", on_delete=models.CASCADE, related_name="events", db_index=False)
    cursor = models.BigIntegerField()
    # message | state | broadcast | or whatever ``self.emit(type, payload)`` named.
    type = models.CharField(max_length=64)
    # For a message {"seq": n}: the text is in the log, once.
    payload = models.JSONField(null=True)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [models.UniqueConstraint(fields=["actor", "cursor"], name="agents_event_cursor")]

    def __str__(self) -> str:
        return f"{self.type} #{self.cursor}"
