"""Company: whether other processes have sockets for an actor, as far as this one can tell.

To tell a group of the channel layer costs more than the turn that there is news of, and mostly nobody else is
in it. So news asks, now and then: it comes back to the process that sent it, and whoever else is in the group
answers. If it came back and nobody has answered, the process is alone for a while and tells its own sockets
only. Whoever joins the group says so, which ends that at once. What somebody misses all the same is read from
the database.
"""

from __future__ import annotations

# How long others have to answer, and how long what was found out is believed.
ANSWERS = 1.0  # seconds
BELIEF = 20.0  # seconds


class Company:
    """Of one actor's topic. All moments are ``time.monotonic()``."""

    __slots__ = ("_asked_at", "_back_at", "_until")

    def __init__(self) -> None:
        self._asked_at = float("-inf")
        self._back_at = float("-inf")  # when a question was back
        self._until = float("-inf")  # how long somebody is believed to be there

    def is_alone(self, now: float) -> bool:
        """Whether nobody else need be told."""
        return self._until <= now and ANSWERS <= now - self._back_at < ANSWERS + BELIEF

    def ask(self, now: float) -> bool:
        """Whether the news that goes out now is to ask who is there; it does then."""
        known = self._until > now or now - self._back_at < ANSWERS + BELIEF
        if known or now - self._asked_at < ANSWERS:
            return False
        self._asked_at = now
        return True

    def came_back(self, now: float) -> None:
        """Our own question: we are in the group, and others have it too."""
        if now - self._back_at >= ANSWERS + BELIEF:
            self._back_at = now

    def heard(self, now: float) -> None:
        """Something from another process."""
        self._until = now + BELIEF
        self._back_at = float("-inf")
