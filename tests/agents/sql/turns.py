"""Turns with a body of the test's own: ``in_turn(name, body)`` runs ``await body(agent)`` as a real turn."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from agents import Agent, exposed, reads
from agents.models import Page
from agents.testing import on_runtime
from agents.turn import Turn


class Desk(Agent):
    """An agent that does what it is told."""

    kind = "test-sql"

    async def run(self, text: str, *binds: Any) -> list[dict[str, Any]]:
        return (await self.sql.exec(text, *binds)).to_array()

    async def many(self, texts: list[list[Any]]) -> list[Any]:
        """Each of the texts with its values, in one turn; the last one's rows."""
        rows = []
        for text, *binds in texts:
            rows = (await self.sql.exec(text, *binds)).to_array()
        return rows

    @exposed
    @reads
    async def look(self, text: str, *binds: Any) -> list[dict[str, Any]]:
        return (await self.sql.exec(text, *binds)).to_array()


Body = Callable[[Desk], Awaitable[Any]]


def in_turn(name: str, body: Body, *, budget: float = 100.0) -> Any:
    """One turn of the actor ``name``; what ``body(agent)`` returns."""
    return on_runtime(lambda engine: engine.call((Desk.kind, name), "test", _of(body), budget=budget))


def in_read(name: str, body: Body, *, budget: float = 100.0) -> Any:
    """The same as a ``@reads`` method."""
    return on_runtime(lambda engine: engine.reads.read((Desk.kind, name), "test", _of(body), budget=budget))


def _of(body: Body) -> Callable[[Turn], Any]:
    async def run(turn: Turn) -> Any:
        return await body(Desk(turn))

    return run


def execute(name: str, text: str, *binds: Any) -> list[tuple[Any, ...]]:
    """One turn that runs one text; its rows as tuples."""

    async def body(agent: Desk) -> list[tuple[Any, ...]]:
        return list((await agent.sql.exec(text, *binds)).raw())

    rows: list[tuple[Any, ...]] = in_turn(name, body)
    return rows


def look(name: str, text: str, *binds: Any) -> list[tuple[Any, ...]]:
    """The same as a read."""

    async def body(agent: Desk) -> list[tuple[Any, ...]]:
        return list((await agent.sql.exec(text, *binds)).raw())

    rows: list[tuple[Any, ...]] = in_read(name, body)
    return rows


def pages(name: str) -> dict[int, int]:
    """{number: version} of the pages that are committed."""
    rows = Page.objects.filter(actor__name=name).order_by("number")
    return dict(rows.values_list("number", "version"))


def stored_bytes(name: str) -> bytes:
    """The committed database as a file would hold it."""
    rows = Page.objects.filter(actor__name=name).order_by("number")
    return b"".join(bytes(data) for data in rows.values_list("data", flat=True))
