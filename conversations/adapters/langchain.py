"""LangChain: its plain ``{role, content}`` messages, and its own ``Message`` both ways.

``Message`` is https://reference.langchain.com/javascript/interfaces/_langchain_core.messages.Message.html:
``type`` (human, ai, system, tool), ``content`` (standard content blocks), ``id``, ``name``,
``response_metadata``. Python's ``convert_to_messages`` takes the same dicts; for it, ``ai`` messages also
have ``tool_calls`` and say in ``response_metadata`` that their content is in standard blocks
(``output_version`` v1): without, its models send the ``tool_call`` blocks on as they are.

LangChain passes ids on to whichever provider comes next and takes only one system message, at the front
("Received multiple non-consecutive system messages"): so ids are legal everywhere, and all system messages
become one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agents.exceptions import MessageError
from conversations.adapters.ids import NAME_LENGTH, OPENAI_ID_LENGTH, CallIds, MessageIds, legal
from conversations.adapters.repair import CallBlock, Exchange, RenderBlock, Result, exchanges
from conversations.adapters.values import as_arguments, as_json
from conversations.content import CALL_TYPES, Media, Reasoning, Text, calls_in_parts
from conversations.messages import StoredMessage

#: Where, in a message's metadata, that stands which only LangChain knows: id, response_metadata ...
KEY = "langchain"

_TYPES = {"user": "human", "assistant": "ai"}
_ROLES = {
    **dict.fromkeys(("human", "user", "HumanMessageChunk"), "user"),
    **dict.fromkeys(("ai", "assistant", "AIMessageChunk"), "assistant"),
    **dict.fromkeys(("system", "developer", "SystemMessageChunk"), "system"),
    **dict.fromkeys(("tool", "ToolMessageChunk"), "tool"),
}
#: A call's block that says no more than the call itself.
_PLAIN_CALL = frozenset({"type", "id", "name", "args", "input"})
#: Kept beside the message: what providers' integrations read again, and what an operator may want to see.
_KEPT = ("id", "response_metadata", "additional_kwargs", "usage_metadata")


def to_langchain(messages: Sequence[StoredMessage]) -> list[dict[str, str]]:
    """Plain ``{"role", "content"}``: text only, tools left out, one system message at the front."""
    conversation = exchanges(messages)
    system = "\n\n".join(exchange.text for exchange in conversation if exchange.role == "system")
    plain = [{"role": "system", "content": system}] if system else []
    plain += [
        {"role": exchange.role, "content": exchange.text}
        for exchange in conversation
        if exchange.role != "system" and exchange.text
    ]
    return plain


def to_langchain_messages(messages: Sequence[StoredMessage]) -> list[dict[str, Any]]:
    """LangChain's ``Message`` dicts with tool turns; plain JSON values.

    ``append_langchain`` takes them back, and they come out the same again.
    """
    conversation = exchanges(messages)
    ids = MessageIds(conversation, _own_id)
    call_ids = CallIds(OPENAI_ID_LENGTH)
    rendered = _system([exchange for exchange in conversation if exchange.role == "system"], ids)
    for exchange in conversation:
        if exchange.role == "user":
            rendered.append(_message(exchange, _blocks(exchange.blocks, exchange.message), ids))
        elif exchange.role == "assistant":
            rendered += _assistant(exchange, ids, call_ids)
    return rendered


def to_langchain_objects(messages: Sequence[StoredMessage]) -> list[Any]:
    """The same as ``HumanMessage``, ``AIMessage``, ``SystemMessage`` and ``ToolMessage`` of langchain-core.

    Raises ImportError where that is not installed.
    """
    from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage

    classes = {"human": HumanMessage, "ai": AIMessage, "system": SystemMessage, "tool": ToolMessage}
    return [classes[message["type"]](**message) for message in to_langchain_messages(messages)]


def from_langchain(message: Any) -> dict[str, Any]:
    """What ``append`` takes, of a LangChain message: an object, its dict, or ``messages_to_dict``'s form.

    Its artifact, which no model sees, is not kept. Raises MessageError for what is none.
    """
    fields = _fields(message)
    kind = fields.get("role") or fields.get("type")
    role = _ROLES.get(kind) if isinstance(kind, str) else None
    if role is None:
        raise MessageError(f"a LangChain message of type {kind!r:.100} is none of human, ai, system, tool")
    made: dict[str, Any] = {"role": role, **_content(fields.get("content"))}
    if fields.get("name"):
        made["name"] = fields["name"]
    kept = {key: fields[key] for key in _KEPT if fields.get(key)}
    _take_usage(kept)
    if role == "assistant":
        _take_calls(fields, made, kept)
    metadata: dict[str, Any] = {}
    if role == "tool":
        made["tool_call_id"] = fields.get("tool_call_id")
        if fields.get("status") == "error":
            metadata["is_error"] = True
    if kept or "parts" in made:  # empty, it still says whose the parts are
        metadata[KEY] = kept
    if metadata:
        made["metadata"] = metadata
    return made


def is_one(message: Any) -> bool:
    """Whether this is one LangChain message rather than several."""
    return isinstance(message, Mapping) or hasattr(message, "content")


# Out


def _kept(message: StoredMessage) -> Mapping[str, Any]:
    kept = message.metadata.get(KEY)
    return kept if isinstance(kept, Mapping) else {}


def _own_id(message: StoredMessage) -> str | None:
    own = _kept(message).get("id")
    return own if isinstance(own, str) else None


def _system(exchanges: Sequence[Exchange], ids: MessageIds) -> list[dict[str, Any]]:
    if not exchanges:
        return []
    blocks = [block for exchange in exchanges for block in _blocks(exchange.blocks, exchange.message)]
    return [_message(exchanges[0], blocks, ids)]


def _assistant(exchange: Exchange, ids: MessageIds, call_ids: CallIds) -> list[dict[str, Any]]:
    seq = exchange.message.seq
    calls = [
        {
            "type": "tool_call",
            "id": call_ids.take(result.call.id, seq, index),
            "name": legal(result.call.name, NAME_LENGTH),
            "args": as_arguments(result.call.args),
        }
        for index, result in enumerate(exchange.results)
    ]
    message = _message(exchange, _blocks(exchange.blocks, exchange.message, calls), ids)
    about = dict(message.get("response_metadata", {}))
    if provider := _provider(exchange.message):
        about["model_provider"] = provider  # its integration takes back what only this provider made
    message["response_metadata"] = {**about, "output_version": "v1"}
    if calls:
        message["tool_calls"] = [dict(call) for call in calls]
    return [message, *(_result(exchange, index, call, ids) for index, call in enumerate(calls))]


def _result(exchange: Exchange, index: int, call: Mapping[str, Any], ids: MessageIds) -> dict[str, Any]:
    result: Result = exchange.results[index]
    if result.message is None:
        message: dict[str, Any] = {"type": "tool", "content": _blocks(result.blocks, exchange.message)}
        message["id"] = ids.of_missing(exchange.message, index)
    else:
        message = _message(Exchange(result.message), _blocks(result.blocks, result.message), ids)
    message.setdefault("name", call["name"])
    message["tool_call_id"] = call["id"]
    message["status"] = "error" if result.is_error else "success"
    return message


def _message(exchange: Exchange, content: list[dict[str, Any]], ids: MessageIds) -> dict[str, Any]:
    stored = exchange.message
    message: dict[str, Any] = {
        "type": _TYPES.get(stored.role, stored.role),
        "content": content,
        "id": ids.take(stored),
    }
    if stored.name:
        message["name"] = legal(stored.name, NAME_LENGTH)
    for key in ("response_metadata", "additional_kwargs", "usage_metadata"):
        if isinstance(value := _kept(stored).get(key), Mapping):
            message[key] = as_json(value)
    return message


def _blocks(
    blocks: Iterable[RenderBlock], message: StoredMessage, calls: Sequence[dict[str, Any]] = ()
) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    thought: list[dict[str, Any]] = []  # OpenAI's, which it refuses without what it led to
    for block in blocks:
        shown = _block(block, message, calls)
        if isinstance(block, Reasoning) and (block.encrypted or thought):
            thought += [shown] if shown is not None else []
            continue
        made += [*thought, shown] if shown is not None else []
        thought = []
    return made


def _block(
    block: RenderBlock, message: StoredMessage, calls: Sequence[dict[str, Any]]
) -> dict[str, Any] | None:
    """A block in LangChain's standard form, exactly as it came where it came so.

    What only some models take from themselves is given only where LangChain had given it.
    """
    if isinstance(block, CallBlock):
        extras = _call_extras(block)
        return {**calls[block.index], "extras": extras} if extras else calls[block.index]
    from_langchain = isinstance(message.metadata.get(KEY), Mapping)
    if isinstance(block, Text):
        as_it_came = _is_standard(block.given, "text") or (
            from_langchain and message.role == "assistant" and _is_standard(block.given, "refusal")
        )
        return as_json(block.given) if as_it_came else _text(block.text)
    if isinstance(block, Reasoning):
        if _provider(message) == "anthropic" and not block.signature and not block.redacted:
            return None  # it would be sent, and refused
        return _reasoning(block, from_langchain)
    if message.role in ("user", "tool") or (from_langchain and message.role == "assistant"):
        if isinstance(block, Media):
            return _media(block)
        if from_langchain:
            return as_json(block.given)
    if isinstance(block, Media) or message.role != "assistant":
        return _text(block.note())
    return None


def _provider(message: StoredMessage) -> str | None:
    """Who made the message, as LangChain's integrations name themselves."""
    about = _kept(message).get("response_metadata")
    if isinstance(about, Mapping) and isinstance(provider := about.get("model_provider"), str):
        return provider
    return next(
        (name for name in ("anthropic", "openai") if isinstance(message.metadata.get(name), Mapping)), None
    )


def _call_extras(block: CallBlock) -> dict[str, Any]:
    """What a provider wants back with a call of its own, in LangChain's place for it."""
    given = block.given or {}
    extras = given.get("extras")
    if given.get("type") == "tool_call":
        return as_json(extras) if isinstance(extras, Mapping) else {}
    if given.get("type") == "function_call" and isinstance(given.get("id"), str):
        return {"item_id": given["id"]}
    if given.get("type") == "tool_use" and isinstance(given.get("toolset_name"), str):
        return {"toolset_name": given["toolset_name"]}
    return {}


def _is_standard(given: Mapping[str, Any] | None, *types: str) -> bool:
    foreign = ("source", "source_type", "file", "citations")
    return given is not None and given["type"] in types and not any(key in given for key in foreign)


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _reasoning(block: Reasoning, from_langchain: bool) -> dict[str, Any] | None:
    if _is_standard(block.given, "reasoning"):
        return as_json(block.given)
    if block.redacted:
        if not from_langchain:
            return None
        return {"type": "non_standard", "value": {"type": "redacted_thinking", "data": block.redacted}}
    made: dict[str, Any] = {"type": "reasoning", "reasoning": block.text}
    if block.signature:
        made["extras"] = {"signature": block.signature}
    if block.encrypted and block.id:
        made |= {"id": block.id, "extras": {"encrypted_content": block.encrypted}}
    return made


def _media(block: Media) -> dict[str, Any]:
    if _is_standard(block.given, "image", "audio", "video", "file", "text-plain") and _is_whole(block):
        return as_json(block.given)
    made: dict[str, Any] = {"type": block.kind}
    if block.mime:
        made["mime_type"] = block.mime
    if block.data:
        made["base64"] = block.data
    elif block.url:
        made["url"] = block.url
    elif block.file_id:
        made["file_id"] = block.file_id
    elif block.text:
        made |= {"type": "text-plain", "mime_type": "text/plain", "text": block.text}
    else:
        return _text(block.note())
    if block.name:
        made["extras"] = {"filename": block.name}
    return made


def _is_whole(block: Media) -> bool:
    """Whether a block can go as it came: its data, if it holds any, is what it says, and not left out."""
    given = block.given or {}
    inline = given.get("base64") or given.get("data") or str(given.get("url")).startswith("data:")
    return not inline or bool(block.data and not block.mistaken and given.get("mime_type"))


# In


def _fields(message: Any) -> Mapping[str, Any]:
    if isinstance(message, Mapping):
        data = message.get("data")
        return {"type": message.get("type"), **data} if isinstance(data, Mapping) else message
    if not hasattr(message, "content"):
        raise MessageError(f"not a LangChain message: {type(message).__name__}")
    names = ("type", "role", "content", "name", "tool_calls", "invalid_tool_calls", "tool_call_id", "status")
    return {name: getattr(message, name, None) for name in (*names, *_KEPT)}


def _content(content: Any) -> dict[str, Any]:
    """``content``, or ``parts`` where the message is more than one text and its calls."""
    if content is None or isinstance(content, str):
        return {"content": content or ""}
    if not isinstance(content, Sequence):
        raise MessageError(f"content must be text or a list of blocks, got {type(content).__name__}")
    blocks = [_text(block) if isinstance(block, str) else block for block in content]
    for index, block in enumerate(blocks):
        if not isinstance(block, Mapping) or not isinstance(block.get("type"), str):
            raise MessageError(f"content[{index}] must be text or a mapping with a type")
    rest = [block for block in blocks if block["type"] not in CALL_TYPES]
    calls = [block for block in blocks if block["type"] in CALL_TYPES]
    plain = not rest or (rest == blocks[:1] and set(rest[0]) == {"type", "text"})
    plain = plain and all(set(call) <= _PLAIN_CALL for call in calls)
    if plain and all(block["type"] == "text" and isinstance(block["text"], str) for block in rest):
        return {"content": rest[0]["text"] if rest else ""}
    return {"parts": blocks}


def _take_usage(kept: dict[str, Any]) -> None:
    """``convert_to_messages`` puts what it doesn't know of a dict into ``additional_kwargs``."""
    extra = kept.get("additional_kwargs")
    if isinstance(extra, Mapping) and isinstance(extra.get("usage_metadata"), Mapping):
        kept.setdefault("usage_metadata", extra["usage_metadata"])
        kept["additional_kwargs"] = {key: extra[key] for key in extra if key != "usage_metadata"}
        if not kept["additional_kwargs"]:
            del kept["additional_kwargs"]


def _take_calls(fields: Mapping[str, Any], made: dict[str, Any], kept: dict[str, Any]) -> None:
    """The calls, also those whose arguments LangChain could not parse: their text is kept."""
    content = fields.get("content")
    in_content = [] if isinstance(content, str | None) else [b for b in content if not isinstance(b, str)]
    calls = [
        {"id": call.get("id"), "name": call.get("name"), "args": call.get("args")}
        for call in fields.get("tool_calls") or calls_in_parts(in_content)
    ]
    nameless = []
    for call in fields.get("invalid_tool_calls") or []:
        if call.get("id") and call.get("name"):
            calls.append({"id": call["id"], "name": call["name"], "args": call.get("args")})
        else:
            nameless.append(dict(call))
    made["tool_calls"] = calls
    if nameless:
        kept["invalid_tool_calls"] = nameless
    if isinstance(extra := kept.get("additional_kwargs"), Mapping):
        # OpenAI's form of the same calls; with their own ids they would contradict the log.
        extra = {key: value for key, value in extra.items() if key not in ("tool_calls", "function_call")}
        kept["additional_kwargs"] = extra
        if not extra:
            del kept["additional_kwargs"]
