"""The log as LangChain takes it, plain and as its own messages, and back.

The last tests run LangChain's own code where it is installed.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings

from agents.exceptions import MessageError
from conversations.adapters import (
    from_anthropic,
    from_langchain,
    from_openai_responses,
    to_langchain,
    to_langchain_messages,
    to_langchain_objects,
)
from conversations.content import Media, read_parts
from conversations.messages import StoredMessage
from tests.conversations.logs import RANDOM_LOGS, call, log_of, result
from tests.conversations.providers import (
    check_anthropic,
    check_langchain_messages,
    check_openai,
    check_responses,
)
from tests.conversations.test_appending import FUNCTION_CALL, REASONING, THINKING, TOOL_USE, answer, response

ORDER: list[Any] = [
    ("system", "be kind"),
    ("user", "where is order 7?"),
    call("c1", content="I look it up"),
    result("c1", "shipped"),
    ("assistant", "It was shipped."),
]


def _round_trip(messages: list[Any]) -> list[dict[str, Any]]:
    return to_langchain_messages(log_of([from_langchain(message) for message in messages]))


# Plain


def test_plain_messages_are_role_and_content_without_tool_turns():
    assert to_langchain(log_of(ORDER)) == [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "where is order 7?"},
        {"role": "assistant", "content": "I look it up"},
        {"role": "assistant", "content": "It was shipped."},
    ]


def test_a_message_with_only_calls_is_dropped():
    assert to_langchain(log_of([("user", "go"), call("c1"), result("c1")])) == [
        {"role": "user", "content": "go"}
    ]


def test_system_messages_become_one_at_the_front():
    log = log_of([("system", "s1"), ("user", "u"), ("assistant", "a"), ("system", "s2"), ("user", "u2")])
    assert to_langchain(log)[0] == {"role": "system", "content": "s1\n\ns2"}
    assert [message["role"] for message in to_langchain(log)] == ["system", "user", "assistant", "user"]
    messages = to_langchain_messages(log)
    assert [message["type"] for message in messages] == ["system", "human", "ai", "human"]
    assert [block["text"] for block in messages[0]["content"]] == ["s1", "s2"]


# Out


def test_messages_keep_tool_turns():
    call_block = {"type": "tool_call", "id": "c1", "name": "lookup", "args": {"q": "c1"}}
    assert to_langchain_messages(log_of(ORDER)) == [
        {"type": "system", "content": [{"type": "text", "text": "be kind"}], "id": "seq-1"},
        {"type": "human", "content": [{"type": "text", "text": "where is order 7?"}], "id": "seq-2"},
        {
            "type": "ai",
            "content": [{"type": "text", "text": "I look it up"}, call_block],
            "tool_calls": [call_block],
            "id": "seq-3",
            "response_metadata": {"output_version": "v1"},
        },
        {
            "type": "tool",
            "content": [{"type": "text", "text": "shipped"}],
            "id": "seq-4",
            "name": "lookup",
            "tool_call_id": "c1",
            "status": "success",
        },
        {
            "type": "ai",
            "content": [{"type": "text", "text": "It was shipped."}],
            "id": "seq-5",
            "response_metadata": {"output_version": "v1"},
        },
    ]


def test_five_results_follow_their_message_in_call_order():
    ids = ["r1", "r2", "r3", "r4", "r5"]
    log = log_of([("user", "go"), call(*ids), *(result(i) for i in ["r3", "r1", "r5", "r2", "r4"])])
    messages = to_langchain_messages(log)
    assert [message["tool_call_id"] for message in messages[2:]] == ids
    check_langchain_messages(messages)


def test_an_interrupted_call_and_a_failed_one_have_the_status_error():
    log = log_of(
        [("user", "go"), call("a", "b", "c"), result("b", "no", metadata={"is_error": True}), result("c")]
    )
    assert [message["status"] for message in to_langchain_messages(log)[2:]] == ["error", "error", "success"]


def test_ids_of_messages_never_meet():
    log = log_of(
        [
            {"role": "user", "content": "a", "metadata": {"langchain": {"id": "seq-2"}}},
            ("user", "b"),
            {"role": "user", "content": "c", "metadata": {"langchain": {"id": "seq-2"}}},
        ]
    )
    assert [message["id"] for message in to_langchain_messages(log)] == ["seq-2", "seq-2-2", "seq-2-3"]


# In, and round


def test_a_message_of_langchain_survives_a_round_trip():
    messages = [
        {"type": "system", "content": [{"type": "text", "text": "be kind"}], "id": "s"},
        {
            "type": "human",
            "content": [
                {"type": "text", "text": "what is this?"},
                {"type": "image", "url": "https://example.org/a.png", "extras": {"detail": "low"}},
            ],
            "id": "h",
            "name": "anna",
            "response_metadata": {"a": [1, 2.5, None]},
        },
        {
            "type": "ai",
            "content": [
                {"type": "reasoning", "reasoning": "let me see", "extras": {"signature": "EqQB"}},
                {"type": "text", "text": "I look", "annotations": []},
                {"type": "tool_call", "id": "c1", "name": "lookup", "args": {"q": 1}},
            ],
            "tool_calls": [{"type": "tool_call", "id": "c1", "name": "lookup", "args": {"q": 1}}],
            "id": "a",
            "name": "researcher",
            "response_metadata": {"model_provider": "anthropic", "output_version": "v1"},
            "additional_kwargs": {"refusal": "none"},
        },
        {
            "type": "tool",
            "content": [{"type": "text", "text": "no"}],
            "id": "t",
            "name": "lookup",
            "tool_call_id": "c1",
            "status": "error",
        },
    ]
    assert _round_trip(messages) == messages


def test_the_interfaces_own_example_is_taken():
    log = log_of(
        [
            from_langchain(
                {
                    "id": "msg-123",
                    "name": "user",
                    "type": "ai",
                    "content": [
                        {"type": "text", "text": "Hello!"},
                        {"type": "tool_call", "id": "x", "name": "search", "args": {"query": "capital"}},
                    ],
                }
            )
        ]
    )
    assert (log[0].role, log[0].content, log[0].name, log[0].parts) == ("assistant", "Hello!", "user", [])
    assert log[0].tool_calls[0].args == {"query": "capital"}
    assert log[0].metadata == {"langchain": {"id": "msg-123"}}


def test_objects_serialized_forms_and_roles_are_taken():
    human = SimpleNamespace(type="human", content="hi", id="1", name=None, response_metadata={})
    for message in (
        human,
        {"type": "human", "data": {"content": "hi", "id": "1"}},
        {"role": "user", "content": ["hi"], "id": "1"},
        {"type": "human", "content": [{"type": "text", "text": "hi"}], "id": "1"},
    ):
        made = from_langchain(message)
        assert made == {"role": "user", "content": "hi", "metadata": {"langchain": {"id": "1"}}}


def test_calls_whose_arguments_did_not_parse_are_kept():
    made = from_langchain(
        {
            "type": "ai",
            "content": "",
            "tool_calls": [],
            "invalid_tool_calls": [
                {"id": "c1", "name": "lookup", "args": '{"value": ', "error": "cut off"},
                {"id": None, "name": "lookup", "args": "{", "error": "no id"},
            ],
            "additional_kwargs": {"tool_calls": ["the same in OpenAI's form"]},
        }
    )
    log = log_of([made])
    assert [(c.id, c.args) for c in log[0].tool_calls] == [("c1", '{"value": ')]
    assert log[0].metadata["langchain"] == {
        "invalid_tool_calls": [{"id": None, "name": "lookup", "args": "{", "error": "no id"}]
    }


@pytest.mark.parametrize(
    "message",
    [
        {"type": "remove", "content": "", "id": "1"},
        {"type": "function", "content": "", "name": "f"},
        {"content": "no type"},
        {"type": "human", "content": 7},
        {"type": "human", "content": [{"no": "type"}]},
        {"type": "human", "content": [7]},
        7,
    ],
)
def test_what_is_no_message_of_a_conversation_is_refused(message: Any):
    with pytest.raises(MessageError):
        from_langchain(message)


def test_kinds_of_blocks_that_nobody_knows_come_back_as_they_came():
    blocks = [{"type": "text", "text": "see"}, {"type": "weather_card", "sunny": True, "at": [1, None]}]
    refused = [{"type": "refusal", "refusal": "I can't"}]
    messages = [
        {"type": "human", "content": blocks, "id": "h"},
        {"type": "ai", "content": blocks, "id": "a", "response_metadata": {"output_version": "v1"}},
        {"type": "ai", "content": refused, "id": "r", "response_metadata": {"output_version": "v1"}},
    ]
    assert _round_trip(messages) == messages
    assert log_of([from_langchain(messages[0])])[0].parts == blocks


def test_usage_survives_also_where_python_put_it_among_the_rest():
    usage = {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}
    for message in (
        {"type": "ai", "content": "x", "usage_metadata": usage},
        {"type": "ai", "content": "x", "additional_kwargs": {"usage_metadata": usage}},
    ):
        made = from_langchain(message)
        assert made["metadata"] == {"langchain": {"usage_metadata": usage}}
        assert to_langchain_messages(log_of([made]))[0]["usage_metadata"] == usage


# LangChain's own code


@settings(max_examples=60, deadline=None)
@given(RANDOM_LOGS)
def test_langchains_models_accept_every_log(log: list[StoredMessage]):
    messages = pytest.importorskip("langchain_core.messages")
    anthropic = pytest.importorskip("langchain_anthropic").ChatAnthropic(
        model="claude-sonnet-4-5", api_key="x"
    )
    # Which media a model takes is for its integration; what came from LangChain goes back as it came.
    log = [replace(message, parts=[*filter(_is_no_media, message.parts)], metadata={}) for message in log]
    chat = pytest.importorskip("langchain_openai").ChatOpenAI
    openai = chat(model="gpt-4o", api_key="x")
    responses = chat(model="gpt-4o", api_key="x", use_responses_api=True, store=False)
    as_dicts = [messages.convert_to_messages(r) for r in (to_langchain(log), to_langchain_messages(log))]
    for converted in (*as_dicts, to_langchain_objects(log)):
        turns = anthropic._get_request_payload(converted)["messages"]
        # The first and last role are the caller's business: LangChain knows no provider.
        notes = [{"role": "user", "content": "note"}]
        first = notes if turns and turns[0]["role"] == "assistant" else []
        last = notes if turns and turns[-1]["role"] == "assistant" else []
        check_anthropic(_merged([*first, *turns, *last]))
        check_openai(openai._get_request_payload(converted)["messages"])
        check_responses(_with_types(responses._get_request_payload(converted)["input"]))


def _is_no_media(part: dict[str, Any]) -> bool:
    return not any(isinstance(block, Media) for block in read_parts([part]))


def _with_types(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """LangChain sends a model's texts in the form of outputs without their ids, which the API takes."""
    return [
        {**item, "content": "".join(part["text"] for part in item["content"])}
        if item.get("role") == "assistant"
        else {"type": "message", **item}
        for item in items
    ]


def _merged(turns: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As the API itself does with neighbours of one role."""
    merged: list[dict[str, Any]] = []
    for turn in turns:
        content = turn["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
        if merged and merged[-1]["role"] == turn["role"]:
            merged[-1]["content"] += blocks
        else:
            merged.append({"role": turn["role"], "content": blocks})
    return merged


def test_langchains_objects_survive_a_round_trip():
    core = pytest.importorskip("langchain_core.messages")
    rendered = to_langchain_messages(log_of(ORDER))
    objects = core.convert_to_messages(rendered)
    assert core.convert_to_messages(_round_trip(objects)) == objects
    ai = core.AIMessage("so", tool_calls=[{"id": "c1", "name": "f", "args": {"a": 1}}], id="x")
    again = core.convert_to_messages(_round_trip([ai, core.ToolMessage("ok", tool_call_id="c1")]))
    assert again[0].tool_calls == ai.tool_calls and again[0].id == "x"
    assert again[1].tool_call_id == "c1"


def test_a_log_is_langchains_own_objects():
    core = pytest.importorskip("langchain_core.messages")
    usage = {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}
    ai = core.AIMessage(
        "I look", tool_calls=[{"id": "c1", "name": "f", "args": {}}], usage_metadata=usage, id="x"
    )
    tool = core.ToolMessage("no", tool_call_id="c1", status="error", name="f")
    log = log_of([("system", "s"), ("user", "u"), from_langchain(ai), from_langchain(tool)])
    objects = to_langchain_objects(log)
    assert [type(message).__name__ for message in objects] == [
        "SystemMessage", "HumanMessage", "AIMessage", "ToolMessage",
    ]  # fmt: skip
    assert objects[2].usage_metadata == usage
    assert objects[2].tool_calls[0]["id"] == objects[3].tool_call_id == "c1"
    assert objects[3].status == "error"
    again = [from_langchain(message) for message in objects]
    assert to_langchain_objects(log_of(again)) == objects
    wire = core.messages_to_dict(objects)
    assert to_langchain_objects(log_of([from_langchain(message) for message in wire])) == objects


def test_thinking_of_claudes_reaches_claude_through_langchain():
    model = pytest.importorskip("langchain_anthropic").ChatAnthropic(model="claude-sonnet-4-5", api_key="x")
    said = from_anthropic(answer(THINKING, {"type": "text", "text": "I look"}, TOOL_USE))
    log = log_of([("user", "go"), *said, result("t1")])
    turns = model._get_request_payload(to_langchain_objects(log))["messages"]
    assert turns[1]["content"] == [THINKING, {"type": "text", "text": "I look"}, TOOL_USE]
    check_anthropic(turns)


def test_encrypted_reasoning_reaches_openai_through_langchain():
    chat = pytest.importorskip("langchain_openai").ChatOpenAI
    model = chat(model="gpt-5", api_key="x", use_responses_api=True, store=False)
    log = log_of(
        [("user", "go"), *from_openai_responses(response(REASONING, FUNCTION_CALL)), result("call_1")]
    )
    items = model._get_request_payload(to_langchain_objects(log))["input"]
    assert items[1] == REASONING
    assert (items[2]["type"], items[2]["id"], items[2]["call_id"]) == ("function_call", "fc_1", "call_1")
    assert items[3]["call_id"] == "call_1"


def test_a_system_message_in_the_middle_passes_langchains_formatter_for_claude():
    model = pytest.importorskip("langchain_anthropic").ChatAnthropic(model="claude-sonnet-4-5", api_key="x")
    log = log_of([("system", "s1"), ("user", "u"), ("assistant", "a"), ("system", "s2"), ("user", "u2")])
    payload = model._get_request_payload(to_langchain_objects(log))
    assert "s1" in str(payload["system"]) and "s2" in str(payload["system"])
