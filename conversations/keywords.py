"""Words about consent: the whole text is one of them, or it is no keyword.

What counts around a word is nothing: case, blanks, and the marks that people and phones put behind or around
a word. So "Stop." opts out. It is a decision: the carriers' own filters want the bare word, but somebody who
writes "Stop." means it, regulators judge by the meaning (FCC 24-24, "any reasonable manner"), and the error
in the other direction costs one START. Anything beside the word ("STOP 12345", "stop by tomorrow?") makes it
a text like any other, and so does a question mark.

The words are those that carriers and both providers know (CTIA, Messaging Principles, 5.1.2; Telnyx,
"Advanced opt-in and opt-out"; Twilio, "Default STOP keywords"); settings replace them.
"""

from __future__ import annotations

import re

from conversations import conf
from conversations.models import Keyword

_MARKS = " \t\r\n.,;:!*()[]\"'`´‘’“”„«»_-–—\u200b\ufeff"


def keyword_of(text: str) -> Keyword | None:
    """The keyword that ``text`` is; None for any other text."""
    word = normalised(text)
    if not word:
        return None
    for keyword, setting in (
        (Keyword.STOP, "SMS_STOP_WORDS"),
        (Keyword.START, "SMS_START_WORDS"),
        (Keyword.HELP, "SMS_HELP_WORDS"),
    ):
        if word in {normalised(known) for known in conf.get(setting)}:
            return keyword
    return None


def normalised(text: str) -> str:
    """The word without what doesn't count; "" for what is too long to be one."""
    if len(text) > 64:
        return ""
    return re.sub(r"\s+", " ", text.strip(_MARKS).casefold())
