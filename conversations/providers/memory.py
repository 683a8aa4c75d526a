"""Keeps texts in a list instead of sending them: for tests of agents, as Django's locmem e-mail backend."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from conversations.exceptions import ProviderError
from conversations.providers.base import Outgoing, SendResult, TextProvider


@dataclass(frozen=True)
class SentText:
    """A text as it would have left."""

    to: str
    sender: str
    text: str
    media: tuple[str, ...] = ()


#: What was sent, in order. Tests empty it.
outbox: list[SentText] = []
#: What the next ``send`` raises instead, in order.
failures: list[ProviderError] = []


class MemoryProvider(TextProvider):
    """``conversations.providers.memory.outbox`` is the list."""

    name = "memory"

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def send(self, outgoing: Outgoing) -> SendResult:
        text = outgoing.text
        with self._lock:
            if failures:
                raise failures.pop(0)
            outbox.append(SentText(text.to_number, text.from_number, text.text, tuple(outgoing.media_urls)))
        return SendResult(provider_id=f"memory-{text.uid}-{text.attempts}")
