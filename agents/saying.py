"""What somebody says to an actor, from a socket, a page or the API: one payload and one key for all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agents import codec

#: The method that takes what is said. An operator who has taken the actor over gets it instead of the agent.
RECEIVE = "receive"
#: Characters of the id that a client gives to what it says.
MAX_ID = 128


def saying(
    id: str,
    text: str,
    user: Any,
    *,
    claims: Mapping[str, Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The payload that ``receive`` gets. ``claims`` are those of the token that admitted the client."""
    return {
        "text": codec.clean_text(text),
        "id": codec.clean_text(id),
        "channel": "web",
        "from": user.get_username() if user.is_authenticated else "",
        "user_id": "" if user.pk is None else str(user.pk),
        "claims": dict(claims or {}),
        "metadata": dict(metadata or {}),
    }


def key_of(id: str) -> str:
    """The inbox's key for it: the same id again says nothing twice."""
    return f"say:{id}"
