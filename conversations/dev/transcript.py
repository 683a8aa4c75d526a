"""The rules that OpenAI's Chat Completions API has for a transcript; the words of refusal follow its own.

An agent that talks to the offline model must learn here what it would learn from a real provider, in
production: a call without its result, arguments that don't parse, an empty text.
"""

from __future__ import annotations

import json
import re
from typing import Any

ROLES = ("system", "developer", "user", "assistant", "tool")
CALL_ID_MAX_LENGTH = 40  # characters
FUNCTION_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
PARTICIPANT_NAME = re.compile(r"[^\s<|\\/>]{1,64}")


class RefusedError(Exception):
    """The request is one that a real provider refuses. ``param`` names the part of it."""

    def __init__(self, message: str, param: str, *, status: int = 400, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.status = status
        self.code = code


def check_messages(messages: Any) -> list[dict[str, Any]]:
    """The messages of a request. Raises RefusedError."""
    if not isinstance(messages, list) or not messages:
        raise RefusedError("'messages' must be a list with at least one message", "messages")
    waiting: list[str] = []  # ids of calls whose results must come next
    for index, message in enumerate(messages):
        at = f"messages.[{index}]"
        role = message.get("role") if isinstance(message, dict) else None
        if role not in ROLES:
            raise RefusedError(f"'{role}' is not one of {list(ROLES)}", f"{at}.role")
        if role == "tool":
            waiting = _check_result(message, waiting, at)
            continue
        _check_answered(waiting, at)
        _check_name(message, at)
        waiting = _check_calls(message, at) if role == "assistant" else []
        _check_content(message, at, required=not waiting)
    _check_answered(waiting, "messages")
    return messages


def check_tools(tools: Any) -> list[dict[str, Any]]:
    """The functions among the tools of a request. Raises RefusedError."""
    if tools is None:
        return []
    if not isinstance(tools, list) or not tools:
        raise RefusedError("[] is too short - 'tools'", "tools")
    functions = []
    for index, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
        if not isinstance(function, dict):
            raise RefusedError("a tool must be {'type': 'function', 'function': {...}}", f"tools[{index}]")
        _check_function_name(function.get("name"), f"tools[{index}].function.name")
        if not isinstance(function.get("parameters", {}), dict):
            raise RefusedError("must be a JSON Schema object", f"tools[{index}].function.parameters")
        functions.append(function)
    return functions


def text_of(content: Any) -> str:
    """The words of a message's content, which is text or a list of parts."""
    if isinstance(content, list):
        return "\n".join(part["text"] for part in content if part.get("type") == "text")
    return content or ""


def _check_result(message: dict[str, Any], waiting: list[str], at: str) -> list[str]:
    call_id = message.get("tool_call_id")
    if not isinstance(call_id, str) or not call_id:
        raise RefusedError("missing required parameter: 'tool_call_id'", f"{at}.tool_call_id")
    if call_id not in waiting:
        raise RefusedError(
            "messages with role 'tool' must be a response to a preceding message with 'tool_calls', one for"
            f" each call; '{call_id}' has none open",
            f"{at}.role",
        )
    _check_content(message, at, required=True)
    return [id for id in waiting if id != call_id]


def _check_answered(waiting: list[str], at: str) -> None:
    if waiting:
        raise RefusedError(
            "an assistant message with 'tool_calls' must be followed by tool messages responding to each"
            " 'tool_call_id'. The following tool_call_ids did not have response messages: "
            + ", ".join(waiting),
            at,
        )


def _check_calls(message: dict[str, Any], at: str) -> list[str]:
    calls = message.get("tool_calls")
    if calls is None:
        return []
    if not isinstance(calls, list) or not calls:
        raise RefusedError(f"[] is too short - '{at}.tool_calls'", f"{at}.tool_calls")
    ids: list[str] = []
    for index, call in enumerate(calls):
        here = f"{at}.tool_calls[{index}]"
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or call.get("type") != "function":
            raise RefusedError("a call must be {'id', 'type': 'function', 'function': {...}}", here)
        call_id = call.get("id")
        if not isinstance(call_id, str) or not 1 <= len(call_id) <= CALL_ID_MAX_LENGTH:
            raise RefusedError(
                f"expected a text of 1 to {CALL_ID_MAX_LENGTH} characters, got {call_id!r}", f"{here}.id"
            )
        if call_id in ids:
            raise RefusedError(f"duplicate id '{call_id}'", f"{here}.id")
        _check_function_name(function.get("name"), f"{here}.function.name")
        _check_arguments(function.get("arguments"), f"{here}.function.arguments")
        ids.append(call_id)
    return ids


def _check_arguments(arguments: Any, at: str) -> None:
    try:
        parsed = json.loads(arguments)
    except (TypeError, ValueError):
        parsed = None
    if not isinstance(parsed, dict):
        raise RefusedError("the arguments of a call must be the text of a JSON object", at)


def _check_function_name(name: Any, at: str) -> None:
    if not isinstance(name, str) or not FUNCTION_NAME.fullmatch(name):
        raise RefusedError(f"{name!r} does not match '^{FUNCTION_NAME.pattern}$'", at)


def _check_name(message: dict[str, Any], at: str) -> None:
    name = message.get("name")
    if name is not None and not (isinstance(name, str) and PARTICIPANT_NAME.fullmatch(name)):
        raise RefusedError(f"{name!r} does not match '^{PARTICIPANT_NAME.pattern}$'", f"{at}.name")


def _check_content(message: dict[str, Any], at: str, *, required: bool) -> None:
    content = message.get("content")
    if content is None:
        if required:
            raise RefusedError("expected a text or a list of parts, got null", f"{at}.content")
        return
    if isinstance(content, list):
        if not content:
            raise RefusedError("[] is too short", f"{at}.content")
        for index, part in enumerate(content):
            _check_part(part, f"{at}.content[{index}]")
    elif not isinstance(content, str):
        raise RefusedError("expected a text or a list of parts", f"{at}.content")
    elif not content.strip():
        # OpenAI lets a blank text pass; Anthropic and several compatible servers do not.
        raise RefusedError("text content must not be blank", f"{at}.content")


def _check_part(part: Any, at: str) -> None:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(kind, str):
        raise RefusedError("a part must be an object with a 'type'", at)
    if kind == "text" and not (isinstance(part.get("text"), str) and part["text"].strip()):
        raise RefusedError("text content must not be blank", f"{at}.text")
    if kind == "image_url" and not (isinstance(part.get("image_url"), dict) and part["image_url"].get("url")):
        raise RefusedError("expected an object with a 'url'", f"{at}.image_url")
    if kind not in ("text", "image_url", "input_audio", "file", "refusal"):
        raise RefusedError(f"'{kind}' is not a type of part", f"{at}.type")
