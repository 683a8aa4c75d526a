"""Frames: what a client's text becomes, and what is refused, without a server."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.exceptions import FrameError
from agents.sockets import frames
from agents.sockets.frames import Attach, Call, Ping, Say, Seen, Stop


def parse(**fields: Any) -> frames.Frame:
    return frames.parse(json.dumps({"v": 1, **fields}))


def refused(text: str) -> tuple[str, str | None]:
    """The code of the error, and the id that it names."""
    with pytest.raises(FrameError) as caught:
        frames.parse(text)
    return caught.value.code, caught.value.id


def test_each_kind_of_frame_becomes_what_it_says() -> None:
    turn = uuid.uuid4()
    assert parse(kind="attach") == Attach()
    assert parse(kind="attach", token="t", cursor=0, streams=["state"]) == Attach(
        "t", 0, frozenset({"state"})
    )
    assert parse(kind="attach", streams=[]) == Attach(streams=frozenset())
    assert parse(kind="say", id="1", text="hi", metadata={"a": 1}) == Say("1", "hi", {"a": 1})
    assert parse(kind="call", id="1", method="m", args=[1], kwargs={"a": None}) == Call(
        "1", "m", (1,), {"a": None}
    )
    assert parse(kind="stop") == Stop()
    assert parse(kind="stop", id="1", turn=str(turn)) == Stop("1", turn)
    assert parse(kind="seen", cursor=2**63 - 1) == Seen(2**63 - 1)
    assert parse(kind="ping", id="p") == Ping("p")


@pytest.mark.parametrize("text", ["hello", "{bad json", "", "\0", "[]", "null", "1", '"text"', "[" * 100_000])
def test_what_is_no_json_object_is_a_bad_frame(text: str) -> None:
    assert refused(text) == ("bad_frame", None)


@pytest.mark.parametrize("version", [0, 2, "1", None, True, 1.0, []])
def test_another_version_is_refused(version: Any) -> None:
    assert refused(json.dumps({"v": version, "kind": "ping", "id": "7"})) == ("version_mismatch", "7")


@pytest.mark.parametrize("kind", ["", "Say", "hello", None, 1, [], {}])
def test_a_kind_that_there_is_not_is_refused(kind: Any) -> None:
    assert refused(json.dumps({"v": 1, "kind": kind})) == ("unknown_frame", None)


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "say", "text": "no id"},
        {"kind": "say", "id": "", "text": "x"},
        {"kind": "say", "id": 1, "text": "x"},
        {"kind": "say", "id": "1"},
        {"kind": "say", "id": "1", "text": ""},
        {"kind": "say", "id": "1", "text": " \n\t"},
        {"kind": "say", "id": "1", "text": 5},
        {"kind": "say", "id": "1", "text": "x", "metadata": []},
        {"kind": "call", "id": "1"},
        {"kind": "call", "id": "1", "method": ""},
        {"kind": "call", "id": "1", "method": "m" * 129},
        {"kind": "call", "id": "1", "method": "m", "args": {}},
        {"kind": "call", "id": "1", "method": "m", "kwargs": []},
        {"kind": "stop", "turn": "nonsense"},
        {"kind": "stop", "turn": 7},
        {"kind": "seen"},
        {"kind": "seen", "cursor": -1},
        {"kind": "seen", "cursor": 2**63},
        {"kind": "seen", "cursor": 1.5},
        {"kind": "seen", "cursor": True},
        {"kind": "seen", "cursor": "1"},
        {"kind": "attach", "token": ""},
        {"kind": "attach", "token": {}},
        {"kind": "attach", "cursor": "0"},
        {"kind": "attach", "streams": "messages"},
        {"kind": "attach", "streams": ["nonsense"]},
        {"kind": "attach", "streams": [[]]},
        {"kind": "ping", "id": {}},
    ],
)
def test_fields_that_are_missing_or_of_another_type_are_refused(fields: dict[str, Any]) -> None:
    assert refused(json.dumps({"v": 1, **fields}))[0] == "bad_frame"


def test_an_id_has_up_to_128_characters() -> None:
    assert parse(kind="ping", id="x" * 128) == Ping("x" * 128)
    assert refused(json.dumps({"v": 1, "kind": "ping", "id": "x" * 129})) == ("bad_frame", None)


def test_text_is_cleaned_and_tags_are_no_tags() -> None:
    assert parse(kind="say", id="1", text="a\0b\ud800") == Say("1", "a\ufffdb\ufffd")
    given = {"$date": "2026-11-30"}
    assert parse(kind="call", id="1", method="m", args=[given]) == Call("1", "m", (given,))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["v", "kind", "id", "text", "cursor", "args", "turn", "token", "streams"])
            | st.text(max_size=5),
            inner,
            max_size=6,
        )
    ),
    max_leaves=20,
)


@settings(max_examples=500, deadline=None)
@given(JSON.map(json.dumps) | st.text(max_size=200))
def test_whatever_comes_is_a_frame_or_a_frame_error(text: str) -> None:
    try:
        frames.parse(text)
    except FrameError as error:
        assert error.code in ("bad_frame", "version_mismatch", "unknown_frame")
        json.loads(frames.error(error.code, str(error), id=error.id))


def test_a_frame_of_the_servers_says_its_version_and_leaves_out_what_is_none() -> None:
    assert json.loads(frames.build("pong", id=None)) == {"v": 1, "kind": "pong"}
    assert json.loads(frames.result("1", None)) == {"v": 1, "kind": "result", "id": "1", "value": None}
    spliced = frames.splice("event", 7, type=b'"a"', payload=b"[1]")
    assert json.loads(spliced) == {"v": 1, "kind": "event", "cursor": 7, "type": "a", "payload": [1]}
