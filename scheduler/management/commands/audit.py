from __future__ import annotations

import itertools
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from scheduler.audit import CHECKS, audit


class Command(BaseCommand):
    help = "Looks whether everything that must be true of the database is true. Exits with 1 if not."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--settled",
            type=float,
            default=60.0,
            metavar="SECONDS",
            help="how long something may be under way before it is a finding (default: 60)",
        )
        parser.add_argument("--most", type=int, default=100, help="findings to print (default: 100)")

    def handle(self, *args: Any, settled: float, most: int, **options: Any) -> None:
        findings = audit(settled)
        shown = list(itertools.islice(findings, most))
        for finding in shown:
            self.stdout.write(str(finding))
        if shown:
            raise CommandError(f"{len(shown) + sum(1 for _ in findings)} findings", returncode=1)
        self.stdout.write(f"{len(CHECKS)} checks, nothing found")
