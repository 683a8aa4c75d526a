"""What happens to texts and consent, as Django signals; docs/observability.md lists them.

Sent after the fact, in a thread of its own; see ``agents/signals.py``. They name rows, and carry nothing that
anybody wrote.
"""

from django.dispatch import Signal

__all__ = ["opted_in", "opted_out", "text_delivered", "text_failed", "text_received", "text_sent"]

#: A provider delivered a text. ``sender`` is the model InboundText.
text_received = Signal()
#: A provider took a text of ours. ``sender`` of this and the next two is the model OutboundText.
text_sent = Signal()
#: A provider says that a text has arrived.
text_delivered = Signal()
#: A text was never sent, did not arrive, or nobody knows: its ``status`` is failed, undelivered or unknown.
text_failed = Signal()
#: Somebody wants no more texts from a number of ours, or wants them again. ``sender`` is the model Consent.
opted_out = Signal()
opted_in = Signal()
