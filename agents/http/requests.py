"""Agents that answer HTTP themselves: ``on_request``, one turn a request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, QueryDict, StreamingHttpResponse
from rest_framework.parsers import BaseParser, FormParser, MultiPartParser
from rest_framework.request import Request

from agents import codec, conf
from agents.agent import Agent
from agents.exceptions import ActorUnknownMethodError, AgentsError, BadResponseError, LimitError
from agents.http.errors import MethodFailed
from agents.http.views import ActorView
from agents.names import escape_name
from agents.runtime import get_runtime
from agents.sockets.admission import shown_headers
from agents.sockets.tokens import Grant
from agents.turn import Turn


@dataclass(frozen=True, slots=True)
class AgentRequest:
    """An HTTP request, as ``on_request`` gets it."""

    method: str  # GET, POST, PUT, PATCH, DELETE, HEAD
    #: What follows the actor's address, decoded: "" or "orders/7". ``url`` is the whole address.
    path: str
    url: str
    query: QueryDict
    #: Lower-case names, without secrets.
    headers: Mapping[str, str]
    #: MAX_REQUEST_BYTES at most.
    body: bytes
    user: Any
    #: Of the token that admitted the client; empty without one.
    claims: dict[str, Any]
    is_operator: bool

    @property
    def content_type(self) -> str:
        """Without parameters, in lower case."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    def json(self) -> Any:
        """The body as strict plain JSON. Raises CodecError, which answers 400."""
        return codec.parse(self.body)

    def form(self) -> QueryDict:
        """The body as a form (``application/x-www-form-urlencoded``)."""
        return QueryDict(self.body)


class Unread(BaseParser):
    """Bodies that are no form."""

    media_type = "*/*"

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Any = None) -> Any:
        return {}


class OnRequest(ActorView):
    """``/agents/<kind>/<name>/...``, in whatever method."""

    # Where a session's CSRF token is looked for. What the body means is the agent's business.
    parser_classes = [FormParser, MultiPartParser, Unread]

    async def get(self, request: Request, rest: str = "", **kwargs: Any) -> HttpResponseBase:
        if self.agent.on_request is Agent.on_request:
            raise ActorUnknownMethodError(f"agents of kind {self.agent.kind} answer no requests")
        asked = self._asked(request, rest)
        response = await self._turn(asked)
        response.headers.setdefault("X-Content-Type-Options", "nosniff")
        if asked.method == "HEAD":
            response.content = b""
        return response

    post = put = patch = delete = head = get

    def _asked(self, request: Request, rest: str) -> AgentRequest:
        http: HttpRequest = request._request
        return AgentRequest(
            method=http.method or "",
            path=rest,
            url=f"/agents/{self.agent.kind}/{escape_name(self.name)}/{rest}",
            query=http.GET,
            headers=shown_headers({header.lower(): value for header, value in http.headers.items()}),
            body=http.body if http.method not in ("GET", "HEAD") else b"",
            user=request.user,
            claims=dict(request.auth.claims) if isinstance(request.auth, Grant) else {},
            is_operator=self.is_operator,
        )

    async def _turn(self, asked: AgentRequest) -> HttpResponse:
        cls, waiting = self.agent, True

        async def body(turn: Turn) -> HttpResponse:
            agent = cls(turn)
            await agent._begin()
            return response_of(await agent.on_request(asked))

        try:
            response: HttpResponse = await get_runtime().run(
                lambda engine: engine.call(
                    self.address, "on_request", body, origin="request",
                    budget=cls.call_budget or conf.get("CALL_BUDGET"), wanted=lambda: waiting,
                )
            )  # fmt: skip
        except (AgentsError, PermissionDenied, Http404):
            raise
        except Exception as error:
            raise MethodFailed("on_request", error, status=500) from None
        finally:
            waiting = False  # a client that went away: a turn that has not begun does not begin
        return response


def response_of(value: Any) -> HttpResponse:
    """What ``on_request`` returned, as a response. Raises BadResponseError, CodecError, LimitError."""
    if isinstance(value, HttpResponse):
        if hasattr(value, "render") and not getattr(value, "is_rendered", True):
            value.render()
        response = value
    elif isinstance(value, HttpResponseBase | StreamingHttpResponse):
        raise BadResponseError("a streamed response cannot wait for its turn's commit")
    elif value is None:
        response = HttpResponse(status=204)
        del response.headers["Content-Type"]
    elif isinstance(value, str):
        response = HttpResponse(codec.clean_text(value), content_type="text/plain; charset=utf-8")
    elif isinstance(value, bytes):
        response = HttpResponse(value, content_type="application/octet-stream")
    else:
        response = HttpResponse(codec.dumps(codec.encode(value)), content_type="application/json")
    size, maximum = len(response.content), conf.get("MAX_RESPONSE_BYTES")
    if size > maximum:
        raise LimitError(
            f"{size} bytes are over the limit of {maximum} (MAX_RESPONSE_BYTES)",
            limit="MAX_RESPONSE_BYTES", maximum=maximum, actual=size,
        )  # fmt: skip
    return response
