"""The consumer: the edge between Channels and a socket.

It has no channel of its own (``channel_layer_alias``): Channels ends a consumer with the layer, and the hub
receives for all sockets of the process. Nothing here waits for a turn.
"""

from __future__ import annotations

from typing import Any

from channels.consumer import AsyncConsumer
from channels.exceptions import StopConsumer

from agents import kinds, names
from agents.exceptions import AddressError
from agents.observing import requests
from agents.observing.carrying import request_id
from agents.sockets import admission
from agents.sockets.hub import get_hub
from agents.sockets.identity import BadHeaderError, Identity, identify
from agents.sockets.socket import NOT_FOUND, NOT_SIGNED_IN, Refused, Socket
from agents.work import Work


class AgentConsumer(AsyncConsumer):
    """``/ws/agents/<kind>/<name>/``"""

    channel_layer_alias = "none: the hub receives"

    socket: Socket | None = None
    closed = False

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        # For as long as the socket lives: each has a task of its own, and so have those that it begins.
        request_id.set(requests.taken(admission.headers_of(scope).get(requests.HEADER.lower(), "")))
        try:
            await super().__call__(scope, receive, send)
        finally:
            if self.socket is not None:
                await self.socket.end()

    async def dispatch(self, message: dict[str, Any]) -> None:
        # Not Channels' own: that visits a database thread for every frame.
        match message["type"]:
            case "websocket.receive":
                await self.websocket_receive(message)
            case "websocket.connect":
                await self.websocket_connect(message)
            case "websocket.disconnect":
                await self.websocket_disconnect(message)

    async def websocket_connect(self, message: dict[str, Any]) -> None:
        headers = admission.headers_of(self.scope)
        origin = headers.get("origin")
        if origin is not None and not admission.is_allowed(origin):
            admission.refuse(origin, "the origin is not one of this site's")
            await self.send({"type": "websocket.close"})  # before it is accepted: HTTP 403
            return
        await self.send({"type": "websocket.accept"})
        where = self.scope["url_route"]["kwargs"]
        try:
            cls = kinds.get(where["kind"])
            name = names.unescape_name(where["name"])
        except AddressError as error:
            await self._close(NOT_FOUND, str(error))
            return
        hub = get_hub()
        # A cookie is worth something only together with where it comes from.
        session = None if origin is None else self.scope.get("session")

        async def who() -> Identity:
            try:
                return await hub.run(identify, session, headers.get("authorization"), cls.kind)
            except BadHeaderError as error:
                raise Refused(NOT_SIGNED_IN, str(error)) from None

        server = self.scope.get("agents.work") or Work()
        self.socket = Socket(hub, cls, name, headers, self._send, self._close, server)
        self.socket.open(who)

    async def websocket_receive(self, message: dict[str, Any]) -> None:
        if self.socket is not None:
            text = message.get("text")
            await self.socket.receive(message["bytes"] if text is None else text)

    async def websocket_disconnect(self, message: dict[str, Any]) -> None:
        self.closed = True
        raise StopConsumer

    async def _send(self, data: str | bytes) -> None:
        if not self.closed:
            await self.send(
                {"type": "websocket.send", "text": data}
                if isinstance(data, str)
                else {"type": "websocket.send", "bytes": data}
            )

    async def _close(self, code: int, reason: str) -> None:
        if not self.closed:
            self.closed = True
            await self.send({"type": "websocket.close", "code": code, "reason": reason})


class NowhereConsumer(AsyncConsumer):
    """Any other path: the handshake is refused, in silence."""

    channel_layer_alias = AgentConsumer.channel_layer_alias

    async def websocket_connect(self, message: dict[str, Any]) -> None:
        await self.send({"type": "websocket.close"})

    async def websocket_disconnect(self, message: dict[str, Any]) -> None:
        raise StopConsumer
