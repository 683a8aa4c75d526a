"""Files of an actor: rows commit with the turn, bytes follow; nothing that a row names is ever removed."""

from __future__ import annotations

import asyncio
import datetime as dt
import hashlib
import io
import logging
import os
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from django.core.files.base import ContentFile
from django.core.files.storage import FileSystemStorage, default_storage
from django.db import connections

from agents.blobs import CHUNK, FOLDER, Blobs, prune_orphans
from agents.exceptions import (
    BlobError,
    BlobNotFoundError,
    LimitError,
    ReadOnlyTurnError,
    StepWriteError,
    TurnEndedError,
)
from agents.models import Actor, Blob
from agents.store import get_store
from agents.store.requests import Claim, Claimed, Commit, Committed
from agents.turn import Identity, Reader, Turn, in_step
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def media(settings, tmp_path: Path) -> Path:
    """The storage of one test."""
    settings.MEDIA_ROOT = tmp_path / "media"
    return tmp_path / "media"


class Threads(Reader):
    """Reads in threads, as the engine does it: with a connection that is given back."""

    async def run(self, fn: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.to_thread(self._run, fn, *args)

    @staticmethod
    def _run(fn: Callable[..., Any], *args: Any) -> Any:
        try:
            return fn(*args)
        finally:
            connections.close_all()


class OneTurn:
    """A turn with files alone, claimed and committed by the real store."""

    def __init__(self, claimed: Claimed) -> None:
        self.claimed = claimed
        self.turn = Turn(claimed.actor, Identity("call", "test", claimed.turn_id), Threads())
        self.blobs = Blobs(self.turn)

    @classmethod
    async def begin(cls, name: str = "alice") -> OneTurn:
        return cls(await Threads().run(cls._claim, name))

    @staticmethod
    def _claim(name: str) -> Claimed:
        actor_id = get_store().ensure([("support", name)])["support", name]
        (claimed,) = get_store().claim([Claim(actor_id, uuid.uuid4())])
        assert isinstance(claimed, Claimed)
        return claimed

    async def commit(self, *, release: bool = True) -> None:
        turn = self.turn
        await self.send(self.request(release=release))
        turn.settle_buffer(turn.actor.version + 1, turn.seq, turn.cursor, None)

    def request(self, *, release: bool = True) -> Commit:
        turn = self.turn
        assert turn.wrote
        return Commit(
            turn.actor.id,
            self.claimed.token,
            turn.id,
            turn.actor.version,
            dirty=True,
            release=release,
            writes=turn.collect(),
        )

    async def send(self, request: Commit) -> None:
        (result,) = await Threads().run(get_store().commit, [request])
        assert isinstance(result, Committed), result

    async def fail(self) -> None:
        self.turn.ended = True
        await self.turn.abandoned()
        await Threads().run(self._free)

    def _free(self) -> None:
        Actor.objects.filter(pk=self.turn.actor.id).update(token=None, lease_expires_at=None)


def files(media: Path) -> list[str]:
    """The bytes of all files in the storage."""
    return sorted(path.read_bytes().decode() for path in media.rglob("*") if path.is_file())


async def gone(media: Path, expected: list[str]) -> None:
    """Waits until what a commit made superfluous has been removed."""
    await asyncio.to_thread(wait_until, lambda: files(media) == expected, 5)


async def rows() -> dict[str, str]:
    return await Threads().run(lambda: dict(Blob.objects.values_list("key", "sha256")))


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# One turn


async def test_a_file_that_was_put_can_be_read_at_once_and_after_the_commit():
    one = await OneTurn.begin()
    before = one.turn.now()
    put = await one.blobs.put("a.png", b"\x89PNG", "image/png")
    assert (put.key, put.content_type, put.size, put.sha256) == ("a.png", "image/png", 4, sha(b"\x89PNG"))
    assert before <= put.created_at <= one.turn.now()
    for _ in range(2):
        assert await one.blobs.get("a.png") == b"\x89PNG"
        assert await one.blobs.info("a.png") == put
        assert await one.blobs.list() == [put]
        assert [part async for part in one.blobs.chunks("a.png", 3)] == [b"\x89PN", b"G"]
        if one.turn.wrote:
            assert await rows() == {}
            await one.commit()
            one = await OneTurn.begin()


async def test_bytes_may_come_in_every_shape():
    one = await OneTurn.begin()
    large = os.urandom(CHUNK * 20 + 5)  # more than is held in memory
    binary = io.BytesIO(b"skipped" + large)
    binary.seek(7)
    shared = bytearray(b"abc")
    await one.blobs.put("array", shared)
    shared[0] = 0
    shapes: list[tuple[str, Any, bytes]] = [
        ("empty", b"", b""),
        ("view", memoryview(b"xabcx")[1:4], b"abc"),
        ("file", binary, large),
        ("bytes", large, large),
        ("django", ContentFile(b"content"), b"content"),
    ]
    for key, data, expected in shapes:
        info = await one.blobs.put(key, data)
        assert (info.size, info.sha256) == (len(expected), sha(expected))
        assert info.content_type == "application/octet-stream"
        assert await one.blobs.get(key) == expected
    assert await one.blobs.get("array") == b"abc"
    assert b"".join([part async for part in one.blobs.chunks("file")]) == large


async def test_a_turn_sees_its_own_writes_over_what_was_committed():
    one = await OneTurn.begin()
    for key in ("doc/a", "doc/b", "Doc/c", "other"):
        await one.blobs.put(key, key.encode())
    await one.commit()
    one = await OneTurn.begin()
    assert [info.key for info in await one.blobs.list()] == ["Doc/c", "doc/a", "doc/b", "other"]
    assert await one.blobs.delete("doc/a") is True
    assert await one.blobs.delete("doc/a") is False
    await one.blobs.put("doc/b", b"new")
    await one.blobs.put("doc/d", b"d")
    assert [info.key for info in await one.blobs.list("doc/")] == ["doc/b", "doc/d"]
    assert await one.blobs.info("doc/a") is None
    with pytest.raises(BlobNotFoundError):
        await one.blobs.get("doc/a")
    assert await one.blobs.get("doc/b") == b"new"
    assert await one.blobs.delete("doc/d") is True
    await one.blobs.put("doc/a", b"again")
    await one.commit()
    expected = {"doc/a": b"again", "doc/b": b"new", "Doc/c": b"Doc/c", "other": b"other"}
    assert await rows() == {key: sha(data) for key, data in expected.items()}


async def test_actors_do_not_see_each_other_s_files():
    one = await OneTurn.begin("alice")
    await one.blobs.put("k", b"alice")
    await one.commit()
    other = await OneTurn.begin("bob")
    assert await other.blobs.info("k") is None
    assert await other.blobs.list() == []
    await other.blobs.put("k", b"bob")
    await other.commit()
    assert await (await OneTurn.begin("alice")).blobs.get("k") == b"alice"


async def test_deleting_what_is_not_there_writes_nothing():
    one = await OneTurn.begin()
    assert await one.blobs.delete("nothing") is False
    assert not one.turn.wrote


async def test_a_missing_file_is_a_key_error_that_names_the_key():
    one = await OneTurn.begin()
    with pytest.raises(KeyError) as caught:
        await one.blobs.get("nothing")
    assert isinstance(caught.value, BlobNotFoundError)
    assert caught.value.key == "nothing"
    assert str(caught.value) == "there is no file under 'nothing'"
    with pytest.raises(BlobNotFoundError):
        [part async for part in one.blobs.chunks("nothing")]


# Commits and failures


async def test_a_replaced_or_deleted_file_is_removed_after_the_commit_and_not_before(media):
    one = await OneTurn.begin()
    await one.blobs.put("a", b"a1")
    await one.blobs.put("b", b"b1")
    await one.commit()
    one = await OneTurn.begin()
    await one.blobs.put("a", b"a2")
    await one.blobs.put("a", b"a3")
    await one.blobs.delete("b")
    assert files(media) == ["a1", "a2", "a3", "b1"]
    await one.commit()
    await gone(media, ["a3"])
    assert await rows() == {"a": sha(b"a3")}


async def test_a_turn_that_fails_leaves_the_files_that_were_and_no_others(media):
    one = await OneTurn.begin()
    await one.blobs.put("a", b"a1")
    await one.blobs.put("b", b"b1")
    await one.commit()
    one = await OneTurn.begin()
    await one.blobs.put("a", b"a2")
    await one.blobs.put("c", b"c1")
    await one.blobs.delete("b")
    await one.fail()
    assert files(media) == ["a1", "b1"]
    one = await OneTurn.begin()
    assert await one.blobs.get("a") == b"a1"
    assert await one.blobs.get("b") == b"b1"


async def test_what_a_checkpoint_kept_stays_when_the_turn_fails_afterwards(media):
    one = await OneTurn.begin()
    await one.blobs.put("a", b"a1")
    await one.commit(release=False)
    await one.blobs.put("a", b"a2")
    assert await one.blobs.get("a") == b"a2"
    await one.fail()
    assert files(media) == ["a1"]
    assert await (await OneTurn.begin()).blobs.get("a") == b"a1"


async def test_what_is_written_while_a_checkpoint_is_on_its_way_belongs_to_the_next_commit(media):
    one = await OneTurn.begin()
    await one.blobs.put("a", b"a1")
    await one.blobs.put("b", b"b1")
    request = one.request(release=False)
    await one.blobs.put("a", b"a2")
    await one.blobs.delete("b")
    await one.blobs.put("c", b"c1")
    await one.send(request)
    one.turn.settle_buffer(1, 0, 0, None)
    await asyncio.sleep(0.1)  # for a removal that must not happen
    assert files(media) == ["a1", "a2", "b1", "c1"]
    assert await one.blobs.get("a") == b"a2"
    assert await one.blobs.info("b") is None
    await one.fail()
    assert files(media) == ["a1", "b1"]
    assert await rows() == {"a": sha(b"a1"), "b": sha(b"b1")}


async def test_a_file_that_is_being_stored_during_a_checkpoint_goes_with_the_turn(media):
    one = await OneTurn.begin()
    await one.blobs.put("a", b"a1")
    putting = asyncio.create_task(one.blobs.put("b", b"b1"))
    await asyncio.sleep(0)
    request = one.request(release=False)
    await putting
    await one.send(request)
    one.turn.settle_buffer(1, 0, 0, None)
    await one.fail()
    assert files(media) == ["a1"]


async def test_a_commit_that_nobody_knows_of_keeps_its_files(media):
    """The connection died around the commit: the turn is given up, but the rows are there."""
    one = await OneTurn.begin()
    await one.blobs.put("a", b"a1")
    await one.send(one.request())
    one.turn.ended = True
    await one.turn.abandoned()
    assert files(media) == ["a1"]
    assert await (await OneTurn.begin()).blobs.get("a") == b"a1"


async def test_a_file_that_is_being_stored_when_its_turn_ends_is_not_left_behind(media):
    one = await OneTurn.begin()

    class Slow(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            time.sleep(0.05)
            return super().read(size)

    putting = asyncio.create_task(one.blobs.put("a", Slow(b"late")))
    await asyncio.sleep(0.02)
    await one.fail()
    with pytest.raises(TurnEndedError):
        await putting
    assert files(media) == []


async def test_a_body_that_is_cancelled_while_it_stores_leaves_no_file(media):
    one = await OneTurn.begin()
    putting = asyncio.create_task(one.blobs.put("a", b"a1"))
    await asyncio.sleep(0)
    putting.cancel()
    await asyncio.wait([putting])
    await one.fail()
    await gone(media, [])


async def test_puts_of_one_key_at_the_same_time_leave_one_file(media):
    one = await OneTurn.begin()
    await one.blobs.put("k", b"old")
    await one.commit()
    one = await OneTurn.begin()
    await asyncio.gather(*(one.blobs.put("k", b"%d" % n) for n in range(5)))
    left = await one.blobs.get("k")
    await one.commit()
    await gone(media, [left.decode()])
    assert await rows() == {"k": sha(left)}


class RacingStorage(FileSystemStorage):
    """Another turn's commit comes between the look at a row and the opening of its file."""

    meanwhile: ClassVar[list[Callable[[], None]]] = []

    def _open(self, name: str, mode: str = "rb") -> Any:
        if self.meanwhile:
            self.meanwhile.pop()()
        return super()._open(name, mode)  # type: ignore[misc]


@pytest.mark.parametrize("deleted", [False, True])
async def test_a_reader_without_the_lease_gets_the_file_that_is_there_now(settings, deleted):
    settings.STORAGES = {**settings.STORAGES, "default": {"BACKEND": f"{__name__}.RacingStorage"}}
    one = await OneTurn.begin()
    await one.blobs.put("k", b"old")
    await one.commit()
    reader = Blobs(Turn(one.claimed.actor, Identity("read", "test"), Threads(), read_only=True))

    def meanwhile() -> None:
        row = Blob.objects.get()
        default_storage.delete(row.path)
        if deleted:
            row.delete()
        else:
            Blob.objects.update(path=default_storage.save(f"{row.path}2", ContentFile(b"new")))

    RacingStorage.meanwhile.append(meanwhile)
    if deleted:
        with pytest.raises(BlobNotFoundError):
            await reader.get("k")
    else:
        assert await reader.get("k") == b"new"
    assert RacingStorage.meanwhile == []


async def test_a_file_that_the_storage_lost_is_an_error_and_not_an_absence(media):
    one = await OneTurn.begin()
    await one.blobs.put("k", b"x")
    await one.commit()
    (path,) = (path for path in media.rglob("*") if path.is_file())
    path.unlink()
    one = await OneTurn.begin()
    with pytest.raises(FileNotFoundError):
        await one.blobs.get("k")
    assert (await one.blobs.info("k")) is not None


# What is refused


async def test_a_file_ends_at_its_limit(settings, media):
    settings.AGENTS = {**settings.AGENTS, "MAX_BLOB_BYTES": CHUNK + 10}
    one = await OneTurn.begin()
    whole, more = b"x" * (CHUNK + 10), b"x" * (CHUNK + 11)
    assert (await one.blobs.put("bytes", whole)).size == CHUNK + 10
    assert (await one.blobs.put("file", io.BytesIO(whole))).size == CHUNK + 10
    for data in (more, io.BytesIO(more)):
        with pytest.raises(LimitError) as caught:
            await one.blobs.put("file", data)
        assert (caught.value.limit, caught.value.maximum) == ("MAX_BLOB_BYTES", CHUNK + 10)
        assert caught.value.actual == CHUNK + 11
    assert len(files(media)) == 2
    assert await one.blobs.get("file") == whole


@pytest.mark.parametrize("key", ["", "k" * 256, None, 5, b"k"])
async def test_what_is_no_key_is_refused(key):
    one = await OneTurn.begin()
    for call in (one.blobs.put(key, b""), one.blobs.get(key), one.blobs.info(key), one.blobs.delete(key)):
        with pytest.raises(BlobError):
            await call


async def test_keys_are_any_text_of_1_to_255_characters():
    one = await OneTurn.begin()
    for key in ("k" * 255, "😀" * 255, "../../etc/passwd", " ", "a\0b"):
        await one.blobs.put(key, b"1")
    await one.commit()
    one = await OneTurn.begin()
    assert {info.key for info in await one.blobs.list()} == {
        "k" * 255, "😀" * 255, "../../etc/passwd", " ", "a\ufffdb"
    }  # fmt: skip
    assert await one.blobs.get("a\0b") == b"1"


@pytest.mark.parametrize(
    "content_type",
    ["", "text", "text/plain\r\nX-Evil: 1", "text/é", None, "a/" + "b" * 254, "text/plain; x=\n"],
)
async def test_what_is_no_content_type_is_refused(content_type):
    one = await OneTurn.begin()
    with pytest.raises(BlobError, match="content type"):
        await one.blobs.put("k", b"", content_type)


@pytest.mark.parametrize("content_type", ["text/plain; charset=utf-8", "image/svg+xml", "a/" + "b" * 253])
async def test_content_types_may_have_parameters(content_type):
    one = await OneTurn.begin()
    assert (await one.blobs.put("k", b"", content_type)).content_type == content_type
    await one.commit()


@pytest.mark.parametrize("data", ["text", None, 5, io.StringIO("text"), [b"x"]])
async def test_what_is_not_binary_is_refused(data, media):
    one = await OneTurn.begin()
    with pytest.raises(BlobError, match="binary"):
        await one.blobs.put("k", data)
    assert await one.blobs.info("k") is None
    assert files(media) == []


async def test_a_file_that_cannot_be_read_to_its_end_changes_nothing(media):
    class Broken(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            data = super().read(size)
            if not data:
                raise OSError("the disk is gone")
            return data

    one = await OneTurn.begin()
    with pytest.raises(OSError, match="the disk is gone"):
        await one.blobs.put("k", Broken(b"half"))
    assert await one.blobs.list() == []
    assert files(media) == []


class FullStorage(FileSystemStorage):
    """A storage that breaks off in the middle of a file, and one that cannot delete."""

    def _save(self, name: str, content: Any) -> str:
        Path(self.path(name)).parent.mkdir(parents=True, exist_ok=True)
        Path(self.path(name)).write_bytes(b"half")
        raise OSError("no space left")


class StubbornStorage(FileSystemStorage):
    def delete(self, name: str) -> None:
        raise OSError("read-only")


async def test_a_storage_that_fails_half_way_changes_nothing(settings, media):
    one = await OneTurn.begin()
    settings.STORAGES = {**settings.STORAGES, "default": {"BACKEND": f"{__name__}.FullStorage"}}
    with pytest.raises(OSError, match="no space left"):
        await one.blobs.put("k", b"whole")
    assert await one.blobs.list() == []
    assert files(media) == []


async def test_a_storage_that_cannot_delete_fails_no_turn(settings, media, caplog):
    settings.STORAGES = {**settings.STORAGES, "default": {"BACKEND": f"{__name__}.StubbornStorage"}}
    one = await OneTurn.begin()
    await one.blobs.put("k", b"1")
    await one.commit()
    one = await OneTurn.begin()
    await one.blobs.put("k", b"2")
    with caplog.at_level(logging.ERROR, "agents.blobs"):
        await one.commit()
        await asyncio.to_thread(wait_until, lambda: "left to prune_orphans" in caplog.text)
        one = await OneTurn.begin()
        await one.blobs.put("k", b"3")
        caplog.clear()
        await one.fail()
        assert "left to prune_orphans" in caplog.text
    assert await (await OneTurn.begin()).blobs.get("k") == b"2"


async def test_reads_steps_and_turns_that_ended_cannot_write(media):
    one = await OneTurn.begin()
    reader = Blobs(Turn(one.claimed.actor, Identity("read", "test"), Threads(), read_only=True))
    for call in (reader.put("k", b""), reader.delete("k")):
        with pytest.raises(ReadOnlyTurnError):
            await call
    token = in_step.set(True)
    for call in (one.blobs.put("k", b""), one.blobs.delete("k")):
        with pytest.raises(StepWriteError):
            await call
    in_step.reset(token)
    one.turn.ended = True
    for call in (one.blobs.put("k", b""), one.blobs.delete("k")):
        with pytest.raises(TurnEndedError):
            await call
    assert files(media) == []


# Orphans


def orphan(media: Path, actor_id: int, age: dt.timedelta, data: bytes = b"orphan") -> Path:
    path = media / FOLDER / str(actor_id) / uuid.uuid4().hex
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    written = time.time() - age.total_seconds()
    os.utime(path, (written, written))
    return path


DAY = dt.timedelta(days=1)


async def test_pruning_removes_old_files_that_no_row_names_and_no_others(media):
    one = await OneTurn.begin()
    await one.blobs.put("k", b"kept")
    await one.commit()
    for path in media.rglob("*"):
        os.utime(path, (0, 0))
    orphan(media, one.turn.actor.id, 2 * DAY)
    orphan(media, 999_999, 2 * DAY)  # of an actor that was erased
    orphan(media, 999_999, DAY - dt.timedelta(minutes=1), b"young")
    elsewhere = media / FOLDER / "notes" / "x"
    elsewhere.parent.mkdir()
    elsewhere.write_bytes(b"not ours")
    os.utime(elsewhere, (0, 0))
    assert await Threads().run(prune_orphans, DAY) == 2
    assert files(media) == ["kept", "not ours", "young"]
    assert await Threads().run(prune_orphans, DAY) == 0


async def test_pruning_is_bounded_and_goes_on_where_it_ended(media):
    for number in range(7):
        orphan(media, number // 3, 2 * DAY)
    counts = [await Threads().run(lambda: prune_orphans(DAY, limit=3)) for _ in range(4)]
    assert counts == [3, 3, 1, 0]


def test_pruning_without_any_file_or_without_any_age_is_clear():
    assert prune_orphans() == 0
    for age in (dt.timedelta(0), -DAY):
        with pytest.raises(ValueError, match="older_than must be positive"):
            prune_orphans(age)


async def test_the_files_of_an_erased_actor_are_found(media):
    one = await OneTurn.begin()
    await one.blobs.put("k", b"1")
    await one.commit()
    await Threads().run(lambda: Actor.objects.filter(pk=one.turn.actor.id).delete())
    for path in media.rglob("*"):
        os.utime(path, (0, 0))
    assert await Threads().run(prune_orphans) == 1
    assert files(media) == []
    assert not default_storage.exists(f"{FOLDER}/{one.turn.actor.id}/x")
