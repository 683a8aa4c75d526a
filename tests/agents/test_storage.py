"""``self.storage``: the private key-value store of an actor, inside the turn."""

import datetime as dt
from decimal import Decimal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agents.exceptions import (
    CodecError,
    LimitError,
    ReadOnlyTurnError,
    StepWriteError,
    StorageError,
    TurnLostError,
)
from agents.models import Actor, StoredValue
from agents.storage import MAX_LISTED
from agents.testing import drain
from tests.agents.sql.turns import Desk, in_read, in_turn

pytestmark = pytest.mark.django_db(transaction=True)


def put(name, values):
    async def body(agent):
        await agent.storage.put_many(values)

    in_turn(name, body)


def listed(name, read=in_read, **how):
    async def body(agent):
        return list(await agent.storage.list(**how))

    return read(name, body)


def test_a_value_comes_back_as_the_type_that_went_in_now_and_later():
    values = {
        "none": None,
        "text": "Zürich 🙂",
        "number": 2**70,
        "float": 0.1,
        "moment": dt.datetime(2026, 1, 2, tzinfo=dt.UTC),
        "money": Decimal("1.10"),
        "bytes": b"\x00\xff",
        "set": {1, 2},
        "nested": {"a": [1, {"b": (2, None)}]},
        "like a tag": {"$date": "2026-01-01"},
    }

    async def write(agent):
        for key, value in values.items():
            await agent.storage.put(key, value)
        return {key: await agent.storage.get(key) for key in values}

    async def read(agent):
        return await agent.storage.get_many(values)

    assert in_turn("a", write) == values
    assert in_turn("a", read) == values
    assert in_read("a", read) == values


def test_a_key_that_is_not_there():
    async def body(agent):
        await agent.storage.put("nothing", None)
        return [
            await agent.storage.get("x"),
            await agent.storage.get("x", 7),
            await agent.storage.get("nothing", 7),
            await agent.storage.get_many(["x", "nothing"]),
            await agent.storage.delete("x"),
            await agent.storage.delete("nothing"),
            await agent.storage.delete("nothing"),
        ]

    assert in_turn("a", body) == [None, 7, None, {"nothing": None}, False, True, False]


def test_it_is_part_of_the_turn():
    put("a", {"k": 1})

    async def fails(agent):
        await agent.storage.put("k", 2)
        await agent.storage.put("new", 2)
        await agent.storage.delete_all()
        raise ZeroDivisionError

    async def lost(agent):
        await agent.storage.put("k", 3)
        await Actor.objects.filter(name="a").aupdate(version=9)

    with pytest.raises(ZeroDivisionError):
        in_turn("a", fails)
    with pytest.raises(TurnLostError):
        in_turn("a", lost)
    assert list(StoredValue.objects.values_list("key", "value")) == [("k", 1)]


def test_reads_do_not_write_and_steps_neither():
    async def reading(agent):
        for write in (
            lambda: agent.storage.put("k", 1),
            lambda: agent.storage.put_many({"k": 1}),
            lambda: agent.storage.delete("k"),
            lambda: agent.storage.delete_all(),
        ):
            with pytest.raises(ReadOnlyTurnError):
                await write()

    in_read("a", reading)

    class Stepper(Desk):
        kind = "test-storage-step"

        async def work(self):
            with pytest.raises(StepWriteError):
                await self.step("x", lambda: self.storage.put("k", 1))
            await self.storage.put("done", True)

        async def done(self):
            return await self.storage.list()

    Stepper.named("s").sync.tell("work")
    drain()
    assert Stepper.named("s").sync.done() == {"done": True}


def test_a_checkpoint_keeps_what_was_written_so_far():
    put("a", {"old": 1, "gone": 1})

    async def body(agent):
        await agent.storage.put("k", 1)
        await agent.storage.delete("gone")
        await agent.checkpoint()
        assert await agent.storage.list() == {"k": 1, "old": 1}
        await agent.storage.delete_all()
        await agent.storage.put("after", 2)
        assert await agent.storage.list() == {"after": 2}
        await agent.checkpoint()
        assert await agent.storage.list() == {"after": 2}
        await agent.storage.put("k", 3)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        in_turn("a", body)
    assert listed("a") == ["after"]


def test_delete_all_leaves_the_rest_of_the_actor():
    async def body(agent):
        await agent.storage.put("k", 1)
        await agent.set_state({"x": 1})
        await agent.schedule(3600, "run", id="later")

    in_turn("a", body)

    async def clear(agent):
        await agent.storage.delete_all()
        assert await agent.storage.get("k") is None
        assert await agent.storage.list() == {}
        return await agent.get_state(), len(await agent.list_schedules())

    assert in_turn("a", clear) == ({"x": 1}, 1)
    assert not StoredValue.objects.exists()


def test_actors_do_not_see_each_other():
    put("a", {"k": 1})
    put("b", {"k": 2})

    async def clear(agent):
        await agent.storage.delete_all()

    in_turn("a", clear)
    assert list(StoredValue.objects.values_list("actor__name", "value")) == [("b", 2)]


# Listing


KEYS = [
    "",
    "!",
    "A",
    "Z",
    "a",
    "a!",
    "aa",
    "ab",
    "b",
    "ba",
    "z",
    "~",
    "ä",
    "é",
    "中",
    "\uffff",
    "🙂",
    "\U0010ffff",
][1:]


@pytest.mark.parametrize("buffered", [False, True])
def test_keys_are_listed_in_the_order_of_their_characters(buffered):
    async def body(agent):
        await agent.storage.put_many({key: i for i, key in enumerate(reversed(KEYS))})
        if buffered:
            return list(await agent.storage.list()), list(await agent.storage.list(reverse=True))
        return None

    result = in_turn("a", body)
    both = result or (listed("a"), listed("a", reverse=True))
    assert both == (sorted(KEYS), sorted(KEYS, reverse=True))
    assert sorted(KEYS) == sorted(KEYS, key=str.encode)


@pytest.mark.parametrize("read", [in_turn, in_read])
def test_bounds_of_a_listing(read):
    put("a", dict.fromkeys(["a1", "a2", "a3", "b1", "b2", "c"], 0))
    for how, keys in (
        ({"prefix": "a"}, ["a1", "a2", "a3"]),
        ({"prefix": "b", "reverse": True}, ["b2", "b1"]),
        ({"start": "a2"}, ["a2", "a3", "b1", "b2", "c"]),
        ({"start_after": "a2"}, ["a3", "b1", "b2", "c"]),
        ({"end": "b1"}, ["a1", "a2", "a3"]),
        ({"start": "a2", "end": "b2"}, ["a2", "a3", "b1"]),
        ({"start": "a2", "end": "b2", "reverse": True}, ["b1", "a3", "a2"]),
        ({"prefix": "a", "start_after": "a1", "limit": 1}, ["a2"]),
        ({"prefix": "a", "end": "b"}, ["a1", "a2", "a3"]),
        ({"limit": 2}, ["a1", "a2"]),
        ({"limit": 2, "reverse": True}, ["c", "b2"]),
        ({"start": "x"}, []),
        ({"start": "b", "end": "a"}, []),
        ({"prefix": "zz"}, []),
    ):
        assert listed("a", read, **how) == keys, how


def test_a_listing_gives_128_unless_told_and_at_most_1000():
    put("a", {f"{i:04}": i for i in range(1000)})
    put("a", {"x": 1})
    assert len(listed("a")) == 128
    assert len(listed("a", limit=MAX_LISTED)) == 1000
    for limit in (0, -1, 1001, "5", 2.0, True, None):
        with pytest.raises(StorageError):
            listed("a", limit=limit)
    with pytest.raises(StorageError):
        listed("a", start="a", start_after="a")
    for wrong in ({"prefix": 1}, {"start": b"a"}, {"end": 3}):
        with pytest.raises(StorageError):
            listed("a", **wrong)


def test_a_listing_sees_what_the_turn_wrote_and_deleted():
    put("a", {f"k{i}": i for i in range(10)})

    async def body(agent):
        storage = agent.storage
        await storage.put_many({"k1": "new", "k55": 55})
        await storage.delete_many(["k0", "k2", "nothing"])
        assert await storage.list(limit=3) == {"k1": "new", "k3": 3, "k4": 4}
        assert list(await storage.list(limit=2, reverse=True)) == ["k9", "k8"]
        assert list(await storage.list(start="k5", end="k6")) == ["k5", "k55"]
        await storage.delete_many([f"k{i}" for i in range(3, 9)])
        return await storage.list(limit=2)

    assert in_turn("a", body) == {"k1": "new", "k55": 55}


# Limits


@pytest.mark.parametrize(
    "key", ["", "x" * 513, "__agents_", "__agents_x", "__telnyx_meta", 1, None, b"k", ("k",)]
)
def test_what_is_no_key(key):
    async def body(agent):
        for call in (
            lambda: agent.storage.put(key, 1),
            lambda: agent.storage.get(key),
            lambda: agent.storage.delete(key),
            lambda: agent.storage.put_many({"fine": 1, key: 1}),
        ):
            with pytest.raises(StorageError):
                await call()

    in_turn("a", body)
    assert not StoredValue.objects.exists()


def test_a_key_has_512_characters_of_whatever_length():
    keys = ["x" * 512, "🙂" * 512, "__agents"]
    put("a", dict.fromkeys(keys, 1))
    assert listed("a") == sorted(keys)


def test_a_value_has_128_kib():
    most = 128 * 1024 - 2

    async def body(agent):
        await agent.storage.put("k", "x" * most)
        with pytest.raises(LimitError) as caught:
            await agent.storage.put("k", "x" * (most + 1))
        assert (caught.value.limit, caught.value.actual) == ("MAX_STORAGE_VALUE_BYTES", most + 3)
        with pytest.raises(LimitError):
            await agent.storage.put_many({"fine": 1, "k": "x" * (most + 1)})
        with pytest.raises(CodecError):
            await agent.storage.put_many({"fine": 1, "k": object()})
        return len(await agent.storage.get("k")), await agent.storage.get("fine")

    assert in_turn("a", body) == (most, None)


def test_bulk_calls_take_1000_keys():
    async def body(agent):
        keys = [f"k{i}" for i in range(1001)]
        for call in (
            lambda: agent.storage.put_many(dict.fromkeys(keys, 1)),
            lambda: agent.storage.get_many(keys),
            lambda: agent.storage.delete_many(keys),
        ):
            with pytest.raises(StorageError):
                await call()
        await agent.storage.put_many(dict.fromkeys(keys[:1000], 1))
        for wrong in ("k1", b"k1"):
            with pytest.raises(StorageError):
                await agent.storage.get_many(wrong)
        with pytest.raises(StorageError):
            await agent.storage.put_many([("k", 1)])
        assert len(await agent.storage.get_many(keys[:1000])) == 1000

    async def clear(agent):
        return await agent.storage.delete_many([f"k{i}" for i in range(1000)])

    in_turn("a", body)
    assert in_turn("a", clear) == 1000
    assert not StoredValue.objects.exists()


def test_text_that_no_database_keeps_is_cleaned_in_keys_too():
    put("a", {"a\x00b": 1, "\ud800": 2})
    assert listed("a") == ["a\ufffdb", "\ufffd"]

    async def body(agent):
        return await agent.storage.get("a\x00b")

    assert in_turn("a", body) == 1


# Against a dict


keys = st.text(st.sampled_from("ab🙂\uffff"), min_size=1, max_size=3)
bound = st.none() | keys
actions = st.one_of(
    st.tuples(st.just("put"), keys, st.integers(-9, 9)),
    st.tuples(st.just("delete"), keys),
    st.tuples(st.just("delete_all")),
    st.tuples(st.just("checkpoint")),
    st.tuples(st.just("get"), keys),
    st.tuples(st.just("list"), keys | st.just(""), bound, bound, st.booleans(), st.integers(1, 5)),
)


@given(turns=st.lists(st.tuples(st.lists(actions, max_size=12), st.booleans()), max_size=4))
@settings(
    max_examples=40, deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
def test_it_behaves_like_a_dict_of_which_failed_turns_take_nothing(turns):
    Actor.objects.all().delete()
    committed: dict[str, int] = {}

    for script, fails in turns:
        kept = [dict(committed)]

        async def body(agent, script=script, fails=fails, kept=kept):
            now = dict(kept[0])
            for verb, *args in script:
                if verb == "put":
                    await agent.storage.put(*args)
                    now[args[0]] = args[1]
                elif verb == "delete":
                    assert await agent.storage.delete(args[0]) == (args[0] in now)
                    now.pop(args[0], None)
                elif verb == "delete_all":
                    await agent.storage.delete_all()
                    now.clear()
                elif verb == "checkpoint":
                    await agent.checkpoint()
                    kept[0] = dict(now)
                elif verb == "get":
                    assert await agent.storage.get(args[0]) == now.get(args[0])
                else:
                    prefix, start, end, reverse, limit = args
                    expected = sorted(
                        (
                            k
                            for k in now
                            if k.startswith(prefix) and k >= (start or "") and (end is None or k < end)
                        ),
                        reverse=reverse,
                    )[:limit]
                    found = await agent.storage.list(
                        prefix, start=start, end=end, reverse=reverse, limit=limit
                    )
                    assert list(found.items()) == [(k, now[k]) for k in expected]
            if fails:
                raise ZeroDivisionError
            kept[0] = now

        try:
            in_turn("a", body)
        except ZeroDivisionError:
            pass
        committed = kept[0]
        assert dict(StoredValue.objects.values_list("key", "value")) == committed
