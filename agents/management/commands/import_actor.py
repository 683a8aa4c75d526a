"""``manage.py import_actor``: an actor from a file that export_actor wrote."""

from __future__ import annotations

import argparse
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from agents import moving
from agents.exceptions import AgentsError
from agents.management.commands.pause import operator
from agents.terminal import shown


class Command(BaseCommand):
    help = (
        "Makes the actor of a file, all of it or nothing. It is paused, and texts that were not sent are "
        "not: it may still be at work where it came from. Then: manage.py pause KIND NAME --resume."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", type=argparse.FileType("r", encoding="utf-8"), help="The file; -: stdin.")
        parser.add_argument("--name", default="", help="Another name for it here.")
        parser.add_argument("--reason", default="", help="Why: kept with who did it.")

    def handle(self, *args: Any, file: Any, name: str, reason: str, **options: Any) -> None:
        try:
            with file:
                actor = moving.load(file, by=operator(), name=name, reason=reason)
        except AgentsError as error:
            raise CommandError(f"{error.code}: {error}") from error
        except UnicodeDecodeError as error:
            raise CommandError(f"import_refused: the file is no text: {error}") from error
        self.stdout.write(f"{shown(str(actor))} is here, paused, with {actor.seq} messages")
