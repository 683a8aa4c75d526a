"""The actor's row: who holds its turn, how far its numbers have come, its state."""

from __future__ import annotations

import datetime as dt
from typing import Self

from django.db import models
from django.db.models.functions import Now

from agents import conf


class ActorQuerySet(models.QuerySet["Actor"]):
    def leased(self) -> Self:
        """Actors whose turn somebody holds now."""
        return self.filter(token__isnull=False, lease_expires_at__gt=Now())

    def due(self, at: dt.datetime | None = None) -> Self:
        """Actors with a task that could run now (or at ``at``)."""
        return self.filter(alarm__lte=at if at is not None else Now())


class Actor(models.Model):
    """One actor: an instance of an Agent class, addressed by (kind, name).

    Its lease, fence, numbers, state and alarm are written by the store alone (``agents/store``): every other
    writer would break the fence. A pause and a takeover are noted under the row's lock
    (``store.lock_actor``); an import and a fork make rows, an erasure deletes one.
    """

    kind = models.CharField(max_length=conf.KIND_MAX_LENGTH)
    name = models.CharField(max_length=conf.NAME_MAX_LENGTH)
    created_at = models.DateTimeField(db_default=Now())

    # The lease: who holds the turn, until when. Null token: nobody.
    token = models.UUIDField(null=True, editable=False)
    lease_expires_at = models.DateTimeField(null=True, editable=False)
    turn_id = models.UUIDField(null=True, editable=False, help_text="The turn that holds the lease.")
    turn_started_at = models.DateTimeField(null=True, editable=False)
    # Set while a turn holds the lease, and only for that turn: its id again.
    stop_turn_id = models.UUIDField(null=True, editable=False)
    # The actor for which the turn that holds the lease is waiting (deadlock detection).
    waits_for_id = models.BigIntegerField(null=True, editable=False)
    # Marked by callers of other processes that wait for this actor: a drain then stands back.
    waiting_at = models.DateTimeField(null=True, editable=False)

    # The fence: raised by every commit, which leaves its turn's id.
    version = models.BigIntegerField(default=0, db_default=0, editable=False)
    committed_by = models.UUIDField(null=True, editable=False)
    # Set by the first commit: ``on_create`` has run.
    started = models.BooleanField(default=False, db_default=False, editable=False)

    seq = models.BigIntegerField(default=0, db_default=0, editable=False, help_text="Last message number.")
    cursor = models.BigIntegerField(default=0, db_default=0, editable=False, help_text="Last event number.")
    alarm = models.DateTimeField(null=True, editable=False, help_text="Earliest moment a task could run.")
    # What keeps turns of its agent from beginning (agents/store): a pause, an operator who has taken over.
    paused_at = models.DateTimeField(null=True, editable=False)
    taken_at = models.DateTimeField(null=True, editable=False)
    # A copy to try things on: nothing of it leaves the site.
    sandbox = models.BooleanField(default=False, db_default=False, editable=False)
    # Null: nothing was written yet, ``initial_state`` answers.
    state = models.JSONField(null=True, editable=False)

    objects = ActorQuerySet.as_manager()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["kind", "name"], name="agents_actor_address")]
        indexes = [
            # The sweep: actors of a kind with a due alarm. One that is paused has none.
            models.Index(
                fields=["kind", "alarm"], name="agents_actor_due", condition=models.Q(alarm__isnull=False)
            ),
            # The same for those that operators have taken over, whatever their kind.
            models.Index(
                fields=["alarm"], name="agents_actor_taken", condition=models.Q(taken_at__isnull=False)
            ),
        ]
        permissions = [
            ("pause_actor", "Can pause an actor and let it go on"),
            ("take_over_actor", "Can take a conversation over, answer in it and release it"),
            ("export_actor", "Can export an actor, and import one"),
            ("export_sensitive_actor", "Can export an actor with what its class calls sensitive"),
            ("erase_actor", "Can erase an actor"),
            ("fork_actor", "Can rerun an actor from a turn on in a copy of it"),
        ]

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}"
