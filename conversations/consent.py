"""Consent to texts, kept per pair of numbers: theirs and ours.

Somebody who writes STOP to a number of ours gets no more texts from it, whatever conversation they are in
and however long ago it was. The record is found by a keyed hash of both numbers, so it goes on working when
the numbers are erased with everything else about the person: nobody can read them out of it, and a text to
them is still refused.

The keys are CONSENT_KEYS, by default Django's SECRET_KEY and SECRET_KEY_FALLBACKS. The first one makes new
hashes, all are looked up by: a key that is dropped takes the erased numbers' consent with it (those that
still have their numbers are found by these).
"""

from __future__ import annotations

import csv
import datetime as dt
import hmac
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

from django.conf import settings
from django.db import IntegrityError, models, transaction
from django.db.models import Max

from conversations import conf, moments, observing
from conversations.models import Consent, ConsentChange, ConsentSource, ConsentState
from conversations.phone import can_receive, can_send, normalise

logger = logging.getLogger(__name__)

Pair = tuple[str, str]  # theirs, ours

#: Columns of the files that are exported and imported.
COLUMNS = ("their_number", "our_number", "pair", "state", "source", "word", "changed_at")
#: How much later than a START a STOP may have been written and still be the older of the two: clocks differ.
SKEW = dt.timedelta(seconds=60)


# Asking


def is_opted_out(theirs: str, ours: str) -> bool:
    """Whether no text may go from ``ours`` to ``theirs`` (both normalised)."""
    return bool(opted_out([(theirs, ours)]))


def opted_out(pairs: Iterable[Pair]) -> set[Pair]:
    """Those of these pairs of normalised numbers between which no text may go."""
    wanted = list(set(pairs))
    if not wanted:
        return set()
    hashes = {hash: pair for pair in wanted for hash in hashes_of(*pair)}
    rows = _found(wanted).values_list("pair", "their_number", "our_number", "state")
    by_pair: dict[Pair, str] = {}
    for hash, theirs, ours, state in rows:
        # More than one row only where a key was changed without keeping the old one: the stricter counts.
        pair = hashes.get(hash, (theirs, ours))
        if by_pair.get(pair) != ConsentState.OPTED_OUT:
            by_pair[pair] = state
    return {pair for pair, state in by_pair.items() if state == ConsentState.OPTED_OUT}


def hashes_of(theirs: str, ours: str) -> list[str]:
    """The hashes by which a pair is found, one a key; the first is that of a new record."""
    return [_hash(key, theirs, ours) for key in _keys()]


def _keys() -> list[str]:
    return list(conf.get("CONSENT_KEYS")) or [settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS]


def _hash(key: str, theirs: str, ours: str) -> str:
    return hmac.new(key.encode(), f"conversations.consent\0{theirs}\0{ours}".encode(), "sha256").hexdigest()


def _found(pairs: Sequence[Pair]) -> models.QuerySet[Consent]:
    numbers = models.Q(pk__in=[])
    for theirs, ours in pairs:
        numbers |= models.Q(their_number=theirs, our_number=ours)
    hashes = [hash for pair in pairs for hash in hashes_of(*pair)]
    return Consent.objects.filter(models.Q(pair__in=hashes) | numbers)


# Changing


def record(
    theirs: str,
    ours: str,
    state: ConsentState,
    source: ConsentSource,
    *,
    word: str = "",
    at: dt.datetime | None = None,
    by: str = "",
) -> bool:
    """Writes what somebody said; whether it changed anything.

    ``at`` is when they said it (now, if nobody knows): what is older than the last change is kept in the
    history and changes nothing, so deliveries in the wrong order end right. The last change is then the last
    time that they said what counts: a word that they repeat is in the history, too. Between a STOP and a
    START that are near enough for clocks to differ, the STOP counts.
    """
    said = _Said(state, source, word.strip()[:64], at, by)
    with transaction.atomic():
        consent = _row(theirs, ours, said)
        if consent is None:
            return True  # made just now
        if not consent.their_number:
            consent.their_number, consent.our_number = theirs, ours  # they are back
        consent.pair = hashes_of(theirs, ours)[0]
        applies = _apply(consent, said)
    if applies:
        logger.info("texts from %s to a number: %s (%s)", ours, state, source)
    return applies


class _Said:
    """What somebody said; ``at`` is now where nobody knows when they did."""

    def __init__(
        self, state: ConsentState, source: ConsentSource, word: str, at: dt.datetime | None, by: str
    ) -> None:
        self.state, self.source, self.word, self.by = state, source, word, by
        self.at = at or moments.now()
        self.is_dated = at is not None

    def add_to(self, consent: Consent) -> None:
        ConsentChange.objects.create(
            consent=consent, state=self.state, source=self.source, word=self.word, at=self.at, by=self.by
        )


def _apply(consent: Consent, said: _Said) -> bool:
    """Writes the word into a locked record and its history; whether it changed the state. Saves it."""
    last = _last_said(consent)
    late = said.at + (SKEW if said.state == ConsentState.OPTED_OUT else dt.timedelta())
    applies = consent.state != said.state and late >= last
    again = said.is_dated and said.at > last
    if consent.state != said.state or consent.source != said.source or again:
        said.add_to(consent)
    if applies:
        consent.state, consent.source, consent.word = said.state, said.source, said.word
        consent.changed_at = max(said.at, last)
    consent.save()
    if applies:
        observing.consent_changed(consent.pk, said.state, said.source)
    return applies


def _last_said(consent: Consent) -> dt.datetime:
    """When they said last what counts now."""
    again = consent.changes.filter(state=consent.state).aggregate(last=Max("at"))["last"]
    return max(consent.changed_at, again or consent.changed_at)


def _row(theirs: str, ours: str, said: _Said) -> Consent | None:
    """The locked record of a pair; None where this made it, with its first change."""
    if found := _locked(theirs, ours):
        return found
    try:
        with transaction.atomic():
            consent = Consent.objects.create(
                pair=hashes_of(theirs, ours)[0],
                their_number=theirs,
                our_number=ours,
                state=said.state,
                source=said.source,
                word=said.word,
                changed_at=said.at,
            )
            said.add_to(consent)
            observing.consent_changed(consent.pk, said.state, said.source)
    except IntegrityError:  # two at once: the other one made it
        return _locked(theirs, ours)
    return None


def _locked(theirs: str, ours: str) -> Consent | None:
    rows = list(_found([(theirs, ours)]).select_for_update().order_by("pk"))
    current = hashes_of(theirs, ours)[0]
    return min(rows, key=lambda row: row.pair != current, default=None)


def erase(theirs: str) -> int:
    """Removes a person's number from its records, which go on working; returns how many there were.

    For the erasure of a conversation. The word they wrote goes too: it is what they said.
    """
    with transaction.atomic():
        rows = list(Consent.objects.filter(their_number=normalise(theirs)).select_for_update())
        for consent in rows:
            # Of today's key: one that is about to be dropped would take the record with it.
            consent.pair = hashes_of(consent.their_number, consent.our_number)[0]
            consent.their_number = consent.our_number = consent.word = ""
            consent.save()
        ConsentChange.objects.filter(consent__in=rows).update(word="")
    return len(rows)


# Files


def number_of(given: str, *, sender: bool = False) -> str:
    """A number that a record can be kept for; of ours (``sender``) it may be a name. Raises ValueError.

    By what could never be a number of theirs, or of ours, nobody would ever be found.
    """
    number = normalise(given)
    if not (can_send(number) if sender else can_receive(number)):
        raise ValueError(f'{given!r:.40} is not a phone number: write it as in "+15550001111"')
    return number


@dataclass(slots=True)
class Imported:
    """What an import did. ``refused`` are (line, why)."""

    changed: int = 0
    unchanged: int = 0
    refused: list[tuple[int, str]] = field(default_factory=list)


def export(file: IO[str]) -> int:
    """Writes every record as CSV; returns how many. Erased ones have only their hash."""
    writer = csv.DictWriter(file, COLUMNS)
    writer.writeheader()
    count = 0
    for row in Consent.objects.order_by("pk").values(*COLUMNS).iterator():
        writer.writerow({**row, "changed_at": row["changed_at"].astimezone(dt.UTC).isoformat()})
        count += 1
    return count


def load(file: Iterable[str], *, ours: Sequence[str] = (), by: str = "") -> Imported:
    """Reads records from CSV with a header: those of ``export``, or a provider's list of numbers.

    Needed is ``their_number`` (or ``number``, ``phone_number``, ``to``), or ``pair``. ``our_number`` may be
    left out where ``ours`` names our numbers: the record then counts for each. ``state`` is "opted_out"
    unless it says otherwise. A line that cannot be read is refused and the others go on.
    """
    result = Imported()
    reader = csv.DictReader(file)
    for line, row in enumerate(reader, start=2):
        try:
            changes = list(_changes(row, ours, by))
        except ValueError as error:
            result.refused.append((line, str(error)))
            continue
        result.changed += sum(changes)
        result.unchanged += len(changes) - sum(changes)
    return result


def _changes(row: dict[str, Any], ours: Sequence[str], by: str) -> Iterator[bool]:
    given = {(name or "").strip().lower(): (value or "").strip() for name, value in row.items() if name}
    state = ConsentState(given.get("state") or ConsentState.OPTED_OUT)
    at = dt.datetime.fromisoformat(given["changed_at"]) if given.get("changed_at") else None
    if at is not None and at.tzinfo is None:
        raise ValueError("changed_at must name its zone, as in 2026-01-31T12:00:00+00:00")
    names = ("their_number", "number", "phone_number", "to")
    theirs = next((given[name] for name in names if given.get(name)), "")
    if not theirs:
        yield _by_hash(given.get("pair", ""), _Said(state, ConsentSource.IMPORT, "", at, by))
        return
    senders = [given["our_number"]] if given.get("our_number") else list(ours)
    if not senders:
        raise ValueError("our_number is missing")
    # All of them are looked at before anything is written.
    pairs = [(number_of(theirs), number_of(sender, sender=True)) for sender in senders]
    for pair in pairs:
        yield record(*pair, state, ConsentSource.IMPORT, word=given.get("word", ""), at=at, by=by)


def _by_hash(pair: str, said: _Said) -> bool:
    """A record whose numbers were erased before it was exported."""
    if len(pair) != 64 or not all(c in "0123456789abcdef" for c in pair):
        raise ValueError("neither a number nor a pair")
    with transaction.atomic():
        consent, made = Consent.objects.select_for_update().get_or_create(
            pair=pair,
            defaults={"state": said.state, "source": said.source, "changed_at": said.at},
        )
        if not made:
            return _apply(consent, said)
        said.add_to(consent)
    return True


__all__ = [
    "COLUMNS",
    "Imported",
    "erase",
    "export",
    "hashes_of",
    "is_opted_out",
    "load",
    "number_of",
    "opted_out",
    "record",
]
