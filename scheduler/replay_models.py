"""Replay jobs: many tasks run again, each exactly once, however often the job is stopped and resumed."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now


class ReplaySource(models.TextChoices):
    PARKED = "parked", "parked tasks: they become pending again"
    FINISHED = "finished", "finished tasks: what their attempts ran runs again, as new tasks"


class ReplayChange(models.TextChoices):
    NONE = "none", "as it was"
    REPLACE = "replace", "replaced by this"
    PATCH = "patch", "merged with this (RFC 7396)"


class ReplayStatus(models.TextChoices):
    RUNNING = "running", "running"
    STOPPED = "stopped", "stopped: can be resumed"
    DONE = "done", "done: each of its tasks was dealt with"


class ReplayJob(models.Model):
    """One replay: what was chosen, by whom, why, how fast, and how far it is."""

    by = models.CharField(max_length=150)
    reason = models.TextField()
    source = models.CharField(max_length=8, choices=ReplaySource.choices)
    # The filters, in words of ``scheduler.replays.Selection``.
    chosen = models.JSONField(default=dict)
    change = models.CharField(max_length=7, choices=ReplayChange.choices, default=ReplayChange.NONE)
    payload = models.JSONField(null=True)
    per_minute = models.IntegerField(null=True, help_text="Null: as fast as it goes.")
    status = models.CharField(max_length=7, choices=ReplayStatus.choices, default=ReplayStatus.RUNNING)
    total = models.IntegerField(default=0)
    done = models.IntegerField(default=0, db_default=0)
    refused = models.IntegerField(default=0, db_default=0)
    created_at = models.DateTimeField(db_default=Now())
    # The pace counts from here.
    resumed_at = models.DateTimeField(db_default=Now())
    dealt_before = models.IntegerField(default=0, db_default=0)
    ended_at = models.DateTimeField(null=True)
    # A process works on it until then, unless it dies.
    held_until = models.DateTimeField(null=True)

    class Meta:
        indexes = [
            # What there is to do.
            models.Index(
                fields=["id"], name="scheduler_replay_running", condition=models.Q(status="running")
            ),
        ]

    def __str__(self) -> str:
        return f"replay {self.pk} of {self.total} {self.source} tasks"

    @property
    def left(self) -> int:
        return self.total - self.done - self.refused


class ReplayItemStatus(models.TextChoices):
    PENDING = "pending", "pending"
    DONE = "done", "done"
    REFUSED = "refused", "refused"


class ReplayItem(models.Model):
    """One task of a replay job. Its status changes in the transaction that replays the task."""

    job = models.ForeignKey(ReplayJob, on_delete=models.CASCADE, related_name="items", db_index=False)
    actor = models.ForeignKey("agents.Actor", on_delete=models.CASCADE, related_name="+")
    # Of the task, or of the attempt.
    number = models.BigIntegerField()
    status = models.CharField(
        max_length=7, choices=ReplayItemStatus.choices, default=ReplayItemStatus.PENDING
    )
    task_pk = models.BigIntegerField(null=True, help_text="The task that runs.")
    error = models.TextField(default="", db_default="")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["job", "number"], name="scheduler_replayitem_once")]
        indexes = [
            # The next of a job.
            models.Index(
                fields=["job", "id"],
                name="scheduler_replayitem_next",
                condition=models.Q(status="pending"),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.number}: {self.status}"
