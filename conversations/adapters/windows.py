"""Windows: the newest part of a log that fits, cut only where a conversation can begin.

The bounds are ``last`` (messages of the log, each result of a call counted) and ``max_tokens`` (texts by the
counter that the caller gives, or by the estimate below). A window is:

1. the prompt: the system messages before anything else in the log. Always there, not counted by ``last``;
2. the longest tail of exchanges that fits and begins with a user message. System messages directly before
   that belong to it, where they fit;
3. where no user message is in what fits (a long run of tools), the newest user message and, after a gap,
   the exchanges behind it that fit beside it.

The newest user message and the newest exchange are always there, even when they alone are more than was
asked: without the first the model would not know the question, without the second it would call the same
tool for ever. A log without any user message gives the tail as it is.

A ``summary`` of what lies before stands between the prompt and the rest; it takes tokens like any message.

Only ``conversations/history.py`` reads the database; here are the rules alone.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agents.exceptions import MessageError
from conversations.adapters.repair import Exchange, Result, exchanges
from conversations.adapters.values import as_arguments, canonical
from conversations.content import Media, Reasoning, Text
from conversations.messages import StoredMessage

BYTES_PER_TOKEN = 4  # of UTF-8: English is near it, most other scripts take fewer tokens than this says
TOKENS_PER_MESSAGE = 4
TOKENS_PER_CALL = 8
TOKENS_PER_MEDIA = 1600  # about what providers count for one large image

#: Where the summary stands: no message of a log has this seq.
SUMMARY_SEQ = 0
SUMMARY = "Summary of the conversation before the messages below:\n"

#: How many tokens a text has, for a model: ``lambda text: len(encoding.encode(text))``.
Counter = Callable[[str], int]


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much a window may hold. None: no bound; nothing, or less, is left beside what is always there."""

    last: int | None = None
    max_tokens: int | None = None
    count_tokens: Counter | None = None

    def less(self, exchanges: Sequence[Exchange], *, count: bool = True) -> Bounds:
        """What is left beside ``exchanges``; without ``count`` they only take tokens."""
        last, max_tokens = self.last, self.max_tokens
        if last is not None and count:
            last -= sum(len(exchange) for exchange in exchanges)
        if max_tokens is not None:
            max_tokens -= sum(self.tokens(exchange) for exchange in exchanges)
        return Bounds(last, max_tokens, self.count_tokens)

    def tokens(self, exchange: Exchange) -> int:
        return estimate_tokens(exchange, self.count_tokens or bytes_to_tokens)


def bounds_of(last: int | None, max_tokens: int | None, count_tokens: Counter | None = None) -> Bounds | None:
    """The bounds that a caller asked for; None: the whole log. Raises MessageError if not positive."""
    if count_tokens is not None and not callable(count_tokens):
        raise MessageError(f"count_tokens takes a text and gives a number, got {count_tokens!r:.100}")
    for name, value in (("last", last), ("max_tokens", max_tokens)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise MessageError(f"{name} must be a positive integer, got {value!r:.100}")
    return None if last is None and max_tokens is None else Bounds(last, max_tokens, count_tokens)


def summary_of(text: str | None) -> StoredMessage | None:
    """The message that a summary is in a window; None for none, and for a blank one. Raises MessageError."""
    if text is not None and not isinstance(text, str):
        raise MessageError(f"summary must be text, got {type(text).__name__}")
    if text is None or not text.strip():
        return None
    return StoredMessage(SUMMARY_SEQ, "system", SUMMARY + text, dt.datetime.fromtimestamp(0, dt.UTC))


def with_summary(messages: Sequence[StoredMessage], summary: StoredMessage | None) -> list[StoredMessage]:
    """The summary behind the prompt."""
    if summary is None:
        return list(messages)
    length = prompt_length(messages)
    return [*messages[:length], summary, *messages[length:]]


def window(messages: Sequence[StoredMessage], bounds: Bounds) -> list[StoredMessage]:
    """The window of a whole log, in repaired order."""
    length = prompt_length(messages)
    prompt = exchanges(messages[:length])
    tail = exchanges(messages[length:])
    bounds = bounds.less(prompt, count=False)
    users = [exchange for exchange in tail if exchange.role == "user"]
    cut = cut_at(tail, fitting(tail, bounds), users[-1] if users else None, bounds)
    return messages_of([*prompt, *cut])


def prompt_length(messages: Sequence[StoredMessage]) -> int:
    """How many messages at the start of a log are the prompt."""
    return next((i for i, message in enumerate(messages) if message.role != "system"), len(messages))


def messages_of(exchanges: Sequence[Exchange]) -> list[StoredMessage]:
    """The messages that exchanges are made of, each result behind its call."""
    return [message for exchange in exchanges for message in exchange.messages()]


def fitting(tail: Sequence[Exchange], bounds: Bounds) -> int:
    """Where the longest end of ``tail`` begins that fits. 0: all of it, and perhaps more would."""
    count = tokens = 0
    for start in range(len(tail), 0, -1):
        exchange = tail[start - 1]
        count += len(exchange)
        if bounds.last is not None and count > bounds.last:
            return start
        if bounds.max_tokens is not None:
            tokens += bounds.tokens(exchange)
            if tokens > bounds.max_tokens:
                return start
    return 0


def cut_at(
    tail: Sequence[Exchange], start: int, newest_user: Exchange | None, bounds: Bounds
) -> list[Exchange]:
    """The window behind the prompt, where ``tail[start:]`` is what fits."""
    first_user = next((i for i in range(start, len(tail)) if tail[i].role == "user"), None)
    if first_user is not None:
        while first_user > start and tail[first_user - 1].role == "system":
            first_user -= 1
        return list(tail[first_user:])
    behind = [exchange for exchange in tail if newest_user is None or _follows(exchange, newest_user)]
    if newest_user is None:
        return behind[min(start, len(behind) - 1) :] if behind else []
    kept = min(fitting(behind, bounds.less([newest_user])), max(len(behind) - 1, 0))
    return [newest_user, *behind[kept:]]


def bytes_to_tokens(text: str) -> int:
    """The estimate for a text, without a tokenizer."""
    return -(-len(text.encode()) // BYTES_PER_TOKEN)


def estimate_tokens(exchange: Exchange, count_tokens: Counter = bytes_to_tokens) -> int:
    """About how many tokens a provider counts for an exchange. Rather too many than too few.

    ``count_tokens`` counts texts; what a provider adds for each message, call and image is estimated.
    """
    tokens = TOKENS_PER_MESSAGE + sum(_block_tokens(block, count_tokens) for block in exchange.blocks)
    return tokens + sum(_call_tokens(result, count_tokens) for result in exchange.results)


def _call_tokens(result: Result, count_tokens: Counter) -> int:
    call = result.call
    tokens = TOKENS_PER_CALL + _counted(call.name, count_tokens)
    tokens += _counted(canonical(as_arguments(call.args)), count_tokens)
    return tokens + TOKENS_PER_MESSAGE + sum(_block_tokens(block, count_tokens) for block in result.blocks)


def _block_tokens(block: object, count_tokens: Counter) -> int:
    if isinstance(block, Text | Reasoning):
        return _counted(block.text, count_tokens)
    if isinstance(block, Media):
        return TOKENS_PER_MEDIA + _counted(block.text, count_tokens)
    return 0


def _counted(text: str, count_tokens: Counter) -> int:
    if not text:
        return 0
    tokens = count_tokens(text)
    if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 0:
        raise MessageError(f"count_tokens must give a number of tokens, got {tokens!r:.100}")
    return tokens


def _follows(exchange: Exchange, other: Exchange) -> bool:
    return exchange.message.seq > other.message.seq
