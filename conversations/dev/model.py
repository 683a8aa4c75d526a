"""The offline model: no model at all, but an honest stand-in that answers the same to the same words.

It reads the texts since its last answer. If they name an order and the request offers the tool
``lookup_order``, it asks for the tool; when the result is there, it passes it on; otherwise it repeats what
it read. Every answer begins with ``[offline model]``.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from typing import Any

from conversations.dev.transcript import RefusedError, check_messages, check_tools, text_of

LABEL = "[offline model]"
TOOL = "lookup_order"
MAX_DELAY = 120.0  # seconds

_MODEL = re.compile(r"offline(?:-delay-(?P<delay>[0-9]+(?:\.[0-9]+)?))?")
# "order 1042", "order no. A-1042", "my order is 1042", "#1042"
_ORDER = re.compile(
    r"(?:\border\W+(?:\w+\W+){0,2}?|#\s?)(?P<id>(?:[A-Z]{1,4}-?)?\d{3,}[\dA-Z-]*)", re.IGNORECASE
)

Completion = dict[str, Any]


def delay_of(model: Any) -> float:
    """Seconds that a model of this name thinks: "offline" none, "offline-delay-2" two.

    Raises RefusedError (404) for any other name, as a provider does for a model that it hasn't.
    """
    match = _MODEL.fullmatch(model) if isinstance(model, str) else None
    if match is None:
        raise RefusedError(
            f"The model {model!r} does not exist: this is the offline model of a development site, named"
            " 'offline' or 'offline-delay-<seconds>'",
            "model",
            status=404,
            code="model_not_found",
        )
    return min(float(match["delay"] or 0), MAX_DELAY)


def complete(request: Any) -> Completion:
    """The ``chat.completion`` for a request to Chat Completions. Raises RefusedError."""
    if not isinstance(request, dict):
        raise RefusedError("the body must be a JSON object", "body")
    model = request.get("model")
    delay_of(model)
    messages = check_messages(request.get("messages"))
    functions = check_tools(request.get("tools"))
    if request.get("tool_choice") == "none":
        functions = []
    message = _answer(messages, functions)
    spent = {
        "prompt_tokens": _tokens(messages),
        "completion_tokens": _tokens(message),
    }
    return {
        "id": f"chatcmpl-offline-{_digest([messages, functions])}",
        "object": "chat.completion",
        "created": 0,  # the same answer to the same request, to the last byte
        "model": model,
        "choices": [
            {
                "index": 0,
                "message": message,
                "logprobs": None,
                "finish_reason": "tool_calls" if message.get("tool_calls") else "stop",
            }
        ],
        "usage": {**spent, "total_tokens": sum(spent.values())},
    }


def chunks(completion: Completion, *, include_usage: bool) -> Iterator[dict[str, Any]]:
    """The same completion as the ``chat.completion.chunk`` objects of a stream: a word at a time."""
    choice = completion["choices"][0]
    message = choice["message"]
    frame = {**completion, "object": "chat.completion.chunk"}
    del frame["usage"]

    def chunk(delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
        piece = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return {**frame, "choices": [piece]}

    yield chunk({"role": "assistant", "content": None if message["content"] is None else ""})
    for word in re.findall(r"\S+\s*|\s+", message["content"] or ""):
        yield chunk({"content": word})
    for index, call in enumerate(message.get("tool_calls") or []):
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        begun = {"index": index, "id": call["id"], "type": "function"}
        yield chunk({"tool_calls": [{**begun, "function": {"name": name, "arguments": ""}}]})
        yield chunk({"tool_calls": [{"index": index, "function": {"arguments": arguments}}]})
    yield chunk({}, choice["finish_reason"])
    if include_usage:
        yield {**frame, "choices": [], "usage": completion["usage"]}


def _answer(messages: list[dict[str, Any]], functions: list[dict[str, Any]]) -> dict[str, Any]:
    if messages[-1]["role"] == "tool":
        results = []
        for message in reversed(messages):
            if message["role"] != "tool":
                break
            results.append(text_of(message["content"]))
        return _says("\n".join(reversed(results)))
    words = _unanswered(messages)
    tool = next((f for f in functions if f["name"] == TOOL), None)
    orders = list(
        dict.fromkeys(match["id"].upper().rstrip("-") for match in _ORDER.finditer("\n".join(words)))
    )
    if tool is not None and orders:
        return {
            "role": "assistant",
            "content": None,
            "refusal": None,
            "tool_calls": [_call(tool, order, messages) for order in orders],
        }
    if not words:
        return _says("I am here.")
    return _says("I read: " + " / ".join(words))


def _unanswered(messages: list[dict[str, Any]]) -> list[str]:
    """What users wrote since the last answer."""
    words: list[str] = []
    for message in reversed(messages):
        if message["role"] == "assistant":
            break
        if message["role"] == "user":
            words.append(text_of(message["content"]) or "(something without words)")
    return words[::-1]


def _says(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": f"{LABEL} {text}", "refusal": None}


def _call(tool: dict[str, Any], order: str, messages: list[dict[str, Any]]) -> dict[str, Any]:
    """A call of the tool with the order as its first (required) argument, whatever that is called."""
    schema = tool.get("parameters") or {}
    names = [*(schema.get("required") or []), *(schema.get("properties") or {}), "order_id"]
    return {
        "id": f"call_{_digest([messages, order])}",
        "type": "function",
        "function": {"name": TOOL, "arguments": json.dumps({str(names[0]): order})},
    }


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:24]


def _tokens(value: Any) -> int:
    """A rough count, as honest as one without a tokenizer can be: four bytes a token."""
    return len(json.dumps(value, ensure_ascii=False).encode()) // 4 + 1
