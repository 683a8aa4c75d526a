"""The actor's rows: the actor itself, what each turn did, what clients may see, and its files."""

from agents.models.actor import Actor
from agents.models.blob import Blob
from agents.models.connection import Connection
from agents.models.erasure import Erasure
from agents.models.event import Event
from agents.models.operation import Operation
from agents.models.page import Page, StoredValue
from agents.models.pause import Pause
from agents.models.turn import TurnRecord

__all__ = [
    "Actor",
    "Blob",
    "Connection",
    "Erasure",
    "Event",
    "Operation",
    "Page",
    "Pause",
    "StoredValue",
    "TurnRecord",
]
