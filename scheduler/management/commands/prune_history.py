from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from agents.blobs import prune_orphans
from scheduler.retention import keep_house


class Command(BaseCommand):
    help = "Deletes records that are older than the KEEP_* settings say, and files that no row names."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--limit", type=int, default=None, help="rows of each kind at most (default: all that are old)"
        )

    def handle(self, *args: Any, limit: int | None, **options: Any) -> None:
        for name, count in keep_house(limit=limit).items():
            self.stdout.write(f"{name}: {count}")
        self.stdout.write(f"orphaned files: {prune_orphans()}")
