"""Texts that come while others are being written are written together, in one transaction.

The same texts one by one (``conversations.inbox.accept``) leave the same rows and get the same answers: what
is not plain (a duplicate, a keyword, a loop, a text behind one that waits), and whatever a batch stumbles
over, goes that way.
"""

from __future__ import annotations

import asyncio
import contextvars
import datetime as dt
import logging
import os
import weakref
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar

from django.db import InterfaceError, OperationalError, models, transaction

from agents import store
from agents.batcher import Batcher
from agents.exceptions import AgentsError
from agents.saying import RECEIVE
from agents.threads import OrmExecutor
from agents.turn import Tell
from conversations import conf, inbox, keywords, loops, moments, observing
from conversations.inbox import Acceptance
from conversations.models import InboundText
from conversations.providers.base import ReceivedText, TextProvider

logger = logging.getLogger(__name__)
T = TypeVar("T")

#: Texts that one transaction takes.
SIZE = 64
THREADS = 2


@dataclass(frozen=True, slots=True)
class Delivered:
    """A text that was signed and read, for an actor of ``kind`` (empty: the number decides)."""

    provider: TextProvider
    text: ReceivedText
    kind: str = ""
    # Of the request: what the text's task carries from it (agents/observing/carrying.py).
    context: contextvars.Context = field(default_factory=contextvars.copy_context)


class _Alone(Exception):  # noqa: N818 - says what should happen next; not a failure
    """Something in a batch is not as it looked: each goes by itself."""


# From an event loop


async def accept(delivered: Delivered) -> Acceptance:
    """As ``inbox.accept``, together with what else comes in at this moment."""
    return await _batcher().submit(delivered)


async def in_thread(fn: Callable[..., T], *args: Any) -> T:
    """Runs other work of a webhook that uses the ORM, in the same few threads."""
    return await asyncio.get_running_loop().run_in_executor(_threads(), fn, *args)


@cache
def _threads() -> OrmExecutor:
    return OrmExecutor(THREADS, thread_name_prefix="intake")


_batchers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Batcher[Delivered, Acceptance]] = (
    weakref.WeakKeyDictionary()
)


def _after_fork() -> None:
    """A child has neither the threads nor the loops of its parent."""
    _threads.cache_clear()
    _batchers.clear()


os.register_at_fork(after_in_child=_after_fork)


def _batcher() -> Batcher[Delivered, Acceptance]:
    loop = asyncio.get_running_loop()
    batcher = _batchers.get(loop)
    if batcher is None:
        batcher = _batchers[loop] = Batcher(accept_all, _threads(), size=SIZE, lanes=THREADS)
    return batcher


# In a thread


def accept_all(batch: Sequence[Delivered]) -> list[Acceptance | BaseException]:
    """Takes in texts in the order of their arrival; each gets its answer, or the error that is its own."""
    taken: dict[int, Acceptance] = {}
    try:
        taken = _together(batch)
    except _Alone:
        pass
    except Exception:
        logger.info("a batch of %d texts goes one by one", len(batch), exc_info=True)
    answers: list[Acceptance | BaseException] = []
    away: BaseException | None = None
    for at, delivered in enumerate(batch):
        answer = taken[at] if at in taken else away or _one(delivered)
        if isinstance(answer, OperationalError | InterfaceError):
            away = answer  # the others need not wait for it too: their providers come again
        answers.append(answer)
    return answers


def _one(delivered: Delivered) -> Acceptance | BaseException:
    try:
        return delivered.context.copy().run(inbox.accept, delivered.provider, delivered.text, delivered.kind)
    except Exception as error:
        return error


def _together(batch: Sequence[Delivered]) -> dict[int, Acceptance]:
    """Takes in those that are plain; the answers by their places in the batch."""
    known = _known(batch)
    before = _before([d.text for d in batch])
    rows: dict[int, InboundText] = {}
    tells: list[Tell] = []
    # Nobody's text overtakes one of theirs that goes alone.
    apart: set[str] = set()
    for at, delivered in enumerate(batch):
        text, name = delivered.text, delivered.provider.name
        keys = {(name, "event", text.event_id), (name, "message", text.message_id)}
        row = inbox.row_of(delivered.provider, text, delivered.kind)
        if (
            text.from_number in apart
            or keys & known
            or text.keyword
            or keywords.keyword_of(text.text)
            or loops.why_held(text.text, before[text.from_number, text.to_number])
            or (tell := delivered.context.copy().run(_tell, row)) is None
        ):
            apart.add(text.from_number)
            continue
        known |= keys
        before[text.from_number, text.to_number].insert(0, text.text)
        rows[at] = row
        tells.append(tell)
    if tells:
        _write(list(rows.values()), tells)
    for row in rows.values():
        observing.text_came(row.provider, Acceptance.ACCEPTED, row)
    return dict.fromkeys(rows, Acceptance.ACCEPTED)


def _write(rows: Sequence[InboundText], tells: Sequence[Tell]) -> None:
    ids = store.get_store().ensure([(tell.kind, tell.name) for tell in tells])
    for row, tell in zip(rows, tells, strict=True):
        row.actor_id = ids[tell.kind, tell.name]
    with transaction.atomic():
        InboundText.objects.bulk_create(rows)
        accepted, alarms = store.get_store().tell_here(tells)
        if not all(accepted):
            raise _Alone
        store.announce(alarms)


def _known(batch: Sequence[Delivered]) -> set[tuple[str, str, str]]:
    """The events and messages that have been taken in already."""
    texts = [delivered.text for delivered in batch]
    same = models.Q(event_id__in=[t.event_id for t in texts]) | models.Q(
        message_id__in=[t.message_id for t in texts]
    )
    providers = {delivered.provider.name for delivered in batch}
    found = InboundText.objects.filter(same, provider__in=providers)
    known = set()
    for provider, event, message in found.values_list("provider", "event_id", "message_id"):
        known |= {(provider, "event", event), (provider, "message", message)}
    return known


def _before(texts: Sequence[ReceivedText]) -> defaultdict[tuple[str, str], list[str]]:
    """What the same people wrote lately, the newest first. Raises _Alone where one of their texts waits."""
    numbers = {text.from_number for text in texts}
    if inbox.waiting().filter(from_number__in=numbers).exists():
        raise _Alone
    since = moments.now_in_query() - dt.timedelta(seconds=conf.get("SMS_LOOP_WINDOW"))
    most = loops.LOOKED_AT * len(numbers)
    found = InboundText.objects.filter(from_number__in=numbers, received_at__gte=since, keyword="")
    rows = list(found.order_by("-received_at").values_list("from_number", "to_number", "text")[: most + 1])
    if len(rows) > most:
        raise _Alone
    before: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for theirs, ours, text in rows:
        before[theirs, ours].append(text)
    return before


def _tell(row: InboundText) -> Tell | None:
    """The task of the agent's inbox; None where the text needs a closer look."""
    try:
        agent, name = inbox.address_of(row)
        return agent.named(name).task(RECEIVE, inbox.payload_of(row), key=inbox.key_of(row))
    except AgentsError:
        return None
