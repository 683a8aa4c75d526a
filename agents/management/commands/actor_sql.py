"""``manage.py actor_sql``: an actor's private SQL database, from the shell."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import apsw
from django.core.management.base import BaseCommand, CommandError, CommandParser

from agents import codec, conf, kinds, names
from agents.exceptions import AgentsError, ReadOnlyTurnError
from agents.models import Actor
from agents.runtime import get_runtime
from agents.sql import Sql, SqlCursor, transfer
from agents.terminal import shown
from agents.turn import Turn

WIDEST = 60  # characters of a value in a table
HELP = """Statements end with ; and may go over several lines.
.tables           tables and views
.schema [NAME]    what made them
.quit             the end (as Ctrl+D)"""

Work = Callable[[Sql], Coroutine[Any, Any, Any]]


class Command(BaseCommand):
    help = (
        "Runs SQL in the private database of an actor: the statements of -c, or those that are typed (or "
        "come in through a pipe). It only reads, one committed version each time, unless --write takes a turn"
        " for each text: all of it is kept, or nothing."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("kind", help="The agent's kind, such as support.")
        parser.add_argument("name", help="The actor's name, such as +15550001111.")
        parser.add_argument("-c", "--command", action="append", metavar="SQL", help="Runs this, and ends.")
        parser.add_argument("--write", action="store_true", help="Allows writing: each text is a turn.")
        parser.add_argument("--json", action="store_true", help="Rows as JSON, one a line.")
        parser.add_argument(
            "--export", type=Path, metavar="FILE", help="Writes the whole database into a new file."
        )
        parser.add_argument(
            "--import", type=Path, metavar="FILE", dest="import_",
            help="Puts the database of a file in its place, in one turn; the actor is made if need be.",
        )  # fmt: skip

    def handle(
        self,
        *args: Any,
        kind: str,
        name: str,
        command: list[str] | None,
        write: bool,
        export: Path | None,
        import_: Path | None,
        **options: Any,
    ) -> None:
        if sum(map(bool, (command, export, import_))) > 1:
            raise CommandError("One of -c, --export and --import.")
        try:
            self.address = (kind, names.check_name(name))
            self.write, self.json = write, options["json"]
            if import_:
                self._import(import_)
                return
            actor_id = Actor.objects.filter(kind=kind, name=name).values_list("pk", flat=True).first()
            if actor_id is None:
                raise CommandError(f"There is no actor {kind}/{name}.")
            if export:
                self._export(actor_id, export)
                return
            for text in command or self._typed():
                self._run(text, stop=bool(command))
        except AgentsError as error:
            raise CommandError(f"{error.code}: {error}") from error

    # Statements

    def _run(self, text: str, stop: bool) -> None:
        try:
            cursor = self._turn(lambda sql: sql.exec(text))
        except ReadOnlyTurnError:
            problem = "This only reads; --write takes a turn."
        except AgentsError as error:
            problem = f"{error.code}: {error}"
        else:
            self._print(cursor)
            return
        if stop:
            raise CommandError(problem)
        self.stderr.write(problem)

    def _print(self, cursor: SqlCursor) -> None:
        if self.json:
            for record in cursor:
                self.stdout.write(json.dumps(codec.encode(record), ensure_ascii=False))
            return
        rows = [[_shown(value) for value in row] for row in cursor.raw()]
        if cursor.column_names:
            widths = [max(map(len, column)) for column in zip(cursor.column_names, *rows, strict=True)]
            for row in (cursor.column_names, ["-" * width for width in widths], *rows):
                cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
                self.stdout.write("  ".join(cells).rstrip())
        if cursor.rows_written:
            self.stdout.write(f"{cursor.rows_written} rows written")

    def _typed(self) -> Iterator[str]:
        """Texts that are complete, from a terminal or a pipe."""
        talks = sys.stdin.isatty()
        if talks:
            self.stdout.write(f"{'Each statement is a turn' if self.write else 'Reading only'}. .help helps.")
        text = ""
        while True:
            if talks:
                self.stdout.write("   ...> " if text else f"{'/'.join(self.address)}> ", ending="")
                self.stdout.flush()
            line = sys.stdin.readline()
            if not line or (not text and line.strip() in (".quit", ".exit")):
                break
            if not text and line.strip().startswith("."):
                yield from self._dotted(line.split())
                continue
            text += line
            if text.strip() and apsw.complete(text):
                yield text
                text = ""
        if text.strip():
            yield text

    def _dotted(self, words: list[str]) -> Iterator[str]:
        if words[0] == ".tables":
            yield (
                "SELECT name, type FROM pragma_table_list"
                " WHERE schema = 'main' AND type <> 'shadow' AND name NOT LIKE 'sqlite_%' ORDER BY 1"
            )
        elif words[0] == ".schema":
            which = " AND tbl_name = '" + words[1].replace("'", "''") + "'" if len(words) > 1 else ""
            yield f"SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL{which} ORDER BY rowid"
        else:
            self.stdout.write(HELP)

    # Files

    def _export(self, actor_id: int, file: Path) -> None:
        try:
            size = transfer.export(actor_id, file)
        except OSError as error:
            raise CommandError(f"{file}: {error.strerror}") from error
        self.stdout.write(f"{size:,} bytes in {file}" if size else "It has no database yet.")

    def _import(self, file: Path) -> None:
        if not file.is_file():
            raise CommandError(f"{file}: there is no such file.")
        pages = transfer.load(file)
        self.write = True
        self._turn(lambda sql: sql.replace(pages))
        self.stdout.write(
            f"{len(pages) * transfer.PAGE_SIZE:,} bytes are the database of {'/'.join(self.address)}"
        )

    # Turns

    def _turn(self, work: Work) -> Any:
        runtime, budget = get_runtime(), conf.get("TASK_BUDGET")
        if not self.write:

            async def reading(turn: Turn) -> Any:
                return await work(Sql(turn))

            return runtime.run_sync(
                lambda engine: engine.reads.read(self.address, "actor_sql", reading, budget=budget)
            )
        cls = kinds.get(self.address[0])

        async def body(turn: Turn) -> Any:
            agent = cls(turn)
            await agent._begin()  # on_create, for an actor that has done nothing yet
            return await work(agent.sql)

        return runtime.run_sync(lambda engine: engine.call(self.address, "actor_sql", body, budget=budget))


def _shown(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return shown(f"x'{value[:WIDEST].hex()}'", WIDEST)
    return shown(str(value), WIDEST)
