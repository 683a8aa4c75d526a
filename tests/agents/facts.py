"""What tests ask the database about an actor."""

from __future__ import annotations

from typing import Any

from agents.models import Actor
from conversations.models import Message
from scheduler.models import Attempt, Task


def row(stub: Any) -> Actor:
    return Actor.objects.get(kind=stub.kind, name=stub.name)


def messages(stub: Any) -> list[str]:
    """The contents of the log, in order."""
    rows = Message.objects.filter(actor__kind=stub.kind, actor__name=stub.name)
    return list(rows.order_by("seq").values_list("content", flat=True))


def tasks(stub: Any) -> list[tuple[str, str, int]]:
    """(method, status, attempts) of each task, oldest first."""
    rows = Task.objects.filter(actor__kind=stub.kind, actor__name=stub.name)
    return list(rows.order_by("id").values_list("method", "status", "attempts"))


def attempts(stub: Any) -> list[str]:
    """The outcome of each attempt, oldest first."""
    rows = Attempt.objects.filter(actor__kind=stub.kind, actor__name=stub.name)
    return list(rows.order_by("id").values_list("outcome", flat=True))
