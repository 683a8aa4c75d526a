"""Reading the log from the database: synchronous, bounded, always in the order of seq.

``up_to`` is the last seq that the reader may see: its turn's own, so that a read never sees half of what
another turn is committing.

Pages are ranges of seqs, which have no gaps, and not "the newest n": how much is read is then a property of
the query. A database that takes an actor's log for short (its statistics know the average actor, or are old)
would fetch and sort the whole of it to find its newest 56 rows: 0.1 s on a log of 100,000.
"""

from __future__ import annotations

from collections.abc import Sequence

from conversations.adapters import windows
from conversations.adapters.repair import Exchange, exchanges
from conversations.adapters.windows import Bounds
from conversations.messages import COLUMNS, StoredMessage, message_of
from conversations.models import Message, Role
from conversations.models.message import MessageQuerySet

#: Messages in one page of ``all()``.
PAGE = 500
#: The first page of a window beyond what ``last`` names: room to reach back to a user message.
WINDOW_MARGIN = 16
#: The first page of a window that only ``max_tokens`` bounds.
TOKEN_WINDOW_PAGE = 64
#: Pages of a window double up to this.
MAX_WINDOW_PAGE = 1024
#: Messages looked at, without reading them, for a user's that is further back; each step is twice as long.
USER_PAGE = 4096
#: Messages read at a log's start to find its prompt, which is nearly always one.
PROMPT_PAGE = 4


def messages_of(actor_id: int, up_to: int | None = None, last: int | None = None) -> list[StoredMessage]:
    """An actor's committed messages, oldest first: all, those up to a seq, the last ``last`` of either."""
    rows = Message.objects.filter(actor_id=actor_id)
    if up_to is not None:
        rows = rows.filter(seq__lte=up_to)
    if last is None:
        return _read(rows.order_by("seq"))
    if up_to is not None:
        return _page(rows, up_to - last, up_to)
    return _read(rows.order_by("-seq")[:last])[::-1]


def page_after(actor_id: int, after: int, up_to: int, limit: int) -> list[StoredMessage]:
    """The messages behind seq ``after``, up to ``limit`` seqs further, oldest first."""
    return _page(Message.objects.filter(actor_id=actor_id), after, min(up_to, after + limit))


def system_messages(actor_id: int, up_to: int) -> list[StoredMessage]:
    """The system messages of the log, oldest first."""
    return _read(Message.objects.of(actor_id, up_to).filter(role=Role.SYSTEM))


def window_of(
    actor_id: int, up_to: int, buffered: Sequence[StoredMessage], bounds: Bounds
) -> list[StoredMessage]:
    """The window of a log whose newest messages, ``buffered``, are not in the database.

    Reads the prompt, pages backwards until the window's cut lies inside what was read, and the newest user
    message where that lies further back. Equal to ``windows.window`` of the whole log.
    """
    rows = Message.objects.filter(actor_id=actor_id)
    page = TOKEN_WINDOW_PAGE if bounds.last is None else min(bounds.last + WINDOW_MARGIN, MAX_WINDOW_PAGE)
    low = max(up_to - page, 0)  # everything behind it was read
    loaded = [*_page(rows, low, up_to), *buffered]
    if not low:
        return windows.window(loaded, bounds)
    prompt = _prompt(rows, up_to)
    if prompt and prompt[-1].seq >= up_to:
        prompt += buffered[: windows.prompt_length(buffered)]
    floor = prompt[-1].seq if prompt else 0
    before = exchanges(prompt)
    bounds = bounds.less(before, count=False)
    loaded = [message for message in loaded if message.seq > floor]
    while True:
        tail = exchanges(loaded)
        start = windows.fitting(tail, bounds)
        if start or low <= floor:
            break
        page = min(page * 2, MAX_WINDOW_PAGE)
        high, low = low, max(low - page, floor)
        loaded = [*_page(rows, low, high), *loaded]
    newest_user = _newest_user(rows, tail, floor, low)
    return windows.messages_of([*before, *windows.cut_at(tail, start, newest_user, bounds)])


def _prompt(rows: MessageQuerySet, up_to: int) -> list[StoredMessage]:
    """The committed system messages before anything else."""
    prompt: list[StoredMessage] = []
    after = 0
    while after < up_to:
        page = _page(rows, after, min(after + PROMPT_PAGE, up_to))
        length = windows.prompt_length(page)
        prompt += page[:length]
        if length < PROMPT_PAGE:
            break
        after += PROMPT_PAGE
    return prompt


def _newest_user(rows: MessageQuerySet, tail: Sequence[Exchange], floor: int, low: int) -> Exchange | None:
    """The newest message of a user: in ``tail``, or before seq ``low + 1``, where ``tail`` begins."""
    for exchange in reversed(tail):
        if exchange.role == "user":
            return exchange
    page = USER_PAGE
    while low > floor:
        high, low = low, max(low - page, floor)
        page *= 2
        found = rows.filter(role=Role.USER, seq__gt=low, seq__lte=high).order_by("-seq")[:1]
        if messages := _read(found):
            return exchanges(messages)[0]
    return None


def _page(rows: MessageQuerySet, after: int, up_to: int) -> list[StoredMessage]:
    """The messages behind seq ``after``, up to ``up_to``."""
    return _read(rows.filter(seq__gt=after, seq__lte=up_to).order_by("seq"))


def _read(rows: MessageQuerySet) -> list[StoredMessage]:
    return [message_of(row) for row in rows.values(*COLUMNS)]
