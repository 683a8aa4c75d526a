"""What the scheduler keeps of an actor: its tasks, and what became of them."""

from __future__ import annotations

from typing import Any

from agents.holdings import Holding, register
from scheduler.models import Attempt, AttemptOutcome, InboxKey, ReplayItem, Step, Task

_PLAIN = frozenset({"lane", "method", "status", "cron", "tz", "outcome"})


def _ended(row: dict[str, Any]) -> dict[str, Any]:
    """What ran where it was exported does not run here."""
    if row["outcome"] == AttemptOutcome.RUNNING:
        row |= {"outcome": AttemptOutcome.LOST, "ended_at": row["started_at"]}
    return row


register(
    Holding(Task, plain=_PLAIN, names=frozenset({"task_id"})),
    Holding(
        Attempt,
        plain=_PLAIN,
        names=frozenset({"task_id"}),
        refers={"task_pk": "scheduler.Task"},
        arrives=_ended,
    ),
    Holding(Step, plain=frozenset({"name"}), refers={"task_pk": "scheduler.Task"}),
    Holding(InboxKey, names=frozenset({"key"})),
    Holding(ReplayItem, exported=False),
)
