"""The message: its shape, what the log accepts as one, and how it stands in its row.

Everything that becomes a message passes ``row_of``; every message that is read passes ``message_of``, also
one that the same turn has just written. So what is buffered looks exactly as a later read will.
Nothing here touches the database.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agents import codec, conf
from agents.exceptions import CodecError, LimitError, MessageError
from conversations.content import calls_in_parts, text_of_parts

#: Role by its name; a ``Role`` member is found too and becomes plain text.
ROLES = {role: role for role in ("system", "user", "assistant", "tool")}
#: Characters of a name or an id of a tool call: the width of their columns.
LABEL_MAX_LENGTH = 255

_FIELDS = frozenset({"role", "content", "parts", "name", "tool_calls", "tool_call_id", "metadata"})
#: The original's spelling of two fields.
_CAMEL = {"toolCalls": "tool_calls", "toolCallId": "tool_call_id"}
_CALL_FIELDS = frozenset({"id", "name", "args"})


@dataclass(frozen=True, slots=True)
class ToolCall:
    """What an assistant asked for.

    ``args`` is a dict when the model's arguments were an object, as they should be. Text that did not parse
    is kept as that text.
    """

    id: str
    name: str
    args: Any = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """One message of the log. What was not given is None, or empty for the collections."""

    seq: int
    role: str  # system | user | assistant | tool
    content: str
    at: dt.datetime  # UTC, informational: the order is ``seq``
    parts: list[dict[str, Any]] = field(default_factory=list)
    name: str | None = None
    tool_calls: list[ToolCall] = field(default_factory=list)
    tool_call_id: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """The message as a value that may cross a boundary; what was not given is left out."""
        given: dict[str, Any] = {
            "seq": self.seq,
            "role": self.role,
            "content": self.content,
            "at": self.at,
            "parts": self.parts,
            "name": self.name,
            "tool_calls": [{"id": call.id, "name": call.name, "args": call.args} for call in self.tool_calls],
            "tool_call_id": self.tool_call_id,
            "metadata": self.metadata,
        }
        always = ("seq", "role", "content", "at")
        return {key: value for key, value in given.items() if key in always or value}


def message_of(row: Mapping[str, Any]) -> StoredMessage:
    """The message in a row of ``conversations.Message``, as ``.values(*COLUMNS)`` gives it."""
    parts, calls, metadata = row["parts"], row["tool_calls"], row["metadata"]
    return StoredMessage(
        seq=row["seq"],
        role=row["role"],
        content=row["content"],
        at=row["at"],
        parts=codec.decode(parts) if parts else [],
        name=row["name"] or None,
        tool_calls=[ToolCall(**call) for call in codec.decode(calls)] if calls else [],
        tool_call_id=row["tool_call_id"] or None,
        metadata=codec.decode(metadata) if metadata else {},
    )


#: The columns that a message is made of, for ``.values()``.
COLUMNS = ("seq", "role", "content", "parts", "name", "tool_calls", "tool_call_id", "metadata", "at")


def text_row(role: Any, content: Any) -> dict[str, Any]:
    """The row of a message that is only text, without ``actor_id``, ``seq`` and ``at``.

    Raises MessageError, LimitError.
    """
    role = _role(role)
    if role == "tool":
        raise MessageError("a tool message needs tool_call_id: use append")
    row = _row(role, _text("content", content))
    _check_size(row)
    return row


def row_of(message: Any) -> dict[str, Any]:
    """The row of a message, without ``actor_id``, ``seq`` and ``at``.

    ``message`` is a mapping or a StoredMessage (which gets a new seq). Raises MessageError for what is no
    message, CodecError for values that cannot be kept, LimitError past MAX_MESSAGE_BYTES.
    """
    given = _fields(message)
    role = _role(given.get("role"))
    parts = _parts(given.get("parts"))
    calls = _calls(role, given.get("tool_calls"), parts)
    row = _row(role, _content(role, given, parts, calls))
    row["name"] = _label("name", given.get("name"))
    row["tool_call_id"] = _label("tool_call_id", given.get("tool_call_id"))
    if role == "tool" and not row["tool_call_id"]:
        raise MessageError("a tool message needs tool_call_id, the id of the call that it answers")
    if role != "tool" and row["tool_call_id"]:
        raise MessageError(f"only a tool message has tool_call_id, not one of role {role}")
    row["parts"] = _encoded("parts", parts)
    row["tool_calls"] = _encoded("tool_calls", calls)
    row["metadata"] = _metadata(given.get("metadata"))
    _check_size(row)
    return row


def _row(role: str, content: str) -> dict[str, Any]:
    return {
        "role": role,
        "content": content,
        "parts": None,
        "name": "",
        "tool_calls": None,
        "tool_call_id": "",
        "metadata": None,
    }


def _fields(message: Any) -> Mapping[str, Any]:
    if isinstance(message, StoredMessage):
        return {
            "role": message.role,
            "content": message.content,
            "parts": message.parts,
            "name": message.name,
            "tool_calls": message.tool_calls,
            "tool_call_id": message.tool_call_id,
            "metadata": message.metadata,
        }
    if not isinstance(message, Mapping):
        raise MessageError(f"a message is a mapping with role and content, not {type(message).__name__}")
    given: dict[str, Any] = {}
    unknown = []
    for key, value in message.items():
        field_name = _CAMEL.get(key, key) if isinstance(key, str) else key
        if field_name not in _FIELDS:
            unknown.append(repr(key))
        elif field_name in given:
            raise MessageError(f"{field_name} was given twice, in both spellings")
        else:
            given[field_name] = value
    if unknown:
        known = ", ".join(sorted(_FIELDS))
        raise MessageError(f"a message has no {', '.join(unknown)}; its fields are {known}")
    return given


def _role(role: Any) -> str:
    known = ROLES.get(role) if isinstance(role, str) else None
    if known is None:
        raise MessageError(f"role must be one of {', '.join(ROLES)}, got {role!r:.100}")
    return known


def _text(field_name: str, value: Any) -> str:
    if not isinstance(value, str):
        hint = "; content blocks go into parts" if field_name == "content" else ""
        raise MessageError(f"{field_name} must be text, got {type(value).__name__}{hint}")
    return codec.clean_text(value if type(value) is str else str.__str__(value))


def _label(field_name: str, value: Any) -> str:
    if value is None:
        return ""
    label = _text(field_name, value)
    if len(label) > LABEL_MAX_LENGTH:
        raise MessageError(f"{field_name} has {len(label)} characters, at most {LABEL_MAX_LENGTH} are kept")
    return label


def _content(
    role: str, given: Mapping[str, Any], parts: list[dict[str, Any]], calls: list[dict[str, Any]]
) -> str:
    content = given.get("content")
    if content is not None:
        return _text("content", content)
    if not parts and not calls:
        raise MessageError("content is missing")
    return codec.clean_text(text_of_parts(parts, role))


def _parts(parts: Any) -> list[dict[str, Any]]:
    if parts is None:
        return []
    if isinstance(parts, str | bytes) or not isinstance(parts, Sequence):
        raise MessageError(f"parts must be a list of content blocks, got {type(parts).__name__}")
    for index, part in enumerate(parts):
        if not isinstance(part, Mapping) or not isinstance(part.get("type"), str):
            raise MessageError(f"parts[{index}] must be a mapping with a type that is text")
    return [dict(part) for part in parts]


def _calls(role: str, calls: Any, parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if calls is None:
        calls = calls_in_parts(parts) if role == "assistant" else []
    if isinstance(calls, str | bytes) or not isinstance(calls, Sequence):
        raise MessageError(f"tool_calls must be a list, got {type(calls).__name__}")
    if calls and role != "assistant":
        raise MessageError(f"only an assistant message has tool_calls, not one of role {role}")
    return [_call(f"tool_calls[{index}]", call) for index, call in enumerate(calls)]


def _call(where: str, call: Any) -> dict[str, Any]:
    if isinstance(call, ToolCall):
        call = {"id": call.id, "name": call.name, "args": call.args}
    if not isinstance(call, Mapping):
        raise MessageError(f"{where} must be a mapping with id, name and args, got {type(call).__name__}")
    if unknown := [repr(key) for key in call if key not in _CALL_FIELDS]:
        raise MessageError(f"{where} has no {', '.join(unknown)}; its fields are id, name, args")
    made: dict[str, Any] = {}
    for key in ("id", "name"):
        made[key] = _label(f"{where}.{key}", call.get(key))
        if not made[key].strip():
            raise MessageError(f"{where}.{key} is missing")
    made["args"] = _args(call.get("args"))
    return made


def _args(args: Any) -> Any:
    """Arguments as a tool can take them.

    Models send them as JSON text, nothing at all when there are none, and sometimes text that was cut off.
    That stays readable as it is; renderings wrap it (``adapters.values.as_arguments``).
    """
    if args is None:
        return {}
    if not isinstance(args, str):
        return args
    if not args.strip():
        return {}
    try:
        parsed = json.loads(args)
        if isinstance(parsed, dict):
            _encoded("tool_calls", [{"args": parsed}])  # nested too deep for the log, it stays text
            return parsed
    except (ValueError, RecursionError, CodecError):
        pass
    return args


def _metadata(metadata: Any) -> Any:
    if metadata is None:
        return None
    if not isinstance(metadata, Mapping):
        raise MessageError(f"metadata must be a mapping, got {type(metadata).__name__}")
    return _encoded("metadata", dict(metadata))


def _encoded(field_name: str, value: Any) -> Any:
    """The column's tree; what cannot be kept is named by its path from the message."""
    return codec.encode({field_name: value})[field_name] if value else None


def _check_size(row: Mapping[str, Any]) -> None:
    maximum = conf.get("MAX_MESSAGE_BYTES")
    content = row["content"]
    trees = [tree for tree in (row["parts"], row["tool_calls"], row["metadata"]) if tree is not None]
    # A character takes at most four bytes: most messages need no counting.
    if not trees and len(content) * 4 <= maximum:
        return
    size = len(content.encode()) + sum(codec.size(tree) for tree in trees)
    if size > maximum:
        raise LimitError(
            f"a message may have {maximum} bytes, this one has {size}",
            limit="MAX_MESSAGE_BYTES",
            maximum=maximum,
            actual=size,
        )
