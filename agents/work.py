"""What a server and the application behind a socket tell each other about work that is under way."""

from __future__ import annotations


class Work:
    """One socket's, or that of all plain requests. The server puts it into the scope as ``agents.work``.

    An application that goes on receiving while it works counts up ``busy`` meanwhile: a server that stops
    lets that end before it closes the socket. It sets ``stopping`` when nothing more should begin.
    """

    def __init__(self) -> None:
        self.busy = 0
        self.stopping = False
