"""Our numbers, as the settings describe them: whose texts they take, who sends from them, how fast."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

from django.core.signals import setting_changed

from agents.exceptions import ConfigurationError
from agents.names import check_kind
from conversations import conf
from conversations.phone import normalise

SENDER, PAIR = "sender", "pair"


@dataclass(frozen=True, slots=True)
class Line:
    """One of our numbers. What the settings don't say of it is empty, or the default of all numbers."""

    number: str
    kind: str = ""
    provider: str = ""
    address: str = SENDER
    rate: float = 0.0  # texts a second; 0: no limit of ours


@lru_cache(maxsize=256)  # asked four times for a text
def line_of(number: str) -> Line:
    """What the settings say of a number of ours. Raises ConfigurationError."""
    return _lines().get(number) or _line(number, {})


def lines() -> list[Line]:
    """All numbers that the settings name. Raises ConfigurationError."""
    return list(_lines().values())


def name_of(theirs: str, ours: str) -> str:
    """The name of the actor that a text is for, as SMS_ADDRESS or the number's own setting has it."""
    return f"{theirs}:{ours}" if line_of(ours).address == PAIR else theirs


@lru_cache(maxsize=1)
def _lines() -> dict[str, Line]:
    configured = conf.get("SMS_NUMBERS")
    if not isinstance(configured, Mapping):
        raise _wrong(f"SMS_NUMBERS is a mapping of numbers, got {configured!r}")
    return {line.number: line for line in _read(configured)}


def _read(configured: Mapping[Any, Any]) -> Iterator[Line]:
    known = {field.name for field in fields(Line)} - {"number"}
    for number, given in configured.items():
        if not isinstance(number, str) or not isinstance(given, Mapping):
            raise _wrong(f"SMS_NUMBERS[{number!r}] is a mapping of {', '.join(sorted(known))}")
        if unknown := set(given) - known:
            raise _wrong(f"SMS_NUMBERS[{number!r}] has an unknown key: {', '.join(map(str, unknown))}")
        yield _line(normalise(number), given)


def _line(number: str, given: Mapping[str, Any]) -> Line:
    line = Line(
        number,
        given.get("kind", conf.get("SMS_KIND")),
        given.get("provider", ""),
        given.get("address", conf.get("SMS_ADDRESS")),
        given.get("rate", conf.get("SMS_RATE")),
    )
    if line.kind:
        check_kind(line.kind)
    if line.address not in (SENDER, PAIR):
        raise _wrong(f"a number's address is {SENDER!r} or {PAIR!r}, got {line.address!r}")
    if isinstance(line.rate, bool) or not isinstance(line.rate, int | float) or not 0 <= line.rate < 10_000:
        raise _wrong(f"a number's rate is texts a second, 0 or more, got {line.rate!r}")
    return line


def _wrong(message: str) -> ConfigurationError:
    return ConfigurationError(message, setting="SMS_NUMBERS")


def _forget(*, setting: str, **kwargs: object) -> None:
    if setting == "AGENTS":
        _lines.cache_clear()
        line_of.cache_clear()


setting_changed.connect(_forget)
