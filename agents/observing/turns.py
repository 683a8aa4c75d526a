"""What becomes of turns, as it is counted, traced and announced. Called on the engine's loop."""

from __future__ import annotations

import contextvars
import time
from typing import TYPE_CHECKING, Any

from agents import conf, kinds
from agents.exceptions import AgentsError, OutcomeUnknownError, TurnLostError, UnknownKindError
from agents.observing import carrying, metrics, tracing
from agents.observing.announcing import announce
from agents.signals import lease_lost, turn_committed, turn_failed

if TYPE_CHECKING:
    from agents.turn import Turn

#: Why the engine ended a turn, as its outcome.
ENDED = {
    "timeout": "timeout",
    "overdue": "timeout",
    "stopped": "stopped",
    "shutdown": "shutdown",
    "lost": "lost",
}


def refused(kind: str, error: BaseException) -> None:
    """A call gave up before its turn began."""
    if isinstance(error, AgentsError) and conf.get("METRICS"):
        metrics.turns_refused.labels(kind, error.code).inc()


def began(turn: Turn, context: contextvars.Context) -> None:
    """Its method runs next, in this context."""
    turn.observed = True
    kind = turn.actor.kind
    if turn.task is not None:
        turn.waited = max(0.0, (turn.actor.now - turn.task.due_at).total_seconds())
        context.run(carrying.request_id.set, carrying.read(turn.task.carried).request_id)
    if conf.get("METRICS"):
        if turn.takes_over:
            metrics.lease_takeovers.labels(kind).inc()
        if turn.task is not None:
            metrics.lateness_of(kind, turn.task.lane).observe(turn.waited)
    if tracing.active():
        tracing.turn_began(turn, context)


def committed(turn: Turn, *, wrote: bool) -> None:
    """It is over, and what it wrote (if anything) is in the database."""
    seconds = _ended(turn, "done")
    if turn.span is not None:
        tracing.turn_ended(turn, "done", None)
    if wrote and turn_committed.receivers:
        announce(turn_committed, _sender(turn), **_facts(turn), version=turn.actor.version, seconds=seconds)


def failed(turn: Turn, error: BaseException) -> None:
    """It is over, and left nothing behind (but what it had checkpointed)."""
    if not turn.observed:
        return  # it never began
    outcome = outcome_of(turn, error)
    seconds = _ended(turn, outcome)
    if turn.span is not None:
        tracing.turn_ended(turn, outcome, error)
    if outcome == "lost" or turn.left_behind:
        reason = "overdue" if outcome != "lost" else "expired" if turn.ended_by else "fence"
        if conf.get("METRICS"):
            metrics.lease_losses.labels(turn.actor.kind, reason).inc()
        announce(lease_lost, _sender(turn), **_facts(turn), reason=reason)
    if turn_failed.receivers:
        announce(turn_failed, _sender(turn), **_facts(turn), outcome=outcome, error=error, seconds=seconds)


def outcome_of(turn: Turn, error: BaseException) -> str:
    """done | failed | timeout | stopped | shutdown | lost | unknown, as the metrics say it."""
    if turn.ended_by is not None:
        return ENDED[turn.ended_by]
    # What a turn calls may have been lost by itself: the error then names another turn.
    if getattr(error, "turn_id", None) in (None, turn.id):
        if isinstance(error, OutcomeUnknownError):
            return "unknown"
        if isinstance(error, TurnLostError):
            return "lost"
    return "failed"


def read(kind: str, outcome: str, seconds: float) -> None:
    """A ``@reads`` method is over."""
    if conf.get("METRICS"):
        turn = metrics.of_turn(kind, "read", outcome)
        turn.ended.inc()
        turn.run.observe(seconds)


def _ended(turn: Turn, outcome: str) -> float:
    seconds = time.monotonic() - turn.claimed_at
    if conf.get("METRICS"):
        counted = metrics.of_turn(turn.actor.kind, turn.origin, outcome)
        counted.ended.inc()
        counted.run.observe(seconds)
        if turn.task is None:
            counted.wait.observe(turn.waited)
    return seconds


def _sender(turn: Turn) -> Any:
    try:
        return kinds.get(turn.actor.kind)
    except UnknownKindError:
        return None


def _facts(turn: Turn) -> dict[str, Any]:
    return {
        "kind": turn.actor.kind,
        "name": turn.actor.name,
        "actor_id": turn.actor.id,
        "turn_id": turn.id,
        "origin": turn.origin,
        "method": turn.method,
        "waited": turn.waited,
    }
