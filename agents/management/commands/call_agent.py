"""``manage.py call_agent``: one turn of one actor, from the shell."""

from __future__ import annotations

import argparse
import json
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from agents import codec, kinds
from agents.exceptions import AgentsError, CodecError


def seconds(text: str) -> float:
    """A number of seconds, zero or more."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise argparse.ArgumentTypeError(f"seconds are needed, got {text!r}")
    return value


class Command(BaseCommand):
    help = (
        "Calls a method of an actor and prints its result as JSON. JSON arguments: an array is positional "
        "arguments, an object is keyword arguments, anything else is the one argument; none is none. "
        "To pass an array or an object as the one argument, wrap it in an array."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("kind", help="The agent's kind, such as support.")
        parser.add_argument("name", help="The actor's name, such as +15550001111.")
        parser.add_argument("method", help="A public method of the agent.")
        parser.add_argument("arguments", nargs="?", metavar="JSON", help="Its arguments. Default: none.")
        parser.add_argument(
            "--patience", type=seconds, metavar="SECONDS",
            help="How long to wait while another turn holds the actor. Default: the setting PATIENCE.",
        )  # fmt: skip

    def handle(
        self,
        *args: Any,
        kind: str,
        name: str,
        method: str,
        arguments: str | None,
        patience: float | None,
        **options: Any,
    ) -> None:
        positional, named = _arguments(arguments)
        try:
            stub = kinds.get(kind).named(name)
            result = stub.sync.call(method, positional, named, patience=patience)
        except AgentsError as error:
            raise CommandError(f"{error.code}: {error}") from error
        except Exception as error:  # what the method raised, or arguments that don't fit it
            raise CommandError(f"{type(error).__name__}: {error}") from error
        # Beyond JSON the result has the codec's tags (docs/codec.md).
        self.stdout.write(json.dumps(codec.encode(result), indent=2, ensure_ascii=False))


def _arguments(text: str | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if text is None:
        return (), {}
    try:
        value = codec.parse(text)
    except CodecError as error:
        raise CommandError(f"{error.code}: the arguments are {error}") from error
    if isinstance(value, list):
        return tuple(value), {}
    if isinstance(value, dict):
        return (), value
    return (value,), {}
