"""The last EVENTS_KEPT events of an actor are kept; what is older goes, a tenth of that at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from agents import conf
from agents.models import Event
from agents.sockets.complaints import Complaints
from agents.turn import ActorRow, Shown

complain = Complaints()
_under_way: set[asyncio.Task[None]] = set()


def committed(actor: ActorRow, shown: Sequence[Shown]) -> None:
    """A commit wrote these events, on the loop where turns run."""
    kept = conf.get("EVENTS_KEPT")
    step = max(1, kept // 10)
    first, last = shown[0].cursor, shown[-1].cursor
    if last <= kept or last // step == (first - 1) // step:
        return
    task = asyncio.get_running_loop().create_task(_prune(actor.id, last - kept), name="agents-pruning")
    _under_way.add(task)
    task.add_done_callback(_under_way.discard)


async def _prune(actor_id: int, up_to: int) -> None:
    from agents.runtime import get_runtime

    try:
        await get_runtime().engine.run(prune, actor_id, up_to)
    except Exception as error:
        complain("old events could not be deleted; they go with the next ones", error)


def prune(actor_id: int, up_to: int) -> int:
    """Deletes an actor's events up to a cursor; how many there were."""
    return Event.objects.filter(actor_id=actor_id, cursor__lte=up_to).delete()[0]
