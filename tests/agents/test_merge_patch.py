"""Merge patches: RFC 7396 to the letter, and what the turn's record does with them."""

from __future__ import annotations

import copy
import datetime as dt
import json
import math
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.codec import dumps, encode
from agents.merge_patch import compose, diff, merge_patch

# Few keys, so that targets and patches meet.
keys = st.sampled_from("abc") | st.integers(0, 1)
leaves = (
    st.none()
    | st.booleans()
    | st.integers(0, 1)
    | st.sampled_from(["", "x", 1.0, dt.date(2026, 1, 1), (1, None)])
)
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=10,
)
dicts = st.dictionaries(keys, values, max_size=3)
thorough = settings(max_examples=400, deadline=None)


def identical(one: Any, other: Any) -> bool:
    """By the codec's bytes, which tell 1 from True and from 1.0."""
    return dumps(encode(one)) == dumps(encode(other))


def containers(value: Any) -> set[int]:
    """The ids of everything in it that can be changed."""
    if isinstance(value, dict):
        return {id(value)}.union(*map(containers, value.values()))
    if isinstance(value, list):
        return {id(value)}.union(*map(containers, value))
    return set()


@pytest.mark.parametrize(
    ("original", "patch", "result"),
    [
        ('{"a":"b"}', '{"a":"c"}', '{"a":"c"}'),
        ('{"a":"b"}', '{"b":"c"}', '{"a":"b","b":"c"}'),
        ('{"a":"b"}', '{"a":null}', "{}"),
        ('{"a":"b","b":"c"}', '{"a":null}', '{"b":"c"}'),
        ('{"a":["b"]}', '{"a":"c"}', '{"a":"c"}'),
        ('{"a":"c"}', '{"a":["b"]}', '{"a":["b"]}'),
        ('{"a":{"b":"c"}}', '{"a":{"b":"d","c":null}}', '{"a":{"b":"d"}}'),
        ('{"a":[{"b":"c"}]}', '{"a":[1]}', '{"a":[1]}'),
        ('["a","b"]', '["c","d"]', '["c","d"]'),
        ('{"a":"b"}', '["c"]', '["c"]'),
        ('{"a":"foo"}', "null", "null"),
        ('{"a":"foo"}', '"bar"', '"bar"'),
        ('{"e":null}', '{"a":1}', '{"e":null,"a":1}'),
        ("[1,2]", '{"a":"b","c":null}', '{"a":"b"}'),
        ("{}", '{"a":{"bb":{"ccc":null}}}', '{"a":{"bb":{}}}'),
    ],
)
def test_the_table_of_rfc_7396_appendix_a(original, patch, result):
    assert merge_patch(json.loads(original), json.loads(patch)) == json.loads(result)


def test_nested_nulls_delete_and_nulls_in_arrays_stay():
    target = {
        "title": "Goodbye!",
        "author": {"givenName": "J", "familyName": "D"},
        "tags": ["example", "sample"],
        "content": "x",
    }
    patch = {"title": "Hello!", "phone": "+1", "author": {"familyName": None}, "tags": ["example"]}
    assert merge_patch(target, patch) == {
        "title": "Hello!",
        "author": {"givenName": "J"},
        "tags": ["example"],
        "content": "x",
        "phone": "+1",
    }
    assert merge_patch({"a": [1, 2]}, {"a": [1, None, {"b": None}]}) == {"a": [1, None, {"b": None}]}


def test_only_dicts_are_merged():
    assert merge_patch({"a": {1, 2}, "b": dt.date(2026, 1, 1)}, {"a": {3}, "b": (None,)}) == {
        "a": {3},
        "b": (None,),
    }
    assert merge_patch({"a": {1: "x", 2: "y"}}, {"a": {1: None, "k": 1}}) == {"a": {2: "y", "k": 1}}


@thorough
@given(values, values)
def test_merging_changes_neither_input_and_shares_nothing_with_them(target, patch):
    before = copy.deepcopy((target, patch))
    merged = merge_patch(target, patch)
    assert identical((target, patch), before)
    assert not containers(merged) & (containers(target) | containers(patch))


@thorough
@given(values, dicts)
def test_merging_twice_is_merging_once(target, patch):
    once = merge_patch(target, patch)
    assert identical(merge_patch(once, patch), once)


@thorough
@given(values, dicts)
def test_a_merge_says_of_each_key_what_the_patch_says_or_leaves_it(target, patch):
    merged = merge_patch(target, patch)
    before = target if isinstance(target, dict) else {}
    for key in {**before, **patch}:
        if key not in patch:
            assert identical(merged[key], before[key])
        elif patch[key] is None:
            assert key not in merged
        else:
            assert identical(merged[key], merge_patch(before.get(key), patch[key]))


def conflict(first: dict[Any, Any], second: dict[Any, Any]) -> bool:
    """Whether ``second`` merges into something of ``first`` that is no dict."""
    both = [(first[key], item) for key, item in second.items() if key in first and isinstance(item, dict)]
    return any(not isinstance(one, dict) or conflict(one, item) for one, item in both)


@thorough
@given(values, dicts, dicts)
def test_a_composed_patch_does_what_both_do_in_turn(target, first, second):
    before = copy.deepcopy((first, second))
    composed = compose(first, second)
    assert identical((first, second), before)
    if composed is None:
        assert conflict(first, second)
    else:
        assert identical(merge_patch(target, composed), merge_patch(merge_patch(target, first), second))
        assert not containers(composed) & (containers(first) | containers(second))


def test_a_composed_patch_keeps_its_nulls():
    assert compose({"a": None, "b": {"c": 1}}, {"b": {"c": None, "d": {"e": None}}}) == {
        "a": None,
        "b": {"c": None, "d": {"e": None}},
    }
    assert compose({"a": {"b": 1}}, {"a": None}) == {"a": None}
    assert compose({"a": {"b": 1}}, {"a": [1]}) == {"a": [1]}


@pytest.mark.parametrize("replaced", [None, 1, [1]])
def test_a_dict_merged_into_what_the_first_patch_put_there_is_in_no_patch(replaced):
    first, second = {"a": replaced}, {"a": {"b": 1}}
    assert compose(first, second) is None
    # Whatever was there is gone, and {"a": {"b": 1}} alone would keep it.
    assert merge_patch(merge_patch({"a": {"old": 1}}, first), second) == {"a": {"b": 1}}
    assert merge_patch({"a": {"old": 1}}, second) == {"a": {"b": 1, "old": 1}}


@thorough
@given(values, dicts)
def test_a_diff_makes_the_new_value_of_the_old_one(old, new):
    before = copy.deepcopy((old, new))
    patch = diff(old, new)
    assert identical((old, new), before)
    if patch is not None:
        assert identical(merge_patch(old, patch), new)
        assert not containers(patch) & (containers(old) | containers(new))


@thorough
@given(dicts, dicts)
def test_a_diff_exists_for_everything_that_a_patch_made(old, patch):
    new = merge_patch(old, patch)
    found = diff(old, new)
    assert found is not None
    assert identical(merge_patch(old, found), new)
    assert diff(new, new) == {}


@pytest.mark.parametrize(
    ("old", "new", "patch"),
    [
        ({}, {}, {}),
        ({"a": 1, "b": 2}, {"b": 2}, {"a": None}),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}}, {"a": {"c": 3}}),
        ({"a": {"b": 1}}, {"a": {}}, {"a": {"b": None}}),
        ({"a": 1}, {"a": {}}, {"a": {}}),
        ([1], {"a": {"b": 1}}, {"a": {"b": 1}}),
        ({"a": 1}, {"a": True}, {"a": True}),
        ({"a": [1, True]}, {"a": [1.0, True]}, {"a": [1.0, True]}),
        ({"a": 0.0}, {"a": -0.0}, {"a": -0.0}),
        ({"a": Decimal("1.0")}, {"a": Decimal("1.00")}, {"a": Decimal("1.00")}),
        ({"a": None, "b": 1}, {"a": None, "b": 2}, {"b": 2}),
        ({"a": 1}, {"a": [None]}, {"a": [None]}),
        ({"a": 1}, {"a": None}, None),
        ({}, {"a": None}, None),
        ({"a": {"b": 1}}, {"a": {"b": 1, "c": None}}, None),
        ({}, {"a": {"b": {"c": None}}}, None),
        (1, {"a": {"b": None}}, None),
    ],
)
def test_a_diff_is_the_smallest_patch_or_none(old, new, patch):
    found = diff(old, new)
    assert found == patch
    assert found is None or identical(found, patch)


def test_a_diff_of_nan_says_it_again():
    patch = diff({"a": math.nan}, {"a": math.nan})
    assert patch is not None
    assert math.isnan(patch["a"])
