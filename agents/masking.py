"""Sensitive keys of the state: what a class names in ``sensitive`` is shown to nobody but its agent."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from agents import kinds
from agents.exceptions import UnknownKindError

#: What is shown instead of a sensitive value.
MASK = "•••"


def sensitive_keys(kind: str) -> frozenset[str]:
    """The keys that a kind's class calls sensitive; of a kind that isn't installed none are known."""
    try:
        return frozenset(kinds.get(kind).sensitive)
    except UnknownKindError:
        return frozenset()


def masked(kind: str, tree: Any) -> Any:
    """A copy of a state, or of a change of one, whose sensitive keys have a mask for a value, however deep.

    A key that is taken away (null in a patch) stays so.
    """
    keys = sensitive_keys(kind)
    return _masked(keys, tree) if keys else tree


def hiding(path: Collection[str | int], *, whole: bool) -> list[str]:
    """The kinds about whose state a question at ``path`` could tell a sensitive value.

    ``whole``: the answer depends on all that is below the path.
    """
    return [
        kind
        for kind in kinds.installed()
        if (keys := sensitive_keys(kind)) and (whole or not keys.isdisjoint(map(str, path)))
    ]


def _masked(keys: frozenset[str], tree: Any) -> Any:
    if isinstance(tree, dict):
        return {
            key: (None if value is None else MASK) if key in keys else _masked(keys, value)
            for key, value in tree.items()
        }
    if isinstance(tree, list):
        return [_masked(keys, value) for value in tree]
    return tree


def unmasked(tree: Any) -> Any:
    """A copy without the keys whose values are masks: nobody knows what they were."""
    if isinstance(tree, dict):
        return {key: unmasked(value) for key, value in tree.items() if value != MASK}
    if isinstance(tree, list):
        return [unmasked(value) for value in tree]
    return tree
