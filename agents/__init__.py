"""Every conversation is a durable actor in the database.

``from agents import Agent, exposed, reads`` works anywhere, also before Django's app registry is ready:
the names are looked up when they are used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agents.agent import Agent, TaskContext, exposed, reads
    from agents.exceptions import (
        ActorBusyError,
        ActorDeadlockError,
        ActorMethodError,
        ActorMethodTimeoutError,
        ActorPrivateMethodError,
        ActorStoppedError,
        ActorUnknownMethodError,
        AgentsError,
        CodecError,
        GiveUp,
        LimitError,
        OpenTransactionError,
        ReadOnlyTurnError,
        Retry,
        TurnLostError,
    )
    from agents.stub import Stub

__all__ = [
    "ActorBusyError",
    "ActorDeadlockError",
    "ActorMethodError",
    "ActorMethodTimeoutError",
    "ActorPrivateMethodError",
    "ActorStoppedError",
    "ActorUnknownMethodError",
    "Agent",
    "AgentsError",
    "CodecError",
    "GiveUp",
    "LimitError",
    "OpenTransactionError",
    "ReadOnlyTurnError",
    "Retry",
    "Stub",
    "TaskContext",
    "TurnLostError",
    "exposed",
    "reads",
]

_HOMES = {"Agent": "agent", "TaskContext": "agent", "exposed": "agent", "reads": "agent", "Stub": "stub"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"agents.{_HOMES.get(name, 'exceptions')}"), name)
