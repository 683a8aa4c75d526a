"""The turns of a conversation, as its page shows them: what each one wrote, and the state after it.

A turn is shown with the last message that it wrote; one that wrote none, with the last before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db.models import Max, Min
from django.http import HttpRequest
from django.utils.dateparse import parse_datetime

from agents.display import as_json, badge, seconds, transcript_url, url_of, when
from agents.exceptions import PastUnknownError
from agents.masking import masked
from agents.models import Actor, TurnRecord
from agents.models.turn import Outcome
from agents.past import state_at
from conversations.admin.texts import text_badge
from conversations.models import OutboundText
from conversations.transcripts import Entry, Page

#: Turns that one page shows, and characters of a state or of its change.
MOST = 200
SHOWN = 5_000

TONES = {
    Outcome.DONE: "good",
    Outcome.CHECKPOINT: "busy",
    Outcome.STEP: "busy",
    Outcome.FAILED: "bad",
    Outcome.LOST: "bad",
}


def add_turns(actor: Actor, page: Page, *, texts: bool) -> None:
    """Gives each entry of a page of the log the turns that end there. ``texts``: with what they texted."""
    records = _records(actor, page)
    sent = _sent(records) if texts else {}
    entries = {entry.message.seq: entry for entry in page.entries}
    place: Entry | None = None
    for record in records:
        if record.last_seq is not None:
            # Of a turn that goes on over the end of the page: its last message here.
            place = entries.get(min(record.last_seq, page.entries[-1].message.seq), place)
        if place is not None:
            place.turns.append(_turn(actor, record, sent))


def _records(actor: Actor, page: Page) -> Sequence[TurnRecord]:
    """The turns that wrote these messages, and those between them; at the log's end, those after them."""
    if not page.entries:
        return []
    rows = TurnRecord.objects.filter(actor_id=actor.pk)
    first, last = page.entries[0].message.seq, page.entries[-1].message.seq
    span = rows.filter(last_seq__gte=first, first_seq__lte=last).aggregate(
        low=Min("version"), high=Max("version")
    )
    if span["low"] is None:
        return []
    shown = rows.filter(version__gte=span["low"])
    if page.newer is None:
        return list(shown.order_by("-version")[:MOST])[::-1]
    # Up to the next that wrote a message.
    return list(shown.filter(version__lte=span["high"]).order_by("version")[:MOST])


def _sent(records: Sequence[TurnRecord]) -> dict[str, OutboundText]:
    uids = [uid for record in records for uid in (record.wrote or {}).get("texts", [])]
    return {str(text.uid): text for text in OutboundText.objects.filter(uid__in=uids)} if uids else {}


def _turn(actor: Actor, record: TurnRecord, sent: dict[str, OutboundText]) -> dict[str, Any]:
    wrote = record.wrote or {}
    span = "" if record.first_seq is None else f"#{record.first_seq}"
    if record.last_seq != record.first_seq:
        span += f"-{record.last_seq}"
    known = record.outcome in Outcome.values
    return {
        "url": url_of(record),
        "version": record.version,
        "method": record.method,
        "origin": record.origin,
        "outcome": badge(record.outcome, TONES.get(Outcome(record.outcome), "") if known else ""),
        "took": seconds(record.duration_seconds),
        "began": when(record.started_at),
        "messages": span,
        "change": ""
        if record.state_change is None
        else as_json(masked(actor.kind, record.state_change), SHOWN),
        "tasks": [
            {"id": task["id"], "method": task["method"], "due": when(parse_datetime(task["due_at"]))}
            for task in wrote.get("tasks", [])
        ],
        "cancelled": wrote.get("cancelled", []),
        "texts": [
            {"url": url_of(text), "status": text_badge(text), "to": text.to_number, "error": text.error}
            for uid in wrote.get("texts", [])
            if (text := sent.get(uid))
        ],
        "told": wrote.get("told", []),
        "kept": [(name, wrote[name]) for name in ("files", "keys") if name in wrote],
        "pages": len(wrote.get("pages", [])),
        "then": f"{transcript_url(actor.pk, version=record.version)}#state",
    }


def state_panel(request: HttpRequest, actor: Actor, version: int | None) -> dict[str, Any]:
    """The state of now, or right after the commit that made ``version``."""
    panel: dict[str, Any] = {"now": actor.version}
    state = actor.state
    if version is not None:
        panel |= {"version": version, "back": transcript_url(actor.pk) + "#state"}
        try:
            state = state_at(actor, version)
        except PastUnknownError as error:
            return panel | {"problem": str(error)}
        query = {"before": version - 1, "after": version + 1}
        panel |= {
            name: f"{transcript_url(actor.pk, version=other)}#state"
            for name, other in query.items()
            if 0 <= other <= actor.version
        }
    untouched = "Nothing was written yet: initial_state answers."
    return panel | {"text": untouched if state is None else as_json(masked(actor.kind, state), SHOWN * 4)}
