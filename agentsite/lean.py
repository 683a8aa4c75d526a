"""Requests that need nothing of what the site does for browsers, and hold no thread while they wait."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from typing import Any

from django.core.exceptions import RequestAborted
from django.core.handlers.asgi import ASGIHandler, get_script_prefix
from django.core.handlers.exception import convert_exception_to_response
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.middleware.clickjacking import XFrameOptionsMiddleware
from django.middleware.security import SecurityMiddleware
from django.urls import set_script_prefix

from agents.observing import requests


class LeanHandler(ASGIHandler):
    """Django's handler without middleware, and without a thread for each request.

    For asynchronous views that authenticate what comes in by themselves and use the database in threads of
    their own. No session, CSRF token, message or static file is looked for; no ``request_started`` is sent,
    whose receivers Django runs in a thread made for the request.
    """

    def load_middleware(self, is_async: bool = False) -> None:
        self._view_middleware: list[Any] = []
        self._template_response_middleware: list[Any] = []
        self._exception_middleware: list[Any] = []
        self._middleware_chain = convert_exception_to_response(self._get_response_async)  # type: ignore[attr-defined]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            body = await self.read_body(receive)
        except RequestAborted:
            return
        with closing(body):
            set_script_prefix(get_script_prefix(scope))
            refusal: Any
            request, refusal = self.create_request(scope, body)
            if request is None:
                await self.send_response(refusal, send)
            else:
                await self.answer(request, receive, send)

    async def answer(self, request: Any, receive: Any, send: Any) -> None:
        await self.send_response(await self.run_get_response(request), send)


class ApiHandler(LeanHandler):
    """The same for the API and for agents that answer requests: for clients that wait, and may go away.

    Requests have ids, and the headers that Django's security middleware gives: both ask nobody for anything.
    Sessions are found by who authenticates (``agents/http/authentication.py``).
    """

    def load_middleware(self, is_async: bool = False) -> None:
        super().load_middleware(is_async)
        chain: Any = self._middleware_chain
        self._middleware_chain = convert_exception_to_response(requests.middleware(_secured(chain)))

    async def answer(self, request: Any, receive: Any, send: Any) -> None:
        answering: asyncio.Task[Any] = asyncio.ensure_future(self.run_get_response(request))
        leaving = asyncio.ensure_future(self.listen_for_disconnect(receive))
        try:
            await asyncio.wait((answering, leaving), return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                await self.send_response(answering.result(), send)
        finally:
            # Whoever has gone away waits for nothing any more.
            for task in (answering, leaving):
                task.cancel()
                with suppress(asyncio.CancelledError, RequestAborted):
                    await task


def _secured(
    get_response: Callable[[HttpRequest], Awaitable[HttpResponseBase]],
) -> Callable[[HttpRequest], Awaitable[HttpResponseBase]]:
    """What Django's own middleware does, which as a middleware would take a thread for it."""
    security = SecurityMiddleware(lambda request: HttpResponse())
    frames = XFrameOptionsMiddleware(lambda request: HttpResponse())

    async def answer(request: HttpRequest) -> HttpResponseBase:
        response: Any = security.process_request(request) or await get_response(request)
        return frames.process_response(request, security.process_response(request, response))

    return answer
