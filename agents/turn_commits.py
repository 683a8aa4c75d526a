"""What a turn's commit holds, and what the turn learns when it has happened."""

from __future__ import annotations

import datetime as dt
import time
from typing import Any

from agents.store.requests import Claimed, Commit, Committed, TaskEnd
from agents.turn import StateLike, Turn


def commit_of(
    turn: Turn,
    claimed: Claimed,
    outcome: str,
    *,
    release: bool = True,
    task: TaskEnd | None = None,
    starts: bool = True,
) -> Commit:
    """Everything that a turn buffered since its last commit, as one fenced transaction."""
    if not turn.wrote and task is None:
        return Commit(turn.actor.id, claimed.token, turn.id, turn.actor.version, dirty=False, release=release)
    writes = turn.collect()
    state = turn.state if turn.state is not None and turn.state.dirty else None
    first = turn.committed_seq + 1 if turn.seq > turn.committed_seq else None
    return Commit(
        turn.actor.id,
        claimed.token,
        turn.id,
        turn.actor.version,
        dirty=True,
        starts=starts and not turn.framework,
        release=release,
        seq=turn.seq,
        cursor=turn.cursor,
        state=state.tree if state else None,
        state_changed=state is not None,
        writes=writes,
        tells=list(turn.tells),
        record=record_of(turn, outcome, first, state, writes.notes),
        task=task,
        at_commit=list(turn.at_commit),
    )


def settle(turn: Turn, commit: Commit, committed: Committed) -> None:
    """Tells a turn that its commit happened."""
    if commit.seq is None or commit.cursor is None:
        turn.settle(committed.version)
        return
    state = commit.state if commit.state_changed else turn.committed_state
    turn.settle_buffer(committed.version, commit.seq, commit.cursor, state, started=commit.starts)


def record_of(
    turn: Turn,
    outcome: str,
    first_seq: int | None,
    state: StateLike | None,
    notes: dict[str, list[Any]] | None = None,
) -> dict[str, Any]:
    now = turn.actor.now + dt.timedelta(seconds=time.monotonic() - turn.claimed_at)
    return {
        "actor_id": turn.actor.id,
        "version": turn.actor.version + 1,
        "turn_id": turn.id,
        "origin": turn.origin,
        "method": turn.method,
        "outcome": outcome,
        "started_at": turn.actor.now,
        "duration_seconds": (now - turn.actor.now).total_seconds(),
        "first_seq": first_seq,
        "last_seq": turn.seq if first_seq is not None else None,
        "state_change": state.change if state else None,
        "state_undo": state.undo if state else None,
        "wrote": notes or None,
    }
