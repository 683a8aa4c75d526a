"""``self.sms``: the texts of a turn. They are rows of its commit; a worker sends them afterwards."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from agents.blobs import BlobInfo, Blobs
from agents.codec import clean_text, decode, encode
from agents.parts import Part
from agents.saying import RECEIVE
from agents.writes import Row, Table, Writes
from conversations import conf, consent, outbox, phone, quiet
from conversations.exceptions import (
    BadNumberError,
    EmptyTextError,
    NobodyToTextError,
    OptedOutError,
    TextTooLongError,
)
from conversations.media import checked_media, fetched_payload
from conversations.models import Correspondent, TextStatus
from conversations.segments import MAX_SEGMENTS, segments, smart
from conversations.segments import split as segments_split

if TYPE_CHECKING:
    from agents.turn import Turn

OUTBOX = Table(
    "conversations.OutboundText",
    (
        "actor_id",
        "uid",
        "provider",
        "from_number",
        "to_number",
        "text",
        "media",
        "status",
        "attempts",
        "due_at",
        "holds",
        "keeps_quiet",
        "provider_id",
        "error",
        "reason",
        "encoding",
        "segments",
    ),
)
CORRESPONDENT = Table(
    "conversations.Correspondent",
    ("actor_id", "their_number", "our_number", "wrote_at"),
    conflict=("actor_id",),
)


class Numbers(NamedTuple):
    """Who an actor is talking to, and from which number of ours."""

    theirs: str
    ours: str


class Sms(Part):
    """Sends texts, and remembers whom the actor is talking to.

    A turn that handles an inbound text (a task of ``receive`` whose payload says ``channel: sms``) makes its
    sender the actor's correspondent: part of that turn's commit, seen at once by ``send``.
    """

    def __init__(self, turn: Turn, blobs: Callable[[], Blobs] | None = None) -> None:
        super().__init__(turn)
        self._blobs = blobs or (lambda: Blobs(turn))
        self._texts: list[Row] = []
        self._collected = 0  # how many of them collect() gave
        self._numbers: Numbers | None = None
        self._wrote_at: dt.datetime | None = None
        self._correspondent: Row | None = None
        task = turn.task
        if task is not None and task.method == RECEIVE:
            self._remember(decode(task.payload))

    async def send(
        self,
        text: str = "",
        *,
        media: Sequence[str | BlobInfo] = (),
        to: str | None = None,
        sender: str | None = None,
        split: bool = True,
        smart: bool | None = None,
        urgent: bool = False,
    ) -> str:
        """Puts a text into the outbox, to be sent once this turn has committed; returns its id.

        Without numbers it goes to whoever wrote last, from the number of ours that they wrote to. Nothing
        is sent if the turn fails, and a retry that sends the same text sends it once.

        ``media`` are addresses (https) and keys of ``self.blobs``. Beyond ten segments (1,530 units of the
        GSM alphabet, 670 of UCS-2) the text becomes several, up to SMS_MAX_PARTS; the id is the first one's.
        ``smart`` replaces typographic characters that would double the price (SMS_SMART unless given). In
        the recipient's quiet hours (SMS_QUIET_HOURS) it waits for their end, also when a worker comes to it
        only then, unless it answers what they have just written or is ``urgent``.

        Raises NobodyToTextError, OptedOutError, BadNumberError, BadMediaError, EmptyTextError,
        TextTooLongError, and what every write raises outside a turn, in ``@reads`` methods and in steps.
        """
        self.turn.writing()
        items = await checked_media(media, self._blobs()) if media else []
        parts = _parts(text, split, conf.get("SMS_SMART") if smart is None else smart, bool(items))
        theirs, ours = await self._between(to, sender)
        if await self.turn.read(consent.is_opted_out, theirs, ours):
            raise OptedOutError(f"{theirs} wants no texts from {ours}", to=theirs, sender=ours)
        hours = None if urgent else await self._quiet_hours(theirs)
        now = self.turn.database_now()
        due_at = now if hours is None else quiet.moment_for(theirs, now, hours)
        if len(self._texts) == self._collected:
            self.turn.on_committed.append(outbox.wake)
        uids = []
        for place, words in enumerate(parts):
            if place:
                self.turn.writing()
            uids.append(uuid.uuid4())
            row = self._row(uids[-1], theirs, ours, words, items if not place else [], due_at)
            self._texts.append({**row, "keeps_quiet": hours is not None})
        return str(uids[0])

    async def opted_out(self, to: str | None = None, sender: str | None = None) -> bool:
        """Whether this person wants no texts from this number; without numbers, as ``send`` has it."""
        theirs, ours = await self._between(to, sender)
        return await self.turn.read(consent.is_opted_out, theirs, ours)

    async def correspondent(self) -> Numbers | None:
        """Whoever wrote last, and the number of ours they wrote to; None of an actor that nobody texts."""
        return await self._last()

    async def begin(self) -> None:
        """Before the method of a turn that handles an inbound text: its pictures are fetched."""
        task = self.turn.task
        payload = decode(task.payload) if task is not None else None
        if task is None or not isinstance(payload, dict) or "parts" in payload:
            return
        task.payload = encode(await fetched_payload(self.turn, self._blobs(), payload))

    def collect(self, writes: Writes) -> None:
        if self._correspondent is not None:
            writes.upsert(CORRESPONDENT, self._correspondent)
        for row in self._texts:
            writes.insert(OUTBOX, row)
            writes.note("texts", str(row["uid"]))
        self._collected = len(self._texts)

    def committed(self) -> None:
        self._correspondent = None  # known from the turn's beginning: it is in the first commit
        # What came while a checkpoint was on its way belongs to the next commit.
        del self._texts[: self._collected]
        self._collected = 0

    def _remember(self, payload: Any) -> None:
        if not isinstance(payload, dict) or payload.get("channel") != "sms":
            return
        theirs, ours = payload.get("from"), payload.get("to")
        if not (isinstance(theirs, str) and theirs and isinstance(ours, str) and ours):
            return
        self.turn.writing()
        self._numbers = Numbers(theirs, ours)
        self._wrote_at = _moment(payload.get("received_at")) or self.turn.now()
        self._correspondent = {
            "actor_id": self.turn.actor.id,
            "their_number": theirs[:64],
            "our_number": ours[:64],
            "wrote_at": self._wrote_at,
        }

    async def _last(self) -> Numbers | None:
        if self._numbers is None:
            found = await self.turn.read(_stored, self.turn.actor.id)
            if found is not None:
                self._numbers, self._wrote_at = found
        return self._numbers

    async def _between(self, to: str | None, sender: str | None) -> Numbers:
        """Their number and ours, normalised. Raises NobodyToTextError, BadNumberError."""
        if to is None or sender is None:
            known = await self._last()
            if known is None:
                raise NobodyToTextError()
            to, sender = to or known.theirs, sender or known.ours
        return Numbers(_destination(to), _origin(sender))

    async def _quiet_hours(self, theirs: str) -> quiet.QuietHours | None:
        """Those in which a text to them has to wait; None of an answer to what they have just written."""
        hours = quiet.configured()
        if hours is None:
            return None
        last = await self._last()
        window = dt.timedelta(seconds=conf.get("SMS_REPLY_WINDOW"))
        wrote_at = self._wrote_at if last is not None and last.theirs == theirs else None
        is_reply = wrote_at is not None and self.turn.database_now() - wrote_at <= window
        return None if is_reply else hours

    def _row(
        self, uid: uuid.UUID, theirs: str, ours: str, text: str, media: list[Any], due_at: dt.datetime
    ) -> Row:
        length = segments(text)
        # Written down, and never sent (conversations/outbox.py looks, too).
        sandbox = self.turn.actor.sandbox
        return {
            "actor_id": self.turn.actor.id,
            "uid": uid,
            "provider": "",
            "from_number": ours,
            "to_number": theirs,
            "text": text,
            "media": media,
            "status": (TextStatus.FAILED if sandbox else TextStatus.QUEUED).value,
            "attempts": 0,
            "due_at": due_at,
            # One that waits for the morning holds up no answer to what they write in the night.
            "holds": due_at <= self.turn.database_now(),
            "provider_id": "",
            "error": "a copy sends no texts" if sandbox else "",
            "reason": "sandbox" if sandbox else "",
            "encoding": length.encoding if text else "",
            "segments": 1 if media else length.count,  # pictures go as one message, however long its words
        }


def _stored(actor_id: int) -> tuple[Numbers, dt.datetime] | None:
    row = Correspondent.objects.filter(actor_id=actor_id).first()
    return (Numbers(row.their_number, row.our_number), row.wrote_at) if row else None


def _parts(text: str, may_split: bool, smartly: bool, with_media: bool) -> list[str]:
    """The text as one, or as several where it is too long for one."""
    if not isinstance(text, str) or not (text.strip() or with_media):
        raise EmptyTextError()
    text = clean_text(text)
    if smartly:
        text = smart(text)
    cost = segments(text)
    if cost.count <= MAX_SEGMENTS:
        return [text]
    parts = segments_split(text) if may_split else []
    most = conf.get("SMS_MAX_PARTS")
    if may_split and len(parts) <= most:
        return parts
    allowed = MAX_SEGMENTS * (most if may_split else 1)
    raise TextTooLongError(
        f"a text may have {allowed} segments, this one needs {cost.count} in {cost.encoding}",
        limit="MAX_SEGMENTS",
        maximum=allowed,
        actual=cost.count,
    )


def _destination(number: str) -> str:
    normal = phone.normalise(number)
    if phone.can_receive(normal):
        return normal
    raise BadNumberError(f"{number!r} is not a number that a text can go to")


def _origin(number: str) -> str:
    normal = phone.normalise(number)
    if phone.can_send(normal):
        return normal
    raise BadNumberError(f"{number!r} is not a number or name that a text can come from")


def _moment(value: Any) -> dt.datetime | None:
    if isinstance(value, dt.datetime):
        moment = value
    else:
        try:
            moment = dt.datetime.fromisoformat(value)
        except (TypeError, ValueError):
            return None
    return moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)
