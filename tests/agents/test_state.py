"""The state of an actor inside a turn: what was read and written, and what the commit will say of it."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents import codec, past
from agents.codec import decode, encode
from agents.exceptions import CodecError, LimitError, ReadOnlyTurnError, TurnEndedError
from agents.merge_patch import merge_patch
from agents.models import Actor
from agents.state import State
from agents.turn import ActorRow, Identity, Reader, Turn

NOW = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)


class NoReader(Reader):
    """The state comes with the claim: it never reads."""

    async def run(self, fn, *args):
        raise AssertionError("the state is in the actor's row")


def turn_of(state: Any = None, *, read_only: bool = False) -> Turn:
    tree = None if state is None else encode(state)
    row = ActorRow(7, "support", "alice", 3, 0, 0, tree, True, NOW)
    return Turn(row, Identity("call", "test"), NoReader(), read_only=read_only)


def state_of(state: Any = None, *, initial: Any = dict, changed: Any = None, share: bool = False) -> State:
    return State(turn_of(state), initial, changed, share)


def events(state: State) -> list[Any]:
    return [row["payload"] for _, row in state.turn.collect().inserts if row.get("type") == "state"]


# Reading


async def test_the_initial_state_answers_until_the_first_write_and_reading_stores_nothing():
    state = state_of(initial=lambda: {"status": "idle"})
    assert await state.get() == {"status": "idle"}
    assert not state.dirty
    assert state.tree is None
    assert state.change is None
    assert not state.turn.wrote
    assert await state.set({"n": 1}) == {"n": 1, "status": "idle"}
    assert state.tree == {"n": 1, "status": "idle"}


async def test_the_initial_state_is_asked_once_a_turn_and_not_at_all_after_the_first_write():
    asked = []

    def initial() -> dict[str, Any]:
        asked.append(1)
        return {"id": len(asked)}

    state = state_of(initial=initial)
    assert await state.get() == await state.get() == {"id": 1}
    assert await state.set({"a": 1}) == {"a": 1, "id": 1}
    assert len(asked) == 1
    stored = state_of({}, initial=initial)
    assert await stored.get() == {}
    assert len(asked) == 1


async def test_what_was_committed_comes_back_as_the_types_that_went_in():
    at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    state = state_of({"at": at, "tags": {"b", "a"}, "n": 10**30})
    assert await state.get() == {"at": at, "n": 10**30, "tags": {"a", "b"}}


async def test_every_value_given_out_is_a_copy():
    given_patch = {"list": [1], "inner": {"a": 1}}
    seen: list[dict[str, Any]] = []

    async def changed(next: dict[str, Any], prev: dict[str, Any]) -> None:
        next["list"].append("hook")
        prev["old"].append("hook")
        seen.append(next)

    state = state_of({"old": [0]}, changed=changed)
    returned = await state.set(given_patch)
    returned["list"].append("returned")
    given_patch["list"].append("given")  # type: ignore[attr-defined]
    (await state.get())["inner"]["a"] = 2
    assert await state.get() == {"inner": {"a": 1}, "list": [1], "old": [0]}
    assert state.change == {"patch": {"inner": {"a": 1}, "list": [1]}}
    next_state: dict[str, Any] = {"list": [1]}
    state = state_of({"old": [0]}, changed=changed)
    returned = await state.replace(next_state)
    returned["list"].append(2)
    next_state["list"].append(3)
    assert await state.get() == {"list": [1]}


# Writing


async def test_a_patch_merges_recursively_and_none_deletes():
    state = state_of({"title": "Goodbye!", "author": {"given": "J", "family": "D"}, "tags": ["a", "b"]})
    merged = await state.set(
        {"title": "Hello!", "author": {"family": None}, "tags": [None], "gone": {"x": None}}
    )
    assert merged == {"author": {"given": "J"}, "gone": {}, "tags": [None], "title": "Hello!"}
    assert await state.get() == merged


async def test_values_that_json_has_no_word_for_are_replaced_whole():
    state = state_of({"due": dt.date(2026, 1, 1), "seen": {1, 2}, "by": {1: "x", 2: "y"}})
    assert await state.set({"due": dt.timedelta(days=1), "seen": {3}, "by": {1: None, "n": 1}}) == {
        "by": {"n": 1, 2: "y"},
        "due": dt.timedelta(days=1),
        "seen": {3},
    }


async def test_replacing_forgets_what_was_there_and_may_store_none():
    state = state_of({"a": 1})
    assert await state.replace({"b": None}) == {"b": None}
    assert await state.set({"c": 1}) == {"b": None, "c": 1}
    assert await state.replace({}) == {}
    assert state.tree == {}
    assert await state.get() == {}


async def test_what_is_buffered_looks_as_a_later_turn_will_read_it():
    state = state_of()
    returned = await state.set({"z": (1, 2), "a\0": "x\ud83d", "f": -0.0})
    assert list(returned) == ["a\ufffd", "f", "z"]
    assert returned == {"a\ufffd": "x\ufffd", "f": 0.0, "z": (1, 2)}
    assert codec.dumps(state.tree) == codec.dumps(encode(await state.get()))


@pytest.mark.django_db
@settings(max_examples=30, deadline=None)
@given(
    st.dictionaries(st.text(max_size=3), st.floats() | st.sets(st.text(max_size=2)) | st.text(), max_size=4)
)
def test_the_next_turn_reads_from_the_database_what_this_one_reads_from_its_buffer(values):
    state = state_of()
    here = run(state.replace(values))
    actor = Actor.objects.create(kind="state", name=uuid.uuid4().hex, state=state.tree)
    actor.refresh_from_db()
    row = ActorRow(actor.pk, "state", actor.name, 1, 0, 0, actor.state, True, NOW)
    there = run(State(Turn(row, Identity("call", "test"), NoReader()), dict, None, False).get())
    assert codec.dumps(encode(here)) == codec.dumps(encode(there))
    assert list(here) == list(there)


def run(coroutine: Any) -> Any:
    """The result of a coroutine that waits for nothing."""
    with pytest.raises(StopIteration) as stopped:
        coroutine.send(None)
    return stopped.value.value


async def test_the_hook_sees_both_states_after_each_write_inside_the_turn():
    calls = []

    async def changed(next: dict[str, Any], prev: dict[str, Any]) -> None:
        calls.append((next, prev, await state.get()))

    state = state_of(initial=lambda: {"n": 0}, changed=changed)
    await state.set({"n": 1})
    await state.replace({"m": 2})
    await state.get()
    assert calls == [({"n": 1}, {"n": 0}, {"n": 1}), ({"m": 2}, {"n": 1}, {"m": 2})]


async def test_a_hook_may_write_too():
    async def changed(next: dict[str, Any], prev: dict[str, Any]) -> None:
        if next["n"] != prev["n"]:
            await state.set({"changes": prev.get("changes", 0) + 1})

    state = state_of({"n": 0}, changed=changed, share=True)
    assert await state.set({"n": 1}) == {"n": 1}
    assert await state.get() == {"changes": 1, "n": 1}
    assert state.change == {"patch": {"changes": 1, "n": 1}}
    assert events(state) == [{"patch": {"n": 1}}, {"patch": {"changes": 1}}]


# What is refused


@pytest.mark.parametrize("value", [None, [("a", 1)], "a", 5, ("a",)])
async def test_a_patch_or_a_state_that_is_no_dict_is_refused_by_its_type(value):
    state = state_of({"a": 1})
    for verb in (state.set, state.replace):
        with pytest.raises(TypeError, match=type(value).__name__) as caught:
            await verb(value)
        assert isinstance(caught.value, CodecError)
    assert await state.get() == {"a": 1}
    assert not state.dirty


async def test_an_initial_state_that_is_no_dict_is_refused():
    with pytest.raises(CodecError, match="the initial state is a dict, got list"):
        await state_of(initial=list).get()


async def test_a_value_that_cannot_be_stored_changes_nothing_and_is_named():
    calls = []

    async def changed(next: dict[str, Any], prev: dict[str, Any]) -> None:
        calls.append(next)

    state = state_of({"a": 1}, changed=changed, share=True)
    await state.set({"b": {"at": dt.datetime(2026, 1, 1), "n": b"x", "s": {1}, "t": (1,), "d": {1: "a"}}})
    before = state.tree
    for verb in (state.set, state.replace):
        with pytest.raises(CodecError) as caught:
            await verb({"ok": 1, "b": {"items": [Actor(kind="x")]}})
        assert caught.value.path == "$.b.items[0]"
    assert state.tree == before
    assert len(calls) == len(events(state)) == 1
    assert (await state.set({"next": "good"}))["next"] == "good"


async def test_a_state_ends_at_its_limit(settings):
    settings.AGENTS = {**settings.AGENTS, "MAX_STATE_BYTES": 20}
    state = state_of({"k": 1}, share=True)
    assert await state.replace({"a": "x" * 12}) == {"a": "x" * 12}  # {"a":"xxxxxxxxxxxx"}: 20 bytes
    assert codec.size(state.tree) == 20
    for verb, value in (
        (state.set, {"a": "x" * 13}),
        (state.replace, {"a": "é" * 6 + "x"}),
        (state.set, {"b": 1}),
    ):
        with pytest.raises(LimitError) as caught:
            await verb(value)
        assert caught.value.limit == "MAX_STATE_BYTES"
        assert caught.value.maximum == 20
        assert caught.value.actual > 20
    assert await state.get() == {"a": "x" * 12}
    assert len(events(state)) == 1
    assert await state.set({"a": None}) == {}


async def test_a_read_cannot_write():
    state = State(turn_of({"a": 1}, read_only=True), dict, None, False)
    for verb in (state.set, state.replace):
        with pytest.raises(ReadOnlyTurnError):
            await verb({"a": 2})
    assert await state.get() == {"a": 1}


async def test_nothing_is_written_after_the_turn():
    state = state_of({"a": 1})
    state.turn.ended = True
    with pytest.raises(TurnEndedError):
        await state.set({"a": 2})
    assert await state.get() == {"a": 1}


# Events


async def test_only_a_shared_state_makes_events():
    for share, expected in ((False, []), (True, [{"patch": {"a": {"b": None}}}, {"snapshot": {"c": 1}}])):
        state = state_of({"a": {"b": 1}}, share=share)
        await state.set({"a": {"b": None}})
        await state.replace({"c": 1})
        assert events(state) == expected


async def test_a_client_that_merges_patches_as_they_come_always_has_the_state():
    """Clients merge plain trees: a tag over another tag must come as a snapshot, not as a patch."""
    day = dt.date(2026, 1, 1)
    steps: list[str] = []
    state = state_of({"due": day, "a": {"x": 1}}, share=True)
    view = state.tree
    for patch in (
        {"due": day + dt.timedelta(1)},
        {"due": dt.timedelta(1)},
        {"due": {"plain": 1}},
        {"due": day},
        {"a": {"x": {1, 2}}},
        {"a": {"x": {"$set": 1}}},
        {"a": {1: 2}},
        {"due": None},
    ):
        await state.set(patch)
        event = events(state)[-1]
        steps.append(*event)
        view = event["snapshot"] if "snapshot" in event else merge_patch(view, event["patch"])
        assert view == state.tree
    assert steps == ["patch", "snapshot", "snapshot", "snapshot", "patch", "snapshot", "snapshot", "patch"]


# What the commit takes


async def test_the_change_is_one_patch_for_several_writes():
    state = state_of({"a": {"b": 1}, "c": 1})
    await state.set({"a": {"b": 2}})
    assert state.change == {"patch": {"a": {"b": 2}}}
    await state.set({"a": {"d": 3}, "c": None})
    assert state.change == {"patch": {"a": {"b": 2, "d": 3}, "c": None}}
    await state.replace({"e": 1})
    await state.set({"f": 2})
    assert state.change == {"replace": {"e": 1, "f": 2}}


async def test_the_change_of_writes_that_no_patch_says_for_every_state_says_it_for_this_one():
    state = state_of({"a": {"old": 1}, "k": 1})
    await state.set({"a": None})
    await state.set({"a": {"new": 2}})
    assert state.change == {"patch": {"a": {"new": 2, "old": None}}}
    # With a null in a new dict no patch is left.
    state = state_of({"a": {"old": 1}})
    await state.set({"a": None})
    await state.set({"a": {"in": {"list": [None]}}})
    assert state.change == {"patch": {"a": {"in": {"list": [None]}, "old": None}}}


patches = st.dictionaries(
    st.sampled_from("ab"),
    st.recursive(
        st.none() | st.integers(0, 1) | st.just(dt.date(2026, 1, 1)) | st.just((None,)),
        lambda inner: st.dictionaries(st.sampled_from("ab") | st.just(1), inner, max_size=2),
        max_leaves=4,
    ),
    max_size=2,
)


@settings(max_examples=200, deadline=None)
@given(st.none() | patches, st.lists(st.tuples(st.booleans(), patches), max_size=4))
def test_the_recorded_change_leads_from_one_commit_to_the_next(before, writes):
    state = state_of(before, initial=lambda: {"a": {"b": 0}})
    start = run(state.get())
    for replace, value in writes:
        run(state.replace(value) if replace else state.set(value))
    change = state.change
    assert (change is not None) == state.dirty == bool(writes)
    if change and "patch" in change:
        assert encode(merge_patch(start, decode(change["patch"]))) == state.tree
    elif change:
        assert change == {"replace": state.tree}
    if state.undo:
        assert past.before(state.tree, state.undo) == (None if before is None else encode(before))


async def test_after_a_commit_the_change_starts_anew():
    state = state_of({"a": 1})
    await state.set({"b": 2})
    state.turn.collect()
    state.committed()
    assert not state.dirty
    assert state.change is None
    assert await state.get() == {"a": 1, "b": 2}
    await state.set({"b": None})
    assert state.dirty
    assert state.change == {"patch": {"b": None}}
    assert state.tree == {"a": 1}


async def test_what_is_written_while_a_checkpoint_is_on_its_way_belongs_to_the_next_commit():
    state = state_of({"a": {"old": 1}})
    await state.set({"b": 2})
    state.turn.collect()
    await state.set({"a": 5})
    state.committed()
    assert state.dirty
    assert state.change == {"patch": {"a": 5}}
    await state.set({"a": {"new": 1}})
    assert state.change == {"patch": {"a": {"new": 1, "old": None}}}
    assert state.tree == {"a": {"new": 1}, "b": 2}
    state.turn.collect()
    state.committed()
    assert not state.dirty
