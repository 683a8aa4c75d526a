"""Live sockets: what clients may see of an actor, and what they may ask of it (docs/protocol.md).

Channels terminates the WebSocket; nothing in this room runs agent code itself. What a client sends becomes
tasks and turns of the engine; what it sees are the actor's events, read from the database in the order of
their cursor. The channel layer only makes that quick: it may lose everything.
"""

from agents.sockets.admission import ConnectionRequest
from agents.sockets.tokens import connect_token

__all__ = ["ConnectionRequest", "connect_token"]
