"""Who is behind a socket, and whether they still are: sessions end, keys are taken back, tokens expire.

Synchronous, for the hub's threads, and in batches: one look for all sockets that ask at the same moment.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from django.conf import settings
from django.contrib.auth import (
    BACKEND_SESSION_KEY,
    HASH_SESSION_KEY,
    SESSION_KEY,
    get_user_model,
    load_backend,
)
from django.contrib.auth.backends import ModelBackend
from django.contrib.auth.models import AnonymousUser
from django.utils import timezone
from django.utils.crypto import constant_time_compare

from agents.permissions import is_operator


@dataclass(slots=True)
class Identity:
    """One client: how it signed in, and what ends that."""

    user: Any = field(default_factory=AnonymousUser)
    is_operator: bool = False
    # The session that the user came with, or the key of the Authorization header.
    session_key: str | None = None
    api_key: str | None = None
    # Of the token that admitted the client (Unix time, seconds).
    expires_at: float | None = None

    @property
    def user_id(self) -> str:
        """The user's primary key as text; empty for nobody."""
        return "" if self.user.pk is None else str(self.user.pk)

    @property
    def expired(self) -> bool:
        """Whether the token that admitted the client is no longer good."""
        return self.expires_at is not None and self.expires_at <= time.time()

    @property
    def is_checked(self) -> bool:
        """Whether there is anything in the database that could end this."""
        return self.session_key is not None or self.api_key is not None


class BadHeaderError(Exception):
    """An Authorization header that admits nobody."""


def identify(session: Any, authorization: str | None, kind: str) -> Identity:
    """The client of a handshake to an actor of ``kind``, by its session (None, where that does not count) or
    its header.

    Raises BadHeaderError for an ``Authorization`` header that is there and doesn't sign anybody in.
    """
    if authorization is not None:
        key = _api_key(authorization)
        user = _user_of_key(key)
        if user is None:
            raise BadHeaderError("the Authorization header signs nobody in")
        return Identity(user, is_operator(user, kind), api_key=key)
    user = None if session is None else user_of_session(session)
    if user is None:
        return Identity()
    return Identity(user, is_operator(user, kind), session_key=session.session_key)


def user_of_session(session: Any) -> Any:
    """The user that a session is signed in as; None for nobody.

    Not Django's own get_user: that may give a session a new key, which nobody here can tell its browser.
    """
    who = _user_key(session)
    user = None if who is None else _users({who}).get(who)
    return user if user is not None and _hash_matches(user, session) else None


def still_valid(identities: Sequence[Identity]) -> list[bool]:
    """For each whether its session, or key, still signs its user in; and whether its token is still good."""
    sessions = _sessions({i.session_key for i in identities if i.session_key})
    users = _users({_user_key(s) for s in sessions.values()} - {None})  # type: ignore[arg-type]
    keys = {key: _user_of_key(key) for key in {i.api_key for i in identities if i.api_key}}
    return [_is_valid(i, sessions, users, keys) for i in identities]


UserKey = tuple[str, Any]  # the dotted path of the backend that signed in, and the user's primary key


def _is_valid(
    identity: Identity,
    sessions: Mapping[str, Mapping[str, Any]],
    users: Mapping[UserKey, Any],
    keys: Mapping[str, Any],
) -> bool:
    if identity.expired:
        return False
    if identity.api_key is not None:
        user = keys[identity.api_key]
        return user is not None and user.pk == identity.user.pk
    if identity.session_key is None:
        return True
    session = sessions.get(identity.session_key)
    user_key = _user_key(session) if session is not None else None
    user = users.get(user_key) if user_key is not None else None
    if session is None or user is None or user.pk != identity.user.pk:
        return False
    return _hash_matches(user, session)


def _hash_matches(user: Any, session: Mapping[str, Any]) -> bool:
    """A password that was changed elsewhere ends the session, as it does for requests."""
    if not hasattr(user, "get_session_auth_hash"):
        return True
    said = session.get(HASH_SESSION_KEY, "")
    hashes = [user.get_session_auth_hash(), *user.get_session_auth_fallback_hash()]
    return bool(said) and any(constant_time_compare(said, known) for known in hashes)


# Sessions


def _sessions(keys: set[str | None]) -> dict[str, Mapping[str, Any]]:
    """The contents of those of these sessions that are there and not expired."""
    wanted = [key for key in keys if key]
    if not wanted:
        return {}
    store_class = import_module(settings.SESSION_ENGINE).SessionStore
    if hasattr(store_class, "get_model_class"):  # in the database (cached or not): one query
        model = store_class.get_model_class()
        rows = model.objects.filter(session_key__in=wanted, expire_date__gt=timezone.now())
        return {row.session_key: row.get_decoded() for row in rows}
    found = {}
    for key in wanted:
        contents = store_class(key).load()
        if contents:
            found[key] = contents
    return found


def _user_key(session: Mapping[str, Any]) -> UserKey | None:
    try:
        pk = get_user_model()._meta.pk.to_python(session[SESSION_KEY])
        path = session[BACKEND_SESSION_KEY]
    except KeyError:
        return None
    return (path, pk) if path in settings.AUTHENTICATION_BACKENDS else None


def _users(keys: set[UserKey]) -> dict[UserKey, Any]:
    """What each backend says of its users; Django's own is asked for all of them in one query."""
    found: dict[UserKey, Any] = {}
    for path in {path for path, _ in keys}:
        backend: Any = load_backend(path)
        pks = [pk for other, pk in keys if other == path]
        if type(backend).get_user is ModelBackend.get_user:
            users = get_user_model()._default_manager.filter(pk__in=pks)
            found |= {(path, user.pk): user for user in users if backend.user_can_authenticate(user)}
        else:
            for pk in pks:
                if (user := backend.get_user(pk)) is not None:
                    found[path, pk] = user
    return found


# Keys of API clients


def _api_key(authorization: str) -> str:
    scheme, _, key = authorization.strip().partition(" ")
    if scheme.lower() != "token" or not key.strip():
        raise BadHeaderError("the Authorization header must be: Token <key>")
    return key.strip()


def _user_of_key(key: str) -> Any:
    from rest_framework.authentication import TokenAuthentication
    from rest_framework.exceptions import AuthenticationFailed

    try:
        user, _ = TokenAuthentication().authenticate_credentials(key)
    except AuthenticationFailed:
        return None
    return user
