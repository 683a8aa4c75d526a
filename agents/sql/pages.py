"""The pages of one actor's database as one turn sees them: what it wrote over what is committed.

A page is looked for in three places: what an unfinished SQLite transaction has written, what finished ones
wrote since the turn's last commit, and what is committed (in the process's cache or in the application's
database, which is asked for pages as they are needed). SQLite calls from the thread of its statement;
``collect`` and ``committed`` run on the event loop, perhaps at the same time: they only know finished
transactions, so a commit never holds half of one.

Versions never mix. Every query for pages reads the actor's version along, in the same statement, and
``Turn.saw_version`` ends a turn or starts a read again that sees somebody else's.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import apsw
from django.db.models import QuerySet

from agents import conf
from agents.exceptions import SqlCorruptError, SqlLimitError
from agents.models import Actor, Page
from agents.sql import cache as caches
from agents.sql.cache import PAGE_SIZE, StoredPage
from agents.writes import Table

if TYPE_CHECKING:
    from agents.turn import Turn
    from agents.writes import Writes

PAGE = Table("agents.Page", ("actor_id", "number", "version", "data"), conflict=("actor_id", "number"))
PAGE_KEY = Table("agents.Page", ("actor_id", "number"))

BLANK = bytes(PAGE_SIZE)
# The first query for a database brings this many pages: a small one is read whole in one.
FIRST_LOOK = 8
# A scan reads ahead, each time twice as far, up to this many pages.
MOST_AHEAD = 64
# Remembered pages whose versions one query confirms.
CONFIRMED = 512

_MAGIC = b"SQLite format 3\0"


class Pages:
    """One turn's view of its actor's database. ``size`` counts pages."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._lock = threading.Lock()
        # Of the SQLite transaction that is open, and of those that are finished.
        self._open: dict[int, bytes] = {}
        self._finished: dict[int, bytes] = {}
        self.size = self._finished_size = 0
        self._committed_size: int | None = None  # None: nobody has looked
        #: Pages that came from the application's database.
        self.fetched = 0
        # Read ahead for a scan: the pages, the one after them, and how many they were.
        self._ahead: Mapping[int, bytes] = {}
        self._next, self._window = 0, 1
        # Pages of the open transaction that no finished one wrote, and whether one more was refused.
        self._fresh, self._refused = 0, False
        # The actor's version up to which the process's cache knows what this turn did.
        self._cached_version = turn.actor.version
        # What the commit under way took: the pages, and how many there are then.
        self._taken: tuple[dict[int, bytes], int] | None = None
        #: Whether the statement that reads a page ends here.
        self.cuts: Callable[[], bool] = lambda: False

    @property
    def dirty(self) -> bool:
        """Whether finished transactions wrote something that is not committed."""
        return bool(self._finished) or self._finished_size != (self._committed_size or 0)

    @property
    def half_written(self) -> bool:
        """Whether the open transaction has given pages already."""
        return bool(self._open)

    # For SQLite, in the thread of its statement

    def look(self) -> None:
        """Before a connection is opened: finds out how large the committed database is."""
        self._follow()
        if self._committed_size is not None:
            return
        actor, first = self._turn.actor, None
        if actor.id and actor.version:
            first = self._confirmed_first() or self._query(Page.objects.filter(number__lte=FIRST_LOOK)).get(1)
        self._committed_size = 0
        if first is not None:
            if first[:16] != _MAGIC or int.from_bytes(first[16:18]) != PAGE_SIZE:
                raise SqlCorruptError("page 1 is no SQLite header")
            self._committed_size = int.from_bytes(first[28:32])
        self.size = self._finished_size = self._committed_size

    def read(self, number: int) -> bytes:
        """A page, from 1. Raises what ends the turn when its version has moved."""
        if self.cuts():  # a search may read many in one step, and SQLite looks at the clock between two
            raise apsw.InterruptError
        page = self._open.get(number) or self._finished.get(number)
        if page is not None:
            return page
        if number > (self._committed_size or 0):
            return BLANK  # SQLite never wrote it: it lies between others that it did
        page = self._ahead.get(number)
        if page is None:
            page = caches.cache.get(self._turn.actor.id, self._turn.actor.version, number)
        return page if page is not None else self._fetch(number)

    def write(self, number: int, data: bytes) -> None:
        """Raises SqlLimitError when the turn would change too much."""
        if number not in self._open and number not in self._finished:
            self._fresh += 1
            self._check_limit()
        self._open[number] = data
        self.size = max(self.size, number)

    def truncate(self, size: int) -> None:
        """Cuts the file to so many pages, or lengthens it. What comes back by that SQLite does not read."""
        self.size = size

    def finish(self) -> None:
        """SQLite has committed its transaction: what it wrote is the turn's."""
        if not self._open and self.size == self._finished_size:
            return
        with self._lock:
            self._finished.update(self._open)
            if self.size < self._finished_size:
                self._finished = {n: page for n, page in self._finished.items() if n <= self.size}
            self._finished_size = self.size
            self._open = {}
        self._fresh, self._refused = 0, False

    def revert(self) -> None:
        """SQLite's transaction was undone."""
        self._open = {}
        self.size = self._finished_size
        self._fresh, self._refused = 0, False

    def replace(self, data: Iterable[bytes]) -> None:
        """Another database takes this one's place: all its pages, in order, however many."""
        self.look()
        self._open = dict(enumerate(data, start=1))
        self.size = len(self._open)
        self.finish()

    # For the turn, on the event loop

    def collect(self, writes: Writes) -> None:
        with self._lock:
            pages, size = dict(self._finished), self._finished_size
        committed = self._committed_size or 0
        self._taken = (pages, size) if pages or size != committed else None
        # Pages between others that SQLite never wrote: they are there all the same.
        for number in range(committed + 1, size + 1):
            pages.setdefault(number, BLANK)
        actor_id, version = self._turn.actor.id, self._turn.actor.version + 1
        for number in range(size + 1, committed + 1):
            writes.delete(PAGE_KEY, {"actor_id": actor_id, "number": number})
        for number, data in pages.items():
            writes.note("pages", number)
            row = {"actor_id": actor_id, "number": number, "version": version, "data": data}
            writes.upsert(PAGE, row)

    def committed(self) -> None:
        taken, self._taken = self._taken, None
        old, self._cached_version = self._cached_version, self._turn.actor.version
        if taken is None:
            caches.cache.moved(self._turn.actor.id, old, self._cached_version, {})
            return
        pages, size = taken
        gone = range(size + 1, (self._committed_size or 0) + 1)
        with self._lock:
            # In this order, for a statement that reads meanwhile: what is taken away is there by then.
            self._committed_size = size
            self._ahead = {}
            for number, data in pages.items():
                if self._finished.get(number) is data:
                    del self._finished[number]
        stored = {number: StoredPage(data, self._cached_version) for number, data in pages.items()}
        caches.cache.moved(self._turn.actor.id, old, self._cached_version, stored, gone)

    # The committed pages

    def _follow(self) -> None:
        """Steps that were saved moved the version, and no page: the cache may know."""
        version = self._turn.actor.version
        if version != self._cached_version and not self._turn.read_only:
            caches.cache.moved(self._turn.actor.id, self._cached_version, version, {})
            self._cached_version = version

    def _confirmed_first(self) -> bytes | None:
        """Page 1 out of the cache, once it is known which of the pages there are still good."""
        actor = self._turn.actor
        if (first := caches.cache.get(actor.id, actor.version, 1)) is not None:
            return first
        known = caches.cache.versions(actor.id, CONFIRMED)
        if known is None or known[0] > actor.version:
            return None
        version, pages = known
        if version != actor.version:
            if not pages:
                return None
            rows = Page.objects.filter(actor_id=actor.id, number__in=list(pages)).values_list(
                "number", "version", "actor__version", "actor__committed_by"
            )
            same = set()
            for number, written_at, seen, committed_by in rows:
                self._turn.saw_version(seen, committed_by)
                if pages[number] == written_at:
                    same.add(number)
            caches.cache.confirm(actor.id, version, actor.version, same)
            if changed := [n for n in pages if n not in same]:
                # They were in use: they will be again.
                first = self._query(Page.objects.filter(number__in=[1, *changed[:MOST_AHEAD]])).get(1)
                if first is not None:
                    return first
        return caches.cache.get(actor.id, actor.version, 1)

    def _fetch(self, number: int) -> bytes:
        self._window = min(self._window * 2, MOST_AHEAD) if number == self._next else 1
        self._next = min(number + self._window, (self._committed_size or 0) + 1)
        pages = self._query(Page.objects.filter(number__gte=number, number__lt=self._next))
        self._ahead = pages
        if number not in pages:
            raise SqlCorruptError(f"page {number} of {self._committed_size} is missing")
        return pages[number]

    def _query(self, rows: QuerySet[Page]) -> dict[int, bytes]:
        """Reads committed pages; what this turn has written meanwhile is not among them."""
        with self._lock:
            own = {*self._finished, *self._open}
        actor = self._turn.actor
        columns = ("number", "data", "version", "actor__version", "actor__committed_by")
        found: dict[int, StoredPage] = {}
        seen: int | None = None
        for number, data, version, seen, committed_by in rows.filter(actor_id=actor.id).values_list(*columns):
            self._turn.saw_version(seen, committed_by)
            found[number] = StoredPage(bytes(data), version)
        if seen is None:
            self._turn.saw_version(*_version_of(actor.id))
            return {}
        self.fetched += len(found)
        caches.cache.add(actor.id, seen, found)
        return {number: page.data for number, page in found.items() if number not in own}

    def _check_limit(self) -> None:
        maximum = conf.get("MAX_SQL_COMMIT_BYTES")
        changed = (len(self._finished) + self._fresh) * PAGE_SIZE
        if changed <= maximum or self._refused:
            return
        self._refused = True  # once: SQLite now writes back what was there
        raise SqlLimitError(
            f"a turn changes at most {maximum} bytes of its database between two commits; use checkpoint()",
            limit="MAX_SQL_COMMIT_BYTES",
            maximum=maximum,
            actual=changed,
        )


def _version_of(actor_id: int) -> tuple[int, uuid.UUID | None]:
    row: Any = Actor.objects.filter(pk=actor_id).values_list("version", "committed_by").first()
    return row or (0, None)
