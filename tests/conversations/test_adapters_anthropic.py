"""The log as Anthropic's Messages API takes it."""

from __future__ import annotations

import re

import pytest
from pydantic import TypeAdapter

from conversations.adapters import system_prompt, to_anthropic
from conversations.adapters.anthropic import BEGINNING, ENDING
from conversations.adapters.repair import INTERRUPTED, NO_OUTPUT
from tests.conversations.files import JPEG, PDF, PNG
from tests.conversations.logs import call, log_of, result
from tests.conversations.providers import check_anthropic


def test_calls_become_tool_use_blocks_and_results_turns_of_the_user():
    turns = to_anthropic(
        log_of(
            [
                ("system", "be kind"),
                ("user", "where is order 7?"),
                call("c1", content="I look it up", args={"b": 2, "a": 1}),
                result("c1", "shipped"),
                ("assistant", "It was shipped."),
                ("user", "thanks"),
            ]
        )
    )
    assert turns == [
        {"role": "user", "content": "where is order 7?"},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "I look it up"},
                {"type": "tool_use", "id": "c1", "name": "lookup", "input": {"a": 1, "b": 2}},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "shipped"}]},
        {"role": "assistant", "content": "It was shipped."},
        {"role": "user", "content": "thanks"},
    ]
    check_anthropic(turns)


def test_an_interrupted_call_has_one_error_before_the_next_text():
    turns = to_anthropic(log_of([("user", "weather?"), call("c1"), ("user", "hello?")]))
    assert turns[2]["content"] == [
        {"type": "tool_result", "tool_use_id": "c1", "content": INTERRUPTED, "is_error": True},
        {"type": "text", "text": "hello?"},
    ]
    check_anthropic(turns)


def test_five_results_are_one_message_in_call_order():
    ids = ["r1", "r2", "r3", "r4", "r5"]
    log = log_of([("user", "go"), call(*ids), *(result(i) for i in ["r3", "r1", "r5", "r2", "r4"])])
    turns = to_anthropic(log)
    assert len(turns) == 3
    assert [block["tool_use_id"] for block in turns[2]["content"]] == ids
    check_anthropic(turns)


def test_a_result_stored_twice_is_sent_once():
    log = log_of([("user", "go"), call("t1"), result("t1", "ok"), result("t1", "other"), ("user", "and?")])
    assert to_anthropic(log)[2]["content"] == [
        {"type": "tool_result", "tool_use_id": "t1", "content": "ok"},
        {"type": "text", "text": "and?"},
    ]


def test_an_assistant_turn_with_an_empty_text_block_is_the_call_alone():
    received = [{"type": "text", "text": ""}, {"type": "tool_use", "id": "t1", "name": "f", "input": {}}]
    log = log_of([("user", "go"), {"role": "assistant", "parts": received}, result("t1"), ("user", "ok")])
    assert log[1].parts == received
    turns = to_anthropic(log)
    assert turns[1]["content"] == [{"type": "tool_use", "id": "t1", "name": "f", "input": {}}]
    check_anthropic(turns)


def test_empty_results_say_what_happened():
    log = log_of(
        [
            ("user", "go"),
            call("a", "b"),
            result("a", "", metadata={"error": "TimeoutError"}),
            result("b", ""),
        ]
    )
    assert to_anthropic(log)[2]["content"] == [
        {"type": "tool_result", "tool_use_id": "a", "content": "Error: TimeoutError", "is_error": True},
        {"type": "tool_result", "tool_use_id": "b", "content": NO_OUTPUT},
    ]


def test_neighbours_of_one_role_are_one_turn():
    log = log_of([("user", "a"), ("user", "b"), ("assistant", "c"), ("assistant", "d"), ("user", "e")])
    turns = to_anthropic(log)
    assert [turn["role"] for turn in turns] == ["user", "assistant", "user"]
    assert turns[0]["content"] == [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]


def test_a_conversation_that_begins_or_ends_with_the_assistant_gets_a_note_there():
    turns = to_anthropic(log_of([("assistant", "Hello, this is the shop.")]))
    assert turns == [
        {"role": "user", "content": BEGINNING},
        {"role": "assistant", "content": "Hello, this is the shop."},
        {"role": "user", "content": ENDING},
    ]
    check_anthropic(turns)


def test_the_system_prompt_holds_all_system_messages_and_the_turns_none():
    log = log_of([("system", "s1"), ("user", "u"), ("assistant", "a"), ("system", "date"), ("user", "u2")])
    assert system_prompt(log) == "s1\n\ndate"
    assert [turn["content"] for turn in to_anthropic(log)] == ["u", "a", "u2"]
    assert system_prompt(log_of([("user", "u")])) == ""


def test_ids_of_other_providers_become_legal_and_stay_apart():
    ids = ["functions.write_todos:0", "a:1", "a.1", "a|1"]
    pairs = [message for id_ in ids for message in (call(id_), result(id_))]
    log = log_of([("user", "go"), *pairs, ("user", "and?")])
    turns = to_anthropic(log)
    uses = [block["id"] for turn in turns[1::2] for block in turn["content"]]
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]+", id_) for id_ in uses)
    assert len(set(uses)) == 4
    check_anthropic(turns)
    assert [message.tool_calls[0].id for message in log if message.tool_calls] == ids
    # The same in another request, with another part of the log.
    later = to_anthropic(log_of([("user", "go"), *pairs[4:], ("user", "and?")]))
    assert [block["id"] for turn in later[1::2] for block in turn["content"]] == uses[2:]


def test_an_id_that_a_model_uses_again_is_told_apart():
    log = log_of([("user", "go"), call("call_0"), result("call_0"), call("call_0"), result("call_0")])
    turns = to_anthropic(log)
    check_anthropic(turns)
    assert turns[1]["content"][0]["id"] == "call_0"
    assert turns[3]["content"][0]["id"].startswith("call_0-")


def test_arguments_are_an_object_whatever_the_model_wrote():
    for args, shown in (("", {}), ('{"value": ', {"unparsed_arguments": '{"value": '})):
        turns = to_anthropic(log_of([("user", "go"), call("t1", args=args), result("t1", "no")]))
        assert turns[1]["content"][0]["input"] == shown


def test_thinking_goes_back_exactly_as_it_came():
    received = [
        {"type": "thinking", "thinking": "let me see", "signature": "EqQB/+="},
        {"type": "text", "text": "I look it up"},
        {"type": "tool_use", "id": "t1", "name": "f", "input": {"q": 1}},
    ]
    log = log_of([("user", "go"), {"role": "assistant", "parts": received}, result("t1")])
    assert log[1].content == "I look it up"
    assert to_anthropic(log)[1]["content"] == received


@pytest.mark.parametrize(
    "part",
    [
        {"type": "thinking", "thinking": "of another model"},
        {"type": "reasoning", "reasoning": "no signature"},
    ],
)
def test_thinking_without_a_signature_is_left_out(part: dict[str, str]):
    log = log_of([("user", "go"), {"role": "assistant", "content": "so", "parts": [part]}, ("user", "and?")])
    assert to_anthropic(log)[1]["content"] == "so"


def test_no_assistant_turn_ends_with_thinking():
    thought = {"type": "thinking", "thinking": "hm", "signature": "x"}
    log = log_of(
        [
            ("user", "go"),
            {"role": "assistant", "parts": [thought]},
            {"role": "assistant", "parts": [{"type": "text", "text": "so"}, thought]},
            ("user", "and?"),
        ]
    )
    turns = to_anthropic(log)
    assert turns[1] == {"role": "assistant", "content": "so"}
    check_anthropic(turns)


def test_images_and_documents_are_sent_also_from_tools_and_what_cannot_be_is_noted():
    image = {"type": "image", "base64": PNG, "mime_type": "image/png"}
    log = log_of(
        [
            {
                "role": "user",
                "content": "",
                "parts": [
                    {"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{JPEG}"}},
                    {"type": "file", "base64": PDF, "mime_type": "application/pdf", "filename": "a.pdf"},
                    {"type": "image", "url": "http://example.org/a.png"},
                    {"type": "image", "base64": "broken", "mime_type": "image/png"},
                    {"type": "audio", "base64": "aGk=", "mime_type": "audio/wav"},
                ],
            },
            call("t1"),
            {"role": "tool", "tool_call_id": "t1", "content": "a chart", "parts": [image]},
        ]
    )
    turns = to_anthropic(log)
    assert turns[0]["content"] == [
        {"type": "image", "source": {"type": "base64", "media_type": "image/jpeg", "data": JPEG}},
        {
            "type": "document",
            "source": {"type": "base64", "media_type": "application/pdf", "data": PDF},
            "title": "a.pdf",
        },
        {"type": "text", "text": "[image: http://example.org/a.png]"},
        {"type": "text", "text": "[image]"},
        {"type": "text", "text": "[audio]"},
    ]
    assert turns[2]["content"][0]["content"] == [
        {"type": "text", "text": "a chart"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
    ]
    check_anthropic(turns)


def test_a_blank_user_message_is_sent_as_a_note():
    assert to_anthropic(log_of([("user", " ")])) == [{"role": "user", "content": "(empty message)"}]


def test_a_log_without_a_conversation_renders_as_nothing():
    assert to_anthropic(log_of([("system", "be kind"), ("assistant", " ")])) == []


def test_the_official_client_sends_the_rendering_as_it_is():
    types = pytest.importorskip("anthropic.types")
    log = log_of([("user", "go"), call("a:1", content="so"), result("a:1"), ("assistant", "done")])
    turns = to_anthropic(log)
    for turn in turns:
        TypeAdapter(types.MessageParam).validate_python(turn)
