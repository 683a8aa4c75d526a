"""Consent to texts: files in and out, and one person's record."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from conversations import consent
from conversations.models import Consent, ConsentSource, ConsentState


class Command(BaseCommand):
    """``export``, ``import``, ``set`` and ``show``."""

    help = "Export and import who wants no texts from which of our numbers; set and show one record."

    def add_arguments(self, parser: ArgumentParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
        export = verbs.add_parser("export", help="write every record as CSV")
        export.add_argument("file", nargs="?", help="standard output without one")
        load = verbs.add_parser("import", help="read records, or a provider's list of numbers, from CSV")
        load.add_argument(
            "file", help="needs a header: their_number (or number, phone_number, to), and so on"
        )
        load.add_argument(
            "--ours",
            action="append",
            default=[],
            help="our number, for a file that names none; may come again",
        )
        load.add_argument("--by", default="", help="who does this, for the history")
        change = verbs.add_parser("set", help="write what somebody said")
        change.add_argument("theirs")
        change.add_argument("ours")
        change.add_argument("state", choices=ConsentState.values)
        change.add_argument("--by", default="", help="who does this, for the history")
        show = verbs.add_parser("show", help="show a person's records and their history")
        show.add_argument("theirs")

    def handle(self, *args: Any, **options: Any) -> None:
        getattr(self, f"_{options['verb']}")(options)

    def _export(self, options: dict[str, Any]) -> None:
        if not options["file"]:
            consent.export(sys.stdout)
            return
        with Path(options["file"]).open("w", newline="", encoding="utf-8") as file:
            count = consent.export(file)
        self.stdout.write(f"{count} records are in {options['file']}.")

    def _import(self, options: dict[str, Any]) -> None:
        ours = [_number(number, sender=True) for number in options["ours"]]
        try:
            with Path(options["file"]).open(newline="", encoding="utf-8-sig") as file:
                result = consent.load(file, ours=ours, by=options["by"])
        except (OSError, UnicodeDecodeError) as error:
            raise CommandError(str(error)) from error
        for line, why in result.refused:
            self.stderr.write(f"line {line}: {why}")
        self.stdout.write(
            f"{result.changed} changed, {result.unchanged} unchanged, {len(result.refused)} refused."
        )
        if result.refused and not (result.changed or result.unchanged):
            raise CommandError(f"nothing was read: {result.refused[0][1]}")

    def _set(self, options: dict[str, Any]) -> None:
        theirs, ours = _number(options["theirs"]), _number(options["ours"], sender=True)
        changed = consent.record(
            theirs, ours, ConsentState(options["state"]), ConsentSource.OPERATOR, by=options["by"]
        )
        self.stdout.write(f"{theirs} / {ours}: {options['state']}{'' if changed else ' (as before)'}")

    def _show(self, options: dict[str, Any]) -> None:
        theirs = _number(options["theirs"])
        records = Consent.objects.filter(their_number=theirs).order_by("our_number")
        for record in records:
            self.stdout.write(f"{record.our_number}: {record.state} since {record.changed_at:%Y-%m-%d %H:%M}")
            for change in record.changes.order_by("at"):
                what = f"{change.state} by {change.by or change.source} {change.word}".rstrip()
                self.stdout.write(f"  {change.at:%Y-%m-%d %H:%M} {what}")
        if not records:
            self.stdout.write(f"Nothing is known of {theirs}.")


def _number(given: str, *, sender: bool = False) -> str:
    try:
        return consent.number_of(given, sender=sender)
    except ValueError as error:
        raise CommandError(str(error)) from error
