"""The message log, and texts in and out."""

from conversations.models.consent import Consent, ConsentChange, ConsentSource, ConsentState
from conversations.models.conversation import Conversation, Seen
from conversations.models.message import Message, Role
from conversations.models.stream import Stream, StreamChunk
from conversations.models.takeover import Takeover
from conversations.models.text import (
    Correspondent,
    InboundStatus,
    InboundText,
    Keyword,
    OutboundText,
    Pace,
    TextEvent,
    TextStatus,
)

__all__ = [
    "Consent",
    "ConsentChange",
    "ConsentSource",
    "ConsentState",
    "Conversation",
    "Correspondent",
    "InboundStatus",
    "InboundText",
    "Keyword",
    "Message",
    "OutboundText",
    "Pace",
    "Role",
    "Seen",
    "Stream",
    "StreamChunk",
    "Takeover",
    "TextEvent",
    "TextStatus",
]
