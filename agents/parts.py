"""A part of a turn: the log, the timers, the texts ... each joins a turn and writes itself at commit."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agents.turn import Turn
    from agents.writes import Writes


class Part:
    """Something that collects what a turn does and turns it into rows when the turn commits.

    ``agents.turn`` knows nothing of what parts hold; ``agents.agent`` is the one place that puts them
    together. A part calls ``self.turn.writing()`` before it buffers a write, reads its own committed rows
    through ``await self.turn.read(fn, *args)``, and keeps what a read in the same turn must see.
    """

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        turn.parts.append(self)

    def check(self) -> None:
        """A checkpoint is asked for: raises where this part cannot be committed now."""

    def collect(self, writes: Writes) -> None:
        """Adds what was buffered since the last commit. Called once for each commit or checkpoint."""

    def committed(self) -> None:
        """What ``collect`` gave is in the database."""

    def ended(self) -> None:
        """The turn's method is over. Its commit, if there is one, comes after this; must be quick."""

    async def abandoned(self) -> None:
        """The turn failed: what was buffered since the last commit is never written."""
