"""Who may see a conversation over HTTP: whoever its socket would admit."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest

from agents.agent import Agent
from agents.permissions import is_operator
from agents.runtime import get_runtime
from agents.sockets.admission import ConnectionRequest, authorize, shown_headers


def question(
    request: HttpRequest, cls: type[Agent[Any]], name: str, user: Any, claims: dict[str, Any] | None = None
) -> ConnectionRequest:
    """What ``authorize`` of the class is asked about this request. Synchronous: reads permissions."""
    return ConnectionRequest(
        user=user,
        claims=claims,
        headers=shown_headers({header.lower(): value for header, value in request.headers.items()}),
        kind=cls.kind,
        name=name,
        is_operator=is_operator(user, cls.kind),
    )


async def admits(cls: type[Agent[Any]], asked: ConnectionRequest) -> bool:
    """What the class says, as for a socket to its actor."""
    return await get_runtime().run(lambda engine: authorize(engine, cls, asked))


def is_admitted(request: HttpRequest, cls: type[Agent[Any]], name: str) -> bool:
    """The same for a page: synchronous, for the user of the session."""
    asked = question(request, cls, name, request.user)
    admitted: bool = get_runtime().run_sync(lambda engine: authorize(engine, cls, asked))
    return admitted
