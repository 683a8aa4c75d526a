# ruff: noqa: N802 - the methods' names are SQLite's
"""SQLite's file system for actors' databases: a main file that is pages, temporary files that are memory.

There are no other files. Nothing here touches a disk, and a name that was not announced cannot be opened.
"""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Protocol

import apsw

from agents.exceptions import SqlLimitError
from agents.sql.cache import PAGE_SIZE

NAME = "agents-pages"

_UNIX_EPOCH = 210_866_760_000_000  # milliseconds since SQLite's (the Julian day 0)
_TEMPORARY = (
    apsw.SQLITE_OPEN_TEMP_DB
    | apsw.SQLITE_OPEN_TRANSIENT_DB
    | apsw.SQLITE_OPEN_TEMP_JOURNAL
    | apsw.SQLITE_OPEN_SUBJOURNAL
)


class Source(Protocol):
    """Where the pages of a main file come from and go to; numbers count from 1."""

    size: int

    def read(self, number: int) -> bytes: ...

    def write(self, number: int, data: bytes) -> None: ...

    def truncate(self, size: int) -> None: ...

    def finish(self) -> None:
        """What was written since the last call is a transaction that SQLite has committed."""


class _File:
    """What every file of ours answers: nobody else has it open, and nothing is ever on its way to a disk."""

    def xClose(self) -> None: ...

    def xSync(self, flags: int) -> None: ...

    def xLock(self, level: int) -> None: ...

    def xUnlock(self, level: int) -> None: ...

    def xCheckReservedLock(self) -> bool:
        return False

    def xFileControl(self, op: int, pointer: int) -> bool:
        return False

    def xSectorSize(self) -> int:
        return PAGE_SIZE

    def xDeviceCharacteristics(self) -> int:
        return (
            apsw.SQLITE_IOCAP_ATOMIC | apsw.SQLITE_IOCAP_SAFE_APPEND | apsw.SQLITE_IOCAP_POWERSAFE_OVERWRITE
        )


class PagesFile(_File):
    """The main file of one connection."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def xRead(self, amount: int, offset: int) -> bytes:
        number, start = divmod(offset, PAGE_SIZE)
        if number >= self._source.size:
            return b""
        page = self._source.read(number + 1)
        # Whole pages, but for the header and for overflow pages that SQLite reads past its cache.
        return page if amount == PAGE_SIZE else page[start : start + amount]

    def xWrite(self, data: bytes, offset: int) -> None:
        self._source.write(offset // PAGE_SIZE + 1, bytes(data))

    def xTruncate(self, size: int) -> None:
        self._source.truncate(size // PAGE_SIZE)

    def xFileSize(self) -> int:
        return self._source.size * PAGE_SIZE

    def xFileControl(self, op: int, pointer: int) -> bool:
        if op == apsw.SQLITE_FCNTL_COMMIT_PHASETWO:
            self._source.finish()
        return False


class Scratch:
    """The temporary files of one connection, together at most ``limit`` bytes."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    def take(self, size: int) -> None:
        self.used += size
        if self.used > self.limit:
            self.used -= size
            raise SqlLimitError(
                f"statements put aside at most {self.limit} bytes for sorting and temporary tables",
                limit="MAX_SQL_TEMP_BYTES",
                maximum=self.limit,
                actual=self.used + size,
            )


class ScratchFile(_File):
    """A temporary file: a sort that is larger than SQLite's cache, a temporary table."""

    def __init__(self, scratch: Scratch) -> None:
        self._scratch = scratch
        self._data = bytearray()

    def xRead(self, amount: int, offset: int) -> bytes:
        return bytes(self._data[offset : offset + amount])

    def xWrite(self, data: bytes, offset: int) -> None:
        missing = offset + len(data) - len(self._data)
        if missing > 0:
            self._scratch.take(missing)
            self._data.extend(bytes(missing))
        self._data[offset : offset + len(data)] = data

    def xTruncate(self, size: int) -> None:
        self._scratch.take(size - len(self._data))
        if size > len(self._data):
            self._data.extend(bytes(size - len(self._data)))
        else:
            del self._data[size:]

    def xFileSize(self) -> int:
        return len(self._data)

    def xClose(self) -> None:
        self._scratch.used -= len(self._data)
        self._data = bytearray()


class _Working(threading.local):
    """What belongs to the statement that runs in this thread."""

    source: Source | None = None
    scratch: Scratch | None = None
    now: dt.datetime | None = None


_working = _Working()


@contextmanager
def working(scratch: Scratch, now: dt.datetime, source: Source | None = None) -> Iterator[None]:
    """Inside, what SQLite opens in this thread is ``source`` and ``scratch``, and its clock says ``now``."""
    _working.source, _working.scratch, _working.now = source, scratch, now
    try:
        yield
    finally:
        _working.source = _working.scratch = _working.now = None


class PagesVFS(apsw.VFS):
    def __init__(self) -> None:
        super().__init__(NAME, "")

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> _File:  # type: ignore[override]
        flags[1] = flags[0]
        if flags[0] & apsw.SQLITE_OPEN_MAIN_DB and _working.source is not None:
            source, _working.source = _working.source, None  # once
            return PagesFile(source)
        if flags[0] & _TEMPORARY and _working.scratch is not None:
            return ScratchFile(_working.scratch)
        raise apsw.CantOpenError("there are no files here")

    def xFullPathname(self, name: str) -> str:
        return name

    def xAccess(self, pathname: str, flags: int) -> bool:
        return False

    def xDelete(self, filename: str, syncdir: bool) -> None: ...

    def xDlOpen(self, filename: str) -> int:
        return 0

    def xCurrentTimeInt64(self) -> int:
        # datetime('now') is the turn's now().
        now = _working.now
        return super().xCurrentTimeInt64() if now is None else _UNIX_EPOCH + int(now.timestamp() * 1000)


@cache
def registered() -> str:
    """The file system's name for SQLite; registers it in this process."""
    global _vfs
    _vfs = PagesVFS()
    return NAME


_vfs: PagesVFS | None = None
