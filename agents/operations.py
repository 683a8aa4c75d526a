"""The log of operators' deeds. Each verb writes its entry in its own transaction, whoever called it."""

from __future__ import annotations

import logging
from typing import Any

from agents.models import Actor, Operation

logger = logging.getLogger("agents.operations")


def note(
    verb: str, *, by: str, reason: str = "", actor: Actor | None = None, kind: str = "", detail: Any = None
) -> Operation:
    """Writes who did what to whom, and why. ``by``: a user's name, or what stands for one (a command)."""
    logger.info("%s of %s by %s", verb, f"actor {actor.pk}" if actor else kind or "everything", by)
    return Operation.objects.create(
        verb=verb,
        actor=actor,
        kind=actor.kind if actor else kind,
        name=actor.name if actor else "",
        by=by[:150],
        reason=reason,
        detail=detail,
    )
