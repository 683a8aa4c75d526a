"""What the providers refuse, as checks: each raises AssertionError for a request that would get a 400.

First the provider's own types, where its SDK has them; then the rules that no type says, written from what
the providers document and answer (docs/messages.md names the source of each), apart from the code under test:
nothing here is shared with it.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from typing import Any

from tests.conversations.files import BEGINNINGS
from tests.conversations.sdk_types import ANTHROPIC, OPENAI, RESPONSES, check_types

STRICT = re.compile(r"[a-zA-Z0-9_-]+")
NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


#: What Anthropic and Bedrock take of one image: characters of its base64.
IMAGE_LENGTH = 5_242_880


def check_inline(media_type: str, data: str) -> None:
    """A picture or a PDF must be one: providers look at the bytes."""
    body = base64.b64decode(data, validate=True)
    if media_type.startswith("image/"):
        assert len(data) <= IMAGE_LENGTH
        assert body.startswith(BEGINNINGS[media_type])
        assert media_type != "image/webp" or body[8:12] == b"WEBP"
    if media_type == "application/pdf":
        assert b"%PDF-" in body[:1024]


def check_address(url: str, *schemes: str) -> None:
    """An address of its own, or data in it that is what it says."""
    if url.startswith("data:"):
        media_type, _, data = url.removeprefix("data:").partition(";base64,")
        assert data
        check_inline(media_type, data)
    else:
        assert url.startswith(schemes or ("https://", "http://"))


def strict_json(value: Any) -> str:
    """The bytes that go out; raises for what strict JSON has no word for."""
    text = json.dumps(value, allow_nan=False, ensure_ascii=False)
    text.encode()  # no lone surrogates
    assert "\0" not in text and "\\u0000" not in text
    return text


def check_openai(messages: list[dict[str, Any]]) -> None:
    strict_json(messages)
    check_types(OPENAI, messages)
    waiting: list[str] = []
    seen: set[str] = set()
    for message in messages:
        role = message["role"]
        if role == "tool":
            assert waiting, "a result without a call right before it"
            assert message["tool_call_id"] == waiting.pop(0), "results are not in call order"
            _check_openai_content(message["content"])
            continue
        assert not waiting, f"{waiting} have no result"
        assert role in ("system", "user", "assistant")
        if "name" in message:
            assert NAME.fullmatch(message["name"])
        calls = message.get("tool_calls")
        if calls is None:
            _check_openai_content(message["content"])
            continue
        assert role == "assistant" and calls
        if message["content"] is not None:
            _check_openai_content(message["content"])
        for call in calls:
            assert 1 <= len(call["id"]) <= 40 and call["id"] not in seen
            seen.add(call["id"])
            assert NAME.fullmatch(call["function"]["name"])
            assert isinstance(json.loads(call["function"]["arguments"]), dict)
        waiting = [call["id"] for call in calls]
    assert not waiting, f"{waiting} have no result"


def _check_openai_content(content: Any) -> None:
    if isinstance(content, str):
        assert content.strip()
        return
    assert content
    for part in content:
        if part["type"] == "text":
            assert part["text"].strip()
        if part["type"] == "image_url":
            check_address(part["image_url"]["url"])
        if part["type"] == "file" and "file_data" in part["file"]:
            assert part["file"]["file_data"].startswith("data:application/pdf;base64,")
            check_address(part["file"]["file_data"])


def check_responses(items: list[dict[str, Any]]) -> None:
    strict_json(items)
    check_types(RESPONSES, items)
    waiting: list[str] = []
    seen: set[str] = set()
    thought = False  # a reasoning item that waits for the item that it led to
    between = False  # after the first output no further call until all have theirs
    for item in items:
        kind = item["type"]
        if kind in ("function_call_output", "custom_tool_call_output"):
            assert not thought, "reasoning without the item that it led to"
            assert waiting and item["call_id"] == waiting.pop(0), "outputs are not in call order"
            _check_responses_content(item["output"])
            between = True
            continue
        assert not (between and waiting), f"{waiting} have no output"
        between = False
        if kind == "reasoning":
            assert item["encrypted_content"] and item["id"]
            thought = True
            continue
        if kind in ("function_call", "custom_tool_call"):
            assert 1 <= len(item["call_id"]) <= 64 and item["call_id"] not in seen
            seen.add(item["call_id"])
            waiting.append(item["call_id"])
            assert NAME.fullmatch(item["name"])
            if kind == "function_call":
                assert isinstance(json.loads(item["arguments"]), dict)
        elif kind == "message":
            assert item["role"] == "assistant" or not waiting, f"{waiting} have no output"
            assert item["role"] == "assistant" or not thought
            _check_responses_content(item["content"])
        else:
            assert kind.endswith("_call") and item["id"]
        thought = False
    assert not waiting and not thought


def _check_responses_content(content: Any) -> None:
    if isinstance(content, str):
        assert content.strip()
        return
    assert content
    for part in content:
        if part["type"] == "input_text":
            assert part["text"].strip()
        elif part["type"] == "input_image":
            assert part.get("image_url") or part.get("file_id")
            if part.get("image_url"):
                check_address(part["image_url"])
        else:
            assert part["type"] == "input_file"
            assert part.get("file_data") or part.get("file_url") or part.get("file_id")
            if part.get("file_data"):
                check_address(part["file_data"], "data:")


def check_anthropic(turns: list[dict[str, Any]]) -> None:
    strict_json(turns)
    check_types(ANTHROPIC, turns)
    if not turns:
        return
    assert turns[0]["role"] == "user", "the conversation must begin with the user"
    assert turns[-1]["role"] == "user", "the conversation must end with the user"
    waiting: list[str] = []
    seen: set[str] = set()
    role = None
    for turn in turns:
        assert turn["role"] in ("user", "assistant") and turn["role"] != role, "turns must alternate"
        role = turn["role"]
        content = turn["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        assert blocks
        results = [block for block in blocks if block["type"] == "tool_result"]
        assert blocks[: len(results)] == results, "results must come first"
        assert [block["tool_use_id"] for block in results] == waiting, "each call, one result, in order"
        waiting = []
        for block in blocks:
            _check_anthropic_block(block, role)
            if block["type"] == "tool_use":
                assert block["id"] not in seen, "tool_use ids must be unique"
                seen.add(block["id"])
                waiting.append(block["id"])
        assert not blocks[-1]["type"].endswith("thinking")
        _check_server_tools(blocks)
    assert not waiting


def _check_server_tools(blocks: list[dict[str, Any]]) -> None:
    """What Anthropic ran itself: each call has its one result behind it, in the same message."""
    waiting: set[str] = set()
    for block in blocks:
        if block["type"] == "server_tool_use":
            assert STRICT.fullmatch(block["id"]) and block["id"] not in waiting
            waiting.add(block["id"])
        elif block["type"].endswith("_tool_result"):
            waiting.remove(block["tool_use_id"])
    assert not waiting


def _check_anthropic_block(block: dict[str, Any], role: str) -> None:
    kind = block["type"]
    if kind == "text":
        assert block["text"].strip()
        assert set(block) <= {"type", "text", "citations"}
    elif kind == "server_tool_use" or (kind.endswith("_tool_result") and kind != "tool_result"):
        assert role == "assistant"
    elif kind == "tool_use":
        assert role == "assistant"
        assert STRICT.fullmatch(block["id"]) and NAME.fullmatch(block["name"])
        assert isinstance(block["input"], dict)
    elif kind == "tool_result":
        assert role == "user"
        assert STRICT.fullmatch(block["tool_use_id"])
        if isinstance(block["content"], str):
            assert block["content"].strip()
        else:
            assert block["content"]
            for inner in block["content"]:
                assert inner["type"] in ("text", "image", "document")
                _check_anthropic_block(inner, role)
    elif kind == "thinking":
        assert role == "assistant" and block["signature"]
    elif kind == "redacted_thinking":
        assert role == "assistant" and block["data"]
    elif kind == "image":
        source = block["source"]
        if source["type"] == "base64":
            check_inline(source["media_type"], source["data"])
    else:
        assert kind == "document" and role == "user"
        if block["source"]["type"] == "base64":
            assert block["source"]["media_type"] == "application/pdf"
            check_inline("application/pdf", block["source"]["data"])


def check_ai_sdk(messages: list[dict[str, Any]]) -> None:
    """What its validator and its conversion for models ask for (both run in test_adapters_ai_sdk.py)."""
    strict_json(messages)
    ids: set[str] = set()
    calls: set[str] = set()
    for message in messages:
        assert isinstance(message["id"], str) and message["id"] not in ids
        ids.add(message["id"])
        assert message["role"] in ("system", "user", "assistant")
        assert message["parts"]
        readable = [part for part in message["parts"] if part["type"] in ("text", "file")]
        assert readable or message["role"] == "assistant"
        for part in message["parts"]:
            if part["type"] == "text":
                assert part["text"].strip()
            if part["type"] == "file" and part["url"].startswith("data:"):
                check_address(part["url"])
            if part["type"].startswith("tool-"):
                assert message["role"] == "assistant"
                assert STRICT.fullmatch(part["toolCallId"]) and part["toolCallId"] not in calls
                calls.add(part["toolCallId"])
                assert isinstance(part["input"], dict)
                assert part["state"] in ("output-available", "output-error")
                assert part["state"] == "output-available" or part["errorText"].strip()


def check_langchain(messages: list[dict[str, Any]]) -> None:
    """Plain ones: text only, one system message at most, at the front."""
    strict_json(messages)
    for place, message in enumerate(messages):
        assert set(message) == {"role", "content"}
        assert message["role"] in (("system", "user", "assistant") if place == 0 else ("user", "assistant"))
        assert message["content"].strip()


def check_langchain_messages(messages: list[dict[str, Any]]) -> None:
    strict_json(messages)
    waiting: list[str] = []
    ids: set[str] = set()
    for place, message in enumerate(messages):
        assert message["id"] not in ids
        ids.add(message["id"])
        assert message["content"]
        for block in message["content"]:
            assert isinstance(block["type"], str)
            if block["type"] == "text":
                assert block["text"].strip()
            if block.get("base64"):
                check_inline(block["mime_type"], block["base64"])
        if message["type"] == "tool":
            assert waiting and message["tool_call_id"] == waiting.pop(0)
            assert message["status"] in ("success", "error")
            continue
        assert not waiting
        assert message["type"] in (("system", "human", "ai") if place == 0 else ("human", "ai"))
        if message["type"] == "ai":
            waiting = [call["id"] for call in message.get("tool_calls", [])]
            in_content = [block["id"] for block in message["content"] if block["type"] == "tool_call"]
            assert in_content == waiting and len(set(waiting)) == len(waiting)
            for call in message.get("tool_calls", []):
                assert STRICT.fullmatch(call["id"]) and len(call["id"]) <= 40
                assert isinstance(call["args"], dict)
    assert not waiting


#: Every rendering, by the name of its function, and its check.
CHECKS: dict[str, Callable[[Any], None]] = {
    "to_openai": check_openai,
    "to_openai_responses": check_responses,
    "to_anthropic": check_anthropic,
    "to_langchain": check_langchain,
    "to_langchain_messages": check_langchain_messages,
    "to_ai_sdk": check_ai_sdk,
}
