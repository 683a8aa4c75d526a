"""The past of an actor: its state as of any turn whose record is kept (``KEEP_TURNS``).

The actor's row has the state of now; each record has what leads back to the state before it. So the way back
is as long as there are records without a gap, whatever retention took before them.
"""

from __future__ import annotations

from agents.codec import Tree, decode, encode
from agents.exceptions import PastUnknownError
from agents.merge_patch import merge_patch
from agents.models import Actor, TurnRecord

#: State changes that are taken back to answer one question.
MOST = 20_000


def state_at(actor: Actor, version: int) -> Tree:
    """The state, as it is stored (a codec tree), right after the commit that made ``version``.

    None: nothing had been written, ``initial_state`` answered. ``actor`` has its ``version`` and ``state`` as
    they were read together; commits made since don't matter. Raises PastUnknownError for a version that there
    never was, that is older than the records that are kept, or MOST changes of the state away.
    """
    if not 0 <= version <= actor.version:
        raise PastUnknownError(f"there is no version {version}; the actor is at {actor.version}")
    since = TurnRecord.objects.filter(actor_id=actor.pk, version__gt=version, version__lte=actor.version)
    if since.count() != actor.version - version:
        raise PastUnknownError
    undone = (
        since.filter(state_change__isnull=False).order_by("-version").values_list("state_undo", flat=True)
    )
    undos = list(undone[: MOST + 1])
    if len(undos) > MOST:
        raise PastUnknownError(f"the state has changed more than {MOST:,} times since version {version}")
    state = actor.state
    for undo in undos:
        state = before(state, undo)
    return state


def before(state: Tree, undo: dict[str, Tree] | None) -> Tree:
    """The state before a commit whose record says ``undo``."""
    if undo is None:  # written before records said how
        raise PastUnknownError
    if "replace" in undo:
        return undo["replace"]
    return encode(merge_patch(decode(state), decode(undo["patch"])))
