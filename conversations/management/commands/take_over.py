"""``manage.py take_over``: an operator answers in a conversation in place of its agent."""

from __future__ import annotations

import mimetypes
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from agents.exceptions import AgentsError
from agents.management.commands.pause import operator
from agents.models import Actor
from agents.terminal import shown
from conversations import takeover
from conversations.media import Upload


class Command(BaseCommand):
    help = (
        "Takes a conversation over: its agent is quiet until --release; what people write is kept. "
        "--say answers in it, as the assistant, by text where the person texts."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("kind", help="The agent's kind, such as support.")
        parser.add_argument("name", help="The actor's name, such as +15550001111.")
        parser.add_argument("--reason", default="", help="Why: kept with who did it.")
        parser.add_argument("--stop", action="store_true", help="Also stop the turn that runs now.")
        parser.add_argument("--say", metavar="WORDS", help="Answer in a conversation that is taken over.")
        parser.add_argument(
            "--file", type=Path, action="append", default=[], metavar="PATH",
            help="Answer with this picture or file, with or without --say; may be given several times.",
        )  # fmt: skip
        parser.add_argument("--release", action="store_true", help="Let the agent go on.")

    def handle(self, *args: Any, kind: str, name: str, reason: str, **options: Any) -> None:
        actor = Actor.objects.filter(kind=kind, name=name).first()
        if actor is None:
            raise CommandError(f"There is no {shown(kind)}/{shown(name)}.")
        answers = options["say"] is not None or options["file"]
        try:
            if answers:
                files = [_upload(path) for path in options["file"]]
                seq = takeover.answer(kind, name, options["say"] or "", by=operator(), files=files)
                self.stdout.write(f"said as message {seq}")
            if options["release"]:
                takeover.release(actor.pk, by=operator(), reason=reason)
                self.stdout.write(f"{shown(str(actor))} is its agent's again")
            elif not answers:
                takeover.take_over(actor.pk, by=operator(), reason=reason, stop=options["stop"])
                self.stdout.write(f"{shown(str(actor))} is yours: --say, then --release")
        except (AgentsError, Actor.DoesNotExist) as error:
            raise CommandError(f"{getattr(error, 'code', 'gone')}: {error}") from error


def _upload(path: Path) -> Upload:
    try:
        return Upload(path.name, mimetypes.guess_type(path.name)[0] or "", path.read_bytes())
    except OSError as error:
        raise CommandError(str(error)) from error
