"""Serves a text provider to test against: Telnyx's and Twilio's APIs, on this machine alone."""

from __future__ import annotations

import signal
import threading
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from conversations.sandbox import Options, Sandbox


class Command(BaseCommand):
    """Runs until SIGTERM or Ctrl+C."""

    help = (
        "Serve Telnyx's and Twilio's messaging APIs on loopback, for the official clients: take texts,"
        " report on them with signed events, refuse what certain numbers stand for (docs/texts.md)."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--port", type=int, default=8020, help="0: any free one (default %(default)s)")
        parser.add_argument(
            "--webhook",
            default="http://127.0.0.1:8000/webhooks/{provider}/support/",
            help="where texts go that come in, and reports without an address (default: %(default)s)",
        )
        parser.add_argument(
            "--delay", type=float, default=0.5, help="seconds until a report, at most (default %(default)s)"
        )
        for name, words in (
            ("doubled", "of reports that come twice"),
            ("shuffled", "of texts whose reports come in the wrong order"),
            ("late", "of reports that come ten times later"),
            ("lost", "of texts whose answer is lost after they were sent"),
        ):
            parser.add_argument(f"--{name}", type=float, default=0.0, help=f"the share, 0 to 1, {words}")
        parser.add_argument("--rate", type=float, default=0.0, help="texts a second of one number; 0: any")
        parser.add_argument("--seed", type=int, help="the same chances each time")

    def handle(self, *args: Any, **options: Any) -> None:
        for name in ("doubled", "shuffled", "late", "lost"):
            if not 0 <= options[name] <= 1:
                raise CommandError(f"--{name} is a share from 0 to 1, got {options[name]}")
        for name in ("delay", "rate"):
            if options[name] < 0:
                raise CommandError(f"--{name} must not be negative, got {options[name]}")
        names = ("webhook", "delay", "doubled", "shuffled", "late", "lost", "rate", "seed")
        try:
            sandbox = Sandbox(Options(**{name: options[name] for name in names}), port=options["port"])
        except OSError as error:
            raise CommandError(f"port {options['port']} cannot be had: {error}") from error
        ended = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: ended.set())
        with sandbox:
            self.stdout.write(f"The sandbox is at {sandbox.url}. A site uses it with")
            for name, value in self._environment(sandbox).items():
                self.stdout.write(f"  {name}={value}")
            self.stdout.write(
                f"What it took: {sandbox.url}/sandbox/texts. A text comes in by a POST there:"
                ' {"provider": "telnyx", "from": "+15550001111", "to": "+15550009999", "text": "hello"}.'
            )
            self.stdout.flush()
            ended.wait()
        self.stdout.write(f"Stopped. {len(sandbox.sent)} texts were sent.")

    def _environment(self, sandbox: Sandbox) -> dict[str, str]:
        return {
            "TELNYX_API_KEY": sandbox.options.telnyx_key,
            "TELNYX_BASE_URL": sandbox.telnyx_url,
            "TELNYX_PUBLIC_KEY": sandbox.settings["TELNYX_PUBLIC_KEYS"][0],
            "TWILIO_ACCOUNT_SID": sandbox.options.twilio_account,
            "TWILIO_AUTH_TOKEN": sandbox.options.twilio_token,
            "TWILIO_BASE_URL": sandbox.url,
        }
