"""Bodies of requests: bounded, and strict plain JSON."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from django.http.request import RawPostDataException, UnreadablePostError
from rest_framework.parsers import BaseParser

from agents import codec, conf
from agents.exceptions import LimitError, RequestError


class PlainJSON(BaseParser):
    """``application/json``, as sockets take it: no NaN, no U+0000, no tags. Raises CodecError, LimitError."""

    media_type = "application/json"

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Any = None) -> Any:
        return codec.parse(stream.read())


def read_body(request: HttpRequest) -> None:
    """Reads the body, so that everybody who looks at it later finds it, whoever looked before.

    A form that SessionAuthentication searched for a CSRF token would be gone; one without a Content-Length
    would be overlooked.
    """
    body = _body_of(request)
    request._body = body
    request.META["CONTENT_LENGTH"] = str(len(body))


def _body_of(request: HttpRequest) -> bytes:
    """The bytes of a request's body. Raises LimitError past MAX_REQUEST_BYTES, RequestError if it is cut."""
    maximum = conf.get("MAX_REQUEST_BYTES")
    length = request.META.get("CONTENT_LENGTH") or "0"
    if not length.isascii() or not length.isdigit():
        raise RequestError("Content-Length is not a number", field="Content-Length")
    try:
        body = b"" if int(length) > maximum else request.read(maximum + 1)
    except (RawPostDataException, UnreadablePostError) as error:
        raise RequestError(f"the body could not be read: {error}") from None
    size = max(len(body), int(length))
    if size > maximum:
        raise LimitError(
            f"{size} bytes are over the limit of {maximum} (MAX_REQUEST_BYTES)",
            limit="MAX_REQUEST_BYTES", maximum=maximum, actual=size,
        )  # fmt: skip
    return body
