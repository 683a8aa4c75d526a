"""A conversation as a page shows it: one page of the log, ready for the template. Reads, never writes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.db.models import Value
from django.db.models.functions import Left

from conversations.addresses import is_own
from conversations.content import CallPlace, Media, Other, Reasoning, read_parts
from conversations.filetypes import PICTURES
from conversations.messages import COLUMNS, StoredMessage, message_of
from conversations.models import Message

#: Messages of one page.
PAGE = 50
#: Characters of one text that a page shows; the message's own page shows all.
TEXT_SHOWN = 10_000


@dataclass(frozen=True, slots=True)
class Call:
    """A tool that the assistant asked for."""

    id: str
    name: str
    args: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One message, as the page shows it."""

    pk: int  # of its row
    message: StoredMessage
    text: str
    cut: bool  # there is more of the text than is shown
    tool: str  # whose result this is; empty for other messages
    calls: list[Call] = field(default_factory=list)
    blocks: list[tuple[str, str]] = field(default_factory=list)  # what is more than text: its title, itself
    files: list[tuple[str, str, bool]] = field(
        default_factory=list
    )  # of the actor: address, name, is a picture
    metadata: str = ""
    interrupted: bool = False
    turns: list[dict[str, Any]] = field(default_factory=list)  # that end with it, for pages that show them


@dataclass(frozen=True, slots=True)
class Page:
    """Some of a log, and where the others are."""

    number: int
    pages: int
    entries: list[Entry]

    @property
    def older(self) -> int | None:
        return self.number - 1 if self.number > 1 else None

    @property
    def newer(self) -> int | None:
        return self.number + 1 if self.number < self.pages else None


def page_of(actor_id: int, last_seq: int, *, number: int | None = None, seq: int | None = None) -> Page:
    """One page of a log of ``last_seq`` messages: by its number, the one with ``seq``, else the newest.

    The numbers of messages have no gaps, so a page is a range of them, found by the index however long
    the log is. Outside of the log the nearest page is given.
    """
    pages = max(1, -(-last_seq // PAGE))
    if number is None:
        number = pages if seq is None else -(-seq // PAGE)
    number = min(max(number, 1), pages)
    first = (number - 1) * PAGE
    rows = Message.objects.filter(actor_id=actor_id, seq__gt=first, seq__lte=min(first + PAGE, last_seq))
    columns = [name for name in COLUMNS if name != "content"]
    cut = rows.order_by("seq").annotate(start=Left("content", Value(TEXT_SHOWN + 1)))
    found = [{**row, "content": row["start"]} for row in cut.values("pk", *columns, "start")]
    return Page(number, pages, entries(found))


def entries(rows: Sequence[Mapping[str, Any]], limit: int = TEXT_SHOWN) -> list[Entry]:
    """Rows of messages (``pk`` and COLUMNS) in their order, each with what the page says of it."""
    messages = [(row["pk"], message_of(row)) for row in rows]
    tools = {call.id: call.name for _, message in messages for call in message.tool_calls}
    return [_entry(pk, message, tools, limit) for pk, message in messages]


def _entry(pk: int, message: StoredMessage, tools: dict[str, str], limit: int) -> Entry:
    is_result = message.role == "tool"
    name = message.name or tools.get(message.tool_call_id or "", "") or message.tool_call_id or "a tool"
    blocks = read_parts(message.parts)
    return Entry(
        pk=pk,
        message=message,
        text=message.content[:limit],
        cut=len(message.content) > limit,
        tool=name if is_result else "",
        calls=[Call(call.id, call.name, _args(call.args)) for call in message.tool_calls],
        blocks=[shown for b in blocks if not own_address(b) and (shown := title_and_body(b))],
        files=[_file(b) for b in blocks if isinstance(b, Media) and own_address(b)],
        metadata=_json(message.metadata) if message.metadata else "",
        interrupted=bool(message.metadata.get("interrupted")),
    )


def own_address(block: Any) -> str:
    """Where this site itself serves a picture or file; empty for everything else."""
    return block.url if isinstance(block, Media) and is_own(block.url) else ""


def _file(block: Media) -> tuple[str, str, bool]:
    return own_address(block), block.name or block.kind, block.mime in PICTURES


def title_and_body(block: Any) -> tuple[str, str] | None:
    """What is more than text, folded; None for what is shown otherwise."""
    match block:
        case Reasoning():
            return "Reasoning", block.text or "(not given in clear)"
        case Media():
            return block.note().strip("[]"), block.text or block.url or block.file_id or block.mime
        case CallPlace():
            return None  # shown as a call
        case Other():
            return block.note().strip("[]"), _json(block.given)
    return None  # text: shown as the message's own


def _args(args: Any) -> str:
    # Text that did not parse is kept, and shown, as that text.
    return args if isinstance(args, str) else _json(args)


def _json(value: Any) -> str:
    text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    return text if len(text) <= TEXT_SHOWN else f"{text[:TEXT_SHOWN]}\n…"
