"""Recurring tasks on a clock that jumps from one due moment to the next, and what must be true of their runs.

Each actor is fired every five minutes. Whether each of its firings came at its own moment and alone is looked
at twice: by the agent, which keeps its last moment, and in the attempts, of which a look takes a while's.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from typing import Any

from django.db.models import Count, Max, Min

from agents import Agent
from agents.engine import Engine
from agents.models import Actor
from agents.store import get_store
from agents.testing import on_runtime
from agents.turn import Tell
from scheduler.drain import drain
from scheduler.models import Attempt, Task

EVERY = dt.timedelta(seconds=300)
START = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
SIDE_BY_SIDE = 200  # drains


class Punctual(Agent[dict[str, Any]]):
    """Counts how often it was fired, and how often that was another moment than it should have been."""

    kind = "test-punctual"
    moment = START
    #: Those that run now, and how many of them ran twice at once.
    running: set[str] = set()
    overlaps = 0

    def initial_state(self) -> dict[str, Any]:
        return {"count": 0, "off": 0, "last": START.timestamp()}

    def now(self) -> dt.datetime:
        return Punctual.moment

    async def begin(self) -> None:
        await self.every(EVERY.total_seconds(), "tick", id="tick")

    async def tick(self) -> None:
        Punctual.overlaps += self.name in Punctual.running
        Punctual.running.add(self.name)
        await asyncio.sleep(0)
        state = await self.get_state()
        now = self.now().timestamp()
        off = now != state["last"] + EVERY.total_seconds()
        await self.set_state({"count": state["count"] + 1, "off": state["off"] + off, "last": now})
        Punctual.running.discard(self.name)


def reset() -> None:
    Punctual.moment, Punctual.overlaps = START, 0
    Punctual.running.clear()


def begun(count: int) -> list[int]:
    """Actors whose tick is due for the first time at START + EVERY; their ids."""
    names = [f"n{n}" for n in range(count)]
    get_store().tell([Tell(Punctual.kind, name, "begin", None) for name in names])
    ids = list(Actor.objects.filter(kind=Punctual.kind).order_by("pk").values_list("pk", flat=True))
    # Told by the database's clock; begun by theirs.
    Task.objects.filter(actor__in=ids).update(due_at=START)
    play(ids)
    return ids


def play(ids: list[int], side_by_side: int = SIDE_BY_SIDE) -> None:
    """Drains all of them at the moment that the clock shows."""

    async def all_of_them(engine: Engine) -> None:
        waiting = iter(ids)

        async def one_after_another() -> None:
            for id in waiting:
                await drain(engine, id, Punctual.kind)

        await asyncio.gather(*(one_after_another() for _ in range(min(side_by_side, len(ids)))))

    on_runtime(all_of_them)


def wrong_attempts(actors: int, after: dt.datetime, until: dt.datetime) -> list[str]:
    """What is wrong with the attempts of that time: each actor should have one at each of its moments."""
    rounds = (until - after) // EVERY
    ticks = Attempt.objects.filter(method="tick", due_at__gt=after)
    problems = [
        f"{count} attempts of another outcome or number than the first, done"
        for count in [ticks.exclude(outcome="done", number=1).count()]
        if count
    ]
    counted = ticks.values("actor_id").annotate(
        n=Count("pk"), dues=Count("due_at", distinct=True), first=Min("due_at"), last=Max("due_at")
    )
    right = counted.filter(n=rounds, dues=rounds, first=after + EVERY, last=until).count()
    if right != actors:
        problems.append(
            f"{actors - right} of {actors} actors have other attempts than {rounds} in {after} .. {until}"
        )
    return problems


def wrong_states(actors: int, moment: dt.datetime) -> list[str]:
    """What is wrong with the actors at that moment: each should have been fired at every one up to it."""
    expected = {"count": (moment - START) // EVERY, "off": 0, "last": moment.timestamp()}
    found = Actor.objects.filter(kind=Punctual.kind).values_list("state", "alarm")
    right = sum(state == expected and alarm == moment + EVERY for state, alarm in found)
    problems = []
    if right != actors:
        problems.append(f"{actors - right} of {actors} actors are in another state than {expected}")
    if Punctual.overlaps:
        problems.append(f"{Punctual.overlaps} ran twice at once")
    return problems
