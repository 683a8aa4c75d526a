"""Who waits for whom: chains of calls, and circles of turns that wait for each other.

A call that comes back to an actor in its own chain fails at once: the chain travels with the context. Turns
that began apart and wait for each other are found through their rows: a call that waits for long says on the
row of every turn in its chain for whom that turn waits, and follows those notes. Whoever finds itself to be
the youngest turn of a circle fails its call; the others go on.
"""

from __future__ import annotations

import asyncio
import contextvars
import datetime as dt
import functools
import logging
import uuid
from typing import TYPE_CHECKING, Any, NamedTuple

from agents.exceptions import ActorDeadlockError
from agents.store.base import Delayed
from agents.store.patience import PATIENCE, Tries

if TYPE_CHECKING:
    from agents.engine import Engine
    from agents.turn import Turn

logger = logging.getLogger("agents.waits")

# A circle of more turns than this is not looked for.
LONGEST_CIRCLE = 100

#: The turns that made the call that this context belongs to, outermost first.
call_chain: contextvars.ContextVar[tuple[Turn, ...]] = contextvars.ContextVar("agents_chain", default=())


def waiting_turns() -> tuple[Turn, ...]:
    """The turns that wait for what runs in this context, outermost first.

    A task that a turn left running may still call actors: nobody waits for it any more, so the chain begins
    behind the last turn that has ended.
    """
    chain = call_chain.get()
    for at in range(len(chain) - 1, -1, -1):
        if chain[at].ended:
            return chain[at + 1 :]
    return chain


class Link(NamedTuple):
    """A turn in a circle, as its actor's row says."""

    started_at: dt.datetime
    actor_id: int
    turn_id: uuid.UUID
    waits_for: int | None


class Waits:
    """One call, from a turn or a chain of turns, that waits for an actor."""

    def __init__(self, engine: Engine, chain: tuple[Turn, ...], target_id: int) -> None:
        self._engine = engine
        self._chain = chain
        self._target_id = target_id

    async def look(self) -> None:
        """Raises ActorDeadlockError if the wait closes a circle and our turn is the youngest in it."""
        await self._say()
        circle = await self._circle()
        if circle is None or max(circle).actor_id != self._chain[-1].actor.id:
            return
        # The rows were read one after another. What stands in all of them twice stood there at one moment.
        if circle == await self._circle():
            raise ActorDeadlockError("this turn and those that it waits for wait for each other")

    async def _say(self) -> None:
        targets = [turn.actor.id for turn in self._chain[1:]] + [self._target_id]
        for turn, target in zip(self._chain, targets, strict=True):
            before = turn.waits_for
            if before == target:
                continue
            turn.waits_for = target
            try:
                await self._note(turn, target)
            except Delayed:  # somebody has locked its row: the next look says it
                if turn.waits_for == target:
                    turn.waits_for = before

    async def _circle(self) -> list[Link] | None:
        circle: list[Link] = []
        at: int | None = self._target_id
        while at is not None and len(circle) < LONGEST_CIRCLE:
            row: dict[str, Any] | None = await self._engine.in_store(self._engine.store.inspect, at)
            if row is None or not row["leased"]:
                return None
            ours = at == self._chain[-1].actor.id
            # Our own note is this call's or that of another which the turn makes meanwhile: no matter.
            waits_for = None if ours else row["waits_for_id"]
            circle.append(Link(row["turn_started_at"], row["id"], row["turn_id"], waits_for))
            if ours:
                return circle
            at = waits_for
        return None

    async def over(self) -> None:
        """The call has ended: our turn waits for its actor no more."""
        turn = self._chain[-1]
        if turn.waits_for != self._target_id:
            return
        turn.waits_for = None
        tries = Tries(PATIENCE)
        try:
            while turn.waits_for is None:  # else another of its calls waits by now
                try:
                    await self._note(turn, None)
                    break
                except Delayed:
                    if tries.over:
                        raise
                await asyncio.sleep(tries.next_pause())
        except Exception:
            # The turn's next commit clears it; until then another turn may wait a little longer.
            logger.exception("the row of actor %d still says for whom it waits", turn.actor.id)

    async def _note(self, turn: Turn, target: int | None) -> None:
        if turn.session is not None:
            say = functools.partial(self._engine.store.wait_for, wait=False)
            await self._engine.in_store(say, turn.actor.id, turn.session.token, target)
