"""Tasks, their attempts, the results of their steps, the keys that the inbox has seen, and who sweeps."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from typing import Self

from django.db import models
from django.db.models.functions import Now

from agents import conf


class Lane(models.TextChoices):
    TIMER = "timer", "timer: scheduled by the actor itself"
    INBOX = "inbox", "inbox: from outside, strictly in order"
    HOOK = "hook", "hook: on_parked, on_disconnect; never retried"


class TaskStatus(models.TextChoices):
    PENDING = "pending", "pending: waits for its moment, or for a retry"
    PARKED = "parked", "parked: used up its retries; can be replayed"


class TaskQuerySet(models.QuerySet["Task"]):
    def pending(self) -> Self:
        return self.filter(status=TaskStatus.PENDING)

    def parked(self) -> Self:
        return self.filter(status=TaskStatus.PARKED)

    def due(self) -> Self:
        return self.pending().filter(due_at__lte=Now())


class Task(models.Model):
    """A durable named timer, or a piece of the inbox. A one-shot task is deleted when it succeeds.

    Rows are added and changed only under the actor's row lock (``agents/store``): the alarm depends on it.
    """

    actor = models.ForeignKey("agents.Actor", on_delete=models.CASCADE, related_name="tasks", db_index=False)
    # The stable id given by the caller, or a random one.
    task_id = models.CharField(max_length=conf.TASK_ID_MAX_LENGTH)
    lane = models.CharField(max_length=8, choices=Lane.choices, default=Lane.TIMER)
    method = models.CharField(max_length=conf.METHOD_MAX_LENGTH)
    # Codec-encoded (agents/codec.py).
    payload = models.JSONField(null=True)
    status = models.CharField(max_length=8, choices=TaskStatus.choices, default=TaskStatus.PENDING)
    due_at = models.DateTimeField()
    every_seconds = models.FloatField(null=True)
    cron = models.CharField(max_length=255, default="")
    tz = models.CharField(max_length=64, default="", help_text="IANA zone of the cron expression.")
    attempts = models.IntegerField(default=0, help_text="Deliveries begun since the last success.")
    max_retries = models.IntegerField(default=5)
    created_at = models.DateTimeField(db_default=Now())
    parked_at = models.DateTimeField(null=True)
    error = models.TextField(default="", help_text="Why the last attempt failed, in one line.")
    # The request and the trace that it came from (agents/observing/carrying.py).
    carried = models.CharField(max_length=128, default="", db_default="", editable=False)

    objects = TaskQuerySet.as_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["actor", "task_id"], name="scheduler_task_id"),
        ]
        indexes = [
            # A drain's due tasks, and the alarm: everything pending but the inbox, by due time.
            models.Index(
                fields=["actor", "due_at"],
                name="scheduler_task_due",
                condition=models.Q(status="pending") & ~models.Q(lane="inbox"),
            ),
            # The head of an actor's inbox.
            models.Index(
                fields=["actor", "id"],
                name="scheduler_task_inbox",
                condition=models.Q(status="pending", lane="inbox"),
            ),
            # Since when the oldest of all inboxes waits (agentsite/figures.py). Only who asks for ids above
            # zero gets it: a plan that was made while the table was empty must not read a head by it.
            models.Index(
                fields=["created_at"],
                name="scheduler_task_inbox_age",
                condition=models.Q(status="pending", lane="inbox", id__gt=0),
            ),
            # The operator's list of parked tasks.
            models.Index(
                fields=["parked_at"], name="scheduler_task_parked", condition=models.Q(status="parked")
            ),
        ]

    def __str__(self) -> str:
        return f"{self.method} ({self.task_id})"


class AttemptOutcome(models.TextChoices):
    RUNNING = "running", "running: begun, not yet ended"
    DONE = "done", "done: the method returned"
    FAILED = "failed", "failed: the method raised"
    LOST = "lost", "lost: its process or its lease was gone"
    STOPPED = "stopped", "stopped: somebody asked for it"
    RELEASED = "released", "released: a shutdown gave it back, uncounted"


class Attempt(models.Model):
    """One delivery of a task, recorded before its method runs. Replay works from these rows."""

    actor = models.ForeignKey(
        "agents.Actor", on_delete=models.CASCADE, related_name="attempts", db_index=False
    )
    # The task's row may be gone (done, replaced): a plain number, no foreign key.
    task_pk = models.BigIntegerField()
    task_id = models.CharField(max_length=conf.TASK_ID_MAX_LENGTH)
    lane = models.CharField(max_length=8, choices=Lane.choices)
    method = models.CharField(max_length=conf.METHOD_MAX_LENGTH)
    payload = models.JSONField(null=True)
    number = models.IntegerField(help_text="1 for the first delivery.")
    turn_id = models.UUIDField()
    outcome = models.CharField(max_length=8, choices=AttemptOutcome.choices, default=AttemptOutcome.RUNNING)
    due_at = models.DateTimeField()
    started_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)
    error = models.TextField(default="")
    traceback = models.TextField(default="")

    class Meta:
        indexes = [
            # A task's attempts, for the admin; and the newest attempts of an actor.
            models.Index(fields=["actor", "task_pk"], name="scheduler_attempt_task"),
            # Attempts that a dead process left open.
            models.Index(
                fields=["actor"], name="scheduler_attempt_open", condition=models.Q(outcome="running")
            ),
        ]

    def __str__(self) -> str:
        return f"{self.method} #{self.number}: {self.outcome}"


class Step(models.Model):
    """The result of ``self.step(name, ...)``, kept for the retries of one occurrence of one task."""

    actor = models.ForeignKey("agents.Actor", on_delete=models.CASCADE, related_name="steps", db_index=False)
    task_pk = models.BigIntegerField()
    name = models.CharField(max_length=255)
    use = models.IntegerField(help_text="1 for the first use of this name in the method.")
    result = models.JSONField(null=True)
    saved_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["actor", "task_pk", "name", "use"], name="scheduler_step_use")
        ]

    def __str__(self) -> str:
        return f"{self.name} #{self.use}"


class InboxKey(models.Model):
    """A key that ``tell(..., key=...)`` has accepted: the same key again changes nothing."""

    actor = models.ForeignKey(
        "agents.Actor", on_delete=models.CASCADE, related_name="inbox_keys", db_index=False
    )
    key = models.CharField(max_length=conf.KEY_MAX_LENGTH)
    accepted_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [models.UniqueConstraint(fields=["actor", "key"], name="scheduler_inboxkey_once")]

    def __str__(self) -> str:
        return self.key


class PulseName(models.TextChoices):
    SWEEP = "sweep", "sweep: due actors were looked for"
    BEAT = "beat", "beat: a sweep that beat had sent was run by a worker"


class PulseQuerySet(models.QuerySet["Pulse"]):
    def beat(self, names: Iterable[str]) -> None:
        """Says that these were seen now, unless somebody said so within ``Pulse.INTERVAL``."""
        late = models.ExpressionWrapper(
            Now() - models.Value(dt.timedelta(seconds=Pulse.INTERVAL)), output_field=models.DateTimeField()
        )
        for name in names:
            pulse = self.filter(name=name)
            if not pulse.filter(seen_at__lte=late).update(seen_at=Now()) and not pulse.exists():
                self.bulk_create([self.model(name=name)], ignore_conflicts=True)

    def ages(self) -> dict[str, float]:
        """Seconds since each was seen, by the database's clock; those never seen are left out."""
        age = models.ExpressionWrapper(Now() - models.F("seen_at"), output_field=models.DurationField())
        return {name: age.total_seconds() for name, age in self.annotate(age=age).values_list("name", "age")}


class Pulse(models.Model):
    """When something that must go on was seen last. One row a name, however many processes sweep."""

    #: A row is written this often at most: what is seen every second need not be written every second.
    INTERVAL = 10.0  # seconds

    name = models.CharField(max_length=8, choices=PulseName.choices, primary_key=True)
    seen_at = models.DateTimeField(db_default=Now())

    objects = PulseQuerySet.as_manager()

    def __str__(self) -> str:
        return self.name


class HourTally(models.Model):
    """What happened in one hour to actors of one kind (``scheduler/tally.py``)."""

    hour = models.DateTimeField(help_text="Its beginning.")
    # Empty: the row says only that this hour was counted.
    kind = models.CharField(max_length=conf.KIND_MAX_LENGTH)
    turns = models.IntegerField(default=0, help_text="That wrote anything.")
    texts_in = models.IntegerField(default=0)
    texts_out = models.IntegerField(default=0)
    texts_failed = models.IntegerField(default=0)
    attempts = models.IntegerField(default=0)
    failures = models.IntegerField(default=0)
    late_seconds = models.FloatField(default=0.0, help_text="Mean, of first deliveries.")
    latest_seconds = models.FloatField(default=0.0)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["hour", "kind"], name="scheduler_hourtally_once")]

    def __str__(self) -> str:
        return f"{self.hour} {self.kind}"


from scheduler.replay_models import (  # noqa: E402 - a concept of its own, in a file of its own
    ReplayChange,
    ReplayItem,
    ReplayItemStatus,
    ReplayJob,
    ReplaySource,
    ReplayStatus,
)

__all__ = [
    "Attempt",
    "AttemptOutcome",
    "HourTally",
    "InboxKey",
    "Lane",
    "Pulse",
    "PulseName",
    "PulseQuerySet",
    "ReplayChange",
    "ReplayItem",
    "ReplayItemStatus",
    "ReplayJob",
    "ReplaySource",
    "ReplayStatus",
    "Step",
    "Task",
    "TaskQuerySet",
    "TaskStatus",
]
