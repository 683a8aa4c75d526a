"""What the store writes as JSON comes back as the tree that went in, in every column that holds some."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agents import codec
from agents.models import Event, TurnRecord
from agents.store.requests import Committed
from agents.turn import EVENT
from agents.writes import Writes
from conversations.models import Message
from scheduler.models import Attempt, Task
from tests.agents.store.stage import MESSAGE, Stage

BIG = {f"k{n}": {"text": "x" * 100, "list": list(range(50)), "null": None} for n in range(300)}


def nested(depth: int) -> Any:
    tree: Any = "bottom"
    for at in range(depth):
        tree = {"": tree} if at % 2 else [tree]
    return tree


TREES = {
    "null": None,
    "null inside": {"a": None},
    "nulls in a list": [None, [None], {"a": [None]}],
    "empty key": {"": "", " ": {}},
    "empty things": {"list": [], "dict": {}, "text": ""},
    "false things": [False, 0, 0.0, "", None],
    "text": "héllo wörld 日本語 😋 \u2028 \u200f",
    "quotes": "it's \"quoted\" \\ and 'so on' $1 %s {now} $$ ; --",
    "newlines": "a\nb\r\nc\td\x0b\x1b\x7f",
    "what looks like an escape": "\\u0000 \\x00 \\n &lt;",
    "a replacement": "\ufffd",
    "keys": {"it's": 1, 'a"b': 2, "\\u0000": 3, "日本": 4, "a.b": 5, "$tag": 6, "null": None},
    "int64": [2**63 - 1, -(2**63), 0, -1],
    "floats": [0.1, 1e-4, 123456.789, -2.5, 1.0, 3.0, 9007199254740993.0, 1234567890123456.7],
    "numbers as keys": {"1": 1, "01": 2, "1.0": 3},
    "deep": nested(200),
    "big": BIG,
    "wide": list(range(10_000)),
    "a string of JSON": '{"a": null}',
    "true": True,
}


@pytest.mark.parametrize("others", [0, 2])
@pytest.mark.parametrize("name", TREES)
def test_a_tree_comes_back_from_every_column(stage: Stage, name: str, others: int) -> None:
    """Alone and in a batch: one row travels in another way than many."""
    tree = TREES[name]
    actor = stage.actor()
    stage.told(actor, tree)
    claimed = stage.drain(actor)
    assert claimed.task is not None
    assert same(claimed.task.payload, tree)
    assert same(Attempt.objects.get().payload, tree)
    writes = Writes()
    row = stage.message(actor, 1, claimed.actor.now)
    writes.insert(MESSAGE, row | {"parts": tree, "tool_calls": tree, "metadata": tree})
    event = {"actor_id": actor, "cursor": 1, "type": "note", "payload": tree}
    writes.insert(EVENT, event | {"created_at": claimed.actor.now})
    commit = stage.dirty(
        claimed, writes=writes, state=tree, state_changed=True, timers=[{"payload": tree}],
        task=stage.done(claimed.task),
    )  # fmt: skip
    commit.seq = commit.cursor = 1
    commit.record = {**(commit.record or {}), "state_change": tree}
    batch = [stage.dirty(stage.claim(stage.actor()), messages=1, events=1) for _ in range(others)]
    assert all(isinstance(r, Committed) for r in stage.store.commit([*batch, commit]))
    message = Message.objects.get(actor_id=actor)
    for stored in (
        message.parts, message.tool_calls, message.metadata, Event.objects.get(actor_id=actor).payload,
        TurnRecord.objects.get(actor_id=actor).state_change, Task.objects.get().payload,
        stage.row(actor).state,
    ):  # fmt: skip
        assert same(stored, tree)
    again = stage.drain(actor)
    assert same(again.actor.state, tree)
    assert again.task is not None and same(again.task.payload, tree)


@pytest.mark.parametrize("value", [1e-7, 0.1, 1e300, -0.0, math.inf, 2**63, 2**200, 1e16, 5e-324])
def test_numbers_of_any_size_come_back_as_the_codec_gave_them(stage: Stage, value: float) -> None:
    actor = stage.actor()
    tree = codec.encode({"n": value})
    stage.turn(actor, state=tree, state_changed=True)
    back = codec.decode(stage.claim(actor).actor.state)["n"]
    assert (back, type(back), math.copysign(1, back)) == (value, type(value), math.copysign(1, value))


@pytest.mark.parametrize("text", ["", "a\nb", "'; DROP TABLE x; --", "😋" * 5000, "\\u0000", "{}", "null"])
def test_text_comes_back_as_it_was(stage: Stage, text: str) -> None:
    actor = stage.actor()
    claimed = stage.claim(actor)
    writes = Writes()
    writes.insert(MESSAGE, stage.message(actor, 1, claimed.actor.now, text))
    commit = stage.dirty(claimed, writes=writes)
    commit.seq = 1
    stage.commit(commit)
    assert Message.objects.get().content == text


@pytest.mark.parametrize(
    "name", ["+15005550006", "José", "a b", "日本", "it's", 'say "x"', "\\", "%s $1", "x" * 255]
)
def test_an_actor_is_found_by_whatever_it_is_called(stage: Stage, name: str) -> None:
    actor = stage.actor(name)
    assert stage.store.find([("echo", name)]) == {("echo", name): actor}
    stage.told(actor, 1, key=name)
    assert stage.store.tell([stage.tell(actor, key=name)])[0] == [False]
    claimed = stage.drain(actor)
    assert claimed.actor.name == name


def test_a_null_payload_is_null_in_the_database(stage: Stage) -> None:
    """Not JSON's null: the ORM's own writes and queries say NULL."""
    actor = stage.actor()
    stage.told(actor, None)
    stage.turn(actor, state=None, state_changed=True)
    assert Task.objects.filter(payload__isnull=True).count() == 1
    assert stage.row(actor).state is None
    assert type(stage.row(actor)).objects.filter(pk=actor, state__isnull=True).exists()


trees = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**80), 2**80)
    | st.floats()
    | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


@settings(
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(value=trees)
def test_every_value_of_the_codec_survives_the_store(stage: Stage, value: Any) -> None:
    actor = stage.actor()
    tree = codec.encode(value)
    stage.turn(actor, state=tree, state_changed=True, tells=[stage.tell(actor, payload=tree)])
    claimed = stage.drain(actor)
    assert claimed.task is not None
    for back in (claimed.actor.state, claimed.task.payload):
        assert same(back, tree)
        assert repr(codec.decode(back)) == repr(codec.copy(value))


def same(a: Any, b: Any) -> bool:
    """Equal, and of the same types throughout: 1 is not True, and 1.0 is not 1."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)
