"""Pauses: no turn of an actor's agent begins, of a kind's, or of any.

They are looked at where turns are claimed, so they hold in every process at once. A turn that runs ends as it
would have. Calls to a paused actor raise ActorPausedError at once; ``@reads`` methods answer; what is told to
it, its timers and its retries wait, and run when it is let go on. Sweeps pass over all of it.
"""

from __future__ import annotations

from django.db import transaction
from django.db.models.functions import Now

from agents import conf, names
from agents.models import Actor, Pause
from agents.operations import note
from agents.store import get_store, lock_actor

EVERYTHING = Pause.EVERYTHING


def pause(kind: str, name: str, *, by: str, reason: str = "") -> bool:
    """No turn of this actor begins from now on; False if it was paused. The actor is made if it isn't there.

    Raises AddressError for an address that cannot be.
    """
    address = names.check_kind(kind), names.check_name(name)
    while True:
        actor_id = get_store().ensure([address])[address]
        try:
            return _set(actor_id, True, by, reason)
        except Actor.DoesNotExist:
            continue  # erased meanwhile: the address means a new actor


def resume(kind: str, name: str, *, by: str, reason: str = "") -> bool:
    """The actor goes on; False if it was not paused (its kind, or everything, may still be)."""
    actor_id = get_store().find([(kind, name)]).get((kind, name))
    if actor_id is None:
        return False
    try:
        return _set(actor_id, False, by, reason)
    except Actor.DoesNotExist:
        return False


def _set(actor_id: int, paused: bool, by: str, reason: str) -> bool:
    with lock_actor(actor_id) as actor:
        if (actor.paused_at is not None) == paused:
            return False
        Actor.objects.filter(pk=actor_id).update(paused_at=Now() if paused else None)
        note("pause" if paused else "resume", by=by, reason=reason, actor=actor)
    return True


def pause_kind(kind: str, *, by: str, reason: str = "") -> bool:
    """No turn of any actor of this kind (EVERYTHING: of any kind) begins from now on; False if it was so."""
    with transaction.atomic():
        _, made = Pause.objects.get_or_create(
            kind=kind and names.check_kind(kind), defaults={"by": by[:150], "reason": reason}
        )
        if made:
            note("pause", by=by, reason=reason, kind=kind)
    return made


def resume_kind(kind: str, *, by: str, reason: str = "") -> bool:
    """The kind (EVERYTHING) goes on, within a sweep; False if it was not paused."""
    with transaction.atomic():
        ended = bool(Pause.objects.filter(kind=kind).delete()[0])
        if ended:
            note("resume", by=by, reason=reason, kind=kind)
    return ended


def hold_of(actor: Actor) -> str:
    """What keeps turns of this actor's agent from beginning: "" | taken | actor | kind | everything."""
    if actor.taken_at is not None:
        return "taken"
    if actor.paused_at is not None:
        return "actor"
    paused = set(Pause.objects.filter(kind__in=[EVERYTHING, actor.kind]).values_list("kind", flat=True))
    return "everything" if EVERYTHING in paused else "kind" if paused else ""


def start_paused() -> None:
    """Pauses everything where START_PAUSED asks for it: the commands that run turns call this first."""
    if conf.get("START_PAUSED"):
        pause_kind(EVERYTHING, by="START_PAUSED", reason="a process was started with START_PAUSED")
