"""Where providers deliver texts and reports, and where media are served."""

from __future__ import annotations

import logging
from typing import Any, cast

from django.core.exceptions import PermissionDenied, RequestDataTooBig
from django.db import InterfaceError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.http.request import RawPostDataException, UnreadablePostError
from django.views import View
from rest_framework import status
from rest_framework.exceptions import APIException
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from agents import kinds, permissions
from agents.exceptions import (
    AddressError,
    AgentsError,
    DatabaseUnavailableError,
    LimitError,
    OutcomeUnknownError,
)
from agents.http.admission import is_admitted
from agents.models import Actor, Blob
from agents.names import check_kind, unescape_name
from agents.observing import carrying, requests
from conversations import intake, media, receipts
from conversations.conf import MAX_WEBHOOK_BYTES
from conversations.exceptions import (
    BodyTooLargeError,
    UnknownProviderError,
    UnreadableBodyError,
    WebhookError,
)
from conversations.inbox import Acceptance
from conversations.providers import webhook_provider
from conversations.providers.base import Event, ReceivedText, TextProvider, WebhookRequest
from conversations.public import url_of
from conversations.signatures import is_local_development

logger = logging.getLogger(__name__)


# Made once: every text is answered with one of them.
_ANSWERS = {status: JSONRenderer().render({"status": status}) for status in Acceptance}


class AlwaysJSON(BaseContentNegotiation):
    """Providers' clients send any Accept header; refusing one would lose the text."""

    def select_parser(self, request: Request, parsers: Any) -> None:
        return None

    def select_renderer(self, request: Request, renderers: Any, format_suffix: str | None = None) -> Any:
        return renderers[0], renderers[0].media_type


class ProviderWebhook(APIView):
    """``POST /webhooks/<provider>/<kind>/``: a provider's texts and reports, for the agents of one kind.

    Without ``<kind>/`` the number that a text came to says whose it is (SMS_NUMBERS, SMS_KIND). Answers 200
    and ``{"status": <Acceptance>}``, or what the provider wants instead; or the error's status and
    ``{"error": {"code", "message"}}``. A delivery that isn't signed as it should be leaves nothing.
    """

    # The signature is the authentication.
    authentication_classes: list[Any] = []
    permission_classes: list[Any] = []
    renderer_classes = [JSONRenderer]
    # ``request.data`` is never read: it would consume the bytes that the signature is about.
    parser_classes: list[Any] = []
    content_negotiation_class = AlwaysJSON
    http_method_names = ["post"]

    async def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:  # type: ignore[override]
        """As DRF's, awaiting the handler. Nothing of what DRF does around it here waits for anything; what it
        does before (``initial``) is about users, permissions, rates and versions, of which there are none."""
        self.args, self.kwargs = args, kwargs
        # No middleware does it here (agentsite/lean.py).
        named = carrying.request_id.set(requests.id_of(request))
        try:
            return await self._dispatch(request, *args, **kwargs)
        finally:
            carrying.request_id.reset(named)

    async def _dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        self.headers = self.default_response_headers
        self.request = drf = self.initialize_request(request, *args, **kwargs)
        response: Any
        try:
            if request.method == "POST":
                response = await self.post(drf, *args, **kwargs)
            else:
                response = self.http_method_not_allowed(drf)
        except Exception as error:
            response = self.handle_exception(error)
        response = self.finalize_response(drf, response, *args, **kwargs)
        if isinstance(response, Response):
            # Django would render it in a thread.
            response.render()
            response = HttpResponse(response.content, status=response.status_code, headers=response.headers)
        response.headers[requests.HEADER] = carrying.request_id.get()
        self.response = response
        return cast(HttpResponseBase, response)

    async def post(self, request: Request, provider: str, kind: str = "") -> HttpResponseBase:
        taker = webhook_provider(provider)
        if taker is None:
            raise UnknownProviderError()
        delivered = webhook_request(request._request, with_url=taker.reads_url)
        taker.verify(delivered)
        if kind:
            check_kind(kind)
        status = Acceptance.IGNORED
        for event in taker.read(delivered):
            status = await _take(taker, event, kind)
        if taker.answer is not None:
            return HttpResponse(taker.answer.body, content_type=taker.answer.content_type)
        return HttpResponse(_ANSWERS[status], content_type=JSONRenderer.media_type)

    def handle_exception(self, exc: Exception) -> Response:
        if isinstance(exc, OperationalError | InterfaceError):
            logger.warning("the database: %s", exc)  # where it is, is for us alone
            exc = DatabaseUnavailableError()
        if isinstance(exc, AgentsError) and (code := error_status(exc)):
            logger.warning("refused a delivery with %d %s: %s", code, exc.code, exc)
            return error_response(code, exc.code, str(exc))
        response = super().handle_exception(exc)  # raises what is nobody's mistake but ours
        if isinstance(exc, APIException):
            response.data = {"error": {"code": exc.default_code, "message": str(exc.detail)}}
        return response


async def _take(provider: TextProvider, event: Event, kind: str) -> Acceptance:
    if isinstance(event, ReceivedText):
        return await intake.accept(intake.Delivered(provider, event, kind))
    new = await intake.in_thread(receipts.take, provider, event)
    return Acceptance.ACCEPTED if new else Acceptance.DUPLICATE


def webhook_request(request: HttpRequest, *, with_url: bool = True) -> WebhookRequest:
    """A request as a provider's ``verify`` and ``read`` take it. Raises BodyTooLargeError and such."""
    return WebhookRequest(
        url=url_of(request) if with_url else "",
        headers=request.headers,
        body=raw_body(request),
        content_type=request.META.get("CONTENT_TYPE", ""),
        local=is_local_development(request),
    )


def raw_body(request: HttpRequest) -> bytes:
    """The bytes as they arrived, 1 MiB at most. Raises BodyTooLargeError or UnreadableBodyError.

    A middleware may have looked at ``request.POST`` before: Django then keeps the bytes of a form that is
    urlencoded, not those of a multipart one.
    """
    try:
        announced = int(request.META.get("CONTENT_LENGTH") or 0)
    except ValueError as error:
        raise UnreadableBodyError("Content-Length is not a number") from error
    if announced > MAX_WEBHOOK_BYTES:
        raise BodyTooLargeError()
    try:
        # Without a length (a chunked body) reading stops one past the limit.
        body = request.body if announced else request.read(MAX_WEBHOOK_BYTES + 1)
    except (RawPostDataException, UnreadablePostError) as error:
        raise UnreadableBodyError() from error
    except RequestDataTooBig as error:
        raise BodyTooLargeError() from error
    if len(body) > MAX_WEBHOOK_BYTES:
        raise BodyTooLargeError()
    return body


def error_status(error: AgentsError) -> int | None:
    """The HTTP status for what a delivery may be refused for; None for a failure of ours.

    Providers try again after any status that isn't 2xx.
    """
    match error:
        case WebhookError():
            return error.status
        case AddressError():
            return status.HTTP_404_NOT_FOUND
        case LimitError():
            return status.HTTP_413_REQUEST_ENTITY_TOO_LARGE
        case DatabaseUnavailableError() | OutcomeUnknownError():
            return status.HTTP_503_SERVICE_UNAVAILABLE
    return None


def error_response(code: int, name: str, message: str) -> Response:
    return Response({"error": {"code": name, "message": message}}, status=code)


class MediaView(View):
    """``GET /media/<kind>/<name>/<key>``: a file of an actor, for whoever may see the conversation.

    Name and key are in the escape of addresses. Nobody else learns whether there is such a file.
    """

    def get(self, request: HttpRequest, kind: str, name: str, key: str) -> HttpResponseBase:
        try:
            agent, plain, key = kinds.get(kind), unescape_name(name), unescape_name(key)
        except AddressError:
            raise Http404 from None
        may_read = permissions.may(request.user, "conversations.view_message", agent.kind)
        if not may_read and not is_admitted(request, agent, plain):
            raise PermissionDenied
        actor = Actor.objects.filter(kind=agent.kind, name=plain).only("pk").first()
        return file_response(request, media.stored(actor.pk, key) if actor else None)


class SentMediaView(View):
    """``GET /media/sent/<token>``: a file of a text of ours, for its provider. Signed, for a time."""

    def get(self, request: HttpRequest, token: str) -> HttpResponseBase:
        opened = media.opened_token(token)
        return file_response(request, media.stored(*opened) if opened else None)


def file_response(request: HttpRequest, blob: Blob | None) -> HttpResponse:
    """The bytes of a file, so that nothing in it can run in a browser. Raises Http404."""
    body = media.read(blob) if blob else None
    if blob is None or body is None:
        raise Http404
    headers = {
        "Content-Disposition": media.disposition(blob),
        "X-Content-Type-Options": "nosniff",
        "Content-Security-Policy": "sandbox; default-src 'none'; style-src 'unsafe-inline'; media-src 'self'",
        "Cross-Origin-Resource-Policy": "same-origin",
        # It is somebody's picture: their own browser may keep it, and asks whether it is still theirs to see.
        "Cache-Control": "private, no-cache",
        "ETag": f'"{blob.sha256}"',
    }
    if request.headers.get("If-None-Match") == headers["ETag"]:
        return HttpResponse(status=status.HTTP_304_NOT_MODIFIED, headers=headers)
    return HttpResponse(body, content_type=blob.content_type, headers=headers)
