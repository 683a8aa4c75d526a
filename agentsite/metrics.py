"""``GET /metrics``: this process's metrics and the database's figures, for Prometheus.

Whoever asks brings the token (``METRICS_TOKEN``) as ``Authorization: Bearer``; where the settings have none
only a development site answers, and only its own machine. Answered before everything else of the site, and
whatever the ``Host``: Prometheus asks by address.

The figures are read once for all who ask within ``FRESH`` seconds, in a thread of their own; where the
database does not answer, the process's metrics come without them, and ``agents_database_up`` is 0.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from typing import Any

from asgiref.sync import iscoroutinefunction
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils.decorators import sync_and_async_middleware
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from agents import conf
from agents.threads import with_connection
from agentsite import figures
from conversations.signatures import is_local_development

logger = logging.getLogger("agentsite.metrics")

FRESH = 5.0  # seconds that figures are good for
PATIENCE = 5.0  # seconds that a scrape waits for them


class Figures:
    """Reads the database's figures in a thread, once at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reading: Future[list[Metric]] | None = None
        self._began = 0.0

    def ask(self) -> Future[list[Metric]]:
        """The figures, when they are there: [] where the database has none to give."""
        with self._lock:
            reading, now = self._reading, time.monotonic()
            if reading is None or (reading.done() and now - self._began >= FRESH):
                reading = self._reading = Future()
                self._began = now
                # A daemon: one that hangs must not keep the process from ending.
                threading.Thread(target=self._read, args=(reading,), name="metrics", daemon=True).start()
            return reading

    def _read(self, reading: Future[list[Metric]]) -> None:
        try:
            reading.set_result(with_connection(figures.read))
        except Exception as error:
            logger.warning("the database's figures are not there: %s", type(error).__name__)
            reading.set_result([])


_figures = Figures()


class Given(Collector):
    """Metrics that have been read already."""

    def __init__(self, found: list[Metric]) -> None:
        self._found = found

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "agents_database_up", "Whether the database told its figures.", float(bool(self._found))
        )
        yield from self._found


def text(found: list[Metric]) -> bytes:
    """Everything in Prometheus's text format."""
    database = CollectorRegistry()
    database.register(Given(found))
    process: CollectorRegistry = REGISTRY
    if os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
        process = CollectorRegistry()
        MultiProcessCollector(process)
    return generate_latest(process) + generate_latest(database)


def may_see(request: HttpRequest) -> bool:
    token = conf.get("METRICS_TOKEN")
    if not token:
        return is_local_development(request)
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), token.encode())


def _refusal(request: HttpRequest) -> HttpResponse | None:
    if request.method not in ("GET", "HEAD"):
        return HttpResponse(status=405, headers={"Allow": "GET, HEAD"})
    if not may_see(request):
        return HttpResponse(status=401, headers={"WWW-Authenticate": "Bearer", "Cache-Control": "no-store"})
    return None


def _answer(reading: Future[list[Metric]]) -> HttpResponse:
    found = reading.result() if reading.done() else []
    return HttpResponse(text(found), content_type=CONTENT_TYPE_LATEST, headers={"Cache-Control": "no-store"})


@sync_and_async_middleware
def middleware(get_response: Callable[[HttpRequest], Any]) -> Any:
    """Answers ``/metrics``; everything else goes on."""
    if iscoroutinefunction(get_response):

        async def answer_async(request: HttpRequest) -> HttpResponseBase:
            if request.path_info != "/metrics":
                passed_on: Awaitable[HttpResponseBase] = get_response(request)
                return await passed_on
            if (refusal := _refusal(request)) is not None:
                return refusal
            reading = _figures.ask()
            # Nothing may cancel it: others may wait for it too.
            await asyncio.wait([asyncio.wrap_future(reading)], timeout=PATIENCE)
            return _answer(reading)

        return answer_async

    def answer(request: HttpRequest) -> HttpResponseBase:
        if request.path_info != "/metrics":
            passed_on: HttpResponseBase = get_response(request)
            return passed_on
        if (refusal := _refusal(request)) is not None:
            return refusal
        reading = _figures.ask()
        try:
            reading.result(PATIENCE)
        except TimeoutError:
            pass
        return _answer(reading)

    return answer
