"""OpenAI: messages of the Chat Completions API, and of the many servers that speak it.

https://platform.openai.com/docs/api-reference/chat/create. What it refuses: a call without a result right
behind it and a result without a call; arguments that don't parse (servers of open models); ids of calls
over 40 characters; names outside ``^[a-zA-Z0-9_-]{1,64}$``.

Ids are kept as they are otherwise: models such as Kimi read their own form ("functions.search:0") in the
history and answer worse without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agents.exceptions import MessageError
from conversations.adapters.given import blocks_of, each, fields_of, text_or_parts, without_none
from conversations.adapters.ids import ANYTHING, NAME_LENGTH, OPENAI_ID_LENGTH, CallIds, legal
from conversations.adapters.repair import Exchange, RenderBlock, exchanges
from conversations.adapters.values import as_arguments, canonical
from conversations.content import Media, Reasoning, notes_and_text
from conversations.filetypes import PDF, PICTURES
from conversations.messages import StoredMessage

#: Where, in a message's metadata, that stands which OpenAI said of the answer: id, model, usage ...
KEY = "openai"

#: Sounds that ``input_audio`` takes, by MIME type.
_AUDIO = {"audio/wav": "wav", "audio/x-wav": "wav", "audio/mp3": "mp3", "audio/mpeg": "mp3"}

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
#: What servers of reasoning models add to a message. Which one it was stands in the part's ``extras``.
REASONING_FIELDS = ("reasoning_content", "reasoning")


def to_openai(
    messages: Sequence[StoredMessage], *, reasoning_field: str | None = None
) -> list[dict[str, Any]]:
    """The messages for ``client.chat.completions.create(messages=...)``; plain JSON values.

    What a model thought has no place in this API and is left out. Some servers insist on it in a field of
    their own, in every message of the assistant's: ``reasoning_field`` names it ("reasoning_content" for
    DeepSeek and Kimi). A message without a thought gets a blank there, which they take.
    """
    ids = CallIds(OPENAI_ID_LENGTH, ANYTHING)
    rendered: list[dict[str, Any]] = []
    for exchange in exchanges(messages):
        if exchange.role == "assistant":
            rendered += _assistant(exchange, ids, reasoning_field)
        else:
            rendered.append(_named(exchange, {"role": exchange.role, "content": _content(exchange)}))
    return rendered


def from_openai(given: Any) -> list[dict[str, Any]]:
    """What ``append_many`` takes, of a completion, a message, or several messages; objects or dicts.

    Of a completion its first choice. Raises MessageError for what is none of these.
    """
    return [_message(fields) for fields in each(given, "a completion or a message of OpenAI's")]


# Out


def _assistant(exchange: Exchange, ids: CallIds, reasoning_field: str | None) -> list[dict[str, Any]]:
    message: dict[str, Any] = {"role": "assistant", "content": exchange.text or None}
    if reasoning_field is not None:
        message[reasoning_field] = _thought(exchange) or " "
    if not exchange.results:
        return [_named(exchange, message)]
    made = [
        ids.take(result.call.id, exchange.message.seq, index) for index, result in enumerate(exchange.results)
    ]
    message["tool_calls"] = [
        {
            "id": call_id,
            "type": "function",
            "function": {
                "name": legal(result.call.name, NAME_LENGTH),
                "arguments": canonical(as_arguments(result.call.args)),
            },
        }
        for call_id, result in zip(made, exchange.results, strict=True)
    ]
    results = [
        {"role": "tool", "tool_call_id": call_id, "content": result.text}
        for call_id, result in zip(made, exchange.results, strict=True)
    ]
    return [_named(exchange, message), *results]


def _thought(exchange: Exchange) -> str:
    blocks = [block for block in exchange.blocks if isinstance(block, Reasoning)]
    return "\n\n".join(block.text for block in blocks if block.text.strip())


def _named(exchange: Exchange, message: dict[str, Any]) -> dict[str, Any]:
    name = exchange.message.name
    return {**message, "name": legal(name, NAME_LENGTH)} if name else message


def _content(exchange: Exchange) -> str | list[dict[str, Any]]:
    """Text, or blocks where a user sent more than text. Other roles may only send text."""
    blocks = [(block, _media(block)) for block in exchange.blocks]
    if exchange.role != "user" or not any(made for _, made in blocks):
        return exchange.text
    return [made or {"type": "text", "text": notes_and_text([block], "user")} for block, made in blocks]


def _media(block: RenderBlock) -> dict[str, Any] | None:
    """An image, a sound or a file, where the API can take it."""
    if not isinstance(block, Media):
        return None
    if block.kind == "image":
        url = image_url(block)
        detail = {"detail": block.detail} if block.detail else {}
        return {"type": "image_url", "image_url": {"url": url, **detail}} if url else None
    if block.kind == "audio" and block.data and block.mime in _AUDIO:
        return {"type": "input_audio", "input_audio": {"data": block.data, "format": _AUDIO[block.mime]}}
    if block.kind == "file" and block.file_id.startswith("file-"):
        return {"type": "file", "file": {"file_id": block.file_id}}
    # "Expected a base64-encoded data URL with an application/pdf MIME type": the Responses API takes more.
    if block.kind == "file" and block.mime == PDF and (inline := data_url(block)):
        return {"type": "file", "file": {"file_data": inline, "filename": block.name or "file"}}
    return None


def image_url(block: Media) -> str:
    """The address of an image, inline or on the web; empty where OpenAI could not take it."""
    if block.mime in PICTURES and (inline := data_url(block)):
        return inline
    return block.url if block.url.startswith(("http://", "https://")) else ""


def data_url(block: Media) -> str:
    return f"data:{block.mime};base64,{block.data}" if block.data and block.mime else ""


# In


def _message(fields: Mapping[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    if "choices" in fields:
        fields, kept = _first_choice(fields)
    role = _ROLES.get(fields.get("role") or "")
    if role is None:
        raise MessageError(f"a message of OpenAI's has no role {fields.get('role')!r:.100}")
    blocks = [*_reasoning(fields), *blocks_of(fields.get("content"), "a message of OpenAI's")]
    if isinstance(refusal := fields.get("refusal"), str) and refusal:
        blocks.append({"type": "refusal", "refusal": refusal})
    if fields.get("audio"):
        blocks.append({"type": "audio", **without_none(fields_of(fields["audio"], "audio of OpenAI's"))})
    for annotation in fields.get("annotations") or []:
        kept.setdefault("annotations", []).append(annotation)
    made: dict[str, Any] = {"role": role, **text_or_parts(_solid(blocks))}
    if fields.get("name"):
        made["name"] = fields["name"]
    if role == "tool":
        made["tool_call_id"] = fields.get("tool_call_id")
    if role == "assistant":
        made["tool_calls"] = _calls(fields)
    if kept:
        made["metadata"] = {KEY: kept}
    return made


def _first_choice(completion: Mapping[str, Any]) -> tuple[Mapping[str, Any], dict[str, Any]]:
    """The message of a completion, and what is worth keeping of the rest."""
    choices = completion["choices"]
    if not isinstance(choices, Sequence) or not choices:
        raise MessageError("this completion of OpenAI's has no choices")
    choice = fields_of(choices[0], "a choice of OpenAI's")
    if choice.get("message") is None:
        raise MessageError("this choice of OpenAI's has no message: a stream must be put together first")
    kept = {
        **without_none({key: completion.get(key) for key in ("id", "model", "usage")}),
        **without_none({"finish_reason": choice.get("finish_reason")}),
    }
    return fields_of(choice["message"], "a message of OpenAI's"), kept


def _reasoning(fields: Mapping[str, Any]) -> list[dict[str, Any]]:
    for name in REASONING_FIELDS:
        if isinstance(thought := fields.get(name), str) and thought:
            return [{"type": "reasoning", "reasoning": thought, "extras": {"field": name}}]
    return []


def _solid(blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without an empty text where there is more than that: answers come with ``"content": ""``."""
    solid = [block for block in blocks if block.get("text") != ""]
    return solid if len(blocks) > 1 else blocks


def _calls(fields: Mapping[str, Any]) -> list[dict[str, Any]]:
    calls = [_call(fields_of(call, "a call of OpenAI's")) for call in fields.get("tool_calls") or []]
    if not calls and fields.get("function_call"):  # of before tools; it had no id
        old = fields_of(fields["function_call"], "a call of OpenAI's")
        calls.append({"id": old.get("name"), "name": old.get("name"), "args": old.get("arguments")})
    return calls


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    if call.get("type") == "custom":
        custom = fields_of(call.get("custom"), "a custom call of OpenAI's")
        return {"id": call.get("id"), "name": custom.get("name"), "args": {"input": custom.get("input")}}
    function = fields_of(call.get("function"), "a call of OpenAI's")
    return {"id": call.get("id"), "name": function.get("name"), "args": function.get("arguments")}
