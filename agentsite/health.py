"""``/health/live`` and ``/health/ready``: for load balancers, supervisors and monitors.

*Live* says that this process answers. *Ready* looks at what it needs and names what fails; each part has a
few seconds. Without its database, or with one that isn't migrated, a process is of no use: 503. Without
Redis, a sweep or beat it takes everything in and answers a little later, or when they are back: 200,
``degraded``, and 503 only for a monitor that asks with ``?strict``.

Answered before everything else of the site, and whatever the ``Host``: probes ask by address. What is said
tells nothing that a stranger could use; the log has the errors.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from typing import Any

from asgiref.sync import iscoroutinefunction
from django.conf import settings
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.http.response import HttpResponseBase
from django.utils.decorators import sync_and_async_middleware

from agents import conf
from agents.threads import with_connection
from scheduler.checks import SILENCE
from scheduler.models import Pulse, PulseName

logger = logging.getLogger("agentsite.health")

PATIENCE = 3.0  # seconds that a part may take
FRESH = 1.0  # seconds that an answer is good for: many may ask
OK = "ok"


class PartError(Exception):
    """What is wrong with a part, in words for everybody."""


# The parts


def database() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
        cursor.fetchone()


_migrated = False


def migrations() -> None:
    global _migrated
    if _migrated:
        return  # nobody takes one back under a running site
    executor = MigrationExecutor(connection)
    missing = executor.migration_plan(executor.loader.graph.leaf_nodes())
    if missing:
        raise PartError(f"{len(missing)} are not applied")
    _migrated = True


def redis() -> None:
    import redis as client

    for url in {settings.REDIS_URL, settings.CELERY_BROKER_URL if _has_workers() else ""}:
        if url.startswith(("redis://", "rediss://", "unix://")):
            with client.from_url(url, socket_timeout=PATIENCE, socket_connect_timeout=PATIENCE) as server:
                server.ping()


def sweep() -> None:
    _seen(PulseName.SWEEP, "a worker" if _has_workers() else "manage.py serve or run_scheduler")


def beat() -> None:
    _seen(PulseName.BEAT, "celery beat, or a worker that runs what it sends")


def _seen(name: PulseName, what: str) -> None:
    age = Pulse.objects.ages().get(name)
    if age is None:
        raise PartError(f"never seen: {what} is missing")
    if age > SILENCE:
        raise PartError(f"not seen for {age:.0f} s: {what} is missing")


def _has_workers() -> bool:
    return bool(conf.get("DISPATCHER") == "celery")


#: Without these a process is of no use.
VITAL: Mapping[str, Callable[[], None]] = {"database": database, "migrations": migrations}


def parts() -> dict[str, Callable[[], None]]:
    found = {**VITAL, "sweep": sweep}
    if settings.REDIS_URL or _has_workers():
        found["redis"] = redis
    if _has_workers():
        found["beat"] = beat
    return found


# Looking


class Looks:
    """Looks at the parts in threads of its own, at each part once at a time.

    A part that hangs keeps its thread, and is said to hang to everybody who asks meanwhile.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[str, Future[str]] = {}
        self._began: dict[str, float] = {}

    def start(self) -> dict[str, Future[str]]:
        now = time.monotonic()
        with self._lock:
            for name, look in parts().items():
                last = self._running.get(name)
                if last is None or (last.done() and now - self._began[name] >= FRESH):
                    self._began[name] = now
                    future: Future[str] = Future()
                    self._running[name] = future
                    # A daemon: one that hangs must not keep the process from ending.
                    thread = threading.Thread(
                        target=self._look, args=(name, look, future), name=f"health-{name}", daemon=True
                    )
                    thread.start()
            return dict(self._running)

    def _look(self, name: str, look: Callable[[], None], future: Future[str]) -> None:
        try:
            with_connection(look)
        except PartError as error:
            future.set_result(str(error))
        except Exception as error:
            logger.warning("%s fails: %s: %s", name, type(error).__name__, error)
            future.set_result(type(error).__name__)
        else:
            future.set_result(OK)


_looks = Looks()


def said(future: Future[str]) -> str:
    return future.result() if future.done() else f"no answer within {PATIENCE:g} s"


def response(answers: Mapping[str, str], *, strict: bool) -> HttpResponse:
    failing = {name for name, answer in answers.items() if answer != OK}
    unavailable = bool(failing & VITAL.keys())
    status = "unavailable" if unavailable else "degraded" if failing else OK
    code = 503 if unavailable or (failing and strict) else 200
    return _json({"status": status, "parts": dict(sorted(answers.items()))}, code)


def ready(*, strict: bool = False) -> HttpResponse:
    """Waits for the parts, PATIENCE seconds at most."""
    looks = _looks.start()
    deadline = time.monotonic() + PATIENCE
    for future in looks.values():
        try:
            future.result(max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            pass
    return response({name: said(future) for name, future in looks.items()}, strict=strict)


async def ready_async(*, strict: bool = False) -> HttpResponse:
    looks = _looks.start()
    # Nothing may cancel them: others may wait for them too.
    await asyncio.wait([asyncio.wrap_future(future) for future in looks.values()], timeout=PATIENCE)
    return response({name: said(future) for name, future in looks.items()}, strict=strict)


def _json(content: Any, status: int = 200) -> HttpResponse:
    return JsonResponse(content, status=status, headers={"Cache-Control": "no-store"})


# The middleware


@sync_and_async_middleware
def middleware(get_response: Callable[[HttpRequest], Any]) -> Any:
    """Answers both addresses; everything else goes on."""
    if iscoroutinefunction(get_response):

        async def answer_async(request: HttpRequest) -> HttpResponseBase:
            if (answer := _simple(request)) is not None:
                return answer
            if request.path_info == "/health/ready":
                return await ready_async(strict="strict" in request.GET)
            passed_on: Awaitable[HttpResponseBase] = get_response(request)
            return await passed_on

        return answer_async

    def answer(request: HttpRequest) -> HttpResponseBase:
        if (answer := _simple(request)) is not None:
            return answer
        if request.path_info == "/health/ready":
            return ready(strict="strict" in request.GET)
        passed_on: HttpResponseBase = get_response(request)
        return passed_on

    return answer


def _simple(request: HttpRequest) -> HttpResponse | None:
    if not request.path_info.startswith("/health/"):
        return None
    if request.method not in ("GET", "HEAD"):
        return HttpResponse(status=405, headers={"Allow": "GET, HEAD"})
    if request.path_info == "/health/live":
        return _json({"status": OK})
    return None
