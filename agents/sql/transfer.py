"""An actor's database as a file of its own, out of the application's database and into it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import apsw

from agents import conf
from agents.exceptions import SqlCorruptError, SqlLimitError
from agents.models import Page
from agents.sql.cache import PAGE_SIZE
from agents.store import get_store

CHUNK = 256  # pages a query


def export(actor_id: int, file: Path) -> int:
    """Writes the database, as it is committed now, into a new file; returns its size in bytes.

    Zero, and no file, when there is none. Raises FileExistsError, SqlCorruptError; leaves no half a file.
    Nobody but its owner can read it.
    """
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    size = 0
    try:
        with os.fdopen(descriptor, "wb") as target, get_store().sql.snapshot():
            for page in _pages(actor_id):
                size += target.write(page)
    except BaseException:
        file.unlink(missing_ok=True)
        raise
    if not size:
        file.unlink()
    return size


def _pages(actor_id: int) -> Iterator[bytes]:
    rows = Page.objects.filter(actor_id=actor_id)
    first = rows.filter(number=1).values_list("data", flat=True).first()
    count = 0 if first is None else int.from_bytes(bytes(first)[28:32])
    for start in range(1, count + 1, CHUNK):
        numbers = range(start, min(start + CHUNK, count + 1))
        found = rows.filter(number__gte=numbers.start, number__lt=numbers.stop)
        pages = {number: bytes(data) for number, data in found.values_list("number", "data")}
        for number in numbers:
            if len(pages.get(number, b"")) != PAGE_SIZE:
                raise SqlCorruptError(f"page {number} of {count} is missing")
            yield pages[number]


def load(file: Path) -> list[bytes]:
    """The pages of any SQLite database, as an actor's: compact, and in the size that they have here.

    Raises SqlCorruptError for what is none, SqlLimitError for one that is too large.
    """
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "database"
        try:
            _copy(file, copy)
        except (apsw.NotADBError, apsw.CorruptError, apsw.CantOpenError, apsw.IOError) as error:
            raise SqlCorruptError(f"{file} is no SQLite database: {error}") from error
        size, maximum = copy.stat().st_size, conf.get("MAX_SQL_BYTES")
        if size > maximum:
            raise SqlLimitError(
                f"a database has at most {maximum} bytes, this one has {size}",
                limit="MAX_SQL_BYTES",
                maximum=maximum,
                actual=size,
            )
        with copy.open("rb") as source:
            return list(iter(lambda: source.read(PAGE_SIZE), b""))


def _copy(file: Path, copy: Path) -> None:
    source = apsw.Connection(str(file), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        source.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
        problems = source.execute("PRAGMA quick_check(1)").fetchall()
        if problems != [("ok",)]:
            raise SqlCorruptError(f"{file} is damaged: {problems[0][0]}")
        source.execute("VACUUM INTO ?", (str(copy),))
    finally:
        source.close()
    # The copy is in no journal mode that an actor's database cannot be in; its pages may have another size.
    target = apsw.Connection(str(copy), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        target.execute("PRAGMA journal_mode = DELETE").fetchall()
        target.execute(f"PRAGMA page_size = {PAGE_SIZE}; PRAGMA auto_vacuum = NONE; VACUUM").fetchall()
    finally:
        target.close()
