"""What is kept for a time only: records of turns and attempts, inbox keys, finished texts.

Deleted in bounded batches, each a short transaction of its own, so that nothing waits for a large delete and
a process that dies in the middle has done what it did. Any number of processes may prune at once.

The rows are walked by primary key from the oldest on, until one is young enough: keys are given in the order
of time, so no index on the time is needed, which every turn would have to pay for.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.db import models
from django.db.models import Exists, OuterRef
from django.utils import timezone

from agents import clock, conf, erasing
from agents.models import Actor, TurnRecord
from conversations.models import InboundText, Message, OutboundText, TextEvent, TextStatus
from scheduler import tally
from scheduler.models import Attempt, AttemptOutcome, InboxKey

#: Rows looked at, and deleted, in one transaction.
BATCH = 1000
#: Rows are not written in the exact order of their keys: a young one doesn't end the walk before this.
SLACK = dt.timedelta(hours=1)
#: Actors that are erased at once for having been idle.
IDLE = 500

#: An outbound text in one of these is finished.
FINISHED = frozenset(TextStatus) - {TextStatus.QUEUED, TextStatus.SENDING}


@dataclass(frozen=True)
class History:
    """One kind of record: how old it may get, and which rows stay whatever their age."""

    name: str
    model: type[models.Model]
    moment: str
    setting: str
    status: str = ""
    finished: Callable[[Any], bool] = bool
    # The column with the kind that a row belongs to.
    kind: str = "actor__kind"


HISTORIES = (
    History("turns", TurnRecord, "committed_at", "KEEP_TURNS"),
    # An attempt that is still running belongs to whoever finds its lease dead.
    History(
        "attempts", Attempt, "started_at", "KEEP_ATTEMPTS", "outcome", lambda o: o != AttemptOutcome.RUNNING
    ),
    History("inbox keys", InboxKey, "accepted_at", "KEEP_INBOX_KEYS"),
    History("inbound texts", InboundText, "received_at", "KEEP_TEXTS"),
    History("outbound texts", OutboundText, "created_at", "KEEP_TEXTS", "status", FINISHED.__contains__),
    # Those of texts go with them; these are of texts that other programs sent.
    History("reports", TextEvent, "received_at", "KEEP_TEXTS", kind="text__actor__kind"),
)


def keep_house(*, limit: int | None = None) -> dict[str, int]:
    """What is to be done once an hour: counts the hours that are over for the plots, then prunes."""
    tally.settle()
    return prune_history(limit=limit)


def prune_history(*, limit: int | None = None) -> dict[str, int]:
    """Deletes what is older than its setting says; the number of rows deleted, by name.

    KEEP_BY_KIND says otherwise for a kind, and after how long its actors are erased. ``limit`` bounds the
    rows of each name: the rest goes next time.
    """
    now = timezone.now() + clock.offset
    pruned = {history.name: _prune_all(history, now, limit) for history in HISTORIES}
    if idle := _erase_idle(now, IDLE if limit is None else min(IDLE, limit)):
        pruned["actors"] = idle
    return pruned


def _prune_all(history: History, now: dt.datetime, limit: int | None) -> int:
    own = {kind: keep[history.setting] for kind, keep in by_kind().items() if history.setting in keep}
    everybody = history.model._default_manager.all()
    others = everybody.exclude(**{f"{history.kind}__in": list(own)}) if own else everybody
    deleted = _prune(history, others, now, conf.get(history.setting), limit)
    for kind, seconds in own.items():
        deleted += _prune(history, everybody.filter(**{history.kind: kind}), now, seconds, limit)
    return deleted


def by_kind() -> dict[str, dict[str, float]]:
    """What KEEP_BY_KIND says, in seconds: by kind, by the name of the setting; KEEP_ACTORS besides."""
    return dict(conf.get("KEEP_BY_KIND"))


def _erase_idle(now: dt.datetime, limit: int) -> int:
    """Erases actors of which nothing was heard for as long as their kind's KEEP_ACTORS says.

    What is said to one while those before it are erased keeps it.
    """
    erased = 0
    for kind, keep in by_kind().items():
        if (seconds := keep.get("KEEP_ACTORS")) is None:
            continue
        before = now - dt.timedelta(seconds=seconds)
        busy = TurnRecord.objects.filter(actor=OuterRef("pk"), committed_at__gte=before)
        said = Message.objects.filter(actor=OuterRef("pk"), at__gte=before)
        idle = Actor.objects.filter(
            ~Exists(busy), ~Exists(said), kind=kind, created_at__lt=before, alarm=None, token=None,
            taken_at=None, paused_at=None,
        )  # fmt: skip
        for name in idle.order_by("pk").values_list("name", flat=True)[: limit - erased]:
            if erasing.erase(kind, name, by="KEEP_ACTORS", among=idle):
                erased += 1
    return erased


def _prune(
    history: History, found: models.QuerySet[Any], now: dt.datetime, keep: float, limit: int | None
) -> int:
    before = now - dt.timedelta(seconds=keep)
    columns = ("pk", history.moment, history.status or "pk")
    rows = found.order_by("pk").values_list(*columns)
    deleted, after = 0, 0
    while limit is None or deleted < limit:
        page = list(rows.filter(pk__gt=after)[: BATCH if limit is None else min(BATCH, limit - deleted)])
        if not page:
            break
        old = [pk for pk, at, status in page if at < before and history.finished(status)]
        if old:
            deleted += history.model._default_manager.filter(pk__in=old).delete()[0]
        after = page[-1][0]
        if page[-1][1] > before + SLACK:
            break
    return deleted
