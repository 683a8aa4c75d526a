"""What texts cost, as far as providers have said so."""

from __future__ import annotations

import datetime as dt
from argparse import ArgumentParser, ArgumentTypeError
from typing import Any

from django.core.management.base import BaseCommand
from django.utils import timezone

from agents.models import Actor
from conversations.models import OutboundText

KEYS = ("day", "kind", "actor")


def day(text: str) -> dt.date:
    try:
        return dt.date.fromisoformat(text)
    except ValueError as error:
        raise ArgumentTypeError(f"a day is like 2026-01-31, got {text!r}") from error


class Command(BaseCommand):
    """One line a group and currency: the group, texts, segments, cost."""

    help = (
        "Sum what texts cost, by day, kind and conversation. Texts whose cost nobody has told count with 0."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--by", nargs="*", choices=KEYS, default=["day", "kind"], help="default: day kind"
        )
        parser.add_argument("--since", type=day, help="first day (default: all)")
        parser.add_argument("--until", type=day, help="last day")

    def handle(self, *args: Any, **options: Any) -> None:
        rows = OutboundText.objects.all()
        zone = timezone.get_current_timezone()
        if since := options["since"]:
            rows = rows.filter(created_at__gte=dt.datetime.combine(since, dt.time(), zone))
        if until := options["until"]:
            rows = rows.filter(
                created_at__lt=dt.datetime.combine(until + dt.timedelta(days=1), dt.time(), zone)
            )
        found = rows.costs(*options["by"])
        actors = Actor.objects.in_bulk({row["actor"] for row in found if row.get("actor")})
        for row in found:
            names = [
                str(actors.get(row[key], "-")) if key == "actor" else str(row[key]) for key in options["by"]
            ]
            cost = f"{row['cost']:f} {row['currency'] or '(not told)'}"
            self.stdout.write(
                "\t".join([*names, f"{row['texts']} texts", f"{row['segments']} segments", cost])
            )
