"""What is kept of an actor, table by table: what an export takes, what an erasure removes.

Each app says so of its own tables when it is loaded (its ``holdings.py``), so nothing here knows them. A
table with a way to an actor that nobody names fails a test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from django.db import models

from agents.models import Actor

Row = dict[str, Any]


def _by_actor(model: type[models.Model]) -> Callable[[Actor], models.QuerySet[Any]]:
    return lambda actor: model._default_manager.filter(actor_id=actor.pk)


@dataclass(frozen=True)
class Holding:
    """One table of which an actor has rows. All of them go with an erasure."""

    model: type[models.Model]
    # Which rows are an actor's; by default those with its ``actor_id``.
    rows: Callable[[Actor], models.QuerySet[Any]] | None = None
    # Whether an export takes them: not what belongs to this site alone.
    exported: bool = True
    # Columns with words of ours: all other texts and trees are hidden in a redacted export.
    plain: frozenset[str] = frozenset()
    # Columns that name something: hidden as other names, equal where they were.
    names: frozenset[str] = frozenset()
    # Columns with the number of a row of another table, which has another number where it is imported.
    refers: Mapping[str, str] = field(default_factory=dict)
    # What a row becomes where it is imported; None: it is left out.
    arrives: Callable[[Row], Row | None] = lambda row: row
    # Which of its columns hold state, whose sensitive keys are hidden.
    state: frozenset[str] = frozenset()

    @property
    def label(self) -> str:
        return self.model._meta.label

    def of(self, actor: Actor) -> models.QuerySet[Any]:
        return (self.rows or _by_actor(self.model))(actor)


#: By the labels of their models.
HOLDINGS: dict[str, Holding] = {}

#: Called in an erasure's transaction, before the rows go, with the actor and what it is called (its name, its
#: people's numbers): removes what no table of the actor's own holds. Adds to the numbers that are returned.
ERASERS: list[Callable[[Actor, set[str]], dict[str, int]]] = []

#: Called first: what else an actor is called by, such as the numbers of the people who wrote to it.
ALIASES: list[Callable[[Actor], set[str]]] = []


def in_order() -> list[Holding]:
    """What others refer to comes before them."""
    return sorted(HOLDINGS.values(), key=lambda holding: bool(holding.refers))


def register(*holdings: Holding) -> None:
    for holding in holdings:
        HOLDINGS[holding.label] = holding
