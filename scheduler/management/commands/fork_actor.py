"""``manage.py fork_actor``: a conversation runs on from one of its turns, in a copy that texts nobody."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from agents.exceptions import AgentsError
from agents.management.commands.pause import operator
from agents.terminal import shown
from scheduler import forks, selection


class Command(BaseCommand):
    help = (
        "Copies an actor as it was before a turn (its version is on its page), and runs what came in since "
        "again, in the copy. Its texts are not sent; models are asked for real. erase_actor removes it."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("kind", help="The agent's kind, such as support.")
        parser.add_argument("name", help="The actor's name, such as +15550001111.")
        parser.add_argument("version", type=selection.positive, help="The version that the turn made.")
        parser.add_argument("--reason", default="", help="Why: kept with who did it.")

    def handle(self, *args: Any, kind: str, name: str, version: int, reason: str, **options: Any) -> None:
        try:
            made = forks.fork(kind, name, version, by=operator(), reason=reason)
        except AgentsError as error:
            raise CommandError(f"{error.code}: {error}") from error
        self.stdout.write(f"{shown(str(made.actor))}: {made.inputs} inputs run again")
        if made.as_of_now:
            self.stdout.write(f"as of now, not of then: {', '.join(made.as_of_now)}")
        if made.left_out:
            self.stdout.write(f"{made.left_out} turns that no task began are left out")
