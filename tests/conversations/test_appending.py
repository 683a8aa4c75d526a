"""What models and frameworks return goes into the log in one line, and comes out for them as it came."""

from __future__ import annotations

import json
from typing import Any

import anthropic.types
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from agents.exceptions import MessageError
from conversations import adapters
from conversations.content import Media, Reasoning, read_parts
from conversations.messages import StoredMessage
from tests.conversations.conftest import Conversation
from tests.conversations.files import PNG
from tests.conversations.logs import call, log_of, result
from tests.conversations.providers import CHECKS, check_anthropic, check_openai, check_responses

USER = ("user", "where is order 7?")


def completion(message: dict[str, Any], **more: Any) -> ChatCompletion:
    return ChatCompletion.model_validate(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1,
            "model": "gpt-x",
            "choices": [
                {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", **message}, **more}
            ],
            "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7},
        }
    )


def answer(*content: dict[str, Any]) -> anthropic.types.Message:
    return anthropic.types.Message.model_validate(
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "claude-x",
            "content": list(content),
            "stop_reason": "end_turn",
            "usage": {"input_tokens": 5, "output_tokens": 2},
        }
    )


def response(*output: dict[str, Any]) -> Response:
    return Response.model_validate(
        {
            "id": "resp_1",
            "object": "response",
            "created_at": 1,
            "model": "gpt-x",
            "status": "completed",
            "output": list(output),
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
        }
    )


# OpenAI


def test_a_completion_is_a_message_with_what_is_worth_keeping_beside_it():
    [made] = log_of(adapters.from_openai(completion({"content": "Hello."})))
    assert (made.role, made.content, made.parts) == ("assistant", "Hello.", [])
    assert made.metadata["openai"] == {
        "id": "chatcmpl-1",
        "model": "gpt-x",
        "finish_reason": "stop",
        "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7},
    }


def test_calls_of_a_completion_are_calls_of_the_log():
    calls = [
        {"id": "c1", "type": "function", "function": {"name": "lookup", "arguments": '{"order": 7}'}},
        {"id": "c2", "type": "function", "function": {"name": "lookup", "arguments": ""}},
        {"id": "c3", "type": "function", "function": {"name": "lookup", "arguments": '{"value": '}},
        {"id": "c4", "type": "custom", "custom": {"name": "shell", "input": "ls"}},
    ]
    [made] = log_of(adapters.from_openai(completion({"content": None, "tool_calls": calls})))
    assert made.content == ""
    assert [(c.id, c.args) for c in made.tool_calls] == [
        ("c1", {"order": 7}),
        ("c2", {}),
        ("c3", '{"value": '),
        ("c4", {"input": "ls"}),
    ]
    check_openai(adapters.to_openai([made]))


def test_a_refusal_is_text_that_is_still_known_as_one():
    [made] = log_of(adapters.from_openai(completion({"content": None, "refusal": "I can't."})))
    assert made.content == "I can't."
    assert made.parts == [{"type": "refusal", "refusal": "I can't."}]
    assert adapters.to_openai([made]) == [{"role": "assistant", "content": "I can't."}]


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_what_a_model_thought_goes_back_in_its_field_where_the_server_insists(field: str):
    thought = adapters.from_openai(completion({"content": "A.", field: "hm"}))
    log = log_of([USER, *thought, USER, ("assistant", "B.")])
    assert adapters.to_openai(log)[1] == {"role": "assistant", "content": "A."}
    again = adapters.to_openai(log, reasoning_field=field)
    assert again[1] == {"role": "assistant", "content": "A.", field: "hm"}
    assert again[3] == {"role": "assistant", "content": "B.", field: " "}


def test_the_words_of_a_spoken_answer_are_its_text():
    audio = {"id": "audio_1", "data": "aGk=", "transcript": "Hello.", "expires_at": 9}
    [made] = log_of(adapters.from_openai(completion({"content": None, "audio": audio})))
    assert made.content == "Hello."
    assert made.parts == [{"type": "audio", **audio}]
    assert adapters.to_openai([made])[0]["content"] == "Hello."


def test_messages_as_they_were_sent_are_taken_too():
    log = log_of([("system", "s"), USER, call("c1"), result("c1"), ("user", "thanks")])
    rendered = adapters.to_openai(log)
    assert adapters.to_openai(log_of(adapters.from_openai(rendered))) == rendered
    assert adapters.from_openai({"role": "developer", "content": "d"}) == [{"role": "system", "content": "d"}]


# The Responses API


REASONING = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [{"type": "summary_text", "text": "let me see"}],
    "encrypted_content": "gAAA",
}
FUNCTION_CALL = {
    "type": "function_call",
    "id": "fc_1",
    "call_id": "call_1",
    "name": "lookup",
    "arguments": '{"order":7}',
    "status": "completed",
}
OUTPUT_TEXT = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "Hello.", "annotations": []}],
}


def test_a_response_of_text_is_one_column():
    [made] = log_of(adapters.from_openai_responses(response(OUTPUT_TEXT)))
    assert (made.role, made.content, made.parts) == ("assistant", "Hello.", [])
    assert made.metadata["openai"] == {"id": "resp_1", "model": "gpt-x", "status": "completed"}


def test_encrypted_reasoning_and_its_call_go_back_as_they_came():
    log = log_of(
        [USER, *adapters.from_openai_responses(response(REASONING, FUNCTION_CALL)), result("call_1")]
    )
    assert log[1].tool_calls[0].args == {"order": 7}
    items = adapters.to_openai_responses(log)
    assert items[1:] == [
        REASONING,
        {k: v for k, v in FUNCTION_CALL.items() if k != "status"},
        {"type": "function_call_output", "call_id": "call_1", "output": "ok"},
    ]
    check_responses(items)
    # For others the reasoning is not there, and nothing refers to it.
    check_openai(adapters.to_openai(log))
    assert "gAAA" not in json.dumps([adapters.to_openai(log), adapters.to_anthropic(log)])


def test_reasoning_that_only_openai_has_is_left_out_with_every_id_that_needs_it():
    bare = {k: v for k, v in REASONING.items() if k != "encrypted_content"}
    log = log_of([USER, *adapters.from_openai_responses(response(bare, FUNCTION_CALL)), result("call_1")])
    items = adapters.to_openai_responses(log)
    assert [item["type"] for item in items] == ["message", "function_call", "function_call_output"]
    assert "id" not in items[1]


def test_reasoning_is_not_sent_without_the_item_that_it_led_to():
    interrupted = response(REASONING, {**OUTPUT_TEXT, "content": []})
    log = log_of([USER, *adapters.from_openai_responses(interrupted), ("user", "hello?")])
    assert [item["type"] for item in adapters.to_openai_responses(log)] == ["message", "message"]


def test_a_tool_that_openai_ran_and_the_phase_of_a_text_go_back_as_they_came():
    search = {
        "type": "web_search_call",
        "id": "ws_1",
        "status": "completed",
        "action": {"type": "search", "query": "kettles"},
    }
    said = {**OUTPUT_TEXT, "phase": "final_answer"}
    log = log_of([USER, *adapters.from_openai_responses(response(REASONING, search, said))])
    assert adapters.to_openai_responses(log)[1:] == [
        REASONING,
        search,
        {"type": "message", "role": "assistant", "content": "Hello.", "phase": "final_answer"},
    ]
    assert adapters.to_openai(log)[1] == {"role": "assistant", "content": "Hello."}


def test_a_custom_tool_keeps_its_free_text():
    custom = {"type": "custom_tool_call", "id": "ctc_1", "call_id": "call_2", "name": "shell", "input": "ls"}
    log = log_of([USER, *adapters.from_openai_responses(response(custom)), result("call_2")])
    items = adapters.to_openai_responses(log)
    assert items[1:] == [
        {"type": "custom_tool_call", "call_id": "call_2", "name": "shell", "input": "ls"},
        {"type": "custom_tool_call_output", "call_id": "call_2", "output": "ok"},
    ]
    check_responses(items)
    assert adapters.to_anthropic(log)[1]["content"][0]["input"] == {"input": "ls"}


def test_items_of_a_whole_run_are_messages_in_their_order():
    items = [
        {"role": "user", "content": "where is order 7?"},
        REASONING,
        FUNCTION_CALL,
        {**FUNCTION_CALL, "id": "fc_2", "call_id": "call_2"},
        {"type": "function_call_output", "call_id": "call_1", "output": "shipped"},
        {
            "type": "function_call_output",
            "call_id": "call_2",
            "output": [{"type": "input_text", "text": "late"}],
        },
        OUTPUT_TEXT,
    ]
    log = log_of(adapters.from_openai_responses(items))
    assert [(m.role, m.content, len(m.tool_calls)) for m in log] == [
        ("user", "where is order 7?", 0),
        ("assistant", "", 2),
        ("tool", "shipped", 0),
        ("tool", "late", 0),
        ("assistant", "Hello.", 0),
    ]
    check_responses(adapters.to_openai_responses(log))


# Anthropic


THINKING = {"type": "thinking", "thinking": "let me see", "signature": "EqQB"}
TOOL_USE = {"type": "tool_use", "id": "t1", "name": "lookup", "input": {"order": 7, "more": None}}


def test_thinking_comes_back_byte_for_byte_and_first():
    said = answer(THINKING, {"type": "text", "text": "I look it up", "citations": None}, TOOL_USE)
    log = log_of([USER, *adapters.from_anthropic(said), result("t1")])
    assert (log[1].content, log[1].tool_calls[0].args) == ("I look it up", {"order": 7, "more": None})
    assert log[1].metadata["anthropic"]["usage"]["output_tokens"] == 2
    turns = adapters.to_anthropic(log)
    assert turns[1]["content"] == [THINKING, {"type": "text", "text": "I look it up"}, TOOL_USE]
    check_anthropic(turns)
    check_openai(adapters.to_openai(log))
    assert "let me see" not in json.dumps(adapters.to_openai(log))


def test_what_an_sdk_parsed_is_not_kept_but_what_a_tool_was_asked_is():
    use = {**TOOL_USE, "input": {"parsed": [1], "content": {"parsed": 2}}}
    said = answer({"type": "text", "text": "{}", "parsed_output": {"a": 1}}, use)
    [made] = log_of(adapters.from_anthropic(said))
    assert made.content == "{}" and made.parts == []
    assert made.tool_calls[0].args == {"parsed": [1], "content": {"parsed": 2}}


def test_an_empty_text_beside_a_call_is_not_sent():
    said = answer({"type": "text", "text": ""}, TOOL_USE)
    log = log_of([USER, *adapters.from_anthropic(said), result("t1"), ("user", "ok")])
    assert adapters.to_anthropic(log)[1]["content"] == [TOOL_USE]
    assert log[1].content == "" and log[1].tool_calls[0].id == "t1"


def test_a_search_that_anthropic_ran_goes_back_whole_with_its_citations():
    search = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "q"}}
    found = {
        "type": "web_search_tool_result",
        "tool_use_id": "srvtoolu_1",
        "content": [
            {
                "type": "web_search_result",
                "url": "https://example.org",
                "title": "t",
                "encrypted_content": "x",
            }
        ],
    }
    citation = {
        "type": "web_search_result_location",
        "url": "https://example.org",
        "title": "t",
        "encrypted_index": "y",
        "cited_text": "so",
    }
    text = {"type": "text", "text": "So it is.", "citations": [citation]}
    log = log_of([USER, *adapters.from_anthropic(answer(search, found, text)), ("user", "thanks")])
    turns = adapters.to_anthropic(log)
    assert turns[1]["content"] == [search, found, text]
    check_anthropic(turns)
    paused = log_of([USER, *adapters.from_anthropic(answer(search)), ("user", "well?")])
    assert [turn["role"] for turn in adapters.to_anthropic(paused)] == ["user"]


def test_turns_are_taken_apart_into_results_and_texts():
    turns = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": [TOOL_USE]},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": "no", "is_error": True},
                {"type": "text", "text": "well?"},
            ],
        },
    ]
    log = log_of(adapters.from_anthropic(turns))
    assert [(m.role, m.content) for m in log] == [
        ("user", "go"),
        ("assistant", ""),
        ("tool", "no"),
        ("user", "well?"),
    ]
    assert log[2].metadata == {"is_error": True}
    assert adapters.to_anthropic(log) == turns


# All


@pytest.mark.parametrize(
    "take", [adapters.from_openai, adapters.from_openai_responses, adapters.from_anthropic]
)
@pytest.mark.parametrize(
    "given",
    [7, "text", [7], {"role": "nobody", "content": "x"}, {"content": "x"}, {"role": "user", "content": 7}],
)
def test_what_is_none_of_theirs_is_refused(take: Any, given: Any):
    with pytest.raises(MessageError):
        take(given)


@pytest.mark.parametrize("given", [{"choices": []}, {"choices": [{"index": 0, "delta": {}}]}])
def test_a_completion_without_a_message_is_refused(given: Any):
    with pytest.raises(MessageError):
        adapters.from_openai(given)


async def test_a_run_is_recorded_whole_or_not_at_all(conversation: Conversation):
    log = conversation.turn()
    await log.add("user", "hi")
    assert await log.append_openai(completion({"content": "a"})) == 2
    assert await log.append_anthropic(answer({"type": "text", "text": "b"})) == 3
    assert await log.append_openai_responses(response(OUTPUT_TEXT)) == 4
    said = {"id": "u", "role": "user", "parts": [{"type": "text", "text": "c"}]}
    assert await log.append_ai_sdk([said]) == 5
    assert await log.append_langchain({"type": "ai", "content": "d"}) == 6
    with pytest.raises(MessageError):
        await log.append_openai([{"role": "user", "content": "x"}, {"role": "nobody", "content": "y"}])
    assert await log.count() == 6
    await conversation.commit(log)
    again = conversation.turn()
    assert [m.content for m in await again.all()] == ["hi", "a", "b", "Hello.", "c", "d"]
    for name, check in CHECKS.items():
        check(await getattr(again, name)())


# Nothing is lost

WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20).filter(
    str.strip
)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text("abc é😋", max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("ab", max_size=3), inner, max_size=2),
    max_leaves=4,
)
IMAGE = {"type": "image", "base64": PNG, "mime_type": "image/png"}
SEEN = {"type": "image", "url": "https://example.org/a.png"}
SIGNED = {"type": "reasoning", "reasoning": "hm", "extras": {"signature": "EqQB"}}


@st.composite
def healthy_logs(draw: st.DrawFn) -> list[StoredMessage]:
    """Logs without damage: a prompt, questions, calls with their results, answers, at last a question."""
    messages: list[Any] = [("system", draw(WORDS))] if draw(st.booleans()) else []
    ids = iter(f"call_{n}" for n in range(100))
    for _ in range(draw(st.integers(1, 3))):
        question: dict[str, Any] = {"role": "user", "parts": [{"type": "text", "text": draw(WORDS)}]}
        question["parts"] += draw(st.lists(st.sampled_from([IMAGE, SEEN]), max_size=2))
        messages.append(question)
        for _ in range(draw(st.integers(0, 2))):
            called = [next(ids) for _ in range(draw(st.integers(1, 3)))]
            asks = call(
                *called,
                content=draw(st.just("") | WORDS),
                args=draw(st.dictionaries(WORDS, PLAIN, max_size=2)),
            )
            if draw(st.booleans()):
                text = [{"type": "text", "text": asks["content"]}] if asks["content"] else []
                asks["parts"] = [SIGNED, *text]
            messages += [asks, *(result(id_, draw(WORDS)) for id_ in called)]
        messages.append(("assistant", draw(WORDS)))
    return log_of([*messages, ("user", draw(WORDS))])


def _essence(log: list[StoredMessage], *, reasoning: bool) -> list[Any]:
    return [
        (
            message.role,
            message.content,
            message.tool_calls,
            message.tool_call_id,
            [(b.mime, b.data, b.url) for b in read_parts(message.parts) if isinstance(b, Media)],
            [
                (b.text, b.signature)
                for b in read_parts(message.parts)
                if isinstance(b, Reasoning) and reasoning
            ],
        )
        for message in log
    ]


@pytest.mark.parametrize("name", ["openai", "openai_responses", "anthropic", "langchain_messages", "ai_sdk"])
@settings(max_examples=100, deadline=None)
@given(log=healthy_logs())
def test_a_log_without_damage_loses_nothing_in_a_round_trip(name: str, log: list[StoredMessage]):
    rendered = getattr(adapters, f"to_{name}")(log)
    if name == "langchain_messages":
        again = log_of([adapters.from_langchain(message) for message in rendered])
    else:
        again = log_of(getattr(adapters, f"from_{name}")(rendered))
    if name == "anthropic":
        log = [message for message in log if message.role != "system"]  # it is in system_prompt()
    # OpenAI's two APIs have no place for another provider's reasoning.
    reasoning = not name.startswith("openai")
    assert _essence(again, reasoning=reasoning) == _essence(log, reasoning=reasoning)
