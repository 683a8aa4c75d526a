"""Who is connected: one row a socket, over all processes."""

from __future__ import annotations

import datetime as dt
from typing import Self

from django.db import models
from django.db.models.functions import Now

from agents import conf


class ConnectionQuerySet(models.QuerySet["Connection"]):
    def to(self, kind: str, name: str) -> Self:
        """Connections to one actor."""
        return self.filter(kind=kind, name=name)

    def live(self) -> Self:
        """Those whose process has spoken of them lately."""
        return self.filter(seen_at__gt=Now() - dt.timedelta(seconds=conf.get("CONNECTION_EXPIRY")))

    def gone(self) -> Self:
        """Those whose process is dead, or has forgotten them."""
        return self.filter(seen_at__lte=Now() - dt.timedelta(seconds=conf.get("CONNECTION_EXPIRY")))


class Connection(models.Model):
    """One open socket. The process that holds it says so again and again; when it stops, the row goes.

    Not part of any turn. Names its actor by address: connecting creates no actor.
    """

    id = models.UUIDField(primary_key=True)
    kind = models.CharField(max_length=conf.KIND_MAX_LENGTH)
    name = models.CharField(max_length=conf.NAME_MAX_LENGTH)
    # The primary key of the signed-in user as text; empty for nobody.
    user_id = models.CharField(max_length=255, default="")
    # What its token said (null: it came without one), and its request's headers without secrets.
    claims = models.JSONField(null=True)
    headers = models.JSONField(default=dict)
    # Whether ``on_connect`` has run for it, where the class has one: only then is ``on_disconnect`` owed.
    greeted = models.BooleanField(default=True)
    connected_at = models.DateTimeField(db_default=Now())
    seen_at = models.DateTimeField(db_default=Now())

    objects = ConnectionQuerySet.as_manager()

    class Meta:
        indexes = [
            # ``self.connections`` of one actor.
            models.Index(fields=["kind", "name"], name="agents_connection_actor"),
            # Those of dead processes.
            models.Index(fields=["seen_at"], name="agents_connection_seen"),
        ]

    def __str__(self) -> str:
        return f"{self.kind}/{self.name} {self.id}"
