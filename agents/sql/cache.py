"""Pages of actors' databases that this process remembers, each actor's at one committed version.

What a turn here commits is brought up to date in place. When another process committed meanwhile, the pages
that it left alone stay good: the next turn asks for the versions at which the remembered ones were written
(``agents/sql/pages.py``), in one query, and drops those that have changed.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Collection, Mapping
from itertools import islice
from typing import NamedTuple

from agents import conf

PAGE_SIZE = 4096  # bytes; SQLite's own default
# What a remembered page costs beside its bytes.
OVERHEAD = 200  # bytes
# One actor may hold this part of the cache, so that one that is read whole leaves the others theirs.
LARGEST_SHARE = 4


class StoredPage(NamedTuple):
    """A page as it is committed, and the version of its actor at which it was written."""

    data: bytes
    version: int


class _Held:
    __slots__ = ("pages", "version")

    def __init__(self, version: int) -> None:
        self.version = version
        self.pages: OrderedDict[int, StoredPage] = OrderedDict()  # the most recently used last


class PageCache:
    """At most SQL_CACHE_BYTES of pages; those that nobody used for longest go first. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._actors: OrderedDict[int, _Held] = OrderedDict()
        self._size = 0  # bytes

    @property
    def size(self) -> int:
        """Bytes that the pages take now."""
        return self._size

    def get(self, actor_id: int, version: int, number: int) -> bytes | None:
        """A page of the actor as it is at ``version``, if it is here."""
        with self._lock:
            held = self._actors.get(actor_id)
            if held is None or held.version != version or (page := held.pages.get(number)) is None:
                return None
            held.pages.move_to_end(number)
            self._actors.move_to_end(actor_id)
            return page.data

    def versions(self, actor_id: int, count: int) -> tuple[int, dict[int, int]] | None:
        """The actor's version here, and when its ``count`` most recently used pages were written."""
        with self._lock:
            held = self._actors.get(actor_id)
            if held is None:
                return None
            recent = islice(reversed(held.pages.items()), count)
            return held.version, {number: page.version for number, page in recent}

    def confirm(self, actor_id: int, old: int, new: int, same: Collection[int]) -> None:
        """The actor has moved from ``old`` to ``new``; of its pages these are the same, the others go."""
        with self._lock:
            held = self._actors.get(actor_id)
            if held is None or held.version != old:
                return
            held.version = new
            for number in [n for n in held.pages if n not in same]:
                self._drop(held, number)

    def add(self, actor_id: int, version: int, pages: Mapping[int, StoredPage]) -> None:
        """Remembers pages that were read at ``version``; forgets what is here of another one before it."""
        with self._lock:
            held = self._actors.get(actor_id)
            if held is None or held.version < version:
                self._forget(actor_id)
                held = self._actors[actor_id] = _Held(version)
            if held.version == version:
                self._put(held, pages)
                self._evict(actor_id)

    def moved(
        self, actor_id: int, old: int, new: int, pages: Mapping[int, StoredPage], gone: Collection[int] = ()
    ) -> None:
        """A turn of this process has taken the actor from ``old`` to ``new`` and wrote these pages."""
        with self._lock:
            held = self._actors.get(actor_id)
            if held is not None and held.version != old:
                self._forget(actor_id)
                held = None
            if held is None:
                if not pages:
                    return
                held = self._actors[actor_id] = _Held(old)
            held.version = new
            for number in gone:
                self._drop(held, number)
            self._put(held, pages)
            self._evict(actor_id)

    def clear(self) -> None:
        with self._lock:
            self._actors.clear()
            self._size = 0

    def _put(self, held: _Held, pages: Mapping[int, StoredPage]) -> None:
        for number, page in pages.items():
            self._drop(held, number)
            held.pages[number] = page
            self._size += len(page.data) + OVERHEAD

    def _drop(self, held: _Held, number: int) -> None:
        if (page := held.pages.pop(number, None)) is not None:
            self._size -= len(page.data) + OVERHEAD

    def _forget(self, actor_id: int) -> None:
        if (held := self._actors.pop(actor_id, None)) is not None:
            self._size -= sum(len(page.data) + OVERHEAD for page in held.pages.values())

    def _evict(self, actor_id: int) -> None:
        limit = conf.get("SQL_CACHE_BYTES")
        self._actors.move_to_end(actor_id)
        held = self._actors[actor_id]
        most = max(1, limit // LARGEST_SHARE // (PAGE_SIZE + OVERHEAD))
        while len(held.pages) > most:
            self._drop(held, next(iter(held.pages)))
        while self._size > limit:
            oldest_id, oldest = next(iter(self._actors.items()))
            if oldest.pages:
                self._drop(oldest, next(iter(oldest.pages)))
            if not oldest.pages:
                del self._actors[oldest_id]


#: This process's.
cache = PageCache()


def _after_fork() -> None:
    global cache
    cache = PageCache()  # a lock that another thread held stays locked in the child


os.register_at_fork(after_in_child=_after_fork)
