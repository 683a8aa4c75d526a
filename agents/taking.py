"""Taking an actor for a turn: this process's queue, then other processes, and circles of calls on the way."""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import TYPE_CHECKING

from agents.exceptions import ActorBusyError, ActorDeadlockError, RuntimeShutdownError
from agents.kinds import wants_on_parked
from agents.store.base import Address
from agents.store.requests import Claim, Claimed, Commit
from agents.waits import Waits, waiting_turns

if TYPE_CHECKING:
    from agents.engine import Engine

# Pauses between two looks at an actor that another process holds.
FIRST_PAUSE, LONGEST_PAUSE = 0.001, 0.05  # seconds
# A turn that waits for another actor says so on its row after this, and then looks for circles as often.
DEADLOCK_LOOK = 0.05  # seconds


async def take(
    engine: Engine, address: Address, turn_id: uuid.UUID, deadline: float, *, framework: bool = False
) -> tuple[Claimed, Waits | None]:
    """Waits in this process's queue, then for other processes; the claim, or ActorBusyError.

    The caller leaves the turnstile of ``claimed.actor.id`` when its turn is over, and ends the waits.
    """
    chain = waiting_turns()
    while True:
        if engine.refuses():
            raise RuntimeShutdownError
        actor_id = await engine.addresses.id_of(*address)
        if any(turn.actor.id == actor_id for turn in chain):
            raise ActorDeadlockError(f"{address[0]}/{address[1]} is in the chain of calls that reached it")
        waits = Waits(engine, chain, actor_id) if chain else None
        try:
            await _queue(engine, actor_id, address, deadline, waits)
            try:
                claimed = await _claim(engine, actor_id, address, turn_id, deadline, waits, framework)
                if claimed is not None:
                    return claimed, waits
            except BaseException:
                engine.turnstile.leave(actor_id)
                raise
            # The row was erased meanwhile: the address means a new actor.
            engine.turnstile.leave(actor_id)
            engine.addresses.forget(address)
        except BaseException:
            if waits is not None:
                await waits.over()
            raise


async def _queue(
    engine: Engine, actor_id: int, address: Address, deadline: float, waits: Waits | None
) -> None:
    place = engine.turnstile.enter(actor_id)
    if place is None:
        return
    try:
        while True:
            left = deadline - time.monotonic()
            pause = left if waits is None else min(left, DEADLOCK_LOOK)
            await asyncio.wait(
                [place, engine.going], timeout=max(0.0, pause), return_when=asyncio.FIRST_COMPLETED
            )
            if place.done():
                return
            if engine.refuses():
                raise RuntimeShutdownError
            if time.monotonic() >= deadline:
                raise ActorBusyError(f"{address[0]}/{address[1]} is busy")
            if waits is not None:
                await waits.look()
    except BaseException:
        engine.turnstile.give_up(actor_id, place)
        raise


async def _claim(
    engine: Engine,
    actor_id: int,
    address: Address,
    turn_id: uuid.UUID,
    deadline: float,
    waits: Waits | None,
    framework: bool,
) -> Claimed | None:
    """None when the actor's row is gone."""
    pause = FIRST_PAUSE
    looked = time.monotonic()
    marked = False
    while True:
        if engine.refuses():
            raise RuntimeShutdownError
        claimed = await engine.claims.submit(
            Claim(actor_id, turn_id, framework=framework, wants_on_parked=wants_on_parked(address[0]))
        )
        if claimed is not None:
            if (claimed.actor.kind, claimed.actor.name) == address:
                return claimed
            # The id means another actor now.
            await engine.commit(Commit(actor_id, claimed.token, turn_id, claimed.actor.version, dirty=False))
            return None
        now = time.monotonic()
        if now >= deadline:
            raise ActorBusyError(f"{address[0]}/{address[1]} is busy")
        late = now - looked >= DEADLOCK_LOOK
        if not marked or late:
            # Another process holds it: a drain there is to let us through after the task that runs.
            marked = await engine.in_store(engine.store.mark_waiting, actor_id)
            if not marked and await engine.in_store(engine.store.inspect, actor_id) is None:
                return None
        if late:
            looked = now
            if waits is not None:
                await waits.look()
        await asyncio.sleep(pause)
        pause = min(pause * 2, LONGEST_PAUSE)
