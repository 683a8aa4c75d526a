"""What the sandbox keeps: messages, and how it behaves."""

from __future__ import annotations

import datetime as dt
import random
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from conversations.keywords import keyword_of
from conversations.models import Keyword
from conversations.signatures import DEVELOPMENT_SIGNING_KEY


@dataclass
class Options:
    """How the sandbox behaves. Times are seconds, shares are 0 to 1."""

    telnyx_key: str = "sandbox"
    signing_key: Ed25519PrivateKey = DEVELOPMENT_SIGNING_KEY
    twilio_account: str = "AC" + "5a" * 16
    twilio_token: str = "sandbox"
    # Where reports go that no message says an address for, and texts that come in; "{provider}" in it is
    # replaced by the provider's name.
    webhook: str = ""
    # Within how long after the answer the reports come.
    delay: float = 0.2
    # Shares of reports that come again, that overtake each other, that come LATE times later; and of
    # requests whose answer is lost after the text was sent.
    doubled: float = 0.0
    shuffled: float = 0.0
    late: float = 0.0
    lost: float = 0.0
    # Texts a second that a number may send; 0: any.
    rate: float = 0.0
    # How long an answer takes; how long one takes that never comes.
    answer: float = 0.0
    hang: float = 60.0
    seed: int | None = None

    def webhook_of(self, provider: str) -> str:
        return self.webhook.replace("{provider}", provider)


@dataclass
class Message:
    """One text, in or out."""

    provider: str
    direction: str  # inbound | outbound
    sender: str
    to: str
    text: str
    media: list[str] = field(default_factory=list)
    callback: str = ""
    id: str = ""
    status: str = "queued"
    code: str = ""
    parts: int = 1
    price: str | None = None
    made_at: dt.datetime = field(default_factory=lambda: dt.datetime.now(dt.UTC))
    changed_at: dt.datetime = field(default_factory=lambda: dt.datetime.now(dt.UTC))
    reports: list[str] = field(default_factory=list)  # statuses that were delivered, in that order

    def set(self, status: str, code: str = "") -> None:
        self.status, self.code, self.changed_at = status, code, dt.datetime.now(dt.UTC)

    def as_dict(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "provider": self.provider,
            "direction": self.direction,
            "from": self.sender,
            "to": self.to,
            "text": self.text,
            "media": self.media,
            "status": self.status,
            "code": self.code,
            "reports": self.reports,
        }


class Messages:
    """All of them, and what the sandbox remembers of numbers. Any thread may use it."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.random = random.Random(options.seed)
        self.lock = threading.RLock()
        self._all: dict[str, Message] = {}
        self._blocked: set[tuple[str, str, str]] = set()  # provider, theirs, ours
        self._next: dict[str, float] = {}  # when a number may send again
        self._tries: dict[tuple[str, str], int] = {}
        self.media: dict[str, tuple[str, bytes]] = {}

    def add(self, message: Message) -> Message:
        with self.lock:
            if not message.id:
                message.id = (
                    str(uuid.uuid4())
                    if message.provider == "telnyx"
                    else f"{'MM' if message.media else 'SM'}{uuid.uuid4().hex}"
                )
            self._all[message.id] = message
        return message

    def get(self, id: str) -> Message | None:
        return self._all.get(id)

    def __iter__(self) -> Iterator[Message]:
        with self.lock:
            return iter(list(self._all.values()))

    def outbound(self) -> list[Message]:
        return [message for message in self if message.direction == "outbound"]

    def heed(self, message: Message) -> Keyword | None:
        """What a provider does with a keyword by itself: it blocks texts to that person, or lifts that."""
        keyword = keyword_of(message.text)
        pair = (message.provider, message.sender, message.to)
        with self.lock:
            if keyword == Keyword.STOP:
                self._blocked.add(pair)
            elif keyword == Keyword.START:
                self._blocked.discard(pair)
        return keyword

    def is_blocked(self, provider: str, to: str, sender: str) -> bool:
        return (provider, to, sender) in self._blocked

    def is_too_fast(self, sender: str) -> float:
        """Seconds until ``sender`` may send; 0: now, and that counts."""
        if self.options.rate <= 0:
            return 0.0
        with self.lock:
            now = time.monotonic()
            wait = self._next.get(sender, 0.0) - now
            if wait > 0:
                return wait
            self._next[sender] = now + 1 / self.options.rate
        return 0.0

    def nth_try(self, to: str, text: str) -> int:
        """How often this text was sent to this number before, this time included."""
        with self.lock:
            count = self._tries[to, text] = self._tries.get((to, text), 0) + 1
        return count

    def chance(self, share: float) -> bool:
        with self.lock:
            return share > 0 and self.random.random() < share
