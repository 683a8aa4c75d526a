"""Numbers that stand for what can go wrong. Pure.

The last five digits say what happens to a text *to* such a number:

=================  ====================================================================================
``+150055<code>``  refused at once with this code, such as ``+15005540300`` (Telnyx: STOP) or
                   ``+15005521610`` (Twilio: the same). ``00429``, ``00500``, ``00502``, ``00503``,
                   ``00504``: with this HTTP status. ``50001`` to ``50009`` are Twilio's own test numbers.
``+150056<code>``  accepted, and reported as not delivered with this code
``+1500570000<n>`` 1: sent, but the answer never comes; 2: sent, but the connection breaks; 3: the connection
                   breaks and nothing was sent; 4: sent, but a gateway says 504; 5: nobody says whether it
                   arrived; 6: no reports at all; 7: the first time not delivered for a reason that passes
=================  ====================================================================================

Twilio's test numbers (twilio.com/docs/iam/test-credentials) mean the same here, as sender too.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

REFUSED, UNDELIVERED, ODD = "+150055", "+150056", "+150057"
STATUSES = {"00429": 429, "00500": 500, "00502": 502, "00503": 503, "00504": 504}

#: Twilio's magic numbers: the code of its refusal, as recipient and as sender.
TWILIO_TO = {
    "+15005550001": 21211,
    "+15005550002": 21612,
    "+15005550003": 21408,
    "+15005550004": 21610,
    "+15005550009": 21614,
}
TWILIO_FROM = {"+15005550001": 21212, "+15005550007": 21606, "+15005550008": 21611}


class Oddity(Enum):
    NO_ANSWER = 1
    BREAKS = 2
    BREAKS_UNSENT = 3
    GATEWAY = 4
    UNCONFIRMED = 5
    SILENT = 6
    PASSES = 7


@dataclass(frozen=True, slots=True)
class Fate:
    """What happens to a text. All empty: it is delivered."""

    status: int | None = None  # of the HTTP answer, without a word of the provider's
    refused: str = ""  # the provider's code
    undelivered: str = ""  # the code of the report
    oddity: Oddity | None = None


def fate_of(provider: str, to: str, sender: str = "") -> Fate:
    """What happens to a text from ``sender`` to ``to``."""
    if provider == "twilio" and (code := TWILIO_TO.get(to) or TWILIO_FROM.get(sender)):
        return Fate(refused=str(code))
    if len(to) != len(REFUSED) + 5:
        return Fate()
    prefix, digits = to[: len(REFUSED)], to[len(REFUSED) :]
    if prefix == REFUSED and not digits.startswith("5"):
        return Fate(status=STATUSES[digits]) if digits in STATUSES else Fate(refused=digits)
    if prefix == UNDELIVERED:
        return Fate(undelivered=digits)
    if prefix == ODD and digits.isdecimal() and 1 <= int(digits) <= len(Oddity):
        return Fate(oddity=Oddity(int(digits)))
    return Fate()
