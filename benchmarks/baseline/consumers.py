from __future__ import annotations

from typing import Any

from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from django.db import transaction

from benchmarks.baseline.models import Actor


class EchoConsumer(AsyncWebsocketConsumer):
    async def connect(self) -> None:
        self.name = self.scope["url_route"]["kwargs"]["name"]
        self.group = f"actor-{self.name}"
        await self.channel_layer.group_add(self.group, self.channel_name)
        await self.accept()

    async def disconnect(self, code: int) -> None:
        await self.channel_layer.group_discard(self.group, self.channel_name)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        seq = await self.append(text_data or "")
        await self.channel_layer.group_send(self.group, {"type": "appended", "seq": seq})

    async def appended(self, event: dict[str, Any]) -> None:
        await self.send(text_data=str(event["seq"]))

    @database_sync_to_async
    def append(self, frame: str) -> int:
        with transaction.atomic():
            actor = Actor.locked("echo", self.name)
            message = actor.append("user", frame)
            actor.save(update_fields=["seq"])
        return message.seq
