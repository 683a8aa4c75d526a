"""The log as OpenAI's Chat Completions API takes it."""

from __future__ import annotations

import base64
import datetime as dt
import json
import re
from decimal import Decimal
from uuid import UUID

import pytest

from conversations.adapters import to_openai
from conversations.adapters.repair import INTERRUPTED
from tests.conversations.files import PDF, PNG
from tests.conversations.logs import call, log_of, result
from tests.conversations.providers import check_openai


def _arguments(args: object) -> str:
    """The arguments of the one call in a rendering."""
    rendered = to_openai(log_of([call("c1", args=args) if args is not None else _without_args()]))
    check_openai(rendered)
    return rendered[0]["tool_calls"][0]["function"]["arguments"]


def _without_args() -> dict[str, object]:
    return {"role": "assistant", "content": "", "tool_calls": [{"id": "c1", "name": "lookup"}]}


def test_system_is_kept_and_calls_are_mapped_with_their_arguments_as_json_text():
    rendered = to_openai(
        log_of(
            [
                ("system", "be kind"),
                ("user", "where is order 7?"),
                call("c1", content="I look it up", args={"b": 2, "a": "é"}),
                result("c1", "shipped", name="lookup"),
                ("assistant", "It was shipped."),
            ]
        )
    )
    assert rendered == [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "where is order 7?"},
        {
            "role": "assistant",
            "content": "I look it up",
            "tool_calls": [
                {
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "lookup", "arguments": '{"a":"é","b":2}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "shipped"},
        {"role": "assistant", "content": "It was shipped."},
    ]
    check_openai(rendered)


def test_an_interrupted_call_has_one_result_before_the_next_message():
    rendered = to_openai(log_of([("user", "weather?"), call("c1"), ("user", "hello?")]))
    assert [message["role"] for message in rendered] == ["user", "assistant", "tool", "user"]
    assert rendered[2] == {"role": "tool", "tool_call_id": "c1", "content": INTERRUPTED}


def test_five_results_follow_their_message_in_call_order():
    ids = ["r1", "r2", "r3", "r4", "r5"]
    log = log_of([("user", "go"), call(*ids), *(result(i) for i in ["r3", "r1", "r5", "r2", "r4"])])
    rendered = to_openai(log)
    assert [message.get("tool_call_id") for message in rendered[2:]] == ids
    check_openai(rendered)


def test_a_message_with_only_calls_has_no_text():
    assert to_openai(log_of([call("c1", content=" ")]))[0]["content"] is None


@pytest.mark.parametrize("args", ["", "   ", None, {}, "{}"])
def test_no_arguments_are_an_empty_object(args: object):
    assert _arguments(args) == "{}"


def test_arguments_that_were_cut_off_parse_and_are_still_readable_in_the_log():
    log = log_of([call("call_incomplete", args='{"value": '), result("call_incomplete", "not executed")])
    assert log[0].tool_calls[0].args == '{"value": '
    arguments = json.loads(to_openai(log)[0]["tool_calls"][0]["function"]["arguments"])
    assert arguments == {"unparsed_arguments": '{"value": '}


def test_arguments_that_are_no_object_are_wrapped_in_one():
    assert _arguments([1, 2]) == '{"arguments":[1,2]}'
    assert _arguments("[1, 2]") == '{"unparsed_arguments":"[1, 2]"}'


def test_values_that_json_cannot_hold_have_one_form_each():
    args = {
        "nan": float("nan"),
        "infinite": [float("inf"), float("-inf")],
        "at": dt.datetime(2026, 5, 1, tzinfo=dt.UTC),
        "day": dt.date(2026, 5, 1),
        "took": dt.timedelta(hours=1),
        "price": Decimal("1.10"),
        "id": UUID(int=7),
        "bytes": b"hi",
        "set": {3, 1, 2},
        "pair": (1, 2),
        "pattern": re.compile("a+"),
        7: "seven",
        "big": 10**30,
    }
    assert json.loads(_arguments(args)) == {
        "7": "seven",
        "at": "2026-05-01T00:00:00+00:00",
        "big": 10**30,
        "bytes": "aGk=",
        "day": "2026-05-01",
        "id": "00000000-0000-0000-0000-000000000007",
        "infinite": ["Infinity", "-Infinity"],
        "nan": "NaN",
        "pair": [1, 2],
        "pattern": "a+",
        "price": "1.10",
        "set": [1, 2, 3],
        "took": "P0DT01H00M00S",
    }


def test_the_order_of_keys_does_not_change_the_bytes():
    assert _arguments({"a": {"x": 1, "y": 2}, "b": 1}) == _arguments({"b": 1, "a": {"y": 2, "x": 1}})


def test_ids_are_kept_up_to_forty_characters_and_shortened_beyond():
    kept, long = "functions.write:0", "x" * 41
    rendered = to_openai(log_of([call(kept, "y" * 40, long), result(long)]))
    ids = [made["id"] for made in rendered[0]["tool_calls"]]
    assert ids[:2] == [kept, "y" * 40]
    assert len(ids[2]) == 40 and ids[2] != long[:40]
    assert [message["tool_call_id"] for message in rendered[1:]] == ids
    check_openai(rendered)


def test_names_that_would_be_refused_become_legal_and_stay_apart():
    rendered = to_openai(log_of([{"role": "user", "content": "hi", "name": n} for n in ("Anna Ö", "Anna Ü")]))
    names = [message["name"] for message in rendered]
    assert len(set(names)) == 2 and all(name.startswith("Anna__-") for name in names)
    check_openai(rendered)
    assert to_openai(log_of([{"role": "user", "content": "hi", "name": "anna"}]))[0]["name"] == "anna"


def test_a_users_image_and_file_are_sent_and_what_cannot_be_is_noted():
    rendered = to_openai(
        log_of(
            [
                {
                    "role": "user",
                    "content": "look",
                    "parts": [
                        {"type": "image", "url": "https://example.org/a.png"},
                        {"type": "image", "base64": base64.b64decode(PNG), "mime_type": "image/png"},
                        {
                            "type": "file",
                            "base64": PDF,
                            "mime_type": "application/pdf",
                            "filename": "a.pdf",
                        },
                        {"type": "audio", "base64": "aGk=", "mime_type": "audio/mpeg"},
                        {"type": "file", "url": "https://example.org/b.pdf", "name": "b.pdf"},
                        {"type": "weather_card"},
                    ],
                }
            ]
        )
    )
    assert rendered[0]["content"] == [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
        {"type": "file", "file": {"file_data": f"data:application/pdf;base64,{PDF}", "filename": "a.pdf"}},
        {"type": "input_audio", "input_audio": {"data": "aGk=", "format": "mp3"}},
        {"type": "text", "text": "[file: b.pdf]"},
        {"type": "text", "text": "[weather_card]"},
    ]
    check_openai(rendered)


def test_thinking_is_left_out_without_failing():
    parts = [
        {"type": "thinking", "thinking": "let me see", "signature": "EqQB"},
        {"type": "text", "text": "I look it up"},
        {"type": "tool_use", "id": "t1", "name": "lookup", "input": {"q": 1}},
    ]
    rendered = to_openai(log_of([{"role": "assistant", "parts": parts}, result("t1")]))
    assert rendered[0]["content"] == "I look it up"
    assert rendered[0]["tool_calls"][0]["id"] == "t1"
    check_openai(rendered)


def test_system_messages_keep_their_place():
    log = log_of([("system", "s1"), ("user", "u"), ("assistant", "a"), ("system", "s2"), ("user", "u2")])
    assert [(m["role"], m["content"]) for m in to_openai(log)] == [(m.role, m.content) for m in log]


def test_an_empty_log_renders_as_nothing():
    assert to_openai([]) == []
