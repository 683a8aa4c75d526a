"""The offline model, asked by the official client over HTTP."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import httpx
import openai
import pytest

from conversations.dev import model
from conversations.dev.transcript import RefusedError, check_messages
from conversations.dev.views import chat_completions

pytestmark = pytest.mark.django_db(transaction=True)

TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "lookup_order",
            "description": "The state of an order.",
            "parameters": {
                "type": "object",
                "properties": {"number": {"type": "string"}},
                "required": ["number"],
            },
        },
    }
]


def user(*texts: str) -> list[Any]:
    return [{"role": "user", "content": text} for text in texts]


@pytest.fixture
def base_url(live_server, settings) -> str:
    settings.DEBUG = True
    return f"{live_server.url}/dev/model/v1"


@pytest.fixture
def client(base_url):
    with openai.OpenAI(api_key="offline", base_url=base_url, max_retries=0) as client:
        yield client


def ask(client: openai.OpenAI, messages: list[Any], **more: Any) -> Any:
    return client.chat.completions.create(model=more.pop("model", "offline"), messages=messages, **more)


def test_the_answer_says_that_no_model_gave_it_and_is_the_same_each_time(client):
    first, second = ask(client, user("hello")), ask(client, user("hello"))
    assert first.choices[0].message.content == "[offline model] I read: hello"
    assert first.choices[0].finish_reason == "stop"
    assert first.usage.total_tokens == first.usage.prompt_tokens + first.usage.completion_tokens
    assert first.to_json() == second.to_json()


def test_all_texts_since_the_last_answer_are_answered_together(client):
    messages = [*user("old"), {"role": "assistant", "content": "done"}, *user("one", "two")]
    assert ask(client, messages).choices[0].message.content == "[offline model] I read: one / two"


@pytest.mark.parametrize(
    ("text", "orders"),
    [
        ("Where is order 1042?", ["1042"]),
        ("my order is a-1042", ["A-1042"]),
        ("#1042 and order no. 2001-B.", ["1042", "2001-B"]),
        ("Order number 1042, order 1042!", ["1042"]),
    ],
)
def test_an_order_in_the_text_becomes_a_call_of_the_tool(client, text, orders):
    choice = ask(client, user(text), tools=TOOLS).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert [json.loads(c.function.arguments) for c in choice.message.tool_calls] == [
        {"number": order} for order in orders
    ]
    assert len({c.id for c in choice.message.tool_calls}) == len(orders)


@pytest.mark.parametrize("text", ["I ordered 2 days ago", "call 1042", "reorder 1042"])
def test_a_text_without_an_order_is_just_read(client, text):
    assert ask(client, user(text), tools=TOOLS).choices[0].finish_reason == "stop"


def test_without_the_tool_nothing_is_called(client):
    other: Any = [{"type": "function", "function": {"name": "weather", "parameters": {}}}]
    for tools in ({}, {"tools": other}, {"tools": TOOLS, "tool_choice": "none"}):
        assert ask(client, user("order 1042"), **tools).choices[0].finish_reason == "stop"


def test_the_result_of_the_tool_is_passed_on(client):
    messages = user("Where are orders #1042 and #2001?")
    asked = ask(client, messages, tools=TOOLS).choices[0].message
    messages.append(asked.to_dict())
    messages += [
        {"role": "tool", "tool_call_id": call.id, "content": f"{call.function.arguments} is on its way."}
        for call in asked.tool_calls
    ]
    answer = ask(client, messages, tools=TOOLS).choices[0]
    assert answer.message.content == (
        '[offline model] {"number": "1042"} is on its way.\n{"number": "2001"} is on its way.'
    )


def test_a_stream_gives_the_same_answer_word_by_word(client):
    with ask(client, user("one two three"), stream=True, stream_options={"include_usage": True}) as stream:
        chunks = list(stream)
    words = [c.choices[0].delta.content for c in chunks if c.choices and c.choices[0].delta.content]
    assert len(words) > 3
    assert "".join(words) == ask(client, user("one two three")).choices[0].message.content
    assert chunks[-1].usage.total_tokens > 0
    assert chunks[-2].choices[0].finish_reason == "stop"


def test_a_stream_carries_tool_calls(client):
    with ask(client, user("order 1042"), stream=True, tools=TOOLS) as stream:
        chunks = list(stream)
    calls = [c.choices[0].delta.tool_calls[0] for c in chunks if c.choices[0].delta.tool_calls]
    assert calls[0].function.name == "lookup_order"
    assert json.loads("".join(call.function.arguments or "" for call in calls)) == {"number": "1042"}
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_a_slow_model_answers_after_its_delay(client):
    started = time.monotonic()
    ask(client, user("hello"), model="offline-delay-0.3")
    assert time.monotonic() - started >= 0.3


async def test_slow_answers_wait_beside_each_other_without_a_thread(settings, async_rf):
    settings.DEBUG = True
    body = json.dumps({"model": "offline-delay-2", "messages": user("hello")})

    async def one() -> Any:
        return await chat_completions(async_rf.post("/", body, content_type="application/json"))

    started = time.monotonic()
    answers = await asyncio.gather(*(one() for _ in range(20)))
    assert time.monotonic() - started < 20  # of 40
    assert {answer.status_code for answer in answers} == {200}


async def test_a_stream_is_served_on_an_event_loop_too(settings, async_client):
    settings.DEBUG = True
    body = {"model": "offline", "messages": user("hello"), "stream": True}
    answer = await async_client.post(
        "/dev/model/v1/chat/completions", json.dumps(body), content_type="application/json"
    )
    events = [event async for event in answer.streaming_content]
    assert b"".join(events).decode().strip().endswith("data: [DONE]")
    assert len(events) > 3


def test_a_model_that_is_not_there_is_not_found(client):
    with pytest.raises(openai.NotFoundError) as caught:
        ask(client, user("hello"), model="gpt-4o")
    assert caught.value.code == "model_not_found"


CALL: dict[str, Any] = {
    "id": "c1",
    "type": "function",
    "function": {"name": "lookup_order", "arguments": "{}"},
}
CALLS: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "here"}


def calling(**change: Any) -> dict[str, Any]:
    return {**CALLS, "tool_calls": [{**CALL, **change}]}


def function(**change: Any) -> dict[str, Any]:
    return calling(function=CALL["function"] | change)


REFUSED = {
    "no messages": [],
    "a call without a result": [*user("x"), CALLS],
    "a call whose result comes late": [*user("x"), CALLS, *user("y"), RESULT],
    "a result without a call": [*user("x"), RESULT],
    "a result twice": [*user("x"), CALLS, RESULT, RESULT],
    "a result of another call": [*user("x"), CALLS, {**RESULT, "tool_call_id": "c2"}],
    "one of two results": [
        *user("x"),
        {**CALLS, "tool_calls": [CALL, {**CALL, "id": "c2"}]},
        RESULT,
        *user("y"),
    ],
    "two calls of one id": [*user("x"), {**CALLS, "tool_calls": [CALL, CALL]}, RESULT],
    "arguments cut short": [*user("x"), function(arguments='{"value": '), RESULT],
    "arguments that are empty": [*user("x"), function(arguments=""), RESULT],
    "arguments that are a list": [*user("x"), function(arguments="[]"), RESULT],
    "arguments that are no text": [*user("x"), function(arguments={}), RESULT],
    "a name that is no function's": [*user("x"), function(name="look up"), RESULT],
    "an id too long": [*user("x"), calling(id="c" * 41), {**RESULT, "tool_call_id": "c" * 41}],
    "an empty list of calls": [*user("x"), {"role": "assistant", "content": "y", "tool_calls": []}],
    "neither content nor calls": [*user("x"), {"role": "assistant", "content": None}],
    "an empty text": user(""),
    "a blank text": user(" \n"),
    "an empty part": [{"role": "user", "content": [{"type": "text", "text": ""}]}],
    "no parts": [{"role": "user", "content": []}],
    "a part of no known type": [{"role": "user", "content": [{"type": "tool_result"}]}],
    "an empty result": [*user("x"), CALLS, {**RESULT, "content": ""}],
    "an unknown role": [{"role": "human", "content": "x"}],
    "a name with a blank": [{"role": "user", "content": "x", "name": "Alice B"}],
}


@pytest.mark.parametrize("messages", REFUSED.values(), ids=REFUSED)
def test_what_real_providers_refuse_is_refused_in_openai_s_words(client, messages):
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, messages)
    assert caught.value.type == "invalid_request_error"
    assert caught.value.param


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "system", "content": "s"}, *user("x"), CALLS, RESULT, *user("y")],
        [*user("x"), {**CALLS, "content": "let me look"}, RESULT],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://example.org/a"}}]}],
        [{"role": "user", "content": "x", "name": "Alice"}],
        [*user("x"), calling(id="c" * 40), {**RESULT, "tool_call_id": "c" * 40}],
    ],
)
def test_what_real_providers_take_is_taken(messages):
    assert check_messages(messages) is messages
    model.complete({"model": "offline", "messages": messages})


@pytest.mark.parametrize(
    "tools", [[], "x", [{"type": "function"}], [{"type": "function", "function": {"name": "a b"}}]]
)
def test_tools_that_are_none_are_refused(tools):
    with pytest.raises(RefusedError):
        model.complete({"model": "offline", "messages": user("x"), "tools": tools})


NO_REQUESTS = [b"", b"{", b"[]", b"null", b'{"model": "offline"}', b"\xff", b"[" * 100_000]


@pytest.mark.parametrize("body", NO_REQUESTS)
def test_a_body_that_is_no_request_is_refused(base_url, body):
    answer = httpx.post(f"{base_url}/chat/completions", content=body)
    assert answer.status_code in (400, 404)
    assert answer.json()["error"]["message"]


def test_only_a_development_site_serves_it_and_only_to_itself(base_url, live_server, settings):
    url, body = f"{base_url}/chat/completions", json.dumps({"model": "offline", "messages": user("x")})
    assert httpx.post(url, content=body).status_code == 200
    assert httpx.get(url).status_code == 405
    assert httpx.post(url, content=body, headers={"X-Forwarded-For": "192.0.2.1"}).status_code == 404
    settings.DEBUG = False
    assert httpx.post(url, content=body).status_code == 404
    assert httpx.get(live_server.url + "/dev/texts/").status_code == 404
