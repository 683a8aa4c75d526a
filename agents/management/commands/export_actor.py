"""``manage.py export_actor``: everything that is kept of an actor, as one file."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from agents import moving
from agents.exceptions import AgentsError
from agents.management.commands.pause import operator
from agents.terminal import shown


class Command(BaseCommand):
    help = (
        "Writes an actor to a file of JSON lines that import_actor reads, on SQLite or PostgreSQL. What its "
        "class calls sensitive is left out unless asked for. The file is only readable by you."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("kind", help="The agent's kind, such as support.")
        parser.add_argument("name", help="The actor's name, such as +15550001111.")
        parser.add_argument("file", type=Path, help="The file to write; it must not be there. -: stdout.")
        parser.add_argument("--redact", action="store_true", help="Shapes alone: words become as many x.")
        parser.add_argument(
            "--sensitive", action="store_true", help="With the sensitive keys of its state: to move it."
        )

    def handle(self, *args: Any, kind: str, name: str, file: Path, **options: Any) -> None:
        lines = moving.export(
            kind, name, by=operator(), redacted=options["redact"], sensitive=options["sensitive"]
        )
        try:
            if str(file) == "-":
                for line in lines:
                    self.stdout.write(line, ending="")
                return
            if file.exists():
                raise CommandError(f"{file} is there already.")
            # Under another name until it is whole.
            with tempfile.NamedTemporaryFile(
                "w", encoding="utf-8", dir=file.parent, prefix=f".{file.name}.", delete=False
            ) as half:
                try:
                    half.writelines(lines)
                except BaseException:
                    Path(half.name).unlink()
                    raise
            Path(half.name).rename(file)
        except AgentsError as error:
            raise CommandError(f"{error.code}: {error}") from error
        except OSError as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"{shown(kind)}/{shown(name)} is in {file}, {file.stat().st_size:,} bytes")
