"""Values as plain JSON for a model: what the codec keeps, in the nearest form that every reader takes.

One rule for each type, and canonical key order, so that a rendering is the same bytes every time.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any
from uuid import UUID

from django.utils.duration import duration_iso_string

#: The keys under which a model sees arguments that were not an object.
UNPARSED_ARGUMENTS = "unparsed_arguments"
OTHER_ARGUMENTS = "arguments"


def as_json(value: Any) -> Any:
    """Strict plain JSON with sorted keys; shares nothing with ``value``.

    NaN and the infinities become the texts ``NaN``, ``Infinity`` and ``-Infinity``; moments, dates and
    durations ISO 8601; Decimal and UUID text; bytes base64; sets sorted lists; patterns their source.
    """
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else _name_of(value)
    if isinstance(value, Mapping):
        named = {key if isinstance(key, str) else _key(key): item for key, item in value.items()}
        return {key: as_json(named[key]) for key in sorted(named)}
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((as_json(item) for item in value), key=canonical)
    return _as_text(value)


def canonical(value: Any) -> str:
    """The JSON text of a value: compact, sorted keys, strict."""
    return json.dumps(
        as_json(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=True
    )


def as_arguments(args: Any) -> dict[str, Any]:
    """A tool call's arguments as the JSON object that every provider wants.

    Text that did not parse when it was stored is shown to the model under one key, so that it sees what it
    wrote; other values that aren't objects likewise.
    """
    if args is None or (isinstance(args, str) and not args.strip()):
        return {}
    if isinstance(args, Mapping):
        return as_json(args)
    if isinstance(args, str):
        return {UNPARSED_ARGUMENTS: args}
    return {OTHER_ARGUMENTS: as_json(args)}


def _name_of(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _key(key: Any) -> str:
    return canonical(key).strip('"')


def _as_text(value: Any) -> str:
    if isinstance(value, dt.datetime | dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, dt.timedelta):
        return duration_iso_string(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, re.Pattern):
        return _as_text(value.pattern) if isinstance(value.pattern, bytes) else value.pattern
    if isinstance(value, Decimal | UUID):
        return str(value)
    raise TypeError(f"{type(value).__name__} is no value of the log")
