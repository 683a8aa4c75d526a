"""Conditions on a place in the state: what they mean, and what is none."""

from __future__ import annotations

import pytest

from agents.exceptions import StatePathError
from agents.models import Actor
from agents.statepath import Condition, parse

STATES = {
    "open": {
        "status": "open", "cart": {"items": [{"count": 2}, {"count": 5}]}, "vip": None, "note": "Call BACK"
    },
    "closed": {"status": "closed", "cart": {"items": []}, "a b": {"ü": 1}, "n": 10, "on": True},
    "empty": {},
    "unwritten": None,
}  # fmt: skip


@pytest.fixture
def actors(db: None) -> None:
    for name, state in STATES.items():
        Actor.objects.create(kind="support", name=name, state=state)


def found(text: str) -> set[str]:
    return set(parse(text).of(Actor.objects.all()).values_list("name", flat=True))


def test_paths_operators_and_values(actors: None) -> None:
    for text, expected in {
        '$.status = "open"': {"open"},
        "status=open": {"open"},
        "$.status == closed": {"closed"},
        "$.status != open": {"closed"},
        "$.status": {"open", "closed"},
        "$.cart.items[1].count": {"open"},
        "$.cart.items[1].count >= 5": {"open"},
        "$.cart.items[0].count > 2": set(),
        "$.n < 10.5": {"closed"},
        '$.status >= "closed"': {"open", "closed"},
        "$.vip = null": {"open"},
        "$.vip": {"open"},
        "$.on = true": {"closed"},
        "$.note has back": {"open"},
        '$["a b"]["ü"] = 1': {"closed"},
        "$.cart.items = []": {"closed"},
        '$.cart = {"items": []}': {"closed"},
        "$.nothing.at[3].all": set(),
        "$.status = '; DROP TABLE agents_actor; --": set(),
    }.items():
        assert found(text) == expected, text


@pytest.mark.parametrize(
    "text",
    ["", "$", "= 1", "$.", "$..a", "$.a b", "$.a =", "$.a > [1]", "$.a < true", "$.a[x]", "$.a[-1]", '$["a]',
     "$.a = NaN", "$.a\0", '$["\\u0000"]', '$.a = "\\u0000"', "$" + ".a" * 21, "$.a = " + "x" * 500,
     "$.a ~ 1", "$[1234567]"],
)  # fmt: skip
def test_what_is_no_condition_is_said_to_be_none(text: str) -> None:
    with pytest.raises(StatePathError) as error:
        parse(text)
    assert error.value.code == "bad_state_path" and str(error.value)


def test_the_longest_path_is_one() -> None:
    assert parse("$" + ".a" * 20) == Condition(("a",) * 20)
