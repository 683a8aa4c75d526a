"""What a list of conversations is ordered by, and how far each operator has read."""

from __future__ import annotations

from typing import Any, Self

from django.conf import settings
from django.db import models
from django.db.models import F, Q


class ConversationQuerySet(models.QuerySet["Conversation"]):
    def waiting(self) -> Self:
        """Those in which somebody has said something that nobody has answered."""
        return self.filter(asked_seq__gt=F("answered_seq"))


class Conversation(models.Model):
    """Where an actor's log stands: one row an actor that has messages (``conversations/standing.py``)."""

    actor = models.OneToOneField(
        "agents.Actor", on_delete=models.CASCADE, primary_key=True, related_name="conversation"
    )
    last_at = models.DateTimeField(help_text="Of the newest message.")
    # The newest words of the person, and the newest of the agent: tool calls and their results are neither.
    asked_seq = models.BigIntegerField(default=0, db_default=0)
    asked_at = models.DateTimeField(null=True)
    answered_seq = models.BigIntegerField(default=0, db_default=0)

    objects = ConversationQuerySet.as_manager()

    class Meta:
        indexes = [
            # The operator's list, the newest first.
            models.Index(fields=["last_at", "actor"], name="conversations_latest"),
            # Those who wait, the longest first.
            models.Index(
                fields=["asked_at", "actor"],
                name="conversations_unanswered",
                condition=Q(asked_seq__gt=F("answered_seq")),
            ),
        ]

    def __str__(self) -> str:
        return str(self.actor)

    @property
    def said_seq(self) -> int:
        """The number of the newest message that has words of somebody; 0 for none."""
        return max(self.asked_seq, self.answered_seq)

    @property
    def waits(self) -> bool:
        return self.asked_seq > self.answered_seq


class SeenQuerySet(models.QuerySet["Seen"]):
    def by(self, user: Any) -> Self:
        return self.filter(user=user)

    def note(self, user: Any, actor_id: int, seq: int) -> None:
        """This user has read this conversation up to here."""
        if not self.filter(user=user, actor_id=actor_id, seq__gte=seq).exists():
            row = self.model(user=user, actor_id=actor_id, seq=seq)
            self.bulk_create(
                [row], update_conflicts=True, unique_fields=["user", "actor"], update_fields=["seq"]
            )


class Seen(models.Model):
    """How far one of the team has read one conversation."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    actor = models.ForeignKey("agents.Actor", on_delete=models.CASCADE, related_name="+")
    seq = models.BigIntegerField()

    objects = SeenQuerySet.as_manager()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["user", "actor"], name="conversations_seen_once")]

    def __str__(self) -> str:
        return f"up to #{self.seq}"
