"""The AI SDK's ``UIMessage``s, in the form with ``parts``: what ``useChat`` shows and sends.

https://ai-sdk.dev/docs/reference/ai-sdk-core/ui-message. Its validator (``validateUIMessages``) refuses a
message of a user's or the system's without parts, unknown types of parts, and an empty list. What it takes is
also fit for ``convertToModelMessages``: every call has its result, files have an address that parses, and a
user's message has something that a model can read.

An assistant's messages up to the next one of a user are one UIMessage, each a step of it (``step-start``), as
the AI SDK's own streams make it. Blocks that it has no part for travel as ``data-block`` parts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from agents.exceptions import MessageError
from conversations.adapters.given import blocks_of, each, text_or_parts
from conversations.adapters.ids import NAME_LENGTH, OPENAI_ID_LENGTH, CallIds, MessageIds, legal
from conversations.adapters.repair import CallBlock, Exchange, RenderBlock, Result, exchanges
from conversations.adapters.values import as_arguments, as_json, canonical
from conversations.content import Media, Other, Reasoning, Text
from conversations.messages import StoredMessage

#: Where, in a message's metadata, that stands which only the AI SDK knows: id, metadata.
KEY = "ai_sdk"
#: The type of the part that carries a block which the AI SDK has no part for.
DATA_BLOCK = "data-block"

_ROLES = ("system", "user", "assistant")
#: Parts of the AI SDK's own that the log keeps as they came, and the texts that its validator asks for.
_OWN_PARTS = {
    "custom": ("kind",),
    "reasoning-file": ("mediaType", "url"),
    "source-document": ("sourceId", "mediaType", "title"),
    "source-url": ("sourceId", "url"),
}
_WITH_RESULT = ("output-available", "output-error", "output-denied")
_DENIED = "Error: the user denied this tool call."
#: What JavaScript's URL takes for sure.
_ADDRESS = re.compile(r"https?://[A-Za-z0-9.-]*[A-Za-z0-9](?::[0-9]{1,4})?(?:[/?#][\x21-\x7e]*)?")
_TOP_LEVEL = {"image": "image", "audio": "audio", "video": "video", "file": "application/octet-stream"}


def to_ai_sdk(messages: Sequence[StoredMessage]) -> list[dict[str, Any]]:
    """The UIMessages for ``useChat({messages})``; plain JSON values."""
    conversation = exchanges(messages)
    ids = MessageIds(conversation, _own_id)
    call_ids = CallIds(OPENAI_ID_LENGTH)
    rendered: list[dict[str, Any]] = []
    for exchange in conversation:
        message = exchange.message
        if exchange.role != "assistant":
            rendered.append(_message(exchange, ids, _said(exchange)))
            continue
        made = [call_ids.take(r.call.id, message.seq, index) for index, r in enumerate(exchange.results)]
        parts = [{"type": "step-start"}, *_step(exchange, made)]
        if rendered and rendered[-1]["role"] == "assistant" and _own_id(message) is None:
            rendered[-1]["parts"] += parts
        else:
            rendered.append(_message(exchange, ids, parts))
    return rendered


def from_ai_sdk(given: Any) -> list[dict[str, Any]]:
    """What ``append_many`` takes, of a UIMessage or several. Raises MessageError for what is none."""
    return [made for fields in each(given, "a UIMessage") for made in _messages(fields)]


# Out


def _own_id(message: StoredMessage) -> str | None:
    """The id that a client gave the message: through the AI SDK, or with what it said."""
    kept = message.metadata.get(KEY)
    own = kept.get("id") if isinstance(kept, Mapping) else message.metadata.get("id")
    return own if isinstance(own, str) and own else None


def _message(exchange: Exchange, ids: MessageIds, parts: list[dict[str, Any]]) -> dict[str, Any]:
    kept = exchange.message.metadata.get(KEY)
    about = kept.get("metadata") if isinstance(kept, Mapping) else None
    made = {"id": ids.take(exchange.message), "role": exchange.role, "parts": parts}
    return made if about is None else {**made, "metadata": as_json(about)}


def _said(exchange: Exchange) -> list[dict[str, Any]]:
    if exchange.role == "system":
        return [_text(exchange.text)]
    parts = [part for block in exchange.blocks if (part := _part(block)) is not None]
    if not any(part["type"] in ("text", "file") for part in parts):
        parts.append(_text(exchange.text))  # a model would get nothing
    return parts


def _step(exchange: Exchange, ids: Sequence[str]) -> list[dict[str, Any]]:
    parts = []
    for block in exchange.blocks:
        if isinstance(block, CallBlock):
            parts.append(_call(block, exchange.results[block.index], ids[block.index]))
        elif (part := _part(block)) is not None:
            parts.append(part)
    return parts


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _part(block: RenderBlock) -> dict[str, Any] | None:
    if isinstance(block, Text):
        return {**_text(block.text), **_own_metadata(block.given)}
    if isinstance(block, Reasoning):
        return {"type": "reasoning", "text": block.text, **_reasoning_metadata(block)}
    if isinstance(block, Media):
        return _file(block) or _text(block.words())
    if isinstance(block, Other):
        return (
            as_json(block.given)
            if _is_own(block.given)
            else {"type": DATA_BLOCK, "data": as_json(block.given)}
        )
    return None


def _own_metadata(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """What the AI SDK said of a part, as it came."""
    extras = (given or {}).get("extras")
    own = extras.get("provider_metadata") if isinstance(extras, Mapping) else None
    if not isinstance(own, Mapping) or not all(isinstance(about, Mapping) for about in own.values()):
        return {}
    return {"providerMetadata": as_json(own)}


def _reasoning_metadata(block: Reasoning) -> dict[str, Any]:
    """As it came; for what came from elsewhere, in the AI SDK's words for the same."""
    if own := _own_metadata(block.given):
        return own
    if block.redacted:
        return {"providerMetadata": {"anthropic": {"redactedData": block.redacted}}}
    if block.signature:
        return {"providerMetadata": {"anthropic": {"signature": block.signature}}}
    if block.encrypted and block.id:
        openai = {"itemId": block.id, "reasoningEncryptedContent": block.encrypted}
        return {"providerMetadata": {"openai": openai}}
    return {}


def _file(block: Media) -> dict[str, Any] | None:
    if block.data and block.mime:
        where = {"mediaType": block.mime, "url": f"data:{block.mime};base64,{block.data}"}
    elif _ADDRESS.fullmatch(block.url):
        where = {"mediaType": block.mime or _TOP_LEVEL[block.kind], "url": block.url}
    else:
        return None
    return {"type": "file", **where, **({"filename": block.name} if block.name else {})}


def _is_own(given: Mapping[str, Any]) -> bool:
    kind = given["type"]
    if kind.startswith("data-"):
        return (
            "data" in given and set(given) <= {"type", "id", "data"} and isinstance(given.get("id", ""), str)
        )
    texts = _OWN_PARTS.get(kind)
    if texts is None or not all(isinstance(given.get(name), str) for name in texts):
        return False
    return kind != "reasoning-file" or _ADDRESS.fullmatch(given["url"]) is not None


def _call(block: CallBlock, result: Result, call_id: str) -> dict[str, Any]:
    part: dict[str, Any] = {
        "type": f"tool-{legal(block.call.name, NAME_LENGTH)}",
        "toolCallId": call_id,
        "input": as_arguments(block.call.args),
    }
    if result.is_error:
        return {**part, "state": "output-error", "errorText": result.text}
    return {**part, "state": "output-available", "output": _output(result)}


def _output(result: Result) -> Any:
    """What the tool gave: as JSON where it came as JSON."""
    kept = result.message.metadata.get(KEY) if result.message is not None else None
    if isinstance(kept, Mapping) and kept.get("json") is True and result.message is not None:
        try:
            return as_json(json.loads(result.message.content))
        except (ValueError, RecursionError):
            pass
    return result.text


# In


def _messages(fields: Mapping[str, Any]) -> list[dict[str, Any]]:
    role = fields.get("role")
    if role not in _ROLES or not isinstance(fields.get("parts"), list):
        raise MessageError(f"a UIMessage has a role and a list of parts; the role here is {role!r:.100}")
    parts = blocks_of(fields["parts"], "a UIMessage")
    kept = {key: fields[key] for key in ("id", "metadata") if fields.get(key) is not None}
    messages: list[dict[str, Any]] = []
    if role == "assistant":
        for step in _steps(parts):
            messages += _step_messages(step)
    else:
        messages.append({"role": role, **text_or_parts([_block(part) for part in parts])})
    if messages and kept:
        messages[0]["metadata"] = {KEY: kept}
    return messages


def _steps(parts: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The parts of each step; a user's message between two steps stands alone."""
    steps: list[list[dict[str, Any]]] = [[]]
    for part in parts:
        if part["type"] == "step-start":
            steps.append([])
        elif part["type"] == "steering-message":
            steps += [[part], []]
        else:
            steps[-1].append(part)
    return [step for step in steps if step]


def _step_messages(parts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    if parts[0]["type"] == "steering-message":
        said = [_block(part) for part in blocks_of(parts[0].get("parts"), "a steering message")]
        return [{"role": "user", **text_or_parts(said), "metadata": {KEY: {"id": parts[0].get("id")}}}]
    calls, results, said, places = [], [], [], []
    for part in parts:
        if not (name := _tool_name(part)):
            said.append(_block(part))
            places.append(said[-1])
            continue
        call_id = part.get("toolCallId")
        args = part.get("input") if part.get("input") is not None else part.get("rawInput")
        calls.append({"id": call_id, "name": name, "args": args})
        places.append({"type": "tool_call", "id": call_id, "name": name})
        if part.get("state") in _WITH_RESULT and not part.get("preliminary"):
            results.append(_result(part, name))
    made = text_or_parts(said)
    if "parts" in made or said != places[: len(said)]:
        made = {"parts": places}
    return [{"role": "assistant", **made, "tool_calls": calls}, *results]


def _tool_name(part: Mapping[str, Any]) -> str:
    if part["type"] == "dynamic-tool":
        name = part.get("toolName")
        return name if isinstance(name, str) else ""
    return part["type"][5:] if part["type"].startswith("tool-") else ""


def _result(part: Mapping[str, Any], name: str) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "tool", "tool_call_id": part.get("toolCallId"), "name": name}
    if part["state"] == "output-available":
        output = part.get("output")
        if isinstance(output, str):
            return {**message, "content": output}
        return {**message, "content": canonical(output), "metadata": {KEY: {"json": True}}}
    text = part.get("errorText") if part["state"] == "output-error" else _denial(part.get("approval"))
    return {**message, "content": text if isinstance(text, str) else "", "metadata": {"is_error": True}}


def _denial(approval: Any) -> str:
    reason = approval.get("reason") if isinstance(approval, Mapping) else None
    return f"{_DENIED} {reason}" if isinstance(reason, str) and reason else _DENIED


def _block(part: Mapping[str, Any]) -> dict[str, Any]:
    """A part in the log's own form: LangChain's standard blocks, where there is one."""
    kind = part["type"]
    extras: dict[str, Any] = {}
    if isinstance(part.get("providerMetadata"), Mapping):
        extras["provider_metadata"] = part["providerMetadata"]
    if kind == "text":
        return {"type": "text", "text": part.get("text"), **({"extras": extras} if extras else {})}
    if kind == "reasoning":
        return _reasoning(part, extras)
    if kind == "file":
        return _media(part, extras)
    if (
        kind == DATA_BLOCK
        and isinstance(data := part.get("data"), Mapping)
        and isinstance(data.get("type"), str)
    ):
        return dict(data)
    return dict(part)


def _reasoning(part: Mapping[str, Any], extras: dict[str, Any]) -> dict[str, Any]:
    block: dict[str, Any] = {"type": "reasoning", "reasoning": part.get("text")}
    for name, about in extras.get("provider_metadata", {}).items():
        if not isinstance(about, Mapping):
            continue
        if name == "anthropic" and isinstance(about.get("redactedData"), str):
            return {"type": "redacted_thinking", "data": about["redactedData"]}
        if name == "anthropic" and isinstance(about.get("signature"), str):
            extras["signature"] = about["signature"]
        if isinstance(about.get("reasoningEncryptedContent"), str) and isinstance(about.get("itemId"), str):
            block["id"] = about["itemId"]
            extras["encrypted_content"] = about["reasoningEncryptedContent"]
    return {**block, "extras": extras} if extras else block


def _media(part: Mapping[str, Any], extras: dict[str, Any]) -> dict[str, Any]:
    mime = part.get("mediaType")
    top = mime.split("/")[0] if isinstance(mime, str) else ""
    block: dict[str, Any] = {"type": top if top in ("image", "audio", "video") else "file"}
    url = part.get("url")
    if isinstance(url, str) and url.startswith("data:") and ";base64," in url:
        block["base64"] = url.partition(";base64,")[2]
    else:
        block["url"] = url
    if isinstance(mime, str) and "/" in mime:
        block["mime_type"] = mime
    if isinstance(part.get("filename"), str):
        extras["filename"] = part["filename"]
    return {**block, "extras": extras} if extras else block
