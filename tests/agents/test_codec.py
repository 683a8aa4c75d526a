"""The codec: what crosses a boundary comes back as the type that went in, in the database's own words."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import functools
import inspect
import json
import math
import re
import string
import sys
import uuid
from collections import OrderedDict, defaultdict
from decimal import Decimal
from typing import Any, NamedTuple, TypedDict
from zoneinfo import ZoneInfo

import orjson
import pytest
from django.db import models
from django.utils.safestring import SafeString
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agents import codec
from agents.codec import (
    MAX_DEPTH,
    clean_text,
    copy,
    decode,
    dumps,
    encode,
    loads,
    pack,
    parse,
    plain,
    size,
)
from agents.exceptions import CodecError
from agents.models import Actor

LONE = "\ud83d"
FFFD = "\ufffd"


def same(one: Any, other: Any) -> bool:
    """Equal, of the same types, members too, in the same order; NaN is itself and -0.0 is not 0.0."""
    if type(one) is not type(other):
        return False
    match one:
        case float():
            return repr(one) == repr(other)
        case dict():
            return (
                len(one) == len(other)
                and all(same(a, b) for a, b in zip(one, other, strict=True))
                and all(same(a, b) for a, b in zip(one.values(), other.values(), strict=True))
            )
        case list() | tuple():
            return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
        case set() | frozenset():
            return sorted(map(repr, one)) == sorted(map(repr, other))
        case dt.datetime():
            fields = one.replace(tzinfo=None), one.utcoffset(), one.fold
            return fields == (other.replace(tzinfo=None), other.utcoffset(), other.fold)
        case dt.time():
            return (one, one.fold, one.utcoffset()) == (other, other.fold, other.utcoffset())
        case Decimal():
            return str(one) == str(other)
    return bool(one == other)


texts = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=12)
dirty_texts = st.text(st.characters(exclude_categories=()) | st.sampled_from("\0\ud800\udfff"), max_size=8)
# What looks like the codec's own words has to survive as well.
keys = texts | texts.map("$".__add__) | st.sampled_from(["", "$", "$$", "$date", "$$date", "$set", "$dict"])
offsets = st.timedeltas(dt.timedelta(hours=-23), dt.timedelta(hours=23)).map(dt.timezone)
folds = st.integers(0, 1)
datetimes = st.builds(
    lambda moment, fold: moment.replace(fold=fold),
    st.datetimes(timezones=st.none() | offsets | st.sampled_from([ZoneInfo("America/New_York"), dt.UTC])),
    folds,
)
times = st.builds(
    lambda moment, fold: moment.replace(fold=fold), st.times(timezones=st.none() | offsets), folds
)
patterns = st.builds(
    re.compile,
    texts.map(re.escape),
    st.sampled_from([0, re.IGNORECASE, re.MULTILINE | re.DOTALL, re.ASCII | re.VERBOSE]),
) | st.builds(re.compile, st.binary(max_size=5).map(re.escape), st.sampled_from([0, re.IGNORECASE]))
plain_floats = st.floats(1e-4, 1e16, exclude_max=True) | st.just(0.0)
hashables = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | texts
    | st.binary(max_size=8)
    | datetimes
    | st.dates()
    | times
    | st.timedeltas()
    | st.decimals(allow_nan=False)
    | st.uuids()
    | patterns
    | st.lists(st.integers() | texts, max_size=3).map(tuple)
)
# == finds 1 and True and 1.0 the same: as keys or members one of them would be gone before encode saw it.
tagged = hashables | st.floats() | st.frozensets(texts | st.binary(max_size=3), max_size=3)
values = st.recursive(
    tagged | st.sets(texts, max_size=3) | st.sets(datetimes.filter(lambda moment: moment.tzinfo is None)),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(keys, inner, max_size=4)
        | st.dictionaries(st.integers() | texts, inner, max_size=3)
    ),
    max_leaves=12,
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)
thorough = settings(max_examples=300, deadline=None)


def sorted_keys(value: Any) -> Any:
    """The value as decode promises it: dicts with text keys in the order of their keys."""
    match value:
        case dict() if all(isinstance(key, str) for key in value):
            return {key: sorted_keys(value[key]) for key in sorted(value)}
        case dict():
            order = sorted(value, key=lambda key: dumps(encode(key)))
            return {key: sorted_keys(value[key]) for key in order}
        case list():
            return [sorted_keys(item) for item in value]
        case tuple():
            return tuple(sorted_keys(item) for item in value)
    return value


# Types


@thorough
@given(values)
def test_every_value_comes_back_as_what_it_was(value):
    assert same(copy(value), sorted_keys(value))
    assert same(decode(loads(dumps(encode(value)))), sorted_keys(value))


@thorough
@given(values)
def test_a_value_is_the_same_bytes_each_time_it_is_encoded(value):
    tree = encode(value)
    assert dumps(encode(decode(tree))) == dumps(tree) == dumps(encode(value))


@thorough
@given(values)
def test_what_is_packed_is_what_is_encoded_measured_and_decoded(value):
    packed, tree = pack(value), encode(value)
    assert same(packed.tree(), loads(dumps(tree)))
    assert packed.size == size(tree)
    assert same(packed.value(), decode(tree))
    assert packed.tagged or same(packed.tree(), packed.value())
    assert packed.tagged == codec.tagged(tree)


def test_what_is_packed_is_nobodys_to_change():
    given = {"items": [1]}
    packed = pack(given)
    given["items"].append(2)
    packed.value()["items"].append(3)
    assert packed.value() == packed.tree() == {"items": [1]}


def test_what_cannot_be_kept_cannot_be_packed():
    with pytest.raises(CodecError) as refused:
        pack({"a": [1, object()]})
    assert refused.value.path == "$.a[1]"


@thorough
@given(json_values)
def test_the_short_way_and_the_long_way_give_the_same_tree(value):
    assert same(encode(value), codec._encode(value, MAX_DEPTH))
    assert same(decode(encode(value)), codec._decode(encode(value)))
    assert same(plain(value), codec._plain(value, MAX_DEPTH))


@pytest.mark.django_db
@settings(max_examples=80, deadline=None)
@given(st.lists(values, max_size=5))
def test_the_database_keeps_a_tree_as_it_is(several):
    actor = Actor.objects.create(kind="codec", name=uuid.uuid4().hex, state=encode(several))
    actor.refresh_from_db()
    assert same(decode(actor.state), sorted_keys(several))
    assert dumps(encode(decode(actor.state))) == dumps(encode(several))


@pytest.mark.parametrize(
    "number",
    [
        -0.0,
        1e16,
        -1e16,
        9999999999999998.0,
        1e22,
        1.5e300,
        1e-4,
        9.9e-5,
        1e-7,
        5e-324,
        sys.float_info.max,
        1.0,
    ],
)
@pytest.mark.django_db
def test_a_float_at_the_edges_of_decimal_notation_stays_a_float_in_the_database(number):
    actor = Actor.objects.create(
        kind="codec", name=uuid.uuid4().hex, state=encode({"n": number, "m": -number})
    )
    actor.refresh_from_db()
    assert same(decode(actor.state), {"m": -number, "n": number})


def test_ordinary_floats_stay_plain_numbers():
    for number in (0.0, 1.0, -1.5, 0.1, 1e-4, -1e-4, 9999999999999998.0, -123.456):
        assert same(encode(number), number)
    for number in (-0.0, 1e16, 9.9e-5, math.inf, -math.inf, math.nan, 1e300):
        assert encode(number) == {"$float": repr(number)}


def test_integers_stay_plain_up_to_64_bits_and_come_back_at_any_size():
    for number in (2**63 - 1, -(2**63), 2**53, -(2**53) - 1):
        assert encode(number) == number
        assert encode([number]) == [number]
    assert encode(2**63) == {"$int": "0x8000000000000000"}
    assert encode([-(2**63) - 1]) == [{"$int": "-0x8000000000000001"}]
    # More digits than Python is willing to read or write in decimal.
    huge = 10**5000 + 7
    assert copy({"n": -huge}) == {"n": -huge}


def test_each_type_has_its_documented_form():
    moment = dt.datetime(2026, 11, 1, 1, 30, tzinfo=dt.timezone(dt.timedelta(hours=-5)))
    assert encode(moment) == {"$datetime": "2026-11-01T01:30:00-05:00"}
    assert encode(moment.replace(fold=1)) == {"$datetime": ["2026-11-01T01:30:00-05:00", 1]}
    assert encode(dt.date(2026, 2, 28)) == {"$date": "2026-02-28"}
    assert encode(dt.time(9, 5, fold=1)) == {"$time": ["09:05:00", 1]}
    assert encode(dt.timedelta(days=-1, seconds=2, microseconds=3)) == {"$timedelta": [-1, 2, 3]}
    assert encode(Decimal("1.50")) == {"$decimal": "1.50"}
    assert encode(uuid.UUID(int=7)) == {"$uuid": "00000000-0000-0000-0000-000000000007"}
    assert encode(b"\x00\xff") == {"$bytes": "AP8="}
    assert encode({3, 1, 2}) == {"$set": [1, 2, 3]}
    assert encode(frozenset("ba")) == {"$frozenset": ["a", "b"]}
    assert encode((1, [2])) == {"$tuple": [1, [2]]}
    assert encode(re.compile("a+", re.IGNORECASE)) == {"$pattern": ["a+", 34]}
    assert encode(re.compile(b"a")) == {"$pattern": [{"$bytes": "YQ=="}, 0]}
    assert encode({2: "b", 1: "a"}) == {"$dict": [[1, "a"], [2, "b"]]}


def test_decimals_that_are_no_numbers_come_back():
    for text in ("NaN", "sNaN", "-Infinity", "-0", "1E+3", "0.10"):
        assert same(copy(Decimal(text)), Decimal(text))


def test_nan_and_infinity_that_a_tool_returns_are_kept_in_strict_json():
    """Python's JSON accepts them, jsonb and every other reader of JSON refuse them."""
    tree = encode({"score": math.nan, "r": [-math.inf]})
    assert json.loads(dumps(tree)) == {"r": [{"$float": "-inf"}], "score": {"$float": "nan"}}
    assert math.isnan(decode(tree)["score"])


def test_a_pattern_s_debug_flag_does_not_print_at_every_read(capsys):
    pattern = re.compile("a", re.DEBUG | re.IGNORECASE)
    capsys.readouterr()
    assert copy(pattern) == re.compile("a", re.IGNORECASE)
    assert capsys.readouterr().out == ""


def test_a_subclass_is_kept_as_its_base():
    class Color(enum.StrEnum):
        RED = "red"

    class Size(enum.IntEnum):
        L = 3

    class Old(str, enum.Enum):  # noqa: UP042 - its str() is its name
        KEY = "old"

    class Status(models.TextChoices):
        OPEN = "open", "is open"

    class Level(models.IntegerChoices):
        TOP = 9, "top"

    class Point(NamedTuple):
        x: int
        y: int

    class Options(TypedDict):
        n: int

    class Hours(float):
        pass

    class Loud(dict[str, int]):
        def __getitem__(self, key):
            raise AssertionError("overridden methods are not asked")

        def items(self):
            raise AssertionError("overridden methods are not asked")

    class Rows(list):
        pass

    for given_value, expected in [
        (Color.RED, "red"),
        (Size.L, 3),
        (Old.KEY, "old"),
        (Status.OPEN, "open"),
        (Level.TOP, 9),
        (SafeString("<b>"), "<b>"),
        (Point(1, 2), (1, 2)),
        (Options(n=1), {"n": 1}),
        (Hours(1.5), 1.5),
        (OrderedDict(b=1, a=2), {"a": 2, "b": 1}),
        (defaultdict(list, {"a": [1]}), {"a": [1]}),
        (Loud(a=1), {"a": 1}),
        (Rows([Color.RED]), ["red"]),
        (True, True),
        ({Status.OPEN: Color.RED}, {"open": "red"}),
        ({Size.L: 1}, {3: 1}),
    ]:
        assert same(copy(given_value), expected)
        assert same(copy([given_value]), [expected])


def test_decoding_gives_independent_copies():
    tree = encode({"a": [1, {"b": [2]}], "at": dt.date(2026, 1, 1)})
    first, second = decode(tree), decode(tree)
    first["a"][1]["b"].append(3)
    first["new"] = 1
    assert second == decode(tree) == {"a": [1, {"b": [2]}], "at": dt.date(2026, 1, 1)}


def test_encoding_shares_nothing_that_can_change_with_its_value():
    for inner in ([1], [1, b"x"]):
        value = {"a": inner}
        tree = encode(value)
        inner.append(2)
        assert tree == encode({"a": inner[:-1]})


# Literal data that looks like a tag


@pytest.mark.parametrize(
    "value",
    [
        {"$date": "2026-01-01"},
        {"$set": [1]},
        {"$$set": [1]},
        {"$": 1},
        {"$nothing": None},
        {"$date": "2026-01-01", "other": 1},
        {"a": {"$int": "0x1", "$float": "nan"}},
        [{"$dict": [[1, 2]]}],
        {"": 1},
        {"price": "$5", "$note": '"$'},
    ],
)
def test_literal_data_that_looks_like_a_tag_survives(value):
    assert same(copy(value), sorted_keys(value))
    assert same(copy(copy(value)), sorted_keys(value))
    assert same(copy(encode(value)), sorted_keys(encode(value)))


@pytest.mark.parametrize(
    "tree",
    [
        {"$unknown": 1},
        {"$date": "2026-01-01", "b": 1},
        {"$date": "yesterday"},
        {"$date": 5},
        {"$set": "abc"},
        {"$set": [[1]]},
        {"$tuple": {"a": 1}},
        {"$dict": [[1]]},
        {"$dict": [[[1], 2]]},
        {"$int": "ten"},
        {"$int": 5},
        {"$float": "much"},
        {"$decimal": "1,5"},
        {"$bytes": "?"},
        {"$pattern": ["(", 0]},
        {"$timedelta": [10**12, 0, 0]},
        {"$datetime": ["2026-01-01T00:00:00", 2]},
        {"$uuid": "7"},
        {1: 2},
        {"a": object()},
    ],
)
def test_a_tree_that_was_never_encoded_is_refused(tree):
    with pytest.raises(CodecError):
        decode(tree)


# Order


def test_keys_are_sorted_however_the_dict_was_made_and_whatever_order_the_database_gives():
    value = {"bb": 1, "a": {"z": 1, "é": 2, "y": dt.date(2026, 1, 1)}, "b": 2, "😀": 3, "\uffff": 4}
    assert list(copy(value)) == ["a", "b", "bb", "\uffff", "😀"]
    assert list(copy(value)["a"]) == ["y", "z", "é"]
    # jsonb orders keys by length first.
    assert list(decode({"b": 1, "aa": {"z": 1, "yy": {"$date": "2026-01-01"}}})) == ["aa", "b"]
    assert dumps(encode({"b": 1, "a": 2})) == dumps(encode({"a": 2, "b": 1}))


def test_sets_are_written_in_one_order():
    words = {
        "".join(letters) for letters in zip(string.ascii_letters, reversed(string.ascii_letters), strict=True)
    }
    assert encode(words)["$set"] == sorted(words)
    assert encode({10, 9, "9", (1,)}) == {"$set": ["9", 10, 9, {"$tuple": [1]}]}


# Text


def test_nul_and_lone_surrogates_become_the_replacement_character_everywhere():
    """A PDF's text or a tool's arguments with U+0000 must not make the whole message unstorable."""
    value = {"k\0": ["ab\0cd", ("x" + LONE, {"in" + LONE: {"\0"}})], 1: {LONE: "é\0"}}
    assert copy(value) == {
        f"k{FFFD}": [f"ab{FFFD}cd", (f"x{FFFD}", {f"in{FFFD}": {FFFD}})],
        1: {FFFD: f"é{FFFD}"},
    }
    assert copy({"n": {"x": "\0"}}) == {"n": {"x": FFFD}}
    assert plain({"k\0": [LONE]}) == {f"k{FFFD}": [FFFD]}
    # Text that only spells the escape is not touched.
    assert copy({"a": r"\u0000", r"\u0000": 1}) == {"a": r"\u0000", r"\u0000": 1}


def test_two_surrogates_that_are_a_pair_become_their_character():
    assert clean_text("a\ud83d\ude00b") == "a😀b"
    assert clean_text("\ude00\ud83d") == FFFD * 2
    assert clean_text("\ud83d\ud83d\ude00\0") == f"{FFFD}😀{FFFD}"
    assert copy(["\ud83d\ude00"]) == ["😀"]


@thorough
@given(dirty_texts)
def test_clean_text_can_always_be_stored_and_leaves_clean_text_alone(text):
    cleaned = clean_text(text)
    assert "\0" not in cleaned
    cleaned.encode()
    assert clean_text(cleaned) is cleaned
    if "\0" not in text and not re.search("[\ud800-\udfff]", text):
        assert cleaned is text


@thorough
@given(st.dictionaries(dirty_texts, dirty_texts | st.lists(dirty_texts), max_size=4))
def test_dirty_text_is_cleaned_in_the_same_way_on_every_way_in(value):
    expected = {clean_text(key): value[key] for key in value}
    expected = {
        key: [clean_text(part) for part in item] if isinstance(item, list) else clean_text(item)
        for key, item in sorted(expected.items())
    }
    assert same(copy(value), expected)
    assert same(plain(value), expected)
    assert same(parse(json.dumps(value)), expected)


def test_of_two_keys_that_become_one_the_later_stays():
    assert copy({"\0": 1, FFFD: 2}) == plain({"\0": 1, FFFD: 2}) == {FFFD: 2}
    assert copy({FFFD: 2, "\0": 1}) == plain({FFFD: 2, "\0": 1}) == {FFFD: 1}
    assert copy({1: 0, "\0": 1, LONE: 2}) == {1: 0, FFFD: 2}
    assert copy({"\0", FFFD}) == {FFFD}


def test_a_pattern_that_cleaning_would_change_is_refused():
    with pytest.raises(CodecError, match="escape"):
        encode(re.compile("[\0-\x1f]"))
    assert copy(re.compile(r"[\x00-\x1f]")).match("\0")


# What cannot be kept


@dataclasses.dataclass
class Order:
    price: int


class Plain(enum.Enum):
    A = 1


class Undescribable:
    def __repr__(self):
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("value", "path", "named"),
    [
        (object(), "$", "object"),
        ({"items": [1, 2, {"price": Order(5)}]}, "$.items[2].price", "Order"),
        ({"a b": [Actor(kind="x")]}, '$["a b"][0]', "agents.models.actor.Actor"),
        ({"f": [print]}, "$.f[0]", "builtin_function_or_method"),
        ([[], [lambda: 1]], "$[1][0]", "function"),
        ({"é": (1, {1: {"x": range(3)}})}, "$.é[1][1].x", "range"),
        ({"$tag": {"$set": complex(1)}}, '$["$tag"]["$set"]', "complex"),
        ({"a": {("b", 1): Undescribable()}}, "$.a[('b', 1)]", "Undescribable"),
        ({Undescribable(): 1}, "$[<Undescribable>]", "Undescribable"),
        ({"s": {1, Actor}}, f"$.s[{Actor!r}]", "ModelBase"),
        ({"m": bytearray(b"x")}, "$.m", "bytearray"),
        ({"d": dt.time(12, tzinfo=ZoneInfo("Europe/Paris"))}, "$.d", "no offset"),
        (OrderedDict(a=defaultdict(list, {"b": [object()]})), "$.a.b[0]", "object"),
        ({"e": Plain.A}, "$.e", "Plain"),
        ({"g": iter([1])}, "$.g", "list_iterator"),
        ({"c\0": object()}, f'$["c{FFFD}"]', "object"),
        ({"k" * 100: object()}, f'$["{"k" * 80}"]', "object"),
        ({"x": ValueError("no")}, "$.x", "ValueError"),
    ],
)
def test_what_cannot_be_kept_is_refused_with_its_path_and_its_type(value, path, named):
    with pytest.raises(CodecError) as caught:
        encode(value)
    assert caught.value.path == path
    assert named in str(caught.value)
    assert path in str(caught.value)


def nested(depth: int, wrap: Any = lambda inner: [inner]) -> Any:
    return functools.reduce(lambda inner, _: wrap(inner), range(depth - 1), wrap(None))


@pytest.mark.parametrize(
    ("wrap", "levels"),
    [
        (lambda inner: [inner], 1),
        (lambda inner: {"a": inner}, 1),
        (lambda inner: {"$a": inner}, 1),
        (lambda inner: OrderedDict(a=inner), 1),
        (lambda inner: (inner,), 2),
        (lambda inner: frozenset([inner]), 2),
        (lambda inner: {1: inner}, 3),
    ],
)
def test_nesting_ends_at_its_limit_and_never_at_the_interpreter_s(wrap, levels):
    deepest = MAX_DEPTH // levels
    value = nested(deepest, wrap)
    tree = encode(value)
    assert copy(value) == value
    # Wrapped as the turn's record and the store do, it can still be written and read.
    assert loads(dumps({"patch": [[[tree]]]})) == {"patch": [[[tree]]]}
    for depth in (deepest + 1, 5000):
        if depth == 5000 and levels == 2:
            continue  # hashing so deep a value is itself too much for the interpreter
        with pytest.raises(CodecError, match=f"nested deeper than {MAX_DEPTH} levels"):
            encode(nested(depth, wrap))


@pytest.mark.django_db
def test_the_deepest_value_can_be_stored():
    value = nested(MAX_DEPTH, lambda inner: {"a": inner})
    actor = Actor.objects.create(kind="codec", name="deep", state=encode(value))
    actor.refresh_from_db()
    assert decode(actor.state) == value


def test_plain_json_from_outside_has_the_same_depth():
    assert plain(nested(MAX_DEPTH)) == nested(MAX_DEPTH)
    with pytest.raises(CodecError, match="nested deeper"):
        plain(nested(MAX_DEPTH + 1))
    with pytest.raises(CodecError, match="nested deeper"):
        plain(nested(MAX_DEPTH + 1, lambda inner: {"a": inner}))
    for opening, closing in ("[]", ('{"a":', "}")):
        with pytest.raises(CodecError):
            parse(opening * 100_000 + "1" + closing * 100_000)


def test_a_stack_that_is_almost_used_up_is_a_codec_error():
    def deeper(left: int) -> None:
        if left:
            deeper(left - 1)
            return
        for verb in (encode, copy, plain):
            with pytest.raises(CodecError):
                verb(value)

    value = nested(MAX_DEPTH, lambda inner: {"$a": inner})
    tree = encode(value)
    depth = len(inspect.stack(0))
    deeper(sys.getrecursionlimit() - depth - 100)

    def decode_deep(left: int) -> None:
        if left:
            decode_deep(left - 1)
            return
        with pytest.raises(CodecError):
            decode(tree)

    decode_deep(sys.getrecursionlimit() - depth - 100)


def test_a_value_that_contains_itself_is_refused_where_it_comes_back():
    ring: dict[str, Any] = {"name": "ring", "parts": [1, {}]}
    ring["parts"][1]["owner"] = ring
    for verb in (encode, copy, plain):
        with pytest.raises(CodecError, match="contains itself") as caught:
            verb({"at": ring})
        assert caught.value.path == "$.at.parts[1].owner"
    loop: list[Any] = []
    loop += [loop, loop]
    with pytest.raises(CodecError, match=r"\$\[0\]: the value contains itself"):
        encode(loop)
    strange: Any = OrderedDict()
    strange["me"] = (strange,)
    with pytest.raises(CodecError, match=r"\$\.me\[0\]: the value contains itself"):
        encode(strange)
    odd: dict[Any, Any] = {}
    odd[1] = odd
    with pytest.raises(CodecError, match=r"\$\[1\]: the value contains itself"):
        encode(odd)


def test_the_same_part_twice_is_not_a_circle():
    part = [1]
    assert copy({"a": part, "b": [part, part]}) == {"a": [1], "b": [[1], [1]]}


# Plain JSON from outside


@thorough
@given(json_values)
def test_plain_json_stays_what_it_is(value):
    assert same(plain(value), sorted_keys(value))
    assert same(parse(json.dumps(value)), sorted_keys(value))
    assert same(parse(json.dumps(value, ensure_ascii=False).encode()), sorted_keys(value))


def test_tags_mean_nothing_in_what_comes_from_outside():
    value = {"$date": "2026-01-01", "a": [{"$set": [1]}]}
    assert plain(value) == value
    assert copy(plain(value)) == value


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_nan_and_infinity_from_outside_are_refused_by_name(number):
    for verb in (parse, lambda text: plain(json.loads(text))):
        with pytest.raises(CodecError) as caught:
            verb(f'{{"x": [0, {{"y": {number}}}]}}')
        assert caught.value.path == "$.x[1].y"


@pytest.mark.parametrize("text", ["", "hello", "{bad json", "\0", '{"a": 1} x', b"\xff", "[1,]", "9" * 5000])
def test_text_that_is_not_json_is_a_codec_error(text):
    with pytest.raises(CodecError, match="not JSON"):
        parse(text)


def test_a_client_may_cut_an_emoji_and_send_large_numbers():
    assert parse(r'{"a": "x\ud83d", "b\u0000": "\ud83d\ude00"}') == {"a": f"x{FFFD}", f"b{FFFD}": "😀"}
    assert parse("123456789012345678901234567890") == 123456789012345678901234567890


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": (1,)}, "$.a"),
        ({"a": {1: 2}}, "$.a[1]"),
        ([dt.date(2026, 1, 1)], "$[0]"),
        ({"a": [b"x"]}, "$.a[0]"),
        ({"a": {1}}, "$.a"),
    ],
)
def test_what_is_not_json_is_refused_from_outside(value, path):
    with pytest.raises(CodecError, match="not JSON") as caught:
        plain(value)
    assert caught.value.path == path


def test_parsed_subclasses_are_plain_too():
    assert same(plain(OrderedDict(b=OrderedDict(c=1), a=SafeString("x"))), {"a": "x", "b": {"c": 1}})


# JSON


def test_json_is_compact_strict_and_measured_in_bytes():
    assert dumps({"a": [1, "é"]}) == '{"a":[1,"é"]}'.encode()
    assert size({"a": "é"}) == 10
    assert loads('{"a": [1.0]}') == loads(b'{"a": [1.0]}') == {"a": [1.0]}
    for text in ("NaN", "[1,]", "", "\ufeff1"):
        with pytest.raises(CodecError):
            loads(text)
    for tree in (dt.date(2026, 1, 1), {1: 2}, Order(1), LONE, object()):
        with pytest.raises(CodecError):
            dumps(tree)


@example(b'"\\u0000"')
@given(st.binary(max_size=20))
def test_loading_any_bytes_gives_a_tree_or_a_codec_error(text):
    try:
        tree = loads(text)
    except CodecError:
        return
    assert orjson.loads(dumps(tree)) == tree
