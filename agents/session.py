"""What a running turn asks of the database in its middle: checkpoints, steps, saves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from agents.bodies import swallow
from agents.exceptions import TurnEndedError
from agents.store.requests import Claimed, Commit
from agents.turn import Turn
from agents.turn_commits import commit_of, record_of, settle
from agents.writes import Table, Writes

if TYPE_CHECKING:
    from agents.engine import Engine

STEP = Table("scheduler.Step", ("actor_id", "task_pk", "name", "use", "result", "saved_at"))


class TurnSession:
    """The short fenced transactions that a running turn asks for.

    Each goes on to its end when the method that asked for it is cancelled: the fence must be known when the
    turn is ended.
    """

    def __init__(self, engine: Engine, turn: Turn, claimed: Claimed) -> None:
        self._engine = engine
        self._turn = turn
        self.token = claimed.token
        self._claimed = claimed
        self._one_at_a_time = asyncio.Lock()
        self._under_way: set[asyncio.Task[None]] = set()

    async def _apart(self, prepare: Callable[[], Commit | None]) -> None:
        """Commits what ``prepare`` makes of the turn as it is now, and settles it."""
        self._turn.writing(0)
        await self._one_at_a_time.acquire()
        try:
            if self._turn.ended:
                raise TurnEndedError(turn_id=self._turn.id)
            commit = prepare()
            if commit is None:
                self._one_at_a_time.release()
                return
            task = self._engine.loop.create_task(self._carry(commit))
        except BaseException:
            self._one_at_a_time.release()
            raise
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        task.add_done_callback(swallow)  # who asked for it may be cancelled meanwhile
        await asyncio.shield(task)

    async def _carry(self, commit: Commit) -> None:
        try:
            committed = await self._engine.commit(commit)
            settle(self._turn, commit, committed)
        finally:
            self._one_at_a_time.release()
        self._engine.announce(committed)

    async def over(self) -> None:
        """Waits for what is under way. The turn has ended: nothing more can begin."""
        if self._under_way:
            await asyncio.wait(self._under_way)

    async def checkpoint(self, *, starts: bool = True) -> None:
        """``starts``: the turn is past its ``on_create``."""
        await self._apart(lambda: self._checkpoint(starts))

    def _checkpoint(self, starts: bool) -> Commit | None:
        if not self._turn.wrote:
            return None
        return commit_of(self._turn, self._claimed, "checkpoint", release=False, starts=starts)

    async def load_steps(self) -> dict[tuple[str, int], Any]:
        task = self._turn.task
        assert task is not None
        actor_id, task_pk = self._turn.actor.id, task.pk

        def load() -> dict[tuple[str, int], Any]:
            from scheduler.models import Step

            rows = Step.objects.filter(actor_id=actor_id, task_pk=task_pk)
            return {(name, use): result for name, use, result in rows.values_list("name", "use", "result")}

        return await self._turn.read(load)

    async def save(self, writes: Writes, *, last: bool = False) -> None:
        if last:
            await self._engine.commit(self._save(writes))
        else:
            await self._apart(lambda: self._save(writes))

    def _save(self, writes: Writes) -> Commit:
        # Under the fence, which it does not move: a step or a checkpoint behind it is none the wiser.
        turn = self._turn
        return Commit(
            turn.actor.id, self.token, turn.id, turn.actor.version, dirty=False, release=False, writes=writes
        )

    async def save_step(self, name: str, use: int, result: Any) -> None:
        await self._apart(lambda: self._step(name, use, result))

    def _step(self, name: str, use: int, result: Any) -> Commit:
        turn, task = self._turn, self._turn.task
        assert task is not None
        writes = Writes()
        writes.insert(
            STEP,
            {
                "actor_id": turn.actor.id,
                "task_pk": task.pk,
                "name": name,
                "use": use,
                "result": result,
                "saved_at": turn.now(),
            },
        )
        return Commit(
            turn.actor.id, self.token, turn.id, turn.actor.version,
            dirty=True, release=False, writes=writes, record=record_of(turn, "step", None, None),
        )  # fmt: skip
