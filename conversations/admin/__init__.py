"""The operator's window on conversations: the transcript, the messages, and the texts in and out."""

from __future__ import annotations

from conversations.admin.conversations import ConversationAdmin
from conversations.admin.messages import MessageAdmin
from conversations.admin.texts import ConsentAdmin, InboundTextAdmin, OutboundTextAdmin

__all__ = ["ConsentAdmin", "ConversationAdmin", "InboundTextAdmin", "MessageAdmin", "OutboundTextAdmin"]
