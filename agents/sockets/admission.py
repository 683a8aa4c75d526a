"""Who may connect: where a handshake comes from, who sent it, and what the class says to that.

Browsers send an Origin with every handshake, whatever page made it, and the session's cookie along with it:
so a session counts only where the Origin is one of ours. Other programs send no Origin; they come with an
``Authorization`` header, or with a token in their first frame.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlparse

from channels.security.websocket import OriginValidator
from django.conf import settings
from django.core.exceptions import PermissionDenied

from agents import conf
from agents.agent import Agent
from agents.engine import Engine
from agents.turn import Turn

logger = logging.getLogger("agents.sockets")

#: Hosts of a development site that names none, as Django itself takes them.
LOOPBACK = ["localhost", "127.0.0.1", "[::1]"]
#: Headers that are secrets, or only about the handshake: agents don't see them.
HIDDEN_HEADERS = frozenset({"cookie", "authorization", "proxy-authorization", "connection", "upgrade"})
MAX_HEADER = 1024  # characters of one that are kept


@dataclass(frozen=True, slots=True)
class ConnectionRequest:
    """What ``authorize`` is asked about.

    ``user`` is the signed-in user (by session or ``Authorization`` header) or AnonymousUser. ``claims`` are
    those of a valid token for this actor, None without one. ``headers`` have lower-case names and no secrets.
    """

    user: Any
    claims: dict[str, Any] | None
    headers: Mapping[str, str]
    kind: str
    name: str
    is_operator: bool


async def authorize(engine: Engine, cls: type[Agent[Any]], request: ConnectionRequest) -> bool:
    """What the class says, as a read of its actor. Raises what ``authorize`` raises, but PermissionDenied."""

    async def body(turn: Turn) -> bool:
        try:
            return bool(await cls(turn).authorize(request))
        except PermissionDenied:
            return False

    budget = cls.call_budget or conf.get("CALL_BUDGET")
    return bool(await engine.reads.read((request.kind, request.name), "authorize", body, budget=budget))


# The handshake


def headers_of(scope: Mapping[str, Any]) -> dict[str, str]:
    """The handshake's headers by lower-case name; several of one name are joined by commas."""
    headers: dict[str, str] = {}
    for raw_name, raw_value in scope.get("headers", ()):
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def shown_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Those that agents may see."""
    return {
        name: value[:MAX_HEADER].replace("\0", "")
        for name, value in headers.items()
        if name not in HIDDEN_HEADERS and not name.startswith("sec-websocket-")
    }


def allowed_hosts() -> list[str]:
    """Hosts and origins whose pages may open sockets."""
    hosts = list(settings.ALLOWED_HOSTS) or (LOOPBACK if settings.DEBUG else [])
    return [*hosts, *conf.get("SOCKET_ORIGINS")]


def is_allowed(origin: str) -> bool:
    """Whether a page of this origin may open a socket. Hosts match as in ALLOWED_HOSTS, on any port."""
    allowed = allowed_hosts()
    if origin == "null":  # a sandboxed frame, a file
        return "null" in allowed
    try:
        parsed = urlparse(origin.lower())
        _ = parsed.port  # raises for what is no port
        return bool(parsed.scheme) and OriginValidator(None, allowed).valid_origin(parsed)
    except ValueError:
        return False


def refuse(origin: str | None, why: str) -> None:
    """The one log line of a refused handshake: whoever set up a client must be able to find out why."""
    logger.warning(
        "socket refused: %s; origin: %s; allowed hosts: %s; programs without an Origin send an Authorization"
        " header, or a token in their first frame",
        why,
        "none" if origin is None else repr(origin[:200]),
        ", ".join(allowed_hosts()) or "none",
    )
