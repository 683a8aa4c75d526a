"""``manage.py check_transcripts``: which logs are repaired at rendering, and why."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from agents.models import Actor
from conversations.history import PAGE
from conversations.messages import COLUMNS, StoredMessage, message_of
from conversations.models import Message
from conversations.repairs import Finding, findings

MOST = 20


class Command(BaseCommand):
    help = (
        "Reports the logs that are not sent to models as they stand, message by message, with what is sent"
        " instead and who would have refused it. Changes nothing. A call whose result is missing 'so far' may"
        " belong to a turn that runs now."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--kind", help="Only actors of this kind.")
        parser.add_argument("--name", help="Only actors of this name.")
        parser.add_argument(
            "--most", type=int, default=MOST, help=f"Findings to print of each log. Default: {MOST}."
        )
        parser.add_argument("--json", action="store_true", help="One JSON object a line instead of text.")
        parser.add_argument("--fail", action="store_true", help="Exit with 1 if there was anything.")

    def handle(self, *args: Any, most: int, fail: bool, **options: Any) -> None:
        actors = Actor.objects.filter(seq__gt=0).order_by("pk")
        for field in ("kind", "name"):
            if options[field] is not None:
                actors = actors.filter(**{field: options[field]})
        looked, repaired = 0, 0
        for actor in actors.only("id", "kind", "name", "seq").iterator(chunk_size=PAGE):
            looked += 1
            found = list(findings(_log(actor)))
            if not found:
                continue
            repaired += 1
            show = self._json if options["json"] else self._text
            show(actor, found, most)
        total = f"{repaired} of {looked} logs need repair at rendering"
        if options["json"]:
            self.stderr.write(total)
        else:
            self.stdout.write(total)
        if fail and repaired:
            raise CommandError(total, returncode=1)

    def _text(self, actor: Actor, found: list[Finding], most: int) -> None:
        times = "1 thing" if len(found) == 1 else f"{len(found)} things"
        self.stdout.write(f"{actor.kind}/{actor.name}: {times} in {actor.seq} messages")
        for finding in islice(found, most):
            self.stdout.write(f"  {finding}")
        if len(found) > most:
            self.stdout.write(f"  and {len(found) - most} more (--most)")

    def _json(self, actor: Actor, found: list[Finding], most: int) -> None:
        for finding in found:
            line = {"kind": actor.kind, "name": actor.name, "seq": finding.seq}
            line |= {"finding": finding.kind, "about": finding.about}
            self.stdout.write(json.dumps(line, ensure_ascii=False))


def _log(actor: Actor) -> Iterator[StoredMessage]:
    """The whole log, a page in memory at a time."""
    rows = Message.objects.of(actor.pk, actor.seq).values(*COLUMNS)
    return map(message_of, rows.iterator(chunk_size=PAGE))
