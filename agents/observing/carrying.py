"""What a task carries from whoever made it to its turns: the request that it came from, and its trace.

One short text on the task's row, ``<request id> <traceparent>``: either may be missing.
"""

from __future__ import annotations

import contextvars
from typing import NamedTuple

from agents.observing import tracing

#: The request that is being answered, or that led to the turn that runs: for logs. Empty: none is known.
request_id: contextvars.ContextVar[str] = contextvars.ContextVar("agents_request_id", default="")

#: The longest id of a request that is taken as it comes.
REQUEST_ID_MAX_LENGTH = 64  # characters


class Carried(NamedTuple):
    request_id: str = ""
    traceparent: str = ""  # W3C Trace Context


def carried() -> str:
    """What a task that is made here and now carries."""
    request, trace = request_id.get(), tracing.traceparent()
    return f"{request} {trace}".rstrip() if request or trace else ""


def read(text: str) -> Carried:
    """What a task's row carries."""
    request, _, trace = text.partition(" ")
    return Carried(request, trace)
