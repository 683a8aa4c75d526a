"""The views of a development site; anybody else is told that there is nothing here."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import wraps
from typing import Any

from django.core.handlers.asgi import ASGIRequest
from django.http import (
    Http404,
    HttpRequest,
    HttpResponse,
    HttpResponseBase,
    JsonResponse,
    StreamingHttpResponse,
)
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_GET

from conversations.dev import model
from conversations.dev.transcript import RefusedError
from conversations.models import OutboundText
from conversations.phone import normalise
from conversations.signatures import is_local_development

TEXTS = 100  # rows of one answer


@require_GET
def texts(request: HttpRequest) -> JsonResponse:
    """``GET /dev/texts/?to=+15550001111&after=17``: what the site sent to a number, oldest first.

    Answers ``{"last": n, "texts": [{"id", "from", "to", "text", "status", "error"}]}`` with the texts whose
    id is greater than ``after``; ``last`` is the greatest id there is, to ask from.
    """
    if not is_local_development(request):
        raise Http404
    rows = OutboundText.objects.order_by("id")
    last = rows.values_list("id", flat=True).last() or 0
    try:
        rows = rows.filter(id__gt=int(request.GET.get("after", 0)))
    except ValueError:
        return JsonResponse({"error": {"code": "bad_field", "message": "after must be a number"}}, status=400)
    if to := request.GET.get("to"):
        rows = rows.filter(to_number=normalise(to))
    found = [
        {
            "id": row.id,
            "from": row.from_number,
            "to": row.to_number,
            "text": row.text,
            "status": row.status,
            "error": row.error,
        }
        for row in rows[:TEXTS]
    ]
    return JsonResponse({"last": last, "texts": found})


AsyncView = Callable[[HttpRequest], Coroutine[Any, Any, HttpResponseBase]]


def _openai_errors(view: AsyncView) -> AsyncView:
    """Refusals in the shape that OpenAI's clients raise their typed errors from."""

    @wraps(view)
    async def wrapped(request: HttpRequest) -> HttpResponseBase:
        try:
            return await view(request)
        except RefusedError as error:
            details = {
                "message": str(error),
                "type": "invalid_request_error",
                "param": error.param,
                "code": error.code,
            }
            return JsonResponse({"error": details}, status=error.status)

    return wrapped


@csrf_exempt
@_openai_errors
async def chat_completions(request: HttpRequest) -> HttpResponseBase:
    """``POST /dev/model/v1/chat/completions``: Chat Completions, whole or streamed."""
    if not is_local_development(request):
        raise Http404
    if request.method != "POST":
        raise RefusedError("only POST is answered here", "method", status=405)
    try:
        body = json.loads(request.body)
    except (ValueError, RecursionError) as error:
        raise RefusedError(f"the body is not JSON: {error}", "body") from error
    completion = model.complete(body)
    # Asleep on the event loop: many of these calls at once hold no thread.
    await asyncio.sleep(model.delay_of(body["model"]))
    if not body.get("stream"):
        return JsonResponse(completion)
    options = body.get("stream_options")
    include_usage = isinstance(options, dict) and bool(options.get("include_usage"))
    events = _events(model.chunks(completion, include_usage=include_usage))
    # Each server is given the kind of iterator that it can wait for.
    stream: Any = _asynchronous(events) if isinstance(request, ASGIRequest) else events
    response: HttpResponse | StreamingHttpResponse = StreamingHttpResponse(
        stream, content_type="text/event-stream"
    )
    response["Cache-Control"] = "no-cache"
    return response


def _events(chunks: Iterator[dict[str, Any]]) -> Iterator[bytes]:
    for chunk in chunks:
        yield b"data: " + json.dumps(chunk).encode() + b"\n\n"
    yield b"data: [DONE]\n\n"


async def _asynchronous(events: Iterator[bytes]) -> AsyncIterator[bytes]:
    for event in events:
        yield event
        await asyncio.sleep(0.01)  # words come one after another, as from a model
