"""The id of a request: what its log lines have in common, and those of the turns that it leads to.

A proxy's own (``X-Request-ID``) is taken, where it looks like one; every answer names it.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from asgiref.sync import iscoroutinefunction
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.decorators import sync_and_async_middleware

from agents.observing.carrying import REQUEST_ID_MAX_LENGTH, request_id

HEADER = "X-Request-ID"
_META = "HTTP_X_REQUEST_ID"
# No digits alone: a request's id must never be a phone number.
_ID = re.compile(rf"(?=[^A-Za-z]*[A-Za-z])[A-Za-z0-9._-]{{8,{REQUEST_ID_MAX_LENGTH}}}")


def taken(given: str) -> str:
    """The id that came with a request, where it looks like one, or a fresh one."""
    return given if _ID.fullmatch(given) else uuid.uuid4().hex


def id_of(request: HttpRequest) -> str:
    """A request's id."""
    return taken(request.META.get(_META, ""))


@sync_and_async_middleware
def middleware(get_response: Callable[[HttpRequest], Any]) -> Any:
    """Names the request for all that is logged while it is answered."""
    if iscoroutinefunction(get_response):

        async def answer_async(request: HttpRequest) -> HttpResponseBase:
            id = id_of(request)
            token = request_id.set(id)
            try:
                waiting: Awaitable[HttpResponseBase] = get_response(request)
                response = await waiting
            finally:
                request_id.reset(token)
            response[HEADER] = id
            return response

        return answer_async

    def answer(request: HttpRequest) -> HttpResponseBase:
        id = id_of(request)
        token = request_id.set(id)
        try:
            response: HttpResponseBase = get_response(request)
        finally:
            request_id.reset(token)
        response[HEADER] = id
        return response

    return answer
