"""The message log's rows."""

from __future__ import annotations

from typing import Self

from django.db import models


class Role(models.TextChoices):
    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class MessageQuerySet(models.QuerySet["Message"]):
    def of(self, actor_id: int, up_to: int) -> Self:
        """One actor's messages up to a seq, oldest first."""
        return self.filter(actor_id=actor_id, seq__lte=up_to).order_by("seq")


class Message(models.Model):
    """One message of an actor's log. Append-only; order is ``seq``, never time."""

    actor = models.ForeignKey(
        "agents.Actor", on_delete=models.CASCADE, related_name="messages", db_index=False
    )
    seq = models.BigIntegerField()
    role = models.CharField(max_length=9, choices=Role.choices)
    content = models.TextField(default="")
    # Content blocks, when there is more than text; null otherwise.
    parts = models.JSONField(null=True)
    name = models.CharField(max_length=255, default="")
    # [{"id", "name", "args"}, ...]; null when the message asks for no tool.
    tool_calls = models.JSONField(null=True)
    tool_call_id = models.CharField(max_length=255, default="")
    metadata = models.JSONField(null=True)
    at = models.DateTimeField(help_text="Informational only.")

    objects = MessageQuerySet.as_manager()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["actor", "seq"], name="conversations_message_seq")]
        ordering = ["actor", "seq"]

    def __str__(self) -> str:
        return f"#{self.seq} {self.role}: {self.content[:60]}"
