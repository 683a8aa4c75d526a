"""The Celery tasks, and a worker's life: thin edges over the dispatcher."""

from __future__ import annotations

from typing import Any

from celery import concurrency, shared_task
from celery.concurrency import prefork
from celery.signals import (
    worker_init,
    worker_process_init,
    worker_process_shutdown,
    worker_shutdown,
    worker_shutting_down,
)

from agents import pauses
from agents.observing import port
from agents.runtime import settle_down
from scheduler import retention
from scheduler.dispatchers import celery as dispatcher
from scheduler.dispatchers.publisher import Wake

# Rows of each kind that one hour's pruning deletes at most.
PRUNE_LIMIT = 100_000
# How often a sweep that finds no free slot is given to another worker.
PASSES = 3

REQUEST = "scheduler.dispatchers.request:Request"


@shared_task(ignore_result=True, Request=REQUEST)
def drain(wakes: list[Wake], said: float) -> None:
    """Drains actors: ``[[actor id, kind, moment], ...]``, as the database's clock was at ``said``."""
    dispatcher.take([(id, kind, at) for id, kind, at in wakes], said)


@shared_task(ignore_result=True, Request=REQUEST)
def sweep(passed: int = 0) -> None:
    """Finds due actors, and texts that wait. Beat sends one every second; each expires in two."""
    if not dispatcher.sweep() and passed < PASSES:
        expires = dispatcher.sweep_expiry()
        sweep.apply_async(kwargs={"passed": passed + 1}, expires=expires, retry=False)


@shared_task(ignore_result=True, Request=REQUEST)
def send_texts() -> None:
    """Sends the texts that wait in the outbox."""
    dispatcher.send_texts()


@shared_task(ignore_result=True, Request=REQUEST)
def prune() -> None:
    """Counts the hours that are over, and deletes old records. Beat sends one every hour."""
    retention.keep_house(limit=PRUNE_LIMIT)


# The life of a worker. The runtime is the process's own: with a pool of processes, each child's.


@worker_init.connect
def _begin(sender: Any, **kwargs: Any) -> None:
    """Before the broker is asked for anything: a worker sweeps and drains also while it is away."""
    pauses.start_paused()
    pool = concurrency.get_implementation(sender.pool_cls)
    if not issubclass(pool, prefork.TaskPool):
        dispatcher.start()
        port.serve()
        settle_down()


@worker_process_init.connect
def _begin_child(**kwargs: Any) -> None:
    dispatcher.start()
    port.serve()
    settle_down()


@worker_shutting_down.connect
def _stop(**kwargs: Any) -> None:
    """In the handler of SIGTERM: what is due from now on runs elsewhere."""
    dispatcher.stop()


@worker_process_shutdown.connect
@worker_shutdown.connect
def _end(**kwargs: Any) -> None:
    """Running turns get their grace; the leases of the rest are freed, so that they run elsewhere at once."""
    dispatcher.end()
