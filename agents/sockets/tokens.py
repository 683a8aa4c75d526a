"""Tokens that admit a client to one actor's socket, for browsers and phones without a session of this site.

A view of the application makes one for whoever it trusts; the client sends it in its first frame, never in
a URL, where proxies and logs would keep it. Signed with SECRET_KEY (django.core.signing); nothing is stored.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from django.core import signing

from agents import codec, conf, kinds, names
from agents.exceptions import TokenError

SALT = "agents.sockets.connect"


@dataclass(frozen=True, slots=True)
class Grant:
    """What a token grants: its claims, until a moment (Unix time, seconds)."""

    claims: dict[str, Any]
    expires_at: float


def connect_token(
    kind: str, name: str, claims: dict[str, Any] | None = None, *, max_age: float | None = None
) -> str:
    """A token that admits its bearer to the socket of the actor ``kind``/``name``.

    ``claims`` (plain JSON) are what ``authorize`` and ``connection.claims`` say of the client; anybody who
    has the token can read them. It admits for ``max_age`` seconds (TOKEN_MAX_AGE): a connection made with it
    ends then too, unless its client sends a fresh token before. Raises UnknownKindError, InvalidNameError,
    CodecError.
    """
    kinds.get(kind)
    seconds = conf.get("TOKEN_MAX_AGE") if max_age is None else max_age
    if seconds <= 0:
        raise ValueError(f"max_age must be positive, got {seconds}")
    content = {
        "kind": kind,
        "name": names.check_name(name),
        "claims": codec.plain(dict(claims or {})),
        "expires_at": time.time() + seconds,
    }
    return signing.dumps(content, salt=SALT, compress=True)


def read_token(token: str, kind: str, name: str) -> Grant:
    """What a token grants for this actor. Raises TokenError."""
    try:
        content = signing.loads(token, salt=SALT)
        address, grant = (content["kind"], content["name"]), Grant(content["claims"], content["expires_at"])
    except (signing.BadSignature, KeyError, TypeError, ValueError):
        raise TokenError("this is no token of this site") from None
    if address != (kind, name):
        raise TokenError("the token is for another actor")
    if grant.expires_at <= time.time():
        raise TokenError("the token is expired")
    return grant
