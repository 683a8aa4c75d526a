"""Files of an actor: bytes in Django's default storage, a row for each in the turn's commit.

A storage knows no transactions, so the order does it: bytes go to a path of their own before the commit, the
row that names them is part of the commit, and what no row names any more is removed after it. A turn that
fails removes what it put; a process that dies leaves at worst a file that no row names, which
``prune_orphans`` finds.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import logging
import re
import tempfile
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from django.core.files import File
from django.core.files.storage import default_storage
from django.db import connections
from django.utils import timezone

from agents import conf
from agents.codec import clean_text
from agents.exceptions import BlobError, BlobNotFoundError, LimitError, TurnEndedError
from agents.models import Blob
from agents.parts import Part
from agents.writes import Table

if TYPE_CHECKING:
    from agents.turn import Turn
    from agents.writes import Writes

T = TypeVar("T")
logger = logging.getLogger("agents.blobs")

#: Where the files lie in the default storage: FOLDER/<actor's id>/<32 hexadecimal digits>.
FOLDER = "agents/blobs"

CHUNK = 64 * 1024  # bytes read at a time
_IN_MEMORY = 1024 * 1024  # bytes of a file-like that are held in memory before a temporary file takes over
_PATHS_A_QUERY = 500
_CONTENT_TYPE = re.compile(r"[\w.+-]+/[\w.+-]+( *;[ -~]*)?", re.ASCII)
_CONTENT_TYPE_MAX_LENGTH = _PATH_MAX_LENGTH = 255  # characters

_COLUMNS = ("actor_id", "key", "path", "content_type", "size", "sha256", "created_at")
BLOB = Table("agents.Blob", _COLUMNS, conflict=("actor_id", "key"))
BLOB_KEY = Table("agents.Blob", ("actor_id", "key"))


class Readable(Protocol):
    """A file opened in binary mode, or whatever reads like one."""

    def read(self, size: int, /) -> bytes: ...


Data = bytes | bytearray | memoryview | Readable


@dataclass(frozen=True, slots=True)
class BlobInfo:
    """What is known of a file without reading it."""

    key: str
    content_type: str
    size: int  # bytes
    sha256: str  # hexadecimal
    created_at: dt.datetime  # UTC


@dataclass(frozen=True, slots=True)
class _Stored:
    """A file and where it is."""

    info: BlobInfo
    path: str


class Blobs(Part):
    """``self.blobs``: the files of one actor, by key. A turn's reads see its own writes.

    A key is any text of 1 to 255 characters. Methods that name a key raise BlobError for another.
    """

    def __init__(self, turn: Turn) -> None:
        super().__init__(turn)
        # What this turn wrote since its last commit; None: deleted.
        self._written: dict[str, _Stored | None] = {}
        # Paths that this turn made since then: removed if it fails.
        self._made: list[str] = []
        # Paths that no row will name after the next commit: removed after it.
        self._stale: list[str] = []
        # What of these the commit under way took.
        self._taken: tuple[dict[str, _Stored | None], list[str]] = ({}, [])

    async def put(self, key: str, data: Data, content_type: str = "application/octet-stream") -> BlobInfo:
        """Stores a file under a key, in place of the one that was there.

        ``data`` is bytes, or anything with a ``read(size)`` that gives bytes (it is read from where it
        stands, in a thread). Raises LimitError past MAX_BLOB_BYTES, BlobError for other data or no content
        type; then nothing has changed.
        """
        self.turn.writing()
        key, content_type = _check_key(key), _check_content_type(content_type)
        if isinstance(data, bytes | bytearray | memoryview):
            source: Callable[[int], bytes] = _reader_of(bytes(data))
        elif callable(getattr(data, "read", None)):
            source = data.read
        else:
            raise BlobError(f"a blob is bytes or a file opened in binary mode, got {type(data).__name__}")
        path = f"{FOLDER}/{self.turn.actor.id}/{uuid.uuid4().hex}"
        # Before it exists: a turn that is cancelled meanwhile removes it too.
        self._made.append(path)
        stored, before = await self.turn.read(self._save, key, content_type, path, source)
        if stored.path != path:
            self._made.append(stored.path)  # a storage may choose another
        self._forget(key, before)
        self._written[key] = stored
        return stored.info

    async def get(self, key: str) -> bytes:
        """The bytes of a file. Raises BlobNotFoundError."""
        return await self.turn.read(self._opened, _check_key(key), _read_all)

    async def chunks(self, key: str, size: int = CHUNK) -> AsyncIterator[bytes]:
        """The bytes of a file, ``size`` at a time, for ``async for``. Raises BlobNotFoundError."""
        file = await self.turn.read(self._opened, _check_key(key), lambda file: file)
        try:
            while chunk := await self.turn.read(file.read, size):
                yield chunk
        finally:
            file.close()

    async def info(self, key: str) -> BlobInfo | None:
        """What is known of a file; None when there is none."""
        key = _check_key(key)
        if key in self._written:
            stored = self._written[key]
        else:
            stored = await self.turn.read(self._committed, key)
        return stored.info if stored else None

    async def delete(self, key: str) -> bool:
        """Deletes a file with this turn's commit; whether there was one."""
        self.turn.writing(0)
        key = _check_key(key)
        before = await self.turn.read(self._committed, key)
        stored = self._written.get(key, before)
        if stored is None:
            return False
        self.turn.writing()
        self._forget(key, before)
        self._written[key] = None
        return True

    async def list(self, prefix: str = "") -> list[BlobInfo]:
        """All files whose keys begin with ``prefix``, in the order of their keys."""
        if not isinstance(prefix, str):
            raise BlobError(f"a prefix is text, got {type(prefix).__name__}")
        prefix = clean_text(prefix)
        found = await self.turn.read(self._all_committed, prefix)
        found.update({key: stored for key, stored in self._written.items() if key.startswith(prefix)})
        return [stored.info for _, stored in sorted(found.items()) if stored]

    def _forget(self, key: str, committed: _Stored | None) -> None:
        """The file that the key named so far is not needed after the commit."""
        stored = self._written.get(key, committed)
        if stored is not None:
            self._stale.append(stored.path)

    # In a thread

    def _save(
        self, key: str, content_type: str, path: str, source: Callable[[int], bytes]
    ) -> tuple[_Stored, _Stored | None]:
        """Stores the bytes; returns the new file, and the one that the key names in the database."""
        with tempfile.SpooledTemporaryFile(_IN_MEMORY) as spool:
            # First here, so that what is too large or fails half-way never reaches the storage.
            size, sha256 = _pour(source, spool)
            try:
                path = default_storage.save(path, File(spool), max_length=_PATH_MAX_LENGTH)
                committed = self._committed(key)
                if self.turn.ended:
                    raise TurnEndedError(turn_id=self.turn.id)
            except BaseException:
                _remove([path])
                raise
        return _Stored(BlobInfo(key, content_type, size, sha256, self.turn.now()), path), committed

    def _opened(self, key: str, use: Callable[[File[bytes]], T]) -> T:
        if key in self._written:
            return use(_open(key, self._written[key]))
        stored = self._committed(key)
        while True:
            try:
                return use(_open(key, stored))
            except FileNotFoundError:
                # A ``@reads`` method holds no lease: another turn may have put a new file meanwhile.
                missing, stored = stored, self._committed(key)
                if stored == missing:
                    raise

    def _committed(self, key: str) -> _Stored | None:
        row = Blob.objects.filter(actor_id=self.turn.actor.id, key=key).first()
        return _stored(row) if row else None

    def _all_committed(self, prefix: str) -> dict[str, _Stored | None]:
        rows = Blob.objects.filter(actor_id=self.turn.actor.id, key__startswith=prefix)
        # SQLite's LIKE doesn't tell upper from lower case.
        return {row.key: _stored(row) for row in rows if row.key.startswith(prefix)}

    # For the turn

    def collect(self, writes: Writes) -> None:
        actor_id = self.turn.actor.id
        for key, stored in self._written.items():
            writes.note("files", key)
            if stored is None:
                writes.delete(BLOB_KEY, {"actor_id": actor_id, "key": key})
                continue
            info = stored.info
            writes.upsert(
                BLOB,
                {
                    "actor_id": actor_id,
                    "key": key,
                    "path": stored.path,
                    "content_type": info.content_type,
                    "size": info.size,
                    "sha256": info.sha256,
                    "created_at": info.created_at,
                },
            )
        self._taken = dict(self._written), list(self._stale)

    def committed(self) -> None:
        # What came while a checkpoint was on its way belongs to the next commit.
        written, stale = self._taken
        self._taken = ({}, [])
        for key, stored in written.items():
            if self._written.get(key, stored) is stored:
                del self._written[key]
        settled = {*stale, *(stored.path for stored in written.values() if stored)}
        self._made = [path for path in self._made if path not in settled]
        del self._stale[: len(stale)]
        if stale:
            # This runs on the event loop, and a storage may be a network away.
            threading.Thread(target=_remove_later, args=(stale,), name="agents-blobs").start()

    async def abandoned(self) -> None:
        made, self._made = self._made, []
        self._written.clear()
        self._stale.clear()
        if not made:
            return
        try:
            await self.turn.read(_remove_unnamed, self.turn.actor.id, made)
        except Exception:
            logger.exception("files of a turn that failed are left to prune_orphans")


def prune_orphans(older_than: dt.timedelta = dt.timedelta(days=1), *, limit: int = 1000) -> int:
    """Removes files that no row names, oldest actors first, at most ``limit``; returns how many it removed.

    ``older_than`` must be longer than the longest turn: a turn that runs has files whose rows come with its
    commit. Also finds what the erasure of an actor left. Needs a storage that lists (``listdir``) and knows
    when a file was written.
    """
    if older_than <= dt.timedelta(0):
        raise ValueError(f"older_than must be positive, got {older_than}")
    written_before = timezone.now() - older_than
    removed = 0
    for actor_id in sorted(int(folder) for folder in _listdir(FOLDER)[0] if folder.isdecimal()):
        paths = [f"{FOLDER}/{actor_id}/{name}" for name in sorted(_listdir(f"{FOLDER}/{actor_id}")[1])]
        for path in _unnamed(actor_id, paths):
            if removed >= limit:
                return removed
            try:
                if default_storage.get_modified_time(path) >= written_before:
                    continue
                default_storage.delete(path)
            except FileNotFoundError:
                continue  # somebody else was faster
            removed += 1
    return removed


def _listdir(path: str) -> tuple[list[str], list[str]]:
    try:
        return default_storage.listdir(path)
    except FileNotFoundError:
        return [], []


def _unnamed(actor_id: int, paths: list[str]) -> Iterable[str]:
    """Those of an actor's paths that no row names."""
    for start in range(0, len(paths), _PATHS_A_QUERY):
        some = paths[start : start + _PATHS_A_QUERY]
        rows = Blob.objects.filter(actor_id=actor_id, path__in=some)
        named = set(rows.values_list("path", flat=True))
        yield from (path for path in some if path not in named)


def _remove_unnamed(actor_id: int, paths: list[str]) -> None:
    """After a failure. If a commit of which nobody knows happened after all, its files are named and stay."""
    _remove(list(_unnamed(actor_id, paths)))


def _remove(paths: list[str]) -> None:
    for path in paths:
        try:
            default_storage.delete(path)
        except Exception:
            logger.exception("%s could not be removed and is left to prune_orphans", path)


def _remove_later(paths: list[str]) -> None:
    try:
        _remove(paths)
    finally:
        connections.close_all()  # of this thread: some storages use the database


def _stored(row: Blob) -> _Stored:
    return _Stored(BlobInfo(row.key, row.content_type, row.size, row.sha256, row.created_at), row.path)


def _open(key: str, stored: _Stored | None) -> File[bytes]:
    if stored is None:
        raise BlobNotFoundError(f"there is no file under {key!r}", key=key)
    return default_storage.open(stored.path, "rb")


def _read_all(file: File[bytes]) -> bytes:
    with file:
        return file.read()


def _reader_of(data: bytes) -> Callable[[int], bytes]:
    view, place = memoryview(data), 0

    def read(size: int) -> bytes:
        nonlocal place
        place += size
        return bytes(view[place - size : place])

    return read


def _pour(source: Callable[[int], bytes], target: Any) -> tuple[int, str]:
    """Copies all of a source; returns its size and SHA-256. Raises LimitError, BlobError."""
    maximum = conf.get("MAX_BLOB_BYTES")
    size, digest = 0, hashlib.sha256()
    while chunk := source(CHUNK):
        if not isinstance(chunk, bytes | bytearray | memoryview):
            raise BlobError(f"read() of a file in binary mode gives bytes, got {type(chunk).__name__}")
        size += len(chunk)
        if size > maximum:
            raise LimitError(
                f"a blob has at most {maximum} bytes, this one has more",
                limit="MAX_BLOB_BYTES",
                maximum=maximum,
                actual=size,
            )
        digest.update(chunk)
        target.write(chunk)
    return size, digest.hexdigest()


def _check_key(key: Any) -> str:
    if not isinstance(key, str):
        raise BlobError(f"a key is text, got {type(key).__name__}")
    text = clean_text(str.__str__(key))
    if not 0 < len(text) <= conf.KEY_MAX_LENGTH:
        raise BlobError(f"a key has 1 to {conf.KEY_MAX_LENGTH} characters, got {len(text)}")
    return text


def _check_content_type(content_type: Any) -> str:
    if (
        not isinstance(content_type, str)
        or len(content_type) > _CONTENT_TYPE_MAX_LENGTH
        or not _CONTENT_TYPE.fullmatch(content_type)
    ):
        raise BlobError(f"a content type is like text/plain; charset=utf-8, got {str(content_type)[:80]!r}")
    return str.__str__(content_type)
