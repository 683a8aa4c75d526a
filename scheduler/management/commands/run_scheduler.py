"""``manage.py run_scheduler``: the embedded scheduler as a process of its own."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from types import FrameType
from typing import Any

from django.core.management.base import BaseCommand

from agents import conf, kinds, pauses, runtime
from agents.observing import port
from scheduler.dispatchers import local


class Command(BaseCommand):
    help = (
        "Runs due tasks and sends texts until SIGTERM or Ctrl+C, which lets running turns end (up to "
        "SHUTDOWN_GRACE); a second one stops at once. For sites whose web processes start with "
        "serve --no-scheduler. Any number of these may run: the lease of an actor decides."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        asked = threading.Event()

        def on_signal(number: int, frame: FrameType | None) -> None:
            if asked.is_set():
                # What runs loses its lease by itself; nothing of it was committed.
                os._exit(128 + number)
            asked.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, on_signal)
        if options["verbosity"] > 1:
            for name in ("agents", "scheduler", "conversations"):
                logging.getLogger(name).setLevel(logging.DEBUG)
        began = time.monotonic()
        pauses.start_paused()
        local.start()
        port.serve()
        runtime.settle_down()
        installed = ", ".join(kinds.installed()) or "none"
        self._say(f"Scheduler started; kinds: {installed}; sweep every {conf.get('SWEEP_INTERVAL'):g} s")
        asked.wait()
        grace = conf.get("SHUTDOWN_GRACE")
        self._say(f"Stopping: running turns have {grace:g} s; a second signal stops at once")
        local.stop()
        runtime.shutdown(grace)
        self._say(f"Stopped after {time.monotonic() - began:.1f} s")

    def _say(self, line: str) -> None:
        self.stdout.write(line)
        self.stdout.flush()
