"""Takeover: an operator answers in a conversation, in place of its agent.

While it is taken over no turn of the agent begins (``agents/store`` sees to it). What people write, by text
or from a page, is taken into the log by a turn of the framework's own (``take_in``), ahead of whatever else
waits in the inbox; what the operator answers goes through the same log and outbox. Everything else waits.
At the release the agent's ``on_resume`` gets the numbers of the messages that came meanwhile, before any
other task of the actor runs.
"""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from django.db.models import Min
from django.db.models.functions import Now

from agents import codec, conf
from agents.agent import Agent, is_text
from agents.blobs import Blobs
from agents.engine import Engine
from agents.exceptions import ActorNotTakenOverError, ActorTakenOverError, MessageError, UnknownKindError
from agents.kinds import get as kind_of
from agents.models import Actor, TurnRecord
from agents.operations import note
from agents.runtime import get_runtime
from agents.saying import RECEIVE
from agents.store import get_store, lock_actor
from agents.turn import Turn
from conversations import media, streams
from conversations.log import MessageLog
from conversations.models import Message, Takeover
from conversations.sms import Sms

#: Retries of ``on_resume``.
RETRIES = 5


def current(actor_id: int) -> Takeover | None:
    """Who holds this conversation now."""
    return Takeover.objects.filter(actor_id=actor_id, released_at__isnull=True).first()


def take_over(actor_id: int, *, by: str, reason: str = "", stop: bool = False) -> Takeover:
    """No turn of the agent begins from now on; ``stop`` also stops the one that runs. Returns the takeover.

    Raises ActorTakenOverError if somebody holds it, Actor.DoesNotExist.
    """
    from scheduler.models import Lane, Task

    with lock_actor(actor_id) as actor:
        if actor.taken_at is not None:
            holder = current(actor_id)
            raise ActorTakenOverError(
                f"{holder.by if holder else 'somebody'} has taken it over", hold="taken"
            )
        taken = Takeover.objects.create(actor=actor, by=by[:150], reason=reason, after_seq=actor.seq)
        Actor.objects.filter(pk=actor_id).update(taken_at=Now())
        # What the agent failed to receive is shown at once, not after its pause.
        waiting = Task.objects.pending().filter(actor_id=actor_id, lane=Lane.INBOX, method=RECEIVE)
        waiting.filter(due_at__gt=Now()).update(due_at=Now())
        note("take_over", by=by, reason=reason, actor=actor)
    if stop:
        get_store().stop(actor_id)
    return taken


def release(actor_id: int, *, by: str, reason: str = "") -> Takeover:
    """The agent goes on: first with ``on_resume``, where its class has one. Returns the takeover.

    Raises ActorNotTakenOverError, Actor.DoesNotExist.
    """
    from scheduler.models import Lane, Task

    with lock_actor(actor_id) as actor:
        taken = current(actor_id)
        if taken is None or actor.taken_at is None:
            raise ActorNotTakenOverError("nobody has taken this conversation over")
        now = get_store().sql.now()
        taken.released_at, taken.released_by = now, by[:150]
        taken.save(update_fields=["released_at", "released_by"])
        Actor.objects.filter(pk=actor_id).update(taken_at=None)
        if _resumes(actor.kind):
            first = Task.objects.pending().filter(actor_id=actor_id).aggregate(at=Min("due_at"))["at"]
            Task.objects.create(
                actor=actor,
                task_id=uuid.uuid4().hex,
                lane=Lane.HOOK,
                method="on_resume",
                payload={"takeover": taken.uid},
                # Before what has waited: it may want to cancel some of that.
                due_at=min(first or now, now) - dt.timedelta(microseconds=1),
                created_at=now,
                max_retries=RETRIES,
            )
        note("release", by=by, reason=reason, actor=actor)
    return taken


def _resumes(kind: str) -> bool:
    try:
        return kind_of(kind).on_resume is not Agent.on_resume
    except UnknownKindError:
        return False


def seqs_of(actor_id: int, uid: str) -> list[int]:
    """The numbers of the messages that came and went while an operator held the conversation, in order."""
    after = Takeover.objects.filter(actor_id=actor_id, uid=uid).values("after_seq")
    rows = Message.objects.filter(actor_id=actor_id, seq__gt=after, metadata__takeover=uid)
    return list(rows.order_by("seq").values_list("seq", flat=True))


# What an operator says


def answer(
    kind: str,
    name: str,
    text: str,
    *,
    by: str,
    files: Sequence[media.Upload] = (),
    key: str = "",
    patience: float | None = None,
) -> int:
    """Says ``text`` as the assistant, and texts it to whoever wrote last; returns the message's number.

    ``files`` (pictures, say) are kept among the actor's and sent along. A turn of its own, from synchronous
    code. The same ``key`` again says nothing and returns the same. Raises ActorNotTakenOverError unless
    somebody has taken the conversation over, MessageError for neither words nor files, BadMediaError for
    files that are not sent, what ``self.sms.send`` raises (OptedOutError, TextTooLongError ...),
    ActorBusyError.
    """
    return get_runtime().run_sync(_answering(kind, name, text, by, key, patience, files))


async def answer_async(
    kind: str,
    name: str,
    text: str,
    *,
    by: str,
    files: Sequence[media.Upload] = (),
    key: str = "",
    patience: float | None = None,
) -> int:
    """As ``answer``, on an event loop."""
    return await get_runtime().run(_answering(kind, name, text, by, key, patience, files))


def _answering(
    kind: str,
    name: str,
    text: str,
    by: str,
    key: str,
    patience: float | None,
    files: Sequence[media.Upload],
) -> Callable[[Engine], Coroutine[Any, Any, int]]:
    text = codec.clean_text(text)
    if not text.strip() and not files:
        raise MessageError("an answer needs words, or a picture")
    uploads = media.checked_uploads(files)

    async def body(turn: Turn) -> int:
        if turn.actor.hold != "taken":
            raise ActorNotTakenOverError
        actor_id = turn.actor.id
        if key and (seq := await turn.read(_said, actor_id, key)):
            return seq
        blobs = Blobs(turn)
        log, sms = MessageLog(turn), Sms(turn, lambda: blobs)
        if turn.takes_over:
            await streams.mend(log)
        uid = await turn.read(_uid, actor_id)
        said = {"takeover": uid, "operator": key or True}
        parts = await media.keep_uploads(turn, blobs, uploads)
        words = [{"type": "text", "text": text}] if text.strip() else []
        content = {"parts": [*words, *parts]} if parts else {"content": text}
        seq = await log.append({"role": "assistant", **content, "metadata": said})
        if await sms.correspondent() is not None:
            await sms.send(text, media=[media.blob_key(part) for part in parts])
        turn.at_commit.append((_noted, (actor_id, by, seq)))
        return seq

    async def call(engine: Engine) -> int:
        if (kind, name) not in await engine.in_store(engine.store.find, [(kind, name)]):
            raise ActorNotTakenOverError
        seq: int = await engine.call(
            (kind, name),
            "answer",
            body,
            origin="takeover",
            budget=conf.get("CALL_BUDGET"),
            patience=patience,
            framework=True,
        )
        return seq

    return call


def _noted(actor_id: int, by: str, seq: int) -> None:
    note("answer", by=by, actor=Actor.objects.only("kind", "name").get(pk=actor_id), detail={"seq": seq})


def _said(actor_id: int, key: str) -> int | None:
    after = Takeover.objects.filter(actor_id=actor_id).order_by("-pk").values("after_seq")[:1]
    rows = Message.objects.filter(actor_id=actor_id, seq__gt=after, metadata__operator=key)
    return rows.values_list("seq", flat=True).first()


def _uid(actor_id: int) -> str:
    """The takeover that goes on; the last one where it has just been released."""
    rows = Takeover.objects.filter(actor_id=actor_id).order_by("-pk")
    return rows.values_list("uid", flat=True).first() or ""


# What people say


async def take_in(turn: Turn) -> None:
    """The body of a turn of the framework's own: what somebody said to the actor becomes a message."""
    task = turn.task
    assert task is not None
    log = MessageLog(turn)
    if turn.takes_over:
        await streams.mend(log)
    if is_text(turn):
        await Sms(turn, lambda: Blobs(turn)).begin()
    if await turn.read(_kept, turn.actor.id, task.pk):
        return  # an attempt of the agent's had appended it before its checkpoint
    said = codec.decode(task.payload)
    if not isinstance(said, Mapping):
        said = {"text": said if isinstance(said, str) else json.dumps(task.payload, ensure_ascii=False)}
    await log.add_received(said, metadata={"takeover": await turn.read(_uid, turn.actor.id)})


def _kept(actor_id: int, task_pk: int) -> bool:
    from scheduler.models import Attempt

    turns = Attempt.objects.filter(actor_id=actor_id, task_pk=task_pk).values("turn_id")
    kept = TurnRecord.objects.filter(actor_id=actor_id, turn_id__in=turns, first_seq__isnull=False)
    return kept.exists()
