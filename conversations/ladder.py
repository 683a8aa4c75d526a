"""The retry rule of texts: when one that was certainly not sent, or not delivered, is tried again.

The pauses are those of Telnyx's own agents: 30 s, then 1, 2, 5, 10, 20 and 30 min; about an hour later it
has failed.
"""

from __future__ import annotations

#: Pauses before the next try, in seconds.
LADDER = (30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0)


def pause_after(attempts: int, wish: float | None = None) -> float | None:
    """Seconds until the next try after ``attempts`` of them; None: that was the last.

    ``wish`` is the provider's: it lengthens a pause, and shortens none.
    """
    return max(LADDER[attempts - 1], wish or 0.0) if 0 < attempts <= len(LADDER) else None
