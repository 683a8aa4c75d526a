"""Kinds: the stable names under which Agent classes live in the database, and where they are found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import autodiscover_modules

from agents.exceptions import UnknownKindError

if TYPE_CHECKING:
    from agents.agent import Agent

_classes: dict[str, type[Agent[Any]]] = {}


def register(cls: type[Agent[Any]]) -> None:
    """Takes a class under its kind. Two different classes of one kind are a start-up error."""
    known = _classes.get(cls.kind)
    if known is not None and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
        raise ImproperlyConfigured(
            f"the kind {cls.kind!r} is claimed by {known.__module__}.{known.__qualname__} and by "
            f"{cls.__module__}.{cls.__qualname__}: give one of them another `kind`"
        )
    _classes[cls.kind] = cls


def get(kind: str) -> type[Agent[Any]]:
    """The Agent class of a kind. Raises UnknownKindError."""
    try:
        return _classes[kind]
    except KeyError:
        raise UnknownKindError(f"no installed app declares an agent of kind {kind!r}") from None


def wants_on_parked(kind: str) -> bool:
    """Whether its class has something to do when a task parks; False for a kind that isn't installed."""
    from agents.agent import Agent

    cls = _classes.get(kind)
    return cls is not None and cls.on_parked is not Agent.on_parked


def installed() -> list[str]:
    """All kinds that this process can run, sorted."""
    return sorted(_classes)


def discover() -> None:
    """Imports the ``agents`` module of every installed app, as Django does with ``admin``."""
    autodiscover_modules("agents")
