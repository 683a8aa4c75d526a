"""What the runtime itself keeps of an actor."""

from __future__ import annotations

from django.contrib.admin.models import LogEntry
from django.contrib.contenttypes.models import ContentType
from django.db.models import Q

from agents.holdings import ALIASES, ERASERS, HOLDINGS, Holding, register
from agents.models import Actor, Blob, Connection, Event, Operation, Page, StoredValue, TurnRecord

#: What an erased name or text reads.
ERASED = "erased"
#: Words shorter than this are not looked for in what others wrote: they would be found everywhere.
LONG_ENOUGH = 5  # characters

register(
    Holding(
        TurnRecord,
        plain=frozenset({"origin", "method", "outcome"}),
        state=frozenset({"state_change", "state_undo"}),
    ),
    Holding(Event, plain=frozenset({"type"}), state=frozenset({"payload"})),
    Holding(Page),
    Holding(StoredValue, names=frozenset({"key"})),
    Holding(
        Blob, plain=frozenset({"content_type", "sha256"}), names=frozenset({"key"}), arrives=lambda row: None
    ),
    Holding(
        Connection,
        rows=lambda actor: Connection.objects.filter(kind=actor.kind, name=actor.name),
        exported=False,
    ),
)


def _name(actor: Actor) -> set[str]:
    return {actor.name}


def _operations(actor: Actor, words: set[str]) -> dict[str, int]:
    """Operators' deeds stay, without saying of whom."""
    rows = Operation.objects.filter(Q(actor=actor) | Q(kind=actor.kind, name=actor.name))
    return {"operations": rows.update(name="", actor=None, reason=ERASED, detail=None)}


def _log_entries(actor: Actor, words: set[str]) -> dict[str, int]:
    """The admin's own log: who did something stays, of whom and what it was goes."""
    entries = Q(pk__in=[])
    types = ContentType.objects.get_for_models(Actor, *(h.model for h in HOLDINGS.values()))
    entries |= Q(content_type=types[Actor], object_id=str(actor.pk))
    for holding in HOLDINGS.values():
        if holding.model._meta.pk is None or holding.model is Page:
            continue
        pks = [str(pk) for pk in holding.of(actor).values_list("pk", flat=True)]
        content_type = types[holding.model]
        logged = LogEntry.objects.filter(content_type=content_type)
        if logged.exists():
            mine = set(pks)
            found = [pk for pk, of in logged.values_list("pk", "object_id") if of in mine]
            entries |= Q(pk__in=found)
    for word in words:
        if len(word) >= LONG_ENOUGH:
            entries |= Q(object_repr__contains=word) | Q(change_message__contains=word)
    rows = LogEntry.objects.filter(entries, content_type__in=types.values())
    return {"admin log": rows.update(object_repr=ERASED, object_id=None, change_message="")}


ALIASES.append(_name)
ERASERS.extend([_log_entries, _operations])
