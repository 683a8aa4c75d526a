"""A channel layer that loses what it likes, and tells some of it twice: for the tests of what heals that."""

from __future__ import annotations

import os
import random
from typing import Any

from agents.sockets.layer import RedisLayer

LOST, TWICE = 0.4, 0.1


class LossyLayer(RedisLayer):
    """Redis's, which has no idea. ``TEST_SEED`` is where its dice begin."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._dice = random.Random(os.environ.get("TEST_SEED", "1"))

    async def group_send(self, group: str, message: dict[str, Any]) -> None:
        if self._dice.random() < LOST:
            return
        await super().group_send(group, message)
        if self._dice.random() < TWICE:
            await super().group_send(group, message)

    async def receive(self, channel: str) -> Any:
        while True:
            message = await super().receive(channel)
            if self._dice.random() >= LOST:
                return message
