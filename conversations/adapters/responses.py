"""OpenAI's Responses API: input items, and what its responses hold.

https://platform.openai.com/docs/api-reference/responses/create. What it refuses: a ``function_call`` without
its ``function_call_output`` and the reverse ("No tool output found for function call ..."); a reasoning item
that isn't followed by the item that it led to ("was provided without its required following item"); an item
of a stored response by its id, once its reasoning item is missing. So reasoning goes back only with its
encrypted content (``include=["reasoning.encrypted_content"]``, ``store=False``), in its place, and calls have
their item's id only beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agents.exceptions import MessageError
from conversations.adapters.given import blocks_of, each, text_or_parts, without_none
from conversations.adapters.ids import NAME_LENGTH, CallIds, legal
from conversations.adapters.openai import KEY, data_url, image_url
from conversations.adapters.repair import CallBlock, Exchange, RenderBlock, Result, exchanges
from conversations.adapters.values import as_arguments, as_json, canonical
from conversations.content import Media, Other, Reasoning, Text, notes_and_text
from conversations.messages import StoredMessage

#: Of ids of calls in this API.
ID_LENGTH = 64
#: Items of tools that OpenAI runs itself. They are whole, and go back as they came.
SERVER_ITEMS = frozenset(
    {
        "code_interpreter_call",
        "compaction",
        "file_search_call",
        "image_generation_call",
        "mcp_call",
        "mcp_list_tools",
        "web_search_call",
    }
)
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_PHASES = ("commentary", "final_answer")


def to_openai_responses(messages: Sequence[StoredMessage]) -> list[dict[str, Any]]:
    """The items for ``client.responses.create(input=...)``; plain JSON values."""
    ids = CallIds(ID_LENGTH)
    items: list[dict[str, Any]] = []
    for exchange in exchanges(messages):
        if exchange.role != "assistant":
            items.append(_item(exchange.role, _content(exchange)))
            continue
        made = [ids.take(r.call.id, exchange.message.seq, i) for i, r in enumerate(exchange.results)]
        items += _assistant(exchange, made)
        items += [_output(exchange, index, call_id) for index, call_id in enumerate(made)]
    return items


def from_openai_responses(given: Any) -> list[dict[str, Any]]:
    """What ``append_many`` takes, of a response, an item or several items; objects or dicts.

    What a model gave between two inputs is one message. Raises MessageError.
    """
    messages: list[dict[str, Any]] = []
    answer = _Answer()
    for fields in each(given, "a response or an item of OpenAI's"):
        if "output" in fields and fields.get("type") is None:  # a response
            messages += answer.taken()
            answer.about = without_none({key: fields.get(key) for key in ("id", "model", "status", "usage")})
            for item in each(fields["output"], "an item of OpenAI's"):
                answer.add(item)
            messages += answer.taken()
        elif _is_answer(fields):
            answer.add(fields)
        else:
            messages += answer.taken()
            messages.append(_input(fields))
    return messages + answer.taken()


# Out


def _item(role: str, content: str | list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": content}


def _content(exchange: Exchange) -> str | list[dict[str, Any]]:
    blocks = _inputs(exchange.blocks)
    only_text = exchange.role != "user" or all(block["type"] == "input_text" for block in blocks)
    return exchange.text if only_text else blocks


def _inputs(blocks: Iterable[RenderBlock]) -> list[dict[str, Any]]:
    shown = [block for block in blocks if not isinstance(block, Reasoning | CallBlock)]
    return [
        _media(block) or {"type": "input_text", "text": notes_and_text([block], "user")} for block in shown
    ]


def _media(block: RenderBlock) -> dict[str, Any] | None:
    """An image or a file, where the API can take it."""
    if not isinstance(block, Media):
        return None
    own_file = block.file_id if block.file_id.startswith("file-") else ""
    if block.kind == "image":
        where = {"image_url": url} if (url := image_url(block)) else {"file_id": own_file}
        return (
            {"type": "input_image", "detail": block.detail or "auto", **where}
            if any(where.values())
            else None
        )
    if block.kind == "file":
        if own_file:
            return {"type": "input_file", "file_id": own_file}
        if inline := data_url(block):
            return {"type": "input_file", "file_data": inline, "filename": block.name or "file"}
        if block.url.startswith("https://"):
            return {"type": "input_file", "file_url": block.url}
    return None


def _assistant(exchange: Exchange, ids: Sequence[str]) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    thought: list[dict[str, Any]] = []  # waits for the item that it led to
    has_thought = False
    for block in exchange.blocks:
        if isinstance(block, Reasoning):
            if item := _reasoning(block):
                thought.append(item)
            continue
        made = _answer_item(block, ids, with_id=has_thought or bool(thought))
        if made is None:
            thought = []  # it led to something that is not sent
            continue
        has_thought = has_thought or bool(thought)
        items += [*thought, made]
        thought = []
    return _joined(items)


def _joined(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Texts that stand side by side are one message: a model's text may come in pieces."""
    joined: list[dict[str, Any]] = []
    for item in items:
        last = joined[-1] if joined else {}
        if item["type"] == "message" == last.get("type") and item.get("phase") == last.get("phase"):
            last["content"] += item["content"]
        else:
            joined.append(item)
    return joined


def _reasoning(block: Reasoning) -> dict[str, Any] | None:
    """With its encrypted content only: by its id alone it may be gone, or never have been stored."""
    if not block.encrypted or not block.id:
        return None
    given = block.given or {}
    summary = given.get("summary")
    if not isinstance(summary, list):
        summary = [{"type": "summary_text", "text": block.text}] if block.text else []
    item = {
        "type": "reasoning",
        "id": block.id,
        "summary": as_json(summary),
        "encrypted_content": block.encrypted,
    }
    return {**item, "content": as_json(given["content"])} if isinstance(given.get("content"), list) else item


def _answer_item(block: RenderBlock, ids: Sequence[str], *, with_id: bool) -> dict[str, Any] | None:
    if isinstance(block, CallBlock):
        return _call(block, ids[block.index], with_id=with_id)
    if isinstance(block, Other):
        return as_json(block.given) if block.type in SERVER_ITEMS and _is_str(block.given.get("id")) else None
    item = _item("assistant", notes_and_text([block], "assistant"))
    phase = block.given.get("phase") if isinstance(block, Text) and block.given else None
    return {**item, "phase": phase} if phase in _PHASES else item


def _call(block: CallBlock, call_id: str, *, with_id: bool) -> dict[str, Any]:
    given = block.given or {}
    item_id = {"id": given["id"]} if with_id and _is_item_id(given) else {}
    name = legal(block.call.name, NAME_LENGTH)
    args = block.call.args
    if _is_custom(given, args):
        return {
            "type": "custom_tool_call",
            **item_id,
            "call_id": call_id,
            "name": name,
            "input": args["input"],
        }
    return {
        "type": "function_call",
        **item_id,
        "call_id": call_id,
        "name": name,
        "arguments": canonical(as_arguments(args)),
    }


def _output(exchange: Exchange, index: int, call_id: str) -> dict[str, Any]:
    result: Result = exchange.results[index]
    given = next((b.given for b in exchange.blocks if isinstance(b, CallBlock) and b.index == index), None)
    blocks = _inputs(result.blocks)
    only_text = all(block["type"] == "input_text" for block in blocks)
    custom = _is_custom(given or {}, result.call.args)
    return {
        "type": "custom_tool_call_output" if custom else "function_call_output",
        "call_id": call_id,
        "output": result.text if only_text else blocks,
    }


def _is_custom(given: Mapping[str, Any], args: Any) -> bool:
    return (
        given.get("type") == "custom_tool_call"
        and isinstance(args, Mapping)
        and set(args) == {"input"}
        and _is_str(args["input"])
    )


def _is_item_id(given: Mapping[str, Any]) -> bool:
    return given.get("type") in ("function_call", "custom_tool_call") and _is_str(given.get("id"))


def _is_str(value: Any) -> bool:
    return isinstance(value, str)


# In


class _Answer:
    """What a model gave, item by item: one message of the log."""

    def __init__(self) -> None:
        self.about: dict[str, Any] = {}
        self._parts: list[dict[str, Any]] = []
        self._calls: list[dict[str, Any]] = []

    def add(self, item: Mapping[str, Any]) -> None:
        match item.get("type"):
            case "function_call":
                self._call(item, item.get("arguments"))
            case "custom_tool_call":
                self._call(item, {"input": item.get("input")})
            case "message" | None:
                whole = {key: item[key] for key in ("id", "phase") if item.get(key) is not None}
                for block in blocks_of(item.get("content"), "a message of OpenAI's"):
                    self._parts.append(_text_part(block, whole))
            case _:
                self._parts.append(without_none(item))

    def taken(self) -> list[dict[str, Any]]:
        """The message, if there is one; the next begins anew."""
        about, parts, calls = self.about, self._parts, self._calls
        self.about, self._parts, self._calls = {}, [], []
        if not parts:
            return []
        # One text, then calls: that is the order which a message of the log has without parts.
        shown = [part for part in parts if part["type"] != "function_call"]
        bare = [{key: part[key] for key in part if key != "id"} for part in shown]
        made = text_or_parts(bare)
        if "parts" in made or shown != parts[: len(shown)]:
            made = {"parts": parts}
        made |= {"role": "assistant", "tool_calls": calls}
        return [{**made, "metadata": {KEY: about}} if about else made]

    def _call(self, item: Mapping[str, Any], args: Any) -> None:
        self._calls.append({"id": item.get("call_id"), "name": item.get("name"), "args": args})
        # Where it stood, and its item's id. What it asked for is in the calls, once.
        self._parts.append(without_none({key: item.get(key) for key in ("type", "id", "call_id", "name")}))


def _text_part(block: Mapping[str, Any], whole: Mapping[str, Any]) -> dict[str, Any]:
    part = without_none(block)
    for empty in ("annotations", "logprobs"):
        if part.get(empty) == []:
            del part[empty]
    return {**part, **whole}


def _is_answer(item: Mapping[str, Any]) -> bool:
    kind = item.get("type")
    if kind in (None, "message"):
        return item.get("role") == "assistant"
    return not (isinstance(kind, str) and kind.endswith("_output"))


def _input(item: Mapping[str, Any]) -> dict[str, Any]:
    kind = item.get("type")
    if kind in ("function_call_output", "custom_tool_call_output"):
        blocks = blocks_of(item.get("output"), "an output of OpenAI's")
        return {"role": "tool", "tool_call_id": item.get("call_id"), **text_or_parts(blocks)}
    if isinstance(kind, str) and kind.endswith(
        "_output"
    ):  # of a computer, a shell ...: for the log's readers
        return {"role": "tool", "tool_call_id": item.get("call_id"), "parts": [without_none(item)]}
    role = _ROLES.get(item.get("role") or "")
    if kind not in (None, "message") or role is None:
        raise MessageError(f"an item of OpenAI's of type {kind!r:.100} and role {item.get('role')!r:.100}")
    return {"role": role, **text_or_parts(blocks_of(item.get("content"), "a message of OpenAI's"))}
