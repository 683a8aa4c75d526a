"""An hour without anybody who runs what is due, and what must have happened when they are back.

The hour has passed once all that the database holds of moments is an hour older than it was; beat's own last
runs are among it.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from itertools import groupby

from tests.faults.stand import Stand

# Messages that the broker may hold: those of a second or two.
HEAP = 20

#: Tables, and columns of theirs by which somebody decides what is due, or who still lives.
MOMENTS = {
    "agents_actor": ("alarm", "lease_expires_at", "turn_started_at", "waiting_at"),
    "scheduler_task": ("due_at", "created_at"),
    "scheduler_pulse": ("seen_at",),
    "conversations_outboundtext": ("due_at", "claimed_at", "ask_at"),
    "django_celery_beat_periodictask": ("last_run_at",),
}


@dataclass(frozen=True)
class Owed:
    """A task that should have run while nobody was there."""

    pk: int
    actor_id: int
    lane: str
    due_at: dt.datetime


def passes(stand: Stand, hours: float = 1) -> None:
    with stand.postgres.connect() as connection, connection.transaction():
        # A text that comes in meanwhile must not be half an hour older.
        connection.execute("LOCK TABLE agents_actor, scheduler_task IN EXCLUSIVE MODE")
        for table, columns in MOMENTS.items():
            changes = ", ".join(
                f"{name} = {name} - make_interval(secs => {hours * 3600})" for name in columns
            )
            connection.execute(f"UPDATE {table} SET {changes}")


def owed(stand: Stand) -> list[Owed]:
    """What was due long ago, in the order in which each actor has to run it. Not what a text that is taken in
    puts off: one answer is for all texts that wait."""
    with stand.postgres.connect() as connection:
        found = connection.execute(
            """SELECT id, actor_id, lane, due_at FROM scheduler_task
                WHERE status = 'pending' AND task_id <> 'process' AND due_at < now() - interval '1800 s'
                ORDER BY actor_id, lane, CASE lane WHEN 'inbox' THEN NULL ELSE due_at END, id"""
        ).fetchall()
    return [Owed(*row) for row in found]


def wrong_runs(stand: Stand, tasks: list[Owed]) -> list[str]:
    """Tasks that were owed and have not run exactly once since, or not in their order."""
    with stand.postgres.connect() as connection:
        runs = connection.execute(
            """SELECT task_pk, due_at FROM scheduler_attempt
                WHERE task_pk = ANY(%s) AND due_at < now() - interval '1800 s' ORDER BY id""",
            [[task.pk for task in tasks]],
        ).fetchall()
    problems = []
    for (actor_id, lane), group in groupby(tasks, lambda task: (task.actor_id, task.lane)):
        expected = [(task.pk, task.due_at) for task in group]
        pks = {pk for pk, _ in expected}
        found = [run for run in runs if run[0] in pks]
        if found != expected:
            problems.append(f"actor {actor_id}, {lane}: ran {found}, owed {expected}")
    return problems


def waiting(stand: Stand) -> int:
    """Messages in the broker."""
    with stand.redis.client() as client:
        return int(client.llen("agents")) + int(client.llen("celery")) + int(client.hlen("unacked"))
