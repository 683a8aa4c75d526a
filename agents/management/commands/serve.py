"""``manage.py serve``: the site, with the embedded scheduler when that is the dispatcher."""

from __future__ import annotations

import logging
import os
import time
from argparse import ArgumentTypeError
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from agents import conf


def port_number(text: str) -> int:
    """0 to 65535; 0 takes any free port."""
    try:
        port = int(text)
    except ValueError:
        port = -1
    if not 0 <= port <= 65535:
        raise ArgumentTypeError(f"a port is a number from 0 to 65535, got {text!r}")
    return port


class Command(BaseCommand):
    help = (
        "Serves the site over HTTP and WebSockets until SIGTERM or Ctrl+C, which lets running requests, "
        "frames and turns end (SHUTDOWN_GRACE); a second one stops at once. Starts the embedded scheduler "
        "when DISPATCHER is 'local'."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--host", default="127.0.0.1", help="Address to listen on. Default: 127.0.0.1.")
        parser.add_argument(
            "--port", type=port_number, default=8000, help="Port; 0 takes any free one. Default: 8000."
        )
        parser.add_argument(
            "--no-scheduler",
            action="store_true",
            help="Serve only; due tasks run elsewhere (manage.py run_scheduler).",
        )

    def handle(self, *args: Any, host: str, port: int, no_scheduler: bool, **options: Any) -> None:
        # Twisted installs its reactor when it is imported: only here, never by an app that is loaded.
        from channels.routing import get_default_application
        from daphne.access import AccessLogGenerator

        from agents.server import GracefulServer, bind

        try:
            bound = bind(host, port)
        except OSError as error:
            raise CommandError(
                f"Cannot listen on {host}:{port}: {error.strerror or error}. "
                "Another server may be running; --port N takes another port."
            ) from None
        verbose = options["verbosity"] > 1
        for name in ("daphne", "twisted", "uvicorn"):
            logging.getLogger(name).setLevel(logging.INFO if verbose else logging.WARNING)

        from agents import pauses, runtime
        from agents.observing import port as metrics_port
        from agents.sockets import hub

        pauses.start_paused()
        scheduler: Any = None
        if conf.get("DISPATCHER") == "local" and not no_scheduler:
            from scheduler.dispatchers import local

            scheduler = local

        began = time.monotonic()

        def started() -> None:
            if scheduler:
                scheduler.start()
            runtime.settle_down()
            metrics_port.serve()
            where = f"[{host}]" if ":" in host else host
            self.stdout.write(
                f"Serving http://{where}:{server_port}/ "
                f"({'with the embedded scheduler' if scheduler else 'without a scheduler'})"
            )
            self.stdout.flush()

        def stopping() -> None:
            if scheduler:
                scheduler.stop()

        def stopped(left: float) -> None:
            hub.shutdown()
            runtime.shutdown(left)

        server_port = bound.getsockname()[1]
        server = GracefulServer(
            get_default_application(),
            bound,
            grace=conf.get("SHUTDOWN_GRACE"),
            started=started,
            stopping=stopping,
            stopped=stopped,
            action_logger=AccessLogGenerator(self.stdout) if verbose else None,
        )
        server.run()
        self.stdout.write(f"Stopped after {time.monotonic() - began:.1f} s")
        if server.cut_short:
            # A synchronous view that hangs in its thread would keep the process alive.
            self.stdout.flush()
            logging.shutdown()
            os._exit(0)
