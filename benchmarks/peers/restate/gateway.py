"""Sockets before Restate, which has none: a frame becomes a call, its answer goes to the actor's sockets."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import AsyncIterator

from aiohttp import ClientSession, TCPConnector, WSMsgType, web

INGRESS = os.environ["INGRESS"]
sockets: dict[str, set[web.WebSocketResponse]] = defaultdict(set)


async def socket(request: web.Request) -> web.WebSocketResponse:
    name = request.match_info["name"]
    ws = web.WebSocketResponse()
    await ws.prepare(request)
    sockets[name].add(ws)
    try:
        async for frame in ws:
            if frame.type is WSMsgType.TEXT:
                async with request.app["client"].post(
                    f"{INGRESS}/echo/{name}/append", json=frame.data
                ) as answer:
                    seq = await answer.text()
                for each in sockets[name]:
                    await each.send_str(seq)
    finally:
        sockets[name].discard(ws)
    return ws


async def client(app: web.Application) -> AsyncIterator[None]:
    async with ClientSession(connector=TCPConnector(limit=0)) as app["client"]:
        yield


if __name__ == "__main__":
    app = web.Application()
    app.cleanup_ctx.append(client)
    app.router.add_get("/{name}", socket)
    web.run_app(app, host="127.0.0.1", port=int(os.environ["PORT"]), print=None)
