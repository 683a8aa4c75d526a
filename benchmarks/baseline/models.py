from __future__ import annotations

from typing import Any

from django.db import models


class Actor(models.Model):
    kind = models.CharField(max_length=64)
    name = models.CharField(max_length=255)
    state = models.JSONField(default=dict)
    seq = models.PositiveIntegerField(default=0)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["kind", "name"], name="baseline_actor_address")]

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"

    @classmethod
    def locked(cls, kind: str, name: str) -> Actor:
        """The actor, made if it isn't there, locked until the transaction ends."""
        found = cls.objects.select_for_update().filter(kind=kind, name=name).first()
        if found is None:
            cls.objects.get_or_create(kind=kind, name=name)
            found = cls.objects.select_for_update().get(kind=kind, name=name)
        return found

    def append(self, role: str, content: str) -> Message:
        self.seq += 1
        return Message.objects.create(actor=self, seq=self.seq, role=role, content=content)

    def merge(self, **patch: Any) -> None:
        self.state = {**self.state, **patch}


class Message(models.Model):
    actor = models.ForeignKey(Actor, on_delete=models.CASCADE, related_name="messages", db_index=False)
    seq = models.PositiveIntegerField()
    role = models.CharField(max_length=16)
    content = models.TextField()
    at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["actor", "seq"], name="baseline_message_seq")]

    def __str__(self) -> str:
        return f"{self.seq} {self.role}"


class Task(models.Model):
    actor = models.ForeignKey(Actor, on_delete=models.CASCADE, related_name="tasks")
    method = models.CharField(max_length=64)
    payload = models.JSONField(null=True)
    due_at = models.DateTimeField()
    #: When it ran; nothing: it waits.
    ran_at = models.DateTimeField(null=True)

    class Meta:
        indexes = [
            # The sweep.
            models.Index(fields=["due_at"], name="baseline_task_due", condition=models.Q(ran_at=None)),
        ]

    def __str__(self) -> str:
        return f"{self.method} at {self.due_at}"
