"""Errors as answers: ``{"error": {"code", "message"}}`` with the status that fits.

``code`` is stable (docs/errors.md). ``fields`` says which parameter or field is meant, where it is one; for
operators ``turn`` is the id of the turn that failed.
"""

from __future__ import annotations

import logging
import math
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import Http404
from rest_framework import exceptions as drf
from rest_framework.response import Response

from agents import codec, exceptions
from agents.exceptions import AgentsError

logger = logging.getLogger("agents.http")

#: The status of each class of error; of others that of their nearest base.
STATUS: dict[type[Exception], int] = {
    # Nothing else fits: the request was understood, and what it asked for could not be done.
    AgentsError: 422,
    exceptions.AddressError: 404,
    exceptions.RequestError: 400,
    exceptions.BadResponseError: 500,
    exceptions.CodecError: 400,
    exceptions.MessageError: 400,
    exceptions.LimitError: 413,
    exceptions.InboxFullError: 503,
    exceptions.ActorUnknownMethodError: 404,
    exceptions.ActorPrivateMethodError: 403,
    exceptions.ActorStoppedError: 409,
    exceptions.ActorDeadlockError: 409,
    exceptions.ActorPausedError: 409,
    exceptions.ActorNotTakenOverError: 409,
    exceptions.ActorMethodTimeoutError: 504,
    exceptions.ActorBusyError: 503,
    exceptions.RuntimeShutdownError: 503,
    exceptions.DatabaseUnavailableError: 503,
    exceptions.TurnLostError: 503,
    exceptions.OutcomeUnknownError: 504,
    exceptions.TaskError: 409,
    exceptions.TaskGoneError: 404,
    exceptions.BlobNotFoundError: 404,
    exceptions.TokenError: 401,
}
#: What a caller of one of those that pass should wait.
RETRY_AFTER = 1  # second


class MethodFailed(Exception):  # noqa: N818 - carries what the application's own code raised
    """A method raised something that is no error of ours; ``status`` is what its caller is answered."""

    def __init__(self, method: str, error: Exception, status: int = 422) -> None:
        super().__init__(f"{method} failed")
        self.method, self.error, self.status = method, error, status


def status_of(error: AgentsError) -> int:
    """The HTTP status of an error."""
    for cls in type(error).__mro__:
        if cls in STATUS:
            # What a method itself made too large, or not storable, is no fault of the request.
            inside = STATUS[cls] in (400, 413) and getattr(error, "turn_id", None) is not None
            return 422 if inside else STATUS[cls]
    return 500


def answer_of(error: Exception, *, is_operator: bool) -> Response:
    """The answer to a request that ended with ``error``. What nobody expected is logged, and is a 500."""
    turn = getattr(error, "turn_id", None)
    match error:
        case AgentsError():
            response = _response(status_of(error), error.code, str(error), _fields(error))
        case MethodFailed():
            turn = getattr(error.error, "turn_id", None)
            logger.warning("%s", error, exc_info=error.error)
            said = f"{type(error.error).__name__}: {error.error}" if is_operator else str(error)
            response = _response(error.status, "method_error", said)
        case drf.ValidationError():
            response = _response(
                400, "bad_request", "The request is not what the API takes.", _flat(error.detail)
            )
        case drf.APIException():
            response = _response(error.status_code, error.default_code, str(error.detail))
            if header := getattr(error, "auth_header", None):
                response["WWW-Authenticate"] = header
            if (wait := getattr(error, "wait", None)) is not None:
                response["Retry-After"] = str(math.ceil(wait))
        case PermissionDenied():
            response = _response(403, "permission_denied", str(error) or "not allowed")
        case Http404():
            response = _response(404, "not_found", "There is nothing at this address.")
        case _:
            logger.error("a request failed", exc_info=error)
            response = _response(500, "internal_error", "The server failed; its log says how.")
    if response.status_code == 503:
        response["Retry-After"] = str(RETRY_AFTER)
    if is_operator and turn is not None:
        response.data["error"]["turn"] = str(turn)
    return response


def _response(status: int, code: str, message: str, fields: dict[str, str] | None = None) -> Response:
    error: dict[str, Any] = {"code": code, "message": codec.clean_text(message)}
    if fields:
        error["fields"] = fields
    return Response({"error": error}, status=status)


def _fields(error: AgentsError) -> dict[str, str] | None:
    field = getattr(error, "field", "") or (error.path if isinstance(error, exceptions.CodecError) else "")
    return {field: codec.clean_text(str(error))} if field else None


def _flat(detail: Any) -> dict[str, str]:
    """What is wrong with each field, in one text."""
    if not isinstance(detail, dict):
        return {"$": codec.clean_text(" ".join(map(str, detail)))}
    return {
        codec.clean_text(str(field)): codec.clean_text(
            " ".join(map(str, said)) if isinstance(said, list) else str(said)
        )
        for field, said in detail.items()
    }
