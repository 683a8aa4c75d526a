"""Static files under ASGI."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from whitenoise.middleware import WhiteNoiseMiddleware


class StaticFiles(WhiteNoiseMiddleware):
    """WhiteNoise, without its warning at each file.

    WhiteNoise answers with an iterator that blocks, which Django serves under ASGI only with a warning; here
    the file is read in a thread, as Django's own handler of static files does it. And it is synchronous,
    which would send every request of an ASGI site through a thread: here it takes requests either way.
    """

    sync_capable = async_capable = True

    def __init__(self, get_response: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(get_response, *args, **kwargs)
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> Any:
        return self._answer(request) if iscoroutinefunction(self) else super().__call__(request)

    async def _answer(self, request: HttpRequest) -> HttpResponseBase:
        if self.autorefresh:
            static_file = await asyncio.to_thread(self.find_file, request.path_info)
        else:
            static_file = self.files.get(request.path_info)
        if static_file is not None:
            return self.serve(static_file, request)
        passed_on: HttpResponseBase = await self.get_response(request)
        return passed_on

    @staticmethod
    def serve(static_file: Any, request: HttpRequest) -> HttpResponseBase:
        response = WhiteNoiseMiddleware.serve(static_file, request)
        if isinstance(request, ASGIRequest):
            response.streaming_content = _read(response.streaming_content)
        return response


async def _read(content: Iterable[bytes]) -> AsyncIterator[bytes]:
    for chunk in await asyncio.to_thread(list, content):
        yield chunk
