"""JSON Merge Patch (RFC 7396) on Python values: dicts merge into dicts, ``None`` deletes, the rest replaces.

Only dicts are merged: a list, a set or a date is one value, replaced whole, and a ``None`` in a list stays.
No function here changes what it is given, and no result shares with it anything that can change.
"""

from __future__ import annotations

from typing import Any

Patch = dict[Any, Any]


def merge_patch(target: Any, patch: Any) -> Any:
    """What ``patch`` makes of ``target``: ``MergePatch`` of RFC 7396, section 2."""
    if not isinstance(patch, dict):
        return _copy(patch)
    merged = _copy(target) if isinstance(target, dict) else {}
    _merge_into(merged, patch)
    return merged


def _merge_into(target: Patch, patch: Patch) -> None:
    for key, item in patch.items():
        if item is None:
            target.pop(key, None)
        elif isinstance(item, dict):
            current = target.get(key)
            if not isinstance(current, dict):
                # Also where nothing was: nulls inside a new dict delete nothing, and must not stay.
                current = target[key] = {}
            _merge_into(current, item)
        else:
            target[key] = _copy(item)


def compose(first: Patch, second: Patch) -> Patch | None:
    """One patch that makes of every target what ``first`` and then ``second`` make of it, nulls kept.

    None when no patch can: where ``first`` puts something other than a dict and ``second`` merges into it,
    the outcome is exactly what ``second`` gave, and a patch cannot say "exactly this dict".
    """
    composed = _copy(first)
    return composed if _compose_into(composed, second) else None


def _compose_into(first: Patch, second: Patch) -> bool:
    for key, item in second.items():
        if isinstance(item, dict) and key in first:
            current = first[key]
            if not isinstance(current, dict) or not _compose_into(current, item):
                return False
        else:
            first[key] = _copy(item)
    return True


def diff(old: Any, new: dict[Any, Any]) -> Patch | None:
    """The smallest patch that makes ``new`` of ``old``; {} when they are the same.

    None when no patch can: ``None`` as a member of a dict says "delete". (It may be left alone where ``old``
    has it too.)
    """
    if not isinstance(old, dict):
        return _copy(new) if _is_literal(new) else None
    patch: Patch = dict.fromkeys(key for key in old if key not in new)
    for key, item in new.items():
        if key in old and _same(old[key], item):
            continue
        if isinstance(item, dict):
            inner = diff(old.get(key), item)
            if inner is None:
                return None
            patch[key] = inner
        elif item is None:
            return None
        else:
            patch[key] = _copy(item)
    return patch


def _is_literal(value: Any) -> bool:
    """Whether a patch with this value leaves exactly this value where nothing was."""
    if isinstance(value, dict):
        return all(_is_literal(item) for item in value.values())
    return value is not None


def _same(one: Any, other: Any) -> bool:
    """Surely the same value: 1 is neither True nor 1.0. When in doubt, the value goes into the patch."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return len(one) == len(other) and all(
            key in other and _same(item, other[key]) for key, item in one.items()
        )
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, str | int | bytes) or one is None:
        return bool(one == other)
    # 0.0 == -0.0, Decimal("1.0") == Decimal("1.00"), and moments of different zones are equal too.
    return bool(one == other) and repr(one) == repr(other)


def _copy(value: Any) -> Any:
    """A copy of the containers that may change; what cannot change is shared."""
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_copy(item) for item in value]
    if isinstance(value, tuple):
        return tuple(_copy(item) for item in value)
    if isinstance(value, set):
        return set(value)
    return value
