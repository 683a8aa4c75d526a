"""The private key-value store of an actor: ``self.storage``, part of the turn like everything else.

Keys are text in the order of its characters' numbers (which is the order of its UTF-8 bytes); values are
whatever the codec carries (docs/codec.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agents import conf
from agents.codec import Tree, clean_text, decode, encode, size
from agents.exceptions import StorageError
from agents.models import StoredValue
from agents.parts import Part
from agents.sizes import check_size
from agents.writes import Table

if TYPE_CHECKING:
    from agents.turn import Turn
    from agents.writes import Writes

#: Keys that one listing gives, and that one bulk call takes, at most; and what a listing gives unless told.
MAX_LISTED = 1_000
DEFAULT_LISTED = 128
#: Keys of the runtime's own, here and where this comes from.
RESERVED = ("__agents_", "__telnyx_")

STORED_VALUE = Table("agents.StoredValue", ("actor_id", "key", "value"), conflict=("actor_id", "key"))
STORED_KEY = Table("agents.StoredValue", ("actor_id", "key"))
ALL_KEYS = Table("agents.StoredValue", ("actor_id",))

_LAST = "\U0010ffff"


class _Nothing:
    """Stands for a key that was deleted: None is a value."""


_DELETED = _Nothing()
_Kept = Tree | _Nothing


class Storage(Part):
    """``self.storage``. Reads see what this turn wrote.

    A key is text of 1 to 512 characters without a reserved prefix (``RESERVED``). Methods raise StorageError
    for another, CodecError for a value that cannot be kept, LimitError past MAX_STORAGE_VALUE_BYTES; they
    have changed nothing then.
    """

    def __init__(self, turn: Turn) -> None:
        super().__init__(turn)
        # What this turn wrote since its last commit, and how often it deleted everything before that.
        self._written: dict[str, _Kept] = {}
        self._cleared = 0
        self._taken: tuple[dict[str, _Kept], int] = ({}, 0)

    # Reading

    async def get(self, key: str, default: Any = None) -> Any:
        """The value of a key, or ``default``."""
        return (await self.get_many([key])).get(_checked(key), default)

    async def get_many(self, keys: Iterable[str]) -> dict[str, Any]:
        """The values of up to 1,000 keys; those that aren't there are left out. In the order of ``keys``."""
        wanted = _several(_checked(key) for key in _listed(keys))
        found: dict[str, _Kept] = {key: self._written[key] for key in wanted if key in self._written}
        missing = [key for key in wanted if key not in found]
        if missing and not self._cleared:
            found |= await self.turn.read(self._stored, missing)
        return {key: decode(found[key]) for key in wanted if found.get(key, _DELETED) is not _DELETED}

    async def list(
        self,
        prefix: str = "",
        *,
        start: str | None = None,
        start_after: str | None = None,
        end: str | None = None,
        reverse: bool = False,
        limit: int = DEFAULT_LISTED,
    ) -> dict[str, Any]:
        """Keys and values in the order of the keys (with ``reverse``: from the last), at most ``limit``.

        ``start`` is the first key that may come, ``start_after`` the one after which they begin, ``end`` the
        first that may not. ``limit`` is 1 to 1,000.
        """
        if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MAX_LISTED:
            raise StorageError(f"a listing has a limit of 1 to {MAX_LISTED:,}, got {limit!r:.50}")
        if start is not None and start_after is not None:
            raise StorageError("start or start_after, not both")
        for name, text in (("prefix", prefix), ("start", start), ("start_after", start_after), ("end", end)):
            if text is not None and not isinstance(text, str):
                raise StorageError(f"{name} is text, got {type(text).__name__}")
        within = _Range(clean_text(prefix), _cleaned(start), _cleaned(start_after), _cleaned(end))
        own = {key: value for key, value in self._written.items() if key in within}
        # Of as many stored ones as this turn has touched here, none may be left.
        stored = {} if self._cleared else await self.turn.read(self._range, within, reverse, limit + len(own))
        merged = stored | own
        keys = sorted((key for key, value in merged.items() if value is not _DELETED), reverse=reverse)
        return {key: decode(merged[key]) for key in keys[:limit]}

    # Writing

    async def put(self, key: str, value: Any) -> None:
        """Sets the value of a key."""
        await self.put_many({key: value})

    async def put_many(self, values: Mapping[str, Any]) -> None:
        """Sets up to 1,000 keys, all or none."""
        self.turn.may_write()
        if not isinstance(values, Mapping):
            raise StorageError(f"put_many takes keys and values, got {type(values).__name__}")
        _several(values)
        trees = {_checked(key): _tree(value) for key, value in values.items()}
        self.turn.writing(len(trees))
        self._written.update(trees)

    async def delete(self, key: str) -> bool:
        """Deletes a key; whether it was there."""
        return await self.delete_many([key]) == 1

    async def delete_many(self, keys: Iterable[str]) -> int:
        """Deletes up to 1,000 keys; how many of them were there."""
        self.turn.may_write()
        there = await self.get_many(keys)
        if there:
            self.turn.writing(len(there))
            self._written.update(dict.fromkeys(there, _DELETED))
        return len(there)

    async def delete_all(self) -> None:
        """Deletes every key. The actor's tasks, messages and state stay."""
        self.turn.writing()
        self._written.clear()
        self._cleared += 1

    # In a thread

    def _stored(self, keys: Sequence[str]) -> dict[str, Tree]:
        rows = StoredValue.objects.filter(actor_id=self.turn.actor.id, key__in=keys)
        return dict(rows.values_list("key", "value"))

    def _range(self, within: _Range, reverse: bool, limit: int) -> dict[str, Tree]:
        rows = StoredValue.objects.filter(actor_id=self.turn.actor.id, **within.lookups())
        rows = rows.order_by("-key" if reverse else "key")
        return dict(rows.values_list("key", "value")[:limit])

    # For the turn

    def collect(self, writes: Writes) -> None:
        actor_id = self.turn.actor.id
        if self._cleared:
            writes.delete(ALL_KEYS, {"actor_id": actor_id})
        for key, value in self._written.items():
            writes.note("keys", key)
            if value is not _DELETED:
                writes.upsert(STORED_VALUE, {"actor_id": actor_id, "key": key, "value": value})
            elif not self._cleared:
                writes.delete(STORED_KEY, {"actor_id": actor_id, "key": key})
        self._taken = dict(self._written), self._cleared

    def committed(self) -> None:
        # What was written while a checkpoint was on its way belongs to the next commit.
        written, cleared = self._taken
        self._taken = ({}, 0)
        for key, value in written.items():
            if self._written.get(key, _DELETED) is value:
                self._written.pop(key, None)
        self._cleared -= cleared

    async def abandoned(self) -> None:
        self._written.clear()


class _Range:
    """Keys from one on, up to one, with a prefix."""

    def __init__(self, prefix: str, start: str | None, after: str | None, end: str | None) -> None:
        self._prefix, self._start, self._after, self._end = prefix, start, after, end

    def __contains__(self, key: str) -> bool:
        return (
            key.startswith(self._prefix)
            and (self._start is None or key >= self._start)
            and (self._after is None or key > self._after)
            and (self._end is None or key < self._end)
        )

    def lookups(self) -> dict[str, str]:
        """The same for the ORM: bounds alone, which an index answers."""
        lookups = {"key__gte": max(self._prefix, self._start or "")}
        if self._after is not None:
            lookups["key__gt"] = self._after
        ends = [end for end in (self._end, _after_prefix(self._prefix)) if end is not None]
        if ends:
            lookups["key__lt"] = min(ends)
        return lookups


def _after_prefix(prefix: str) -> str | None:
    """The first text after all those with a prefix; None where there is none."""
    prefix = prefix.rstrip(_LAST)
    if not prefix:
        return None
    following = ord(prefix[-1]) + 1
    if following == 0xD800:  # no text has surrogates
        following = 0xE000
    return prefix[:-1] + chr(following)


def _cleaned(text: str | None) -> str | None:
    return None if text is None else clean_text(text)


def _listed(keys: Iterable[str]) -> Iterable[str]:
    if isinstance(keys, str | bytes):
        raise StorageError(f"several keys are a list, got {type(keys).__name__}")
    return keys


def _several(keys: Iterable[str]) -> list[str]:
    several = list(dict.fromkeys(keys))
    if len(several) > MAX_LISTED:
        raise StorageError(f"at most {MAX_LISTED:,} keys at once, got {len(several):,}")
    return several


def _checked(key: Any) -> str:
    if not isinstance(key, str):
        raise StorageError(f"a key is text, got {type(key).__name__}")
    text = clean_text(str.__str__(key))
    if not 0 < len(text) <= conf.STORAGE_KEY_MAX_LENGTH:
        raise StorageError(f"a key has 1 to {conf.STORAGE_KEY_MAX_LENGTH} characters, got {len(text)}")
    if text.startswith(RESERVED):
        raise StorageError(f"keys that begin with {' or '.join(RESERVED)} are reserved")
    return text


def _tree(value: Any) -> Tree:
    tree = encode(value)
    check_size(size(tree), "MAX_STORAGE_VALUE_BYTES", "the value")
    return tree
