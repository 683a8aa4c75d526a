"""What becomes of tasks that fail, as it is counted and announced."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agents import conf, kinds
from agents.exceptions import UnknownKindError
from agents.observing import metrics
from agents.observing.announcing import announce
from scheduler.signals import task_parked

if TYPE_CHECKING:
    from agents.store.requests import TaskEnd
    from agents.turn import ActorRow, StartedTask


def attempt_failed(actor: ActorRow, task: StartedTask, end: TaskEnd) -> None:
    """An attempt has failed or was lost, and what follows is in the database."""
    if end.action not in ("retry", "park"):
        return
    if conf.get("METRICS"):
        metrics.task_failures.labels(actor.kind, end.action).inc()
    if end.action != "park" or not task_parked.receivers:
        return
    try:
        sender = kinds.get(actor.kind)
    except UnknownKindError:
        sender = None
    announce(
        task_parked,
        sender,
        kind=actor.kind,
        name=actor.name,
        actor_id=actor.id,
        task_id=task.task_id,
        task_pk=task.pk,
        method=task.method,
        lane=task.lane,
        attempt=task.attempt,
        error=end.error,
    )
