"""Ids and names that a provider takes, for those that another one made."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable

from conversations.adapters.repair import Exchange
from conversations.messages import StoredMessage

_ILLEGAL = re.compile(r"[^a-zA-Z0-9_-]")
#: Anthropic's pattern of ids, and both providers' pattern of tool names.
STRICT = re.compile(r"[a-zA-Z0-9_-]+")
ANYTHING = re.compile(r".+", re.DOTALL)
#: OpenAI refuses longer ids of tool calls: "string too long. Expected a string with maximum length 40".
OPENAI_ID_LENGTH = 40
#: Of tool names at OpenAI; Anthropic allows more. Also used for ids where nothing shorter is asked.
NAME_LENGTH = 64
_DIGEST_LENGTH = 16


def legal(raw: str, max_length: int, pattern: re.Pattern[str] = STRICT) -> str:
    """``raw`` where it is legal, or a legal text made of it and its digest.

    The same for every rendering, and different for different ``raw``.
    """
    if len(raw) <= max_length and pattern.fullmatch(raw):
        return raw
    return _digested(raw, raw, max_length)


class CallIds:
    """The ids of the tool calls of one rendering: legal, and no two the same.

    Some models count their calls anew in every answer ("call_0"); Anthropic refuses a request with the same
    id twice. The first keeps its id, later ones get one that their place in the log decides.
    """

    def __init__(self, max_length: int, pattern: re.Pattern[str] = STRICT) -> None:
        self._max_length = max_length
        self._pattern = pattern
        self._used: set[str] = set()

    def take(self, raw: str, seq: int, index: int) -> str:
        """The id of call number ``index`` of message ``seq``."""
        made = legal(raw, self._max_length, self._pattern)
        place = f"{raw}\n{seq}\n{index}"
        while made in self._used:
            made = _digested(raw, place, self._max_length)
            place += "\n"  # only where somebody stored just that id
        self._used.add(made)
        return made


class MessageIds:
    """An id for each message of one rendering, no two the same: user interfaces and LangGraph replace a
    message by another of its id. ``own`` gives the id that a message came with, if any.
    """

    def __init__(self, conversation: Iterable[Exchange], own: Callable[[StoredMessage], str | None]) -> None:
        self._own = own
        stored = (own(message) for exchange in conversation for message in exchange.messages())
        self._stored = {id_ for id_ in stored if id_ is not None}
        self._used: set[str] = set()

    def take(self, message: StoredMessage) -> str:
        own = self._own(message)
        return self._unique(f"seq-{message.seq}" if own is None else own, own, message.seq)

    def of_missing(self, message: StoredMessage, index: int) -> str:
        """Of the result that call ``index`` of ``message`` never got."""
        return self._unique(f"seq-{message.seq}-{index}", None, message.seq)

    def _unique(self, id_: str, own: str | None, seq: int) -> str:
        while id_ in self._used or (id_ != own and id_ in self._stored):
            id_ = f"{id_}-{seq}"
        self._used.add(id_)
        return id_


def _digested(raw: str, unique: str, max_length: int) -> str:
    digest = hashlib.sha256(unique.encode()).hexdigest()[:_DIGEST_LENGTH]
    return f"{_ILLEGAL.sub('_', raw)[: max_length - _DIGEST_LENGTH - 1]}-{digest}"
