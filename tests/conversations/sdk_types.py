"""The parameter types that providers' SDKs publish, as validators.

The types are the SDKs' own. Two things about how pydantic reads them are changed: what they call an iterable
is checked at once (pydantic would look inside only when somebody goes through it, after it has chosen among
the members of a union), and a field that a type doesn't have is an error instead of left out.
"""

from __future__ import annotations

import collections.abc
import json
import os
import sys
import types
from typing import IO, Annotated, Any, NotRequired, Required, Union, get_args, get_origin, get_type_hints
from typing import NotRequired as ExtNotRequired
from typing import Required as ExtRequired

import anthropic.types
from openai.types.chat import ChatCompletionMessageParam
from openai.types.responses import ResponseInputItemParam
from pydantic import ConfigDict, TypeAdapter
from typing_extensions import TypedDict, is_typeddict

make_typed_dict: Any = TypedDict

_made: dict[type, Any] = {}


def _strict(hint: Any) -> Any:
    if is_typeddict(hint):
        return _typed_dict(hint)
    origin, args = get_origin(hint), get_args(hint)
    if origin is None:
        return hint
    if origin is Annotated:
        return _strict(args[0])
    if origin in (Union, types.UnionType):
        json_types = [arg for arg in args if (get_origin(arg) or arg) not in (IO, os.PathLike)]
        return Union[tuple(map(_strict, json_types))]  # noqa: UP007 - made at run time
    if origin is collections.abc.Iterable or getattr(origin, "__name__", "") == "SequenceNotStr":
        return list[_strict(args[0])]  # type: ignore[misc]
    if origin in (list, dict):
        return origin[tuple(_strict(arg) for arg in args)]
    return hint


def _typed_dict(cls: Any) -> Any:
    """The same fields, strictly. A type may hold itself: it stands in for its name until it is made."""
    if cls in _made:
        return _made[cls]
    # With its qualifiers: annotations are text there, so the class itself doesn't know what is required.
    hints = get_type_hints(cls, vars(sys.modules[cls.__module__]), include_extras=True)
    _made[cls] = cls
    fields = {name: _field(hint) for name, hint in hints.items()}
    made = make_typed_dict(cls.__name__, fields)
    made.__pydantic_config__ = ConfigDict(extra="forbid")
    made.__module__ = f"{cls.__module__}.strict"
    _made[cls] = made
    return made


def _field(hint: Any) -> Any:
    origin = get_origin(hint)
    if origin in (ExtRequired, Required):
        return Required[_strict(get_args(hint)[0])]
    return NotRequired[_strict(get_args(hint)[0] if origin in (ExtNotRequired, NotRequired) else hint)]


def _list_of(hint: Any) -> TypeAdapter[Any]:
    items: Any = list[_strict(hint)]  # type: ignore[misc]
    return TypeAdapter(items)


OPENAI = _list_of(ChatCompletionMessageParam)
RESPONSES = _list_of(ResponseInputItemParam)
ANTHROPIC = _list_of(anthropic.types.MessageParam)


def check_types(adapter: TypeAdapter[Any], value: Any) -> None:
    """Raises pydantic's ValidationError for what the types refuse. Checked as it goes out: as JSON."""
    adapter.validate_python(json.loads(json.dumps(value)), strict=True)
