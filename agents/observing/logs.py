"""Logs that say which conversation and which turn, and not who or what was said.

``Context`` adds the actor, the turn and the request to every line. The formatters ``Plain`` and ``Json``
leave out, unless ``LOG_CONTENT`` asks for it: what errors say (only their types and where they were raised;
the admin has the rest), and of phone numbers all but the last four digits. The site's own secrets they always
leave out.
"""

from __future__ import annotations

import copy
import logging
import re
import traceback
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core.signals import setting_changed
from pythonjsonlogger.json import JsonFormatter

from agents import conf
from agents.exceptions import (
    ActorBusyError,
    ActorDeadlockError,
    AddressError,
    ConfigurationError,
    DatabaseUnavailableError,
    LimitError,
    TurnError,
)
from agents.observing import carrying

if TYPE_CHECKING:
    from agents.turn import Turn

#: International numbers, as they are and as they stand in addresses.
_NUMBER = re.compile(r"(\+|%2[Bb])(\d{3,11})(\d{4})(?!\d)")
#: Errors whose words are ours alone.
OURS = (
    ActorBusyError,
    ActorDeadlockError,
    AddressError,
    ConfigurationError,
    DatabaseUnavailableError,
    LimitError,
    TurnError,
)
_LEFT_OUT = "(not logged)"
#: A secret that is shorter would be found in words.
_SHORTEST = 8
_SECRET = re.compile(r"(KEY|KEYS|TOKEN|TOKENS|SECRET|PASSWORD)$")


class Quoted:
    """An argument of a log call that somebody else has worded: ``instead`` of it unless LOG_CONTENT asks."""

    def __init__(self, text: object, instead: str = "") -> None:
        self._text = text
        self._instead = instead

    def __str__(self) -> str:
        return str(self._text) if conf.get("LOG_CONTENT") else self._instead or _LEFT_OUT


def about(turn: Turn) -> dict[str, Any]:
    """``extra`` for a line about a turn, from outside of it."""
    return {"about": turn}


class Context(logging.Filter):
    """Adds ``actor``, ``turn`` and ``request_id`` to each record; empty where there is none."""

    def filter(self, record: logging.LogRecord) -> bool:
        from agents.turn import current_turn

        turn = getattr(record, "about", None) or current_turn.get()
        record.actor = f"{turn.actor.kind}/{turn.actor.name}" if turn is not None else ""
        record.actor_id = turn.actor.id if turn is not None else None
        record.turn = str(turn.id) if turn is not None else ""
        request = carrying.request_id.get()
        if not request and turn is not None and turn.task is not None:
            request = carrying.read(turn.task.carried).request_id
        record.request_id = request
        return True


class Discreet(logging.Formatter):
    """What both formatters leave out."""

    def format(self, record: logging.LogRecord) -> str:
        asked = conf.get("LOG_CONTENT")
        if not asked:
            record = copy.copy(record)
            record.exc_text = None
            record.args = _without_words(record.args)
            if record.name == "asyncio":  # its further lines show tasks, with what they raised
                record.msg = record.getMessage().partition("\n")[0]
                record.args = None
        line = super().format(record)
        if not asked:
            line = masked(line)
        for secret in _secrets():
            line = line.replace(secret, "***")
        return line

    def formatException(  # noqa: N802
        self,
        ei: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None],
    ) -> str:
        if ei[1] is None or conf.get("LOG_CONTENT"):
            return super().formatException(ei)
        return "\n".join(_without_message(ei[1]))


class Plain(Discreet):
    """A line for people: the message, and what it is about behind it."""

    def format(self, record: logging.LogRecord) -> str:
        about = [getattr(record, "actor", ""), getattr(record, "turn", ""), getattr(record, "request_id", "")]
        record.context = "".join(
            f" {name}={value}"
            for name, value in zip(("actor", "turn", "request"), about, strict=True)
            if value
        )
        return super().format(record)


class Json(Discreet, JsonFormatter):
    """An object a line, for machines: ``timestamp``, ``level``, ``logger``, ``message``, and of those below
    what there is."""

    KEYS = ("timestamp", "level", "logger", "message", "actor", "actor_id", "turn", "request_id", "exc_info")

    def __init__(self) -> None:
        super().__init__(
            "%(levelname)s %(name)s %(message)s",
            rename_fields={"levelname": "level", "name": "logger"},
            timestamp=True,
        )

    def process_log_record(self, log_data: dict[str, Any]) -> dict[str, Any]:
        # What else a library gives along (a request, its body) is its own to say.
        return {key: log_data[key] for key in self.KEYS if log_data.get(key) not in (None, "")}


def masked(text: str) -> str:
    """Phone numbers without their digits but the last four."""
    return _NUMBER.sub(r"\1***\3", text)


def _without_words(args: Any) -> Any:
    """A record's arguments, with errors named and not quoted."""
    if isinstance(args, dict):
        return {name: _named(value) for name, value in args.items()}
    if isinstance(args, tuple):
        return tuple(_named(value) for value in args)
    return args


def _named(value: Any) -> Any:
    """An error by its type; those that we have worded ourselves say what they say."""
    if not isinstance(value, BaseException):
        return value
    ours = isinstance(value, OURS) and type(value).__module__.endswith(".exceptions")
    return f"{type(value).__name__}: {value}" if ours else type(value).__name__


def _without_message(error: BaseException, seen: frozenset[int] = frozenset()) -> Iterator[str]:
    """A traceback as Python prints it, without the sentence at its end, for all that led to it."""
    seen |= {id(error)}
    if error.__cause__ is not None and id(error.__cause__) not in seen:
        yield from _without_message(error.__cause__, seen)
        yield "\nThe above exception was the direct cause of the following exception:\n"
    elif (
        error.__context__ is not None and not error.__suppress_context__ and id(error.__context__) not in seen
    ):
        yield from _without_message(error.__context__, seen)
        yield "\nDuring handling of the above exception, another exception occurred:\n"
    yield "Traceback (most recent call last):"
    yield from (line.rstrip("\n") for line in traceback.format_tb(error.__traceback__))
    yield _named(error)
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from (f"  | {line}" for part in _without_message(each, seen) for line in part.splitlines())


_known_secrets: list[str] | None = None


def _secrets() -> list[str]:
    global _known_secrets
    if _known_secrets is None:
        found: set[str] = set()
        _collect(settings.SECRET_KEY, found)
        _collect(settings.SECRET_KEY_FALLBACKS, found)
        for name, value in getattr(settings, "AGENTS", {}).items():
            if _SECRET.search(name) and not name.endswith(("PUBLIC_KEY", "PUBLIC_KEYS")):
                _collect(value, found)
        for database in settings.DATABASES.values():
            _collect(database.get("PASSWORD"), found)
        for url in (getattr(settings, "REDIS_URL", ""), getattr(settings, "CELERY_BROKER_URL", "")):
            _collect((re.search(r"://[^/@]*:([^/@]+)@", url or "") or [None, None])[1], found)
        # The longest first: one may hold another.
        _known_secrets = sorted((s for s in found if len(s) >= _SHORTEST), key=len, reverse=True)
    return _known_secrets


def _collect(value: Any, found: set[str]) -> None:
    if isinstance(value, str):
        found.add(value)
    elif isinstance(value, list | tuple):
        for each in value:
            _collect(each, found)


def _forget(*, setting: str, **kwargs: object) -> None:
    global _known_secrets
    _known_secrets = None


setting_changed.connect(_forget)
