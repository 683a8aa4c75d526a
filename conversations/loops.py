"""Two machines that answer each other: noticed by what one number writes in a short time, and paused.

Two rules, over the last SMS_LOOP_WINDOW seconds of texts from a number to one of ours:

- the same text SMS_LOOP_SAME times (case, blanks and digits aside; only texts of MINIMUM characters and more,
  since people do answer "yes" to five questions), or
- SMS_LOOP_TEXTS texts, whatever they say.

The next such text is held: it is kept and shown, and no agent sees it, so nothing answers it. Held texts
count too: a machine that goes on stays paused, one that stops is heard again when the window is over. A
person who writes something else after the first rule struck is heard at once.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence

from conversations import conf, moments
from conversations.models import InboundText

#: Characters that a text must have for its repetition to count.
MINIMUM = 16
#: Texts looked at, more than any rule counts.
LOOKED_AT = 200


def recent(text: InboundText) -> list[str]:
    """What came before ``text`` from the same number, to the same one of ours, the newest first."""
    since = moments.now_in_query() - dt.timedelta(seconds=conf.get("SMS_LOOP_WINDOW"))
    rows = InboundText.objects.filter(
        from_number=text.from_number, to_number=text.to_number, received_at__gte=since, keyword=""
    )
    return list(rows.exclude(pk=text.pk).order_by("-received_at").values_list("text", flat=True)[:LOOKED_AT])


def why_held(words: str, before: Sequence[str]) -> str:
    """Why a text looks like a machine's, for people to read; "" where it doesn't."""
    same, most = conf.get("SMS_LOOP_SAME"), conf.get("SMS_LOOP_TEXTS")
    minutes = f"{conf.get('SMS_LOOP_WINDOW') / 60:g} min"
    if same and len(words) >= MINIMUM:
        gist = _gist(words)
        count = sum(_gist(other) == gist for other in before)
        if count >= same:
            return f"the same text came {count} times before within {minutes}"
    if most and len(before) >= most:
        return f"{len(before)} texts came before within {minutes}"
    return ""


def _gist(words: str) -> str:
    """What stays the same when a machine repeats itself: counters and times differ."""
    return re.sub(r"\d+", "0", re.sub(r"\s+", " ", words)).strip().casefold()
