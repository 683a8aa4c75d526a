"""The status of a turn: a transient mark for user interfaces, such as "thinking"."""

from __future__ import annotations

from agents import codec
from agents.parts import Part
from agents.sockets.publisher import publisher
from agents.sockets.signals import Status

MAX_LENGTH = 255  # characters; a longer one is cut


class StatusMark(Part):
    """Shown at once and outside of the commit; taken back when the turn's method is over."""

    shown = ""

    def show(self, text: str) -> None:
        self.shown = codec.clean_text(text)[:MAX_LENGTH]
        publisher.signal(self.turn.actor, Status(self.shown, str(self.turn.id)))

    def ended(self) -> None:
        if self.shown:
            self.show("")
