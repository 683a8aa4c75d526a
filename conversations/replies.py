"""The reply to something that was said: which message of a log it is.

It is the first message of the assistant, other than one that only calls tools, behind the message that says
what was said: the one that carries its id (``self.messages.add_received`` puts it into the metadata), or
where the agent keeps no ids, one with its words.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from conversations import shown
from conversations.messages import COLUMNS
from conversations.models import Message, Role

#: How far back something that had been said before is looked for, and rows read at a time.
BACK = 200
PAGE = 50


class Awaited:
    """Reads a log on from where it was, until the reply is there. Each look reads what is new."""

    def __init__(self, id: str, text: str, after: int) -> None:
        self._id, self._text = id, text.strip()
        #: The seq up to which the log was read.
        self.position = after
        #: The message that says it, and the reply, as clients are shown them.
        self.message: dict[str, Any] | None = None
        self.reply: dict[str, Any] | None = None

    def go_back(self, actor_id: int) -> None:
        """It had been said before: begins at the message that did, where that is among the newest."""
        rows = Message.objects.filter(actor_id=actor_id, seq__gt=self.position - BACK, role=Role.USER)
        said = list(rows.order_by("-seq").values("seq", "role", "content", "metadata"))
        mine = [row for row in said if _id_of(row) == self._id] or [row for row in said if self._says(row)]
        if mine:
            self.position = mine[0]["seq"] - 1

    def look(self, actor_id: int, up_to: int) -> bool:
        """Whether the reply is there."""
        while self.reply is None and self.position < up_to:
            rows = Message.objects.filter(actor_id=actor_id, seq__gt=self.position, seq__lte=up_to)
            page = list(rows.order_by("seq").values(*COLUMNS)[:PAGE])
            self._take(page)
            self.position = page[-1]["seq"] if page else up_to
        return self.reply is not None

    def _take(self, rows: Iterable[Mapping[str, Any]]) -> None:
        for row in rows:
            if self.message is None:
                if self._says(row):
                    self.message = shown.message(row)
            elif self.reply is None and _answers(row):
                self.reply = shown.message(row)

    def _says(self, row: Mapping[str, Any]) -> bool:
        if row["role"] != Role.USER:
            return False
        id = _id_of(row)
        return id == self._id or (id is None and row["content"].strip() == self._text)


def _id_of(row: Mapping[str, Any]) -> Any:
    metadata = row["metadata"]
    return metadata.get("id") if isinstance(metadata, dict) else None


def _answers(row: Mapping[str, Any]) -> bool:
    said = row["content"].strip() or row["parts"]
    return bool(row["role"] == Role.ASSISTANT and said and not row["tool_calls"])
