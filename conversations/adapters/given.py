"""What SDKs return, as plain mappings: their objects and their dicts are taken alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agents.exceptions import MessageError

#: What SDKs add to an answer after they parsed it; the provider sent none of it.
_PARSED = frozenset({"parsed", "parsed_arguments", "parsed_output"})
#: Where they add it. A tool's arguments may hold anything, under any name.
_ANSWER = frozenset({"choices", "content", "function", "message", "output", "tool_calls"})


def fields_of(value: Any, what: str) -> dict[str, Any]:
    """The fields that the provider sent, of a mapping or of an SDK's object.

    Raises MessageError for what is neither; ``what`` says what it should have been.
    """
    if isinstance(value, Mapping):
        return dict(value)
    dump = getattr(value, "model_dump", None)
    if not callable(dump) or isinstance(value, type):
        raise MessageError(f"not {what}: {type(value).__name__}")
    dumped: dict[str, Any] = dump(mode="json", exclude_unset=True, warnings=False)
    return _without_parsed(dumped)


def each(value: Any, what: str) -> list[dict[str, Any]]:
    """``fields_of`` of one, or of each of several."""
    several = not isinstance(value, Mapping | str | bytes) and not hasattr(value, "model_dump")
    if several and isinstance(value, Iterable):
        return [fields_of(one, what) for one in value]
    return [fields_of(value, what)]


def blocks_of(content: Any, what: str) -> list[dict[str, Any]]:
    """Content blocks: text becomes one block, nothing none. Raises MessageError."""
    if content is None:
        return []
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        raise MessageError(f"the content of {what} must be text or a list, got {type(content).__name__}")
    blocks = [
        {"type": "text", "text": block} if isinstance(block, str) else fields_of(block, f"a block of {what}")
        for block in content
    ]
    for index, block in enumerate(blocks):
        if not isinstance(block.get("type"), str):
            raise MessageError(f"content[{index}] of {what} has no type")
    return blocks


def text_or_parts(blocks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """``content`` where the blocks are one plain text or none, else ``parts``: text alone is one column."""
    if not blocks:
        return {"content": ""}
    only = blocks[0]
    if len(blocks) == 1 and set(only) == {"type", "text"} and only["type"] in PLAIN_TEXT:
        return {"content": only["text"]}
    return {"parts": [dict(block) for block in blocks]}


PLAIN_TEXT = ("text", "input_text", "output_text")


def without_none(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that say something."""
    return {key: value for key, value in fields.items() if value is not None}


def _without_parsed(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_parsed(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: _without_parsed(item) if key in _ANSWER else item
        for key, item in value.items()
        if key not in _PARSED
    }
