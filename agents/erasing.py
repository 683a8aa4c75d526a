"""Erasure: everything that is kept of an actor goes, in one transaction, whatever it is doing.

Its row is locked first, so what is told to it at that moment either came before and goes, too, or waits and
begins a new actor of that name. A turn that runs finds the row gone, and writes nothing. Files go after the
commit; what a process that dies leaves of them, ``agents.blobs.prune_orphans`` finds.
"""

from __future__ import annotations

import hmac
import logging
from typing import Any

from django.conf import settings
from django.core.files.storage import default_storage
from django.db import transaction
from django.db.models import QuerySet

from agents.holdings import ALIASES, ERASERS, HOLDINGS
from agents.models import Actor, Blob, Erasure

logger = logging.getLogger("agents.erasing")


def erase(
    kind: str, name: str, *, by: str, reason: str = "", among: QuerySet[Actor] | None = None
) -> Erasure | None:
    """Erases an actor; the line that is left of it, or None where there was no such actor.

    The reason is kept: it should name nobody. ``among``: only if it is one of these when its row is locked,
    whatever it was when its name was found.
    """
    with transaction.atomic():
        actor = Actor.objects.select_for_update().filter(kind=kind, name=name).first()
        if actor is None:
            return None
        # In a statement of its own, which sees what was committed while the lock was waited for.
        if among is not None and not among.filter(pk=actor.pk).exists():
            return None
        counts = _erase(actor)
        erasure = Erasure.objects.create(
            kind=kind, address=address_hash(kind, name), by=by[:150], reason=reason, counts=counts
        )
    logger.info("an actor of kind %s was erased by %s", kind, by)
    return erasure


def was_erased(kind: str, name: str) -> bool:
    """Whether an actor of this address was ever erased (as long as the key of the hash is known)."""
    keys = [settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS]
    hashes = [address_hash(kind, name, str(key)) for key in keys]
    return Erasure.objects.filter(kind=kind, address__in=hashes).exists()


def address_hash(kind: str, name: str, key: str = "") -> str:
    """What stands for an erased address: with Django's SECRET_KEY, so that nobody else can try names."""
    secret = (key or settings.SECRET_KEY).encode()
    return hmac.new(secret, f"agents.erasing\0{kind}\0{name}".encode(), "sha256").hexdigest()


def _erase(actor: Actor) -> dict[str, int]:
    words: set[str] = set()
    for aliases in ALIASES:
        words |= aliases(actor)
    counts: dict[str, int] = {}
    for eraser in ERASERS:
        counts |= eraser(actor, words)
    paths = list(Blob.objects.filter(actor=actor).values_list("path", flat=True))
    for holding in reversed(HOLDINGS.values()):
        rows: Any = holding.of(actor)
        # Not one by one: what refers to these rows is named by a holding of its own.
        counts[holding.label] = rows._raw_delete(rows.db)
    actor.delete()  # and what other apps refer to it with
    if paths:
        transaction.on_commit(lambda: _remove(paths))
    return {label: count for label, count in counts.items() if count}


def _remove(paths: list[str]) -> None:
    for path in paths:
        try:
            default_storage.delete(path)
        except Exception:
            logger.exception("a file of an erased actor is left to prune_orphans")
