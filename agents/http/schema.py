"""What the OpenAPI document says of all views: the shape of errors, and which statuses they come with."""

from __future__ import annotations

from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework import serializers

from agents.saying import MAX_ID


class ErrorDetail(serializers.Serializer[Any]):
    code = serializers.CharField(help_text="Stable: docs/errors.md lists them.")
    message = serializers.CharField()
    fields = serializers.DictField(
        child=serializers.CharField(), required=False, help_text="What is wrong with which field."
    )  # type: ignore[assignment]
    turn = serializers.UUIDField(required=False, help_text="For operators: the turn that failed.")


class Error(serializers.Serializer[Any]):
    error = ErrorDetail()


SAID = {
    400: "A parameter, a header or the body is not what the API takes.",
    401: "Nobody is signed in, or the key or token is not good.",
    403: "You may not.",
    404: "There is no such kind, actor, method or task.",
    405: "Not with this method.",
    409: "Not in the state in which it is now.",
    413: "Too large: docs/limits.md.",
    415: "A body is application/json.",
    422: "The agent's own code refused it, or failed. Nothing was committed.",
    429: "Too many requests: see Retry-After.",
    503: "Not now: see Retry-After.",
    504: "The agent did not answer in its time.",
}
ALWAYS = (400, 401, 403, 404, 405, 429, 503)
BODY = (413, 415)
TURN = (409, 413, 422, 504)

KEY = OpenApiParameter(
    "Idempotency-Key",
    {"type": "string", "minLength": 1, "maxLength": MAX_ID},
    OpenApiParameter.HEADER,
    description="Names the message: the same key again says nothing twice, for 30 days at least.",
)
NAME = OpenApiParameter(
    "name", OpenApiTypes.STR, OpenApiParameter.PATH,
    description="The actor's name in the escape of addresses: `+15550001111` is `~2B15550001111`.",
)  # fmt: skip


NUMBER = OpenApiParameter(
    "number", {"type": "integer", "minimum": 1, "maximum": 10**18 - 1}, OpenApiParameter.PATH
)


def documented(*more: int, **words: Any) -> Any:
    """``extend_schema`` with the errors that every view may answer, and these further statuses."""
    responses = words.pop("responses")
    errors = {status: OpenApiResponse(Error, description=SAID[status]) for status in (*ALWAYS, *more)}
    return extend_schema(responses={**responses, **errors}, **words)


def only_the_api(endpoints: list[Any], **kwargs: Any) -> list[Any]:
    """A hook of drf-spectacular: webhooks and pages are no part of the document."""
    return [endpoint for endpoint in endpoints if endpoint[0].startswith("/api/")]
