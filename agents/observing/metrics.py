"""The metrics of a process, for Prometheus. docs/observability.md says what each means.

Labels are kinds, methods of the framework and words of ours: nothing that a stranger can make up, and never
an actor's name. What the database knows is read when it is asked for (``agentsite/metrics.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from prometheus_client import Counter, Gauge, Histogram

from agents import conf

_SHORT = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_LONG = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0)
_LATE = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)

turns = Counter("agents_turns", "Turns that ended.", ["kind", "origin", "outcome"])
turn_waits = Histogram(
    "agents_turn_wait_seconds", "From a call to its turn's claim.", ["kind", "origin"], buckets=_SHORT
)
turn_runs = Histogram(
    "agents_turn_run_seconds", "From a turn's claim to its end, commit included.", ["kind", "origin"],
    buckets=_LONG,
)  # fmt: skip
turns_running = Gauge("agents_turns_running", "Turns whose method runs now.", multiprocess_mode="livesum")
turns_refused = Counter("agents_turns_refused", "Calls whose turn never began.", ["kind", "code"])
lease_losses = Counter("agents_lease_losses", "Turns that lost their lease.", ["kind", "reason"])
lease_takeovers = Counter(
    "agents_lease_takeovers", "Turns that found a lease that had died with its process.", ["kind"]
)
task_lateness = Histogram(
    "agents_task_lateness_seconds", "From a task's due time to its start.", ["kind", "lane"], buckets=_LATE
)
task_failures = Counter(
    "agents_task_failures", "Attempts that failed, by what becomes of the task.", ["kind", "then"]
)
store_requests = Counter("agents_store_requests", "Claims and commits given to the store.", ["verb"])
store_batch_seconds = Histogram(
    "agents_store_batch_seconds", "How long a batch of the store took.", ["verb"], buckets=_SHORT
)
sockets = Gauge("agents_sockets", "Clients connected.", ["kind"], multiprocess_mode="livesum")
sockets_opened = Counter("agents_sockets_opened", "Clients that were let in.", ["kind"])
sockets_closed = Counter("agents_sockets_closed", "Sockets that were closed from here.", ["kind", "code"])
signals_dropped = Counter("agents_signals_dropped", "Signals dropped, since receivers are too slow.")
signal_errors = Counter("agents_signal_errors", "Receivers of signals that raised.")


class TurnMetrics(NamedTuple):
    ended: Counter
    wait: Histogram
    run: Histogram


@cache
def of_turn(kind: str, origin: str, outcome: str) -> TurnMetrics:
    """What every turn counts, looked up once: the labels are few, and turns many."""
    return TurnMetrics(
        turns.labels(kind, origin, outcome), turn_waits.labels(kind, origin), turn_runs.labels(kind, origin)
    )


@cache
def lateness_of(kind: str, lane: str) -> Histogram:
    return task_lateness.labels(kind, lane)


def store_batches(verb: str) -> Callable[[int, float], None]:
    """For a ``Batcher``: told how many requests a batch had, and how long it took (seconds)."""
    requests, seconds = store_requests.labels(verb), store_batch_seconds.labels(verb)

    def told(count: int, took: float) -> None:
        if conf.get("METRICS"):
            requests.inc(count)
            seconds.observe(took)

    return told
