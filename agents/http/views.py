"""What every view of the API stands on.

DRF's views, asynchronous: who it is, what they may and how often are looked up in a thread; the handler
itself is a coroutine on the server's loop and may wait for a turn, or for news, as long as it likes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseBase, QueryDict
from rest_framework.exceptions import NotAuthenticated, PermissionDenied
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import Serializer
from rest_framework.views import APIView

from agents import kinds, permissions
from agents.agent import Agent
from agents.exceptions import InvalidNameError
from agents.http import errors
from agents.http.admission import admits, question
from agents.http.authentication import VIEW_AUTHENTICATION
from agents.http.parsing import PlainJSON, read_body
from agents.http.throttling import Rate
from agents.http.work import in_thread
from agents.names import check_name, escape_name, unescape_name
from agents.sockets.tokens import Grant


class AlwaysJSON(BaseContentNegotiation):
    """Whatever the Accept header says: there is nothing else to choose, and some clients send odd ones."""

    def select_parser(self, request: Request, parsers: Any) -> Any:
        media_type = (request.content_type or "").partition(";")[0].strip().lower()
        return next((parser for parser in parsers if parser.media_type in (media_type, "*/*")), None)

    def select_renderer(self, request: Request, renderers: Any, format_suffix: str | None = None) -> Any:
        return renderers[0], renderers[0].media_type


class ApiView(APIView):
    """A view whose handlers are coroutines. Answers what they raise as ``errors.answer_of`` has it."""

    http_method_names = ["get", "post", "put", "patch", "delete", "head"]
    authentication_classes = VIEW_AUTHENTICATION
    permission_classes = []
    throttle_classes = [Rate]
    renderer_classes = [JSONRenderer]
    parser_classes = [PlainJSON]
    content_negotiation_class = AlwaysJSON
    #: Set once it is known who asks, and about what.
    is_operator = False

    async def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:  # type: ignore[override]
        self.args, self.kwargs = args, kwargs
        self.request = drf = self.initialize_request(request, *args, **kwargs)
        self.headers = self.default_response_headers
        response: HttpResponseBase
        try:
            handler = self._handler(drf)
            if request.method not in ("GET", "HEAD"):
                read_body(request)
            await in_thread(self.initial, drf)
            await self.admit(drf)
            response = await handler(drf, **kwargs)
        except Exception as error:
            response = await in_thread(self.handle_exception, error)
        response = self.finalize_response(drf, response)  # type: ignore[arg-type]
        response.headers.setdefault("Cache-Control", "no-store")  # it is somebody's conversation
        return rendered(response) if isinstance(response, Response) else response

    def _handler(self, request: Request) -> Callable[..., Awaitable[HttpResponseBase]]:
        method = (request.method or "").lower()
        handler: Any = getattr(self, method, None) if method in self.http_method_names else None
        if handler is None:
            self.http_method_not_allowed(request)  # raises
        return handler

    async def admit(self, request: Request) -> None:
        """Who may. Raises NotAuthenticated for strangers, PermissionDenied for others."""
        raise NotImplementedError

    def handle_exception(self, exc: Exception) -> Response:
        if isinstance(exc, NotAuthenticated) or type(exc).__name__ == "AuthenticationFailed":
            exc.auth_header = self.get_authenticate_header(self.request)  # type: ignore[attr-defined]
        response = errors.answer_of(exc, is_operator=self.is_operator)
        response.exception = True
        return response

    def get_authenticate_header(self, request: Request) -> str:
        return "Token"

    @staticmethod
    def checked(serializer: type[Serializer[Any]], data: Any) -> dict[str, Any]:
        """Parameters or a body, as a serializer reads them. Raises ValidationError."""
        # Not as a form, in which an empty parameter is none at all.
        given = serializer(data=data.dict() if isinstance(data, QueryDict) else data)
        given.is_valid(raise_exception=True)
        values: dict[str, Any] = given.validated_data
        return values


class OperatorsView(ApiView):
    """For operators of any kind. ``permission`` is what they need besides."""

    permission: str | None = None

    async def admit(self, request: Request) -> None:
        await in_thread(self._admit, request)

    def _admit(self, request: Request) -> None:
        if not permissions.is_operator(request.user):
            refuse(request)
        self.is_operator = True
        if self.permission is not None and not request.user.has_perm(self.permission):
            refuse(request)


class ActorView(ApiView):
    """A view of one actor, ``<kind>/<name>/``, for whoever its socket would admit.

    ``permission``: only for operators of the kind who have it, whatever the class says.
    """

    permission: str | None = None

    agent: type[Agent[Any]]
    name: str

    async def admit(self, request: Request) -> None:
        self.agent = kinds.get(self.kwargs["kind"])
        self.name = _name(self.kwargs["name"])
        self.address = (self.agent.kind, self.name)
        claims = request.auth.claims if isinstance(request.auth, Grant) else None
        asked = await in_thread(question, request._request, self.agent, self.name, request.user, claims)
        self.is_operator = asked.is_operator
        may = permissions.may
        if self.permission and not await in_thread(may, request.user, self.permission, self.agent.kind):
            refuse(request)
        if not await admits(self.agent, asked):
            refuse(request)


def refuse(request: Request) -> None:
    """Raises NotAuthenticated for strangers, PermissionDenied for those whose answer will not change."""
    if request.successful_authenticator is None:
        raise NotAuthenticated
    raise PermissionDenied


def _name(escaped: str) -> str:
    try:
        return unescape_name(escaped)
    except InvalidNameError:
        right = escape_name(check_name(escaped))  # raises for what is no name at all
        raise InvalidNameError(f"not an escaped name; in addresses it is written {right}") from None


def rendered(response: Response) -> HttpResponse:
    """The same as a plain response, which Django has nothing more to do with: it would take a thread."""
    if getattr(response, "accepted_renderer", None) is None:
        response.accepted_renderer = JSONRenderer()
        response.accepted_media_type = JSONRenderer.media_type
        response.renderer_context = {}  # type: ignore[attr-defined]
    response.render()
    plain = HttpResponse(response.content, status=response.status_code)
    for header, value in response.items():
        plain[header] = value
    plain.cookies = response.cookies
    return plain
