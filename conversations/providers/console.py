"""Prints texts instead of sending them: what a site without keys does."""

from __future__ import annotations

import sys
import threading

from conversations.providers.base import Outgoing, SendResult, TextProvider


class ConsoleProvider(TextProvider):
    """One line a text, on standard output."""

    name = "console"

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def send(self, outgoing: Outgoing) -> SendResult:
        text = outgoing.text
        words = " / ".join(text.text.splitlines())
        pictures = "".join(f" [{url}]" for url in outgoing.media_urls)
        with self._lock:
            sys.stdout.write(f"[text] {text.from_number} -> {text.to_number}: {words}{pictures}\n")
            sys.stdout.flush()
        return SendResult(provider_id=f"console-{text.uid}")
