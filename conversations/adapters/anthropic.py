"""Anthropic: turns of the Messages API. The system prompt goes into its own parameter (``system_prompt``).

https://platform.claude.com/docs/en/api/messages. What it refuses: a ``tool_use`` without its
``tool_result`` in the next message, and the reverse; results that don't stand first there; two blocks with
one id; ids outside ``^[a-zA-Z0-9_-]+$``; input that isn't an object; blank text; a conversation that
doesn't begin with the user; with current models also one that doesn't end with the user; an assistant
message whose last block is thinking.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agents.exceptions import MessageError
from conversations.adapters.given import blocks_of, each, text_or_parts, without_none
from conversations.adapters.ids import NAME_LENGTH, STRICT, CallIds, legal
from conversations.adapters.repair import CallBlock, Exchange, RenderBlock, Result, exchanges
from conversations.adapters.values import as_arguments, as_json
from conversations.adapters.windows import SUMMARY_SEQ
from conversations.content import Media, Other, Reasoning, Text
from conversations.filetypes import PDF, PICTURES
from conversations.messages import StoredMessage

#: Where, in a message's metadata, that stands which Anthropic said of the answer: id, model, usage ...
KEY = "anthropic"

BEGINNING = "(The assistant wrote first.)"
ENDING = "(No new message from the user.)"

#: Tools that Anthropic runs itself: their calls and results stand in one message, and go back as they came.
_SERVER_TOOLS = frozenset(
    {
        "bash_code_execution",
        "code_execution",
        "text_editor_code_execution",
        "tool_search_tool_bm25",
        "tool_search_tool_regex",
        "web_fetch",
        "web_search",
    }
)
_SERVER_RESULTS = frozenset(
    {
        "bash_code_execution_tool_result",
        "code_execution_tool_result",
        "text_editor_code_execution_tool_result",
        "tool_search_tool_result",
        "web_fetch_tool_result",
        "web_search_tool_result",
    }
)
_CITATIONS = frozenset(
    {
        "char_location",
        "content_block_location",
        "page_location",
        "search_result_location",
        "web_search_result_location",
    }
)


def to_anthropic(messages: Sequence[StoredMessage]) -> list[dict[str, Any]]:
    """The turns for ``client.messages.create(messages=...)``; plain JSON values.

    System messages are left out, but a window's summary is the user's first text. Neighbours of one role are
    one turn. A conversation that begins or ends with the assistant gets a note of the user's there.
    """
    ids = CallIds(NAME_LENGTH)
    turns: list[tuple[str, list[dict[str, Any]]]] = []
    for exchange in exchanges(messages):
        if exchange.role == "system":
            if exchange.message.seq == SUMMARY_SEQ:  # the caller's prompt doesn't have it
                _add(turns, "user", [_text(exchange.text)])
            continue
        if exchange.role == "user":
            _add(turns, "user", _user_blocks(exchange.blocks))
            continue
        made = [ids.take(r.call.id, exchange.message.seq, i) for i, r in enumerate(exchange.results)]
        _add(turns, "assistant", _assistant_blocks(exchange, made))
        toolsets = {b.index: _toolset(b) for b in exchange.blocks if isinstance(b, CallBlock)}
        results = enumerate(exchange.results)
        _add(turns, "user", [{**_result(result, made[i]), **toolsets.get(i, {})} for i, result in results])
    if turns and turns[0][0] == "assistant":
        turns.insert(0, ("user", [_text(BEGINNING)]))
    if turns and turns[-1][0] == "assistant":
        turns.append(("user", [_text(ENDING)]))
    return [{"role": role, "content": _content(blocks)} for role, blocks in turns]


def system_prompt(messages: Sequence[StoredMessage]) -> str:
    """All system messages, in order, a blank line between: for the ``system`` parameter. Empty when none."""
    return "\n\n".join(exchange.text for exchange in exchanges(messages) if exchange.role == "system")


def from_anthropic(given: Any) -> list[dict[str, Any]]:
    """What ``append_many`` takes, of an answer, a turn or several turns; objects or dicts.

    Results in a turn of the user's become tool messages. Raises MessageError for what is none of these.
    """
    return [message for fields in each(given, "a message of Anthropic's") for message in _messages(fields)]


# Out


def _add(turns: list[tuple[str, list[dict[str, Any]]]], role: str, blocks: list[dict[str, Any]]) -> None:
    if not blocks:
        return
    if turns and turns[-1][0] == role:
        turns[-1][1].extend(blocks)
    else:
        turns.append((role, blocks))


def _content(blocks: list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    return blocks[0]["text"] if len(blocks) == 1 and set(blocks[0]) == {"type", "text"} else blocks


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _user_blocks(blocks: Iterable[RenderBlock]) -> list[dict[str, Any]]:
    made = []
    for block in blocks:
        if isinstance(block, Text):
            made.append(_text(block.text))
        elif isinstance(block, Media):
            made.append(_media(block) or _text(block.note()))
        elif not isinstance(block, Reasoning | CallBlock):
            made.append(_text(block.note()))
    return made


def _assistant_blocks(exchange: Exchange, ids: Sequence[str]) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    blocks = exchange.blocks
    server = _server_blocks(blocks)
    for place, block in enumerate(blocks):
        if isinstance(block, Text):
            made.append(_cited(block))
        elif isinstance(block, Other):
            if place in server:
                made.append(as_json(without_none(block.given)))
        elif isinstance(block, Media):
            made.append(_text(block.note()))
        elif isinstance(block, CallBlock):
            made.append(
                {
                    "type": "tool_use",
                    "id": ids[block.index],
                    "name": legal(block.call.name, NAME_LENGTH),
                    "input": as_arguments(block.call.args),
                    **_toolset(block),
                }
            )
        elif isinstance(block, Reasoning) and (thinking := _thinking(block)):
            made.append(thinking)
    while made and made[-1]["type"].endswith("thinking"):
        made.pop()
    return made


def _toolset(block: CallBlock) -> dict[str, Any]:
    """Whose member the tool is, where Anthropic said so."""
    name = (block.given or {}).get("toolset_name")
    return {"toolset_name": name} if isinstance(name, str) and name else {}


def _cited(block: Text) -> dict[str, Any]:
    """Its text, with the citations that Anthropic gave with it."""
    given = (block.given or {}).get("citations")
    if not isinstance(given, list) or not given:
        return _text(block.text)
    if not all(isinstance(one, Mapping) and one.get("type") in _CITATIONS for one in given):
        return _text(block.text)
    return {**_text(block.text), "citations": [as_json(one) for one in given]}


def _server_blocks(blocks: Sequence[RenderBlock]) -> set[int]:
    """Which blocks are calls that Anthropic ran itself, and their results: whole pairs, in order."""
    calls: dict[str, int] = {}  # without a result so far
    used: set[str] = set()
    kept: set[int] = set()
    for place, block in enumerate(blocks):
        if not isinstance(block, Other):
            continue
        given = block.given
        is_call = block.type == "server_tool_use"
        id_ = given.get("id" if is_call else "tool_use_id")
        if not isinstance(id_, str) or not STRICT.fullmatch(id_):
            continue
        if is_call:
            is_usable = given.get("name") in _SERVER_TOOLS and isinstance(given.get("input"), Mapping)
            if is_usable and id_ not in used:
                used.add(id_)
                calls[id_] = place
        elif block.type in _SERVER_RESULTS and id_ in calls and given.get("content") is not None:
            kept |= {calls.pop(id_), place}
    return kept


def _thinking(block: Reasoning) -> dict[str, Any] | None:
    """Exactly as it came. Without its signature it would be refused: another provider's, or cut off."""
    if block.redacted:
        return {"type": "redacted_thinking", "data": block.redacted}
    if block.signature:
        return {"type": "thinking", "thinking": block.text, "signature": block.signature}
    return None


def _result(result: Result, call_id: str) -> dict[str, Any]:
    blocks = _user_blocks(result.blocks)
    only_text = all(block["type"] == "text" for block in blocks)
    made: dict[str, Any] = {
        "type": "tool_result",
        "tool_use_id": call_id,
        "content": result.text if only_text else blocks,
    }
    if result.is_error:
        made["is_error"] = True
    return made


def _media(block: Media) -> dict[str, Any] | None:
    """An image or a document, where the API can take it."""
    kind = {"image": "image", "file": "document"}.get(block.kind)
    if kind is None:
        return None
    source: dict[str, Any] | None = None
    if block.data and (block.mime in PICTURES if kind == "image" else block.mime == PDF):
        source = {"type": "base64", "media_type": block.mime, "data": block.data}
    elif kind == "document" and block.text.strip():
        source = {"type": "text", "media_type": "text/plain", "data": block.text}
    elif block.url.startswith("https://"):
        source = {"type": "url", "url": block.url}
    elif block.file_id.startswith("file_"):
        source = {"type": "file", "file_id": block.file_id}
    if source is None:
        return None
    named = {"title": block.name} if kind == "document" and block.name else {}
    return {"type": kind, "source": source, **named}


# In


def _messages(fields: Mapping[str, Any]) -> list[dict[str, Any]]:
    role = fields.get("role")
    blocks = [_received(block) for block in blocks_of(fields.get("content"), "a message of Anthropic's")]
    if role == "assistant":
        return [_answer(fields, blocks)]
    if role not in ("user", "system"):
        raise MessageError(f"a message of Anthropic's has no role {role!r:.100}")
    messages = [_tool_message(block) for block in blocks if block["type"] == "tool_result"]
    said = [block for block in blocks if block["type"] != "tool_result"]
    if said or not messages:
        messages.append({"role": role, **text_or_parts(said)})
    return messages


def _received(block: Mapping[str, Any]) -> dict[str, Any]:
    """A block without the fields that Anthropic left open; a cache mark belongs to one request."""
    return {k: v for k, v in block.items() if v is not None and k != "cache_control"}


def _answer(fields: Mapping[str, Any], blocks: list[dict[str, Any]]) -> dict[str, Any]:
    calls = [
        {"id": block.get("id"), "name": block.get("name"), "args": block.get("input")}
        for block in blocks
        if block["type"] == "tool_use"
    ]
    said = [block for block in blocks if block["type"] != "tool_use"]
    made = text_or_parts(said)
    plain = all(
        set(block) <= {"type", "id", "name", "input"} for block in blocks if block["type"] == "tool_use"
    )
    if "parts" in made or not plain or said != blocks[: len(said)]:
        # Where a call stood; what it asked for is in the calls, once.
        made = {"parts": [_place(block) for block in blocks]}
    about = without_none({key: fields.get(key) for key in ("id", "model", "stop_reason", "usage")})
    made |= {"role": "assistant", "tool_calls": calls}
    return {**made, "metadata": {KEY: about}} if about else made


def _place(block: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in block.items() if k != "input"} if block["type"] == "tool_use" else block


def _tool_message(block: Mapping[str, Any]) -> dict[str, Any]:
    given = [_received(one) for one in blocks_of(block.get("content"), "a result of Anthropic's")]
    message = {"role": "tool", "tool_call_id": block.get("tool_use_id"), **text_or_parts(given)}
    return {**message, "metadata": {"is_error": True}} if block.get("is_error") is True else message
