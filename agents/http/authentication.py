"""Who sends a request: the key of an account, a token for one actor, or a session.

The order is that of ``VIEW_AUTHENTICATION``; a header that is there and signs nobody in is refused, as in a
socket's handshake. Sessions count with the CSRF token alone, for requests that change something.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from django.conf import settings
from django.contrib.auth.models import AnonymousUser
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework.authentication import BaseAuthentication, SessionAuthentication, TokenAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from agents.exceptions import InvalidNameError, TokenError
from agents.names import unescape_name
from agents.sockets.identity import user_of_session
from agents.sockets.tokens import Grant, read_token


class ActorToken(BaseAuthentication):
    """``Authorization: Bearer <token of connect_token>``: for the one actor that the token is for.

    ``request.auth`` is the Grant, ``request.user`` nobody in particular.
    """

    def authenticate(self, request: Request) -> tuple[Any, Grant] | None:
        header = request.headers.get("Authorization")
        if header is None:
            return None
        scheme, _, token = header.strip().partition(" ")
        if scheme.lower() != "bearer":  # nor Token, which comes first
            raise AuthenticationFailed("The Authorization header must be: Token <key>, or Bearer <token>.")
        where = request.parser_context["kwargs"]
        if "name" not in where:
            raise AuthenticationFailed("A token admits to its actor alone.")
        try:
            return AnonymousUser(), read_token(token.strip(), where["kind"], unescape_name(where["name"]))
        except (TokenError, InvalidNameError) as error:
            raise AuthenticationFailed(str(error)) from None

    def authenticate_header(self, request: Request) -> str:
        return "Bearer"


class Session(SessionAuthentication):
    """The session's cookie. Found here where no middleware has (``agentsite/lean.py``)."""

    def authenticate(self, request: Request) -> Any:
        http: Any = request._request
        if not hasattr(http, "session"):
            store = import_module(settings.SESSION_ENGINE).SessionStore
            http.session = store(http.COOKIES.get(settings.SESSION_COOKIE_NAME))
            http.user = user_of_session(http.session) or AnonymousUser()
        return super().authenticate(request)


VIEW_AUTHENTICATION: list[type[BaseAuthentication]] = [
    TokenAuthentication,
    ActorToken,
    Session,
]


class _SessionScheme(OpenApiAuthenticationExtension):
    target_class = Session
    name = "cookieAuth"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        return {"type": "apiKey", "in": "cookie", "name": settings.SESSION_COOKIE_NAME}


class _ActorTokenScheme(OpenApiAuthenticationExtension):
    target_class = ActorToken
    name = "actorToken"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        return {"type": "http", "scheme": "bearer", "description": "A token of connect_token, for one actor."}
