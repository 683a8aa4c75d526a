"""``manage.py erase_actor``: everything that is kept of an actor goes."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from agents import erasing
from agents.management.commands.pause import operator
from agents.terminal import shown


class Command(BaseCommand):
    help = (
        "Erases an actor for good: messages, state, tasks, texts, files, records of turns, names in logs of "
        "operators. What stays: that it happened, and that its people want no texts."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("kind", help="The agent's kind, such as support.")
        parser.add_argument("name", help="The actor's name, such as +15550001111.")
        parser.add_argument("--reason", default="", help="Why: kept, so it should name nobody.")
        parser.add_argument("--yes", action="store_true", help="Do not ask.")

    def handle(self, *args: Any, kind: str, name: str, reason: str, yes: bool, **options: Any) -> None:
        what = f"{shown(kind)}/{shown(name)}"
        if not yes and input(f"Erase all of {what}? It cannot be undone. Type yes: ") != "yes":
            raise CommandError("Nothing was erased.")
        erasure = erasing.erase(kind, name, by=operator(), reason=reason)
        if erasure is None:
            raise CommandError(f"There is no {what}.")
        for label, count in sorted(erasure.counts.items()):
            self.stdout.write(f"{label}: {count}")
        self.stdout.write(f"{what} is erased")
