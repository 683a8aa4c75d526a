"""The store: where turns are claimed and committed. See ``base.py`` for the rules."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, connections, transaction

from agents.store.base import Delayed, Store
from agents.store.tells import ToldBefore as ToldBefore

if TYPE_CHECKING:
    from agents.models import Actor
    from agents.store.requests import Alarm
    from agents.turn import Tell

logger = logging.getLogger("agents.store")

#: Called with the alarms that a transaction left behind, after its commit. Dispatchers listen.
on_alarms: list[Callable[[Sequence[Alarm]], None]] = []


@cache
def get_store() -> Store:
    """The store for the default database's engine."""
    vendor = connections[DEFAULT_DB_ALIAS].vendor
    if vendor == "postgresql":
        from agents.store.postgres import PostgresStatements

        return Store(PostgresStatements())
    if vendor == "sqlite":
        from agents.store.sqlite import SqliteStatements

        return Store(SqliteStatements())
    raise ImproperlyConfigured(f"actors live in PostgreSQL or SQLite, not in {vendor}")


# What a forked child must neither use nor close.
_of_the_parent: list[Store] = []


def _after_fork() -> None:
    """The child's store begins without the connections that the parent's threads talk on."""
    if get_store.cache_info().currsize:
        _of_the_parent.append(get_store())
        get_store.cache_clear()


os.register_at_fork(after_in_child=_after_fork)


def wake(alarms: Sequence[Alarm]) -> None:
    """Tells the dispatchers about alarms that are committed. Never fails: the sweep finds them anyway."""
    for listener in list(on_alarms):
        try:
            listener(alarms)
        except Exception:
            logger.exception("a wake-up was lost; the sweep finds the actor")


def announce(alarms: Sequence[Alarm]) -> None:
    """Tells the dispatchers, once the transaction (if one is open on this thread) has committed."""
    if alarms:
        transaction.on_commit(lambda: wake(alarms))


def tell_in_transaction(tell: Tell) -> bool:
    """Puts a task into an inbox as part of the transaction that is open on this thread's connection."""
    with transaction.atomic():  # a savepoint: what is refused here leaves nothing in the caller's transaction
        (accepted,), alarms = get_store().tell_here([tell])
    announce(alarms)
    return accepted


@contextmanager
def lock_actor(actor_id: int, *, wait: bool = True) -> Iterator[Actor]:
    """A transaction that holds one actor's row: the only way to change its tasks from outside a turn.

    Yields the locked row; raises Actor.DoesNotExist. At the end the alarm is recomputed, and after the
    commit a worker is woken if it is due. A turn may be running meanwhile: its commit waits for this.
    Without ``wait`` raises Delayed where somebody else has locked the row.
    """
    from agents.models import Actor

    with transaction.atomic():
        actors = Actor.objects.filter(pk=actor_id)
        actor = actors.select_for_update(no_key=True, skip_locked=not wait).first()
        if actor is None:
            if not wait and actors.exists():
                raise Delayed("somebody has locked the actor's row")
            raise Actor.DoesNotExist
        yield actor
        announce(get_store().realarm(actor_id))
