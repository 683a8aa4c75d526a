"""Conditions on a place in the state: ``$.status = "open"``, ``$.cart.items[0].count >= 2``, ``$.vip``.

A path begins with ``$`` (which may be left out), goes on with ``.name``, ``["any name"]`` or ``[0]``. Then
there may be an operator and a value: ``=``, ``!=``, ``<``, ``<=``, ``>``, ``>=`` with JSON (a word that is
none is taken as text), or ``has`` with a part of a text. Without an operator something must be there. What
is compared is the state as it is stored (docs/codec.md), so plain JSON is what it looks like. SQLite can't
tell a member called "0" from the first of a list.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, TypeVar

from django.db.models import Model, Q, QuerySet
from django.db.models.fields.json import KeyTransform

from agents.exceptions import StatePathError

#: Characters of a condition, and steps of a path.
LONGEST, DEEPEST = 500, 20

_STEP = re.compile(
    r"""\.?(?P<name>[^\W\d][\w-]*) | \[\s*(?P<index>\d{1,6})\s*\]
        | \.?\[\s*(?P<quoted>"(?:[^"\\]|\\.)*")\s*\]""",
    re.VERBOSE,
)
_OPERATOR = re.compile(r"\s*(<=|>=|!=|==?|<|>|\bhas\b)\s*")
_LOOKUPS = {"=": "exact", "==": "exact", "<": "lt", "<=": "lte", ">": "gt", ">=": "gte", "has": "icontains"}

ModelT = TypeVar("ModelT", bound=Model)


@dataclass(frozen=True, slots=True)
class Condition:
    path: tuple[str | int, ...]
    operator: str = ""
    value: Any = None

    def of(self, rows: QuerySet[ModelT], field: str = "state") -> QuerySet[ModelT]:
        """Those of the rows whose state (the column ``field``) is so."""
        place: Any = field
        for step in self.path:
            place = KeyTransform(str(step), place)
        rows = rows.alias(place_in_state=place)  # type: ignore[assignment]
        there = Q(place_in_state__isnull=False)
        if not self.operator:
            return rows.filter(there)
        if self.operator == "!=":
            return rows.filter(there & ~Q(place_in_state=self.value))
        return rows.filter(**{f"place_in_state__{_LOOKUPS[self.operator]}": self.value})


def parse(text: str) -> Condition:
    """The condition that a text says. Raises StatePathError, which says where it stopped making sense."""
    text = text.strip()
    if len(text) > LONGEST:
        raise StatePathError(f"a condition has at most {LONGEST} characters")
    if "\0" in text:
        raise StatePathError
    path: list[str | int] = []
    at = 1 if text.startswith("$") else 0
    while step := _STEP.match(text, at):
        if path and step["name"] and text[at] != ".":
            break
        path.append(_named(step))
        at = step.end()
    if not path:
        raise StatePathError
    if len(path) > DEEPEST:
        raise StatePathError(f"a path has at most {DEEPEST} steps")
    if at == len(text):
        return Condition(tuple(path))
    operator = _OPERATOR.match(text, at)
    if operator is None:
        raise StatePathError(f'not understood from "{text[at : at + 30]}" on. Write it as $.status = "open"')
    return Condition(tuple(path), operator[1], _value(operator[1], text[operator.end() :]))


def _named(step: re.Match[str]) -> str | int:
    if step["index"]:
        return int(step["index"])
    try:
        name: str = step["name"] or json.loads(step["quoted"])
    except ValueError:
        raise StatePathError(f"{step['quoted'][:30]} is no name") from None
    if "\0" in name:
        raise StatePathError
    return name


def _value(operator: str, text: str) -> Any:
    if not text:
        raise StatePathError(f"something is compared with {operator}: give a value")
    try:
        value = json.loads(text, parse_constant=_refused)
    except ValueError:
        value = text
    except RecursionError:
        raise StatePathError("the value is nested too deeply") from None
    if operator == "has":
        value = value if isinstance(value, str) else text
    elif operator in ("<", "<=", ">", ">=") and not _comparable(value):
        raise StatePathError(f"{operator} compares numbers and texts")
    if "\0" in json.dumps(value) or "\\u0000" in json.dumps(value):
        raise StatePathError
    return value


def _comparable(value: Any) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool)


def _refused(name: str) -> Any:
    raise StatePathError(f"{name} is no JSON")
