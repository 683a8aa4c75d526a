"""``manage.py pause``: no turn begins of an actor, of a kind, or of any; and the way back."""

from __future__ import annotations

import getpass
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from agents import pauses
from agents.exceptions import AgentsError
from agents.models import Actor, Pause
from agents.terminal import moment, shown

#: Paused actors that --list shows.
LISTED = 100


def operator() -> str:
    """Who works at this terminal, as operators' deeds are signed."""
    try:
        return f"manage.py ({getpass.getuser()})"
    except (OSError, KeyError):
        return "manage.py"


class Command(BaseCommand):
    help = (
        "Pauses one actor, a kind, or everything (--all): none of their turns begins, in any process, until "
        "--resume. Turns that run end; calls are refused; tasks, timers and texts wait. --list says what is "
        "paused."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("kind", nargs="?", help="An agent's kind, such as support.")
        parser.add_argument("name", nargs="?", help="An actor's name. Without one: the whole kind.")
        parser.add_argument("--all", action="store_true", help="Everything.")
        parser.add_argument("--resume", action="store_true", help="Let it go on instead.")
        parser.add_argument("--reason", default="", help="Why: kept with who did it.")
        parser.add_argument("--list", action="store_true", help="Say what is paused, change nothing.")

    def handle(self, *args: Any, kind: str | None, name: str | None, **options: Any) -> None:
        if options["list"]:
            return self._list()
        if bool(kind) == options["all"]:
            raise CommandError("Say which: a kind, a kind and a name, or --all.")
        resume = options["resume"]
        signed = {"by": operator(), "reason": options["reason"]}
        what = f"{shown(kind)}/{shown(name)}" if kind and name else shown(kind) if kind else "everything"
        try:
            if kind and name:
                changed = (pauses.resume if resume else pauses.pause)(kind, name, **signed)
            else:
                verb = pauses.resume_kind if resume else pauses.pause_kind
                changed = verb(kind or pauses.EVERYTHING, **signed)
        except AgentsError as error:
            raise CommandError(f"{error.code}: {error}") from error
        did = "goes on" if resume else "is paused"
        as_before = "was not paused" if resume else "was paused before"
        self.stdout.write(f"{what} {did if changed else as_before}")
        return None

    def _list(self) -> None:
        for row in Pause.objects.order_by("kind"):
            why = f": {shown(row.reason)}" if row.reason else ""
            self.stdout.write(f"{shown(str(row))} since {moment(row.paused_at)} by {shown(row.by)}{why}")
        held = Actor.objects.filter(paused_at__isnull=False).order_by("kind", "name")
        for actor in held[:LISTED]:
            self.stdout.write(f"{shown(str(actor))} since {moment(actor.paused_at)}")
        if (count := held.count()) > LISTED:
            self.stdout.write(f"... and {count - LISTED} more actors")
