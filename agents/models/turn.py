"""What each commit of an actor did."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now

from agents import conf


class Outcome(models.TextChoices):
    CHECKPOINT = "checkpoint", "checkpoint: the turn went on"
    STEP = "step", "step: a result was saved, the turn went on"
    DONE = "done", "done: the method returned"
    FAILED = "failed", "failed: the method raised"
    STOPPED = "stopped", "stopped: somebody asked for it"
    LOST = "lost", "lost: its process or its lease was gone"


class TurnRecord(models.Model):
    """One commit of one turn: one row a version. A turn that checkpoints leaves several, with one id."""

    actor = models.ForeignKey("agents.Actor", on_delete=models.CASCADE, related_name="turns", db_index=False)
    version = models.BigIntegerField()
    turn_id = models.UUIDField()
    origin = models.CharField(max_length=16, help_text="call, task, frame, request ...")
    method = models.CharField(max_length=conf.METHOD_MAX_LENGTH)
    outcome = models.CharField(max_length=16, choices=Outcome.choices)
    started_at = models.DateTimeField()
    duration_seconds = models.FloatField(help_text="From the claim, or the last checkpoint, to this commit.")
    first_seq = models.BigIntegerField(null=True)
    last_seq = models.BigIntegerField(null=True)
    # {"patch": ...} (RFC 7396) or {"replace": ...}; null when the turn left the state alone.
    state_change = models.JSONField(null=True)
    # What leads from the state after this commit back to the one before it, in the same form;
    # {"replace": null}: nothing was written before. Null as above, and in records of older versions.
    state_undo = models.JSONField(null=True)
    # What else it wrote, a list each, where there is something: "tasks" [{id, method, due_at}], "cancelled"
    # [task ids], "texts" [uids], "told" [{kind, method}], "files" and "keys" [keys], "pages" [numbers].
    wrote = models.JSONField(null=True)
    committed_at = models.DateTimeField(db_default=Now())

    class Meta:
        # Also answers "did this commit happen?" after a connection died around it.
        constraints = [models.UniqueConstraint(fields=["actor", "version"], name="agents_turn_version")]

    def __str__(self) -> str:
        return f"{self.method} -> v{self.version} ({self.outcome})"
