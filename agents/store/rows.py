"""Rows that the store itself writes: tasks, and the records of turns."""

from __future__ import annotations

import datetime as dt

from agents import codec
from agents.turn import StartedTask, Tell
from agents.writes import Row, Table

TASK = Table(
    "scheduler.Task",
    ("actor_id", "task_id", "lane", "method", "payload", "status", "due_at", "every_seconds", "cron", "tz",
     "attempts", "max_retries", "created_at", "parked_at", "error", "carried"),
)  # fmt: skip
TURN_RECORD = Table(
    "agents.TurnRecord",
    ("actor_id", "version", "turn_id", "origin", "method", "outcome", "started_at", "duration_seconds",
     "first_seq", "last_seq", "state_change", "state_undo", "wrote", "committed_at"),
)  # fmt: skip


def task_row(actor_id: int, tell: Tell, now: dt.datetime) -> Row:
    return {
        "actor_id": actor_id,
        "task_id": tell.task_id,
        "lane": tell.lane,
        "method": tell.method,
        "payload": tell.payload,
        "status": "pending",
        "due_at": now,
        "every_seconds": None,
        "cron": "",
        "tz": "",
        "attempts": 0,
        "max_retries": tell.max_retries,
        "created_at": now,
        "parked_at": None,
        "error": "",
        "carried": tell.carried,
    }


def parked_hook(kind: str, name: str, task: StartedTask, error: str, now: dt.datetime) -> Tell:
    """The task that tells an agent's ``on_parked`` about a task of its own."""
    payload = codec.encode(
        {
            "id": task.task_id,
            "name": task.method,
            "attempts": task.attempt,
            "max_retries": task.max_retries,
            "parked_at": now,
            "error": error,
        }
    )
    # As it is stored: a payload of a newer version of the codec must not keep its task from being parked.
    payload["payload"] = task.payload
    return Tell(kind, name, "on_parked", payload, lane="hook", max_retries=0, carried=task.carried)
