"""The log as UIMessages of the AI SDK, and back; and what the AI SDK itself says of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from agents.exceptions import MessageError
from conversations.adapters import from_ai_sdk, to_ai_sdk, to_anthropic, to_openai_responses
from conversations.adapters.repair import INTERRUPTED
from conversations.messages import StoredMessage
from tests.conversations.ai_sdk import AiSdk, installed
from tests.conversations.files import PNG
from tests.conversations.logs import RANDOM_LOGS, call, log_of, result
from tests.conversations.providers import check_ai_sdk

ORDER: list[Any] = [
    ("user", "where is order 7?"),
    call("c1", content="I look it up"),
    result("c1", "shipped"),
    ("assistant", "It was shipped."),
    ("user", "thanks"),
]


def _again(messages: list[dict[str, Any]]) -> list[StoredMessage]:
    return log_of(from_ai_sdk(messages))


def test_an_answer_with_its_tool_calls_is_one_message_with_a_step_for_each_call_of_the_model():
    assert to_ai_sdk(log_of(ORDER)) == [
        {"id": "seq-1", "role": "user", "parts": [{"type": "text", "text": "where is order 7?"}]},
        {
            "id": "seq-2",
            "role": "assistant",
            "parts": [
                {"type": "step-start"},
                {"type": "text", "text": "I look it up"},
                {
                    "type": "tool-lookup",
                    "toolCallId": "c1",
                    "input": {"q": "c1"},
                    "state": "output-available",
                    "output": "shipped",
                },
                {"type": "step-start"},
                {"type": "text", "text": "It was shipped."},
            ],
        },
        {"id": "seq-5", "role": "user", "parts": [{"type": "text", "text": "thanks"}]},
    ]


def test_a_call_whose_process_died_and_one_that_failed_are_errors():
    log = log_of([("user", "go"), call("a", "b"), result("b", "no", metadata={"is_error": True})])
    parts = to_ai_sdk(log)[1]["parts"][1:]
    assert [(part["state"], part["errorText"]) for part in parts] == [
        ("output-error", INTERRUPTED),
        ("output-error", "no"),
    ]


def test_messages_come_back_as_they_went():
    messages: list[dict[str, Any]] = [
        {"id": "s", "role": "system", "parts": [{"type": "text", "text": "be kind"}]},
        {
            "id": "u",
            "role": "user",
            "metadata": {"from": "web"},
            "parts": [
                {"type": "text", "text": "what is this?"},
                {
                    "type": "file",
                    "mediaType": "image/png",
                    "url": f"data:image/png;base64,{PNG}",
                    "filename": "a.png",
                },
                {"type": "file", "mediaType": "application/pdf", "url": "https://example.org/a.pdf"},
                {"type": "data-place", "id": "d1", "data": {"lat": 1.5, "tags": [None, "x"]}},
            ],
        },
        {
            "id": "a",
            "role": "assistant",
            "parts": [
                {"type": "step-start"},
                {
                    "type": "reasoning",
                    "text": "let me see",
                    "providerMetadata": {"anthropic": {"signature": "EqQB"}},
                },
                {"type": "text", "text": "I look"},
                {
                    "type": "tool-lookup",
                    "toolCallId": "c1",
                    "input": {"q": [1, None]},
                    "state": "output-available",
                    "output": {"rows": [1, 2], "more": None},
                },
                {
                    "type": "tool-lookup",
                    "toolCallId": "c2",
                    "input": {},
                    "state": "output-error",
                    "errorText": "no such order",
                },
                {"type": "step-start"},
                {"type": "source-url", "sourceId": "s1", "url": "https://example.org/", "title": "t"},
                {"type": "text", "text": "A kettle.", "providerMetadata": {"openai": {"itemId": "msg_1"}}},
            ],
        },
    ]
    assert to_ai_sdk(_again(messages)) == messages


def test_reasoning_goes_on_to_the_provider_that_wants_it_back():
    def answer(metadata: dict[str, Any]) -> list[StoredMessage]:
        parts = [
            {"type": "reasoning", "text": "hm", "providerMetadata": metadata},
            {"type": "text", "text": "so"},
        ]
        return _again(
            [
                {"id": "u", "role": "user", "parts": [{"type": "text", "text": "go"}]},
                {"id": "a", "role": "assistant", "parts": parts},
            ]
        )

    claude = to_anthropic(answer({"anthropic": {"signature": "EqQB"}}))
    assert claude[1]["content"][0] == {"type": "thinking", "thinking": "hm", "signature": "EqQB"}
    openai = to_openai_responses(answer({"openai": {"itemId": "rs_1", "reasoningEncryptedContent": "gAAA"}}))
    assert openai[1] == {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [{"type": "summary_text", "text": "hm"}],
        "encrypted_content": "gAAA",
    }


def test_calls_in_every_state_are_taken():
    def part(state: str, **more: Any) -> dict[str, Any]:
        return {"type": "dynamic-tool", "toolName": "f", "toolCallId": state, "state": state, **more}

    parts = [
        part("input-streaming"),
        part("input-available", input={"a": 1}),
        part("approval-requested", input={}, approval={"id": "1"}),
        part("output-denied", input={}, approval={"id": "1", "approved": False, "reason": "too dear"}),
        part("output-error", rawInput='{"a', errorText="unreadable"),
        part("output-available", input={}, output="ok"),
    ]
    log = _again([{"id": "a", "role": "assistant", "parts": parts}])
    assert [call.args for call in log[0].tool_calls] == [{}, {"a": 1}, {}, {}, '{"a', {}]
    assert [(m.tool_call_id, m.content, bool(m.metadata.get("is_error"))) for m in log[1:]] == [
        ("output-denied", "Error: the user denied this tool call. too dear", True),
        ("output-error", "unreadable", True),
        ("output-available", "ok", False),
    ]
    check_ai_sdk(to_ai_sdk(log))


def test_what_a_user_said_between_two_steps_stands_between_them():
    steering = {"type": "steering-message", "id": "x", "parts": [{"type": "text", "text": "shorter"}]}
    parts = [{"type": "text", "text": "one"}, steering, {"type": "text", "text": "two"}]
    log = _again([{"id": "a", "role": "assistant", "parts": parts}])
    assert [(m.role, m.content) for m in log] == [
        ("assistant", "one"),
        ("user", "shorter"),
        ("assistant", "two"),
    ]


def test_what_a_client_said_keeps_the_id_that_the_client_gave():
    log = log_of([{"role": "user", "content": "hi", "metadata": {"id": "said-1"}}, ("user", "again")])
    assert [message["id"] for message in to_ai_sdk(log)] == ["said-1", "seq-2"]


@pytest.mark.parametrize(
    "message",
    [
        {"id": "1", "role": "tool", "parts": []},
        {"id": "1", "role": "user", "content": "of version 4"},
        {"id": "1", "role": "user", "parts": "text"},
        {"id": "1", "role": "user", "parts": [{"text": "no type"}]},
        7,
    ],
)
def test_what_is_no_uimessage_is_refused(message: Any):
    with pytest.raises(MessageError):
        from_ai_sdk(message)


@settings(deadline=None)
@given(RANDOM_LOGS)
def test_what_was_rendered_once_survives_every_further_round_trip(log: list[StoredMessage]):
    once = to_ai_sdk(_again(to_ai_sdk(log)))
    assert to_ai_sdk(_again(once)) == once


# The AI SDK's own code


@pytest.fixture(scope="module")
def ai_sdk() -> Iterator[AiSdk]:
    sdk = AiSdk(installed())
    yield sdk
    sdk.close()


def test_the_ai_sdk_refuses_what_is_wrong(ai_sdk: AiSdk):
    pending = {"type": "tool-f", "toolCallId": "c", "state": "input-available", "input": {}}
    said = {"id": "u", "role": "user", "parts": [{"type": "text", "text": "x"}]}
    for messages in (
        [],
        [{"id": "1", "role": "user", "parts": []}],
        [{"id": "1", "role": "user", "parts": [{"type": "weather_card"}]}],
        [said, {"id": "a", "role": "assistant", "parts": [pending]}, {**said, "id": "v"}],
    ):
        with pytest.raises(AssertionError):
            ai_sdk.check(messages)


@settings(
    max_examples=300,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(log=RANDOM_LOGS)
def test_the_ai_sdk_takes_every_log(ai_sdk: AiSdk, log: list[StoredMessage]):
    if messages := to_ai_sdk(log):
        ai_sdk.check(messages)
