"""Texts that come while others are being written are written together, in one transaction.

The same texts one by one (``conversations.inbox.accept``) leave the same rows and get the same answers: what
is not plain (a duplicate, a keyword, a loop, a text behind one that waits), and whatever a batch stumbles
over, goes that way.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar

from django.db import InterfaceError, OperationalError

from agents import faults, store
from agents.batcher import Batcher
from agents.exceptions import AgentsError
from agents.saying import RECEIVE
from agents.store.base import Address
from agents.threads import OrmExecutor
from agents.turn import Tell
from agents.writes import Table
from conversations import earlier, inbox, keywords, loops, observing
from conversations.earlier import Earlier
from conversations.inbox import Acceptance
from conversations.models import InboundText
from conversations.providers.base import ReceivedText, TextProvider

logger = logging.getLogger(__name__)
T = TypeVar("T")

INBOUND = Table(
    "conversations.InboundText",
    ("actor_id", "provider", "event_id", "message_id", "from_number", "to_number", "text", "media",
     "received_at", "sent_at", "kind"),
)  # fmt: skip

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
        batcher = _batchers[loop] = Batcher(
            accept_all, _threads(), size=SIZE, lanes=THREADS, key=lambda delivered: delivered.text.from_number
        )
    return batcher


# In a thread


def accept_all(batch: Sequence[Delivered]) -> list[Acceptance | BaseException]:
    """Takes in texts in the order of their arrival; each gets its answer, or the error that is its own."""
    taken: dict[int, Acceptance] = {}
    try:
        taken = _together(batch)
    except store.ToldBefore:
        pass  # the row of one is gone, and its inbox remembers it
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
    """Takes in those that are plain; the answers by their places in the batch.

    Three round trips: what there is already, the rows with the locks of their actors, the tasks.
    """
    made = [inbox.row_of(d.provider, d.text, d.kind) for d in batch]
    look = earlier.look(
        [(d.provider.name, d.text) for d in batch],
        {address for row in made if (address := _address(row)) is not None},
    )
    known: set[tuple[str, str, str]] = set()
    rows: dict[int, InboundText] = {}
    tells: list[Tell] = []
    # Nobody's text overtakes one of theirs that goes alone.
    apart = set(look.waiting)
    for at, (delivered, row) in enumerate(zip(batch, made, strict=True)):
        text, name = delivered.text, delivered.provider.name
        row.received_at = look.now
        keys = {(name, "event", text.event_id), (name, "message", text.message_id)}
        before = look.before[text.from_number, text.to_number]
        if (
            text.from_number in apart
            or at in look.same
            or keys & known
            or text.keyword
            or keywords.keyword_of(text.text)
            or loops.why_held(text.text, before)
            or (tell := delivered.context.copy().run(_tell, row)) is None
        ):
            apart.add(text.from_number)
            continue
        known |= keys
        before.insert(0, text.text)
        rows[at] = row
        tells.append(tell)
    if tells:
        faults.point("intake.looked")
        _write(list(rows.values()), tells, look)
    for row in rows.values():
        observing.text_came(row.provider, Acceptance.ACCEPTED, row)
    return dict.fromkeys(rows, Acceptance.ACCEPTED)


def _write(rows: Sequence[InboundText], tells: Sequence[Tell], look: Earlier) -> None:
    db = store.get_store()
    missing = {(tell.kind, tell.name) for tell in tells} - look.actors.keys()
    ids = look.actors | db.make(list(missing & look.absent)) | db.ensure(list(missing - look.absent))
    for row, tell in zip(rows, tells, strict=True):
        row.actor_id = ids[tell.kind, tell.name]
    texts = [{column: getattr(row, column) for column in INBOUND.columns} for row in rows]
    written, alarms = db.tell_with(tells, ids, {INBOUND: texts})
    for row, pk in zip(rows, written[INBOUND], strict=True):
        row.pk = pk
    store.announce(alarms)


def _address(row: InboundText) -> Address | None:
    """Whose text it is; None where that is not for settings alone to say."""
    try:
        return inbox.known_address_of(row)
    except AgentsError:
        return None


def _tell(row: InboundText) -> Tell | None:
    """The task of the agent's inbox; None where the text needs a closer look."""
    try:
        agent, name = inbox.address_of(row)
        return agent.named(name).task(RECEIVE, inbox.payload_of(row), key=inbox.key_of(row))
    except AgentsError:
        return None
