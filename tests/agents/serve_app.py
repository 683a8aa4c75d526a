"""A tiny ASGI application that the tests of ``manage.py serve`` put behind it, and its settings."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from tests.settings import *  # noqa: F403

AGENTS = {"DISPATCHER": "local", "SHUTDOWN_GRACE": float(os.environ.get("GRACE", "60"))}
ASGI_APPLICATION = "tests.agents.serve_app.application"


async def application(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """``/slow`` answers when it may, ``/never`` not at all, all else at once; a socket echoes.

    A frame "slow" is answered when it may, a frame with a number closes the socket with that code.
    """
    if scope["type"] == "websocket":
        await _echo(receive, send)
        return
    if scope["path"] == "/never":
        print("in flight", flush=True)
        await asyncio.Event().wait()
    if scope["path"] == "/slow":
        await _may_go_on()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"6")]})
    await send({"type": "http.response.body", "body": b"answer"})


async def _may_go_on() -> None:
    """When there is the file that the test makes."""
    print("in flight", flush=True)
    while not Path(os.environ["GO_ON"]).exists():  # noqa: ASYNC110, ASYNC240
        await asyncio.sleep(0.01)


async def _echo(receive: Any, send: Any) -> None:
    while (event := await receive())["type"] != "websocket.disconnect":
        if event["type"] == "websocket.connect":
            await send({"type": "websocket.accept"})
        else:
            if event["text"] == "slow":
                await _may_go_on()
            if event["text"].isdigit():
                await send({"type": "websocket.close", "code": int(event["text"]), "reason": "ä" * 100})
            await send({"type": "websocket.send", "text": f"echo {event['text']}"})
