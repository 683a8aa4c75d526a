"""A stand-in for the providers: it refuses what they refuse, in their words' shape, over real HTTP.

It answers OpenAI's Chat Completions and Responses and Anthropic's Messages. Its model asks for a tool for
each word behind "look up" in the newest text, and answers once the results are there. With Anthropic it
thinks before it calls, and its signature must come back on just that thought; in the Responses API likewise.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from pydantic import ValidationError

from conversations.dev.transcript import RefusedError, check_messages
from tests.conversations.providers import check_anthropic, check_openai, check_responses


class StrictServer:
    """``url`` to point a client at; ``requests`` and ``refused``: what came, what was refused and why."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.requests: list[dict[str, Any]] = []
        self.refused: list[str] = []


@contextmanager
def strict_server() -> Iterator[StrictServer]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            server.requests.append(body)
            refuse, check, respond = ENDPOINTS[self.path]
            try:
                check(body)
                status, answer = 200, respond(body)
            except (AssertionError, ValidationError, RefusedError, KeyError, ValueError) as error:
                server.refused.append(f"{self.path}: {error}")
                status, answer = 400, refuse(str(error))
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None: ...

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    server = StrictServer(f"http://127.0.0.1:{http.server_address[1]}")
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
        thread.join()


def seal(text: str) -> str:
    """What only the provider could have put under a thought."""
    return hashlib.sha256(f"sealed {text}".encode()).hexdigest()


def _wanted(text: str) -> list[str]:
    """What is asked for: the words behind "look up"."""
    return text.partition("look up ")[2].split()


# Chat Completions


def _check_chat(body: dict[str, Any]) -> None:
    check_openai(body["messages"])
    check_messages(body["messages"])


def _chat(body: dict[str, Any]) -> dict[str, Any]:
    last = body["messages"][-1]
    message: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None}
    if last["role"] == "user" and (words := _wanted(last["content"])):
        message["tool_calls"] = [
            {
                "id": f"call_{seal(json.dumps(body['messages']) + word)[:24]}",
                "type": "function",
                "function": {"name": "lookup", "arguments": json.dumps({"word": word})},
            }
            for word in words
        ]
    else:
        message["content"] = f"Answer to: {last['content'][:200]}"
    return {
        "id": "chatcmpl-strict",
        "object": "chat.completion",
        "created": 0,
        "model": body["model"],
        "choices": [
            {
                "index": 0,
                "message": message,
                "logprobs": None,
                "finish_reason": "tool_calls" if message.get("tool_calls") else "stop",
            }
        ],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }


def _refuse_openai(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}}


# Responses


def _check_responses(body: dict[str, Any]) -> None:
    body["input"] = [{"type": "message", **item} for item in body["input"]]  # the API's own default
    check_responses(body["input"])
    for item in body["input"]:
        if item["type"] == "reasoning":
            assert item["encrypted_content"] == seal(item["id"]), "this is not what I encrypted"
        assert not item.get("id", "").startswith("fc_") or _is_behind_reasoning(body["input"], item)


def _is_behind_reasoning(items: list[dict[str, Any]], item: dict[str, Any]) -> bool:
    place = items.index(item)
    while place and items[place - 1]["type"] == "function_call":
        place -= 1
    return place > 0 and items[place - 1]["type"] == "reasoning"


def _responses(body: dict[str, Any]) -> dict[str, Any]:
    last = body["input"][-1]
    mark = seal(json.dumps(body["input"]))[:24]
    words = _wanted(last["content"]) if last["type"] == "message" and last["role"] == "user" else []
    output: list[dict[str, Any]]
    if words:
        thought = {"type": "reasoning", "id": f"rs_{mark}", "summary": []}
        calls = [
            {
                "type": "function_call",
                "id": f"fc_{mark}{index}",
                "call_id": f"call_{mark}{index}",
                "name": "lookup",
                "arguments": json.dumps({"word": word}),
                "status": "completed",
            }
            for index, word in enumerate(words)
        ]
        output = [{**thought, "encrypted_content": seal(f"rs_{mark}")}, *calls]
    else:
        text = {"type": "output_text", "text": f"Answer {mark}", "annotations": []}
        output = [
            {
                "type": "message",
                "id": f"msg_{mark}",
                "role": "assistant",
                "status": "completed",
                "content": [text],
            }
        ]
    return {
        "id": f"resp_{mark}",
        "object": "response",
        "created_at": 0,
        "model": body["model"],
        "status": "completed",
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }


# Anthropic


def _check_anthropic(body: dict[str, Any]) -> None:
    check_anthropic(body["messages"])
    assert isinstance(body.get("system", ""), str)
    for turn in body["messages"]:
        blocks = turn["content"] if isinstance(turn["content"], list) else []
        for block in blocks:
            if block["type"] == "thinking":
                assert block["signature"] == seal(block["thinking"]), "thinking blocks cannot be modified"
    # "Expected `thinking` or `redacted_thinking`, but found `tool_use`": of the answer that is going on.
    if len(body["messages"]) > 1 and isinstance(body["messages"][-1]["content"], list):
        last = body["messages"][-2]["content"]
        waits = body["messages"][-1]["content"][-1]["type"] == "tool_result"
        assert not waits or last[0]["type"] == "thinking", "Expected thinking, found " + last[0]["type"]


def _anthropic(body: dict[str, Any]) -> dict[str, Any]:
    content = body["messages"][-1]["content"]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    words = _wanted(blocks[-1]["text"]) if blocks[-1]["type"] == "text" else []
    mark = seal(json.dumps(body["messages"]))[:24]
    made: list[dict[str, Any]]
    if words:
        thought = f"I look up {words}."
        made = [{"type": "thinking", "thinking": thought, "signature": seal(thought)}]
        made += [
            {"type": "tool_use", "id": f"toolu_{mark}{index}", "name": "lookup", "input": {"word": word}}
            for index, word in enumerate(words)
        ]
    else:
        made = [{"type": "text", "text": f"Answer {mark}"}]
    return {
        "id": f"msg_{mark}",
        "type": "message",
        "role": "assistant",
        "model": body["model"],
        "content": made,
        "stop_reason": "tool_use" if words else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }


def _refuse_anthropic(message: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": "invalid_request_error", "message": message}}


Endpoint = tuple[
    Callable[[str], dict[str, Any]],
    Callable[[dict[str, Any]], None],
    Callable[[dict[str, Any]], dict[str, Any]],
]
ENDPOINTS: dict[str, Endpoint] = {
    "/v1/chat/completions": (_refuse_openai, _check_chat, _chat),
    "/v1/responses": (_refuse_openai, _check_responses, _responses),
    "/v1/messages": (_refuse_anthropic, _check_anthropic, _anthropic),
}
