from __future__ import annotations

import datetime as dt
from typing import Any

from celery import shared_task
from django.db import transaction
from django.utils import timezone

from benchmarks.baseline.models import Actor, Task

#: What is due sooner goes to the broker with its moment; Redis redelivers what waits for an hour.
SOON = dt.timedelta(minutes=10)
#: A task that is due for so long and didn't run was lost: the sweep sends it again.
LOST = dt.timedelta(seconds=30)


def plan(actor: Actor, method: str, payload: Any = None, at: dt.datetime | None = None) -> None:
    """Inside a transaction that holds the actor."""
    now = timezone.now()
    task = Task.objects.create(actor=actor, method=method, payload=payload, due_at=at or now)
    if at is None:
        transaction.on_commit(lambda: run.delay(task.pk))
    elif at < now + SOON:
        transaction.on_commit(lambda: run.apply_async((task.pk,), eta=at))


@shared_task
def run(pk: int) -> None:
    with transaction.atomic():
        task = Task.objects.filter(pk=pk).select_related("actor").first()
        if task is None:
            return  # it was replaced
        actor = Actor.objects.select_for_update().get(pk=task.actor_id)
        if not Task.objects.filter(pk=pk, ran_at=None).update(ran_at=timezone.now()):
            return  # it was delivered twice
        METHODS[task.method](actor, task.payload)
        actor.save(update_fields=["state", "seq"])


@shared_task
def sweep() -> None:
    """What comes due soon goes to the broker when it does; what should have run long ago goes again."""
    now = timezone.now()
    waiting = Task.objects.filter(ran_at=None)
    for pk, at in waiting.filter(due_at__gt=now + SOON - dt.timedelta(seconds=1), due_at__lte=now + SOON) \
            .values_list("pk", "due_at"):  # fmt: skip
        run.apply_async((pk,), eta=at)
    for pk in waiting.filter(due_at__lt=now - LOST).order_by("due_at").values_list("pk", flat=True)[:500]:
        run.delay(pk)


def process(actor: Actor, payload: Any) -> None:
    if actor.kind != "answer":
        return
    actor.append("assistant", "Thank you. We look into it.")
    actor.merge(answered=True)
    Task.objects.filter(actor=actor, method="nudge", ran_at=None).delete()
    plan(actor, "nudge", at=timezone.now() + dt.timedelta(days=1))


def nudge(actor: Actor, payload: Any) -> None:
    pass


def fire(actor: Actor, payload: Any) -> None:
    actor.merge(fired=payload["number"])


METHODS = {"process": process, "nudge": nudge, "fire": fire}
