"""A feed: what one client is sent, whatever order and number the news comes in."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from agents.exceptions import TooManyFramesError
from agents.sockets import feed as feeds
from agents.sockets.backlog import Head, Start, StreamText, Wanted
from agents.sockets.events import Event
from agents.sockets.feed import Closed, Feed, Viewer
from agents.sockets.frames import Attach
from agents.sockets.signals import Broadcast, Delta, Status
from agents.sockets.topic import Topic

ME = "me"


class Stage:
    """A feed on a topic whose database is these attributes."""

    def __init__(self, **viewer: Any) -> None:
        self.sent: list[Any] = []
        self.reading = asyncio.Event()
        self.reading.set()
        self.streams: dict[str, StreamText] = {}
        self.head = Head(1, 0)
        self.failures = 0
        self.topic = Topic(("kind", "name"), self._page, self._stream)
        self.topic.id = 1
        facts: Any = {"connection": ME, "is_operator": False, "shares_state": False, "raw": False} | viewer
        self.feed = Feed(self.topic, Viewer(**facts), self._send, self._start)
        self.topic.feeds.add(self.feed)
        self.task = asyncio.create_task(self.feed.run())

    async def _page(self, id: int, after: int) -> list[Event]:
        return []

    async def _stream(self, id: int, uid: str) -> list[StreamText]:
        return [self.streams[uid]] if uid in self.streams else []

    async def _start(self, address: Any, wanted: Wanted) -> Start:
        if self.failures:
            self.failures -= 1
            raise ConnectionError("the database is away")
        cursor = self.head.cursor if wanted.cursor is None else wanted.cursor
        streams = list(self.streams.values()) if wanted.deltas else []
        return Start(self.head, cursor, {} if wanted.cursor is None else None, streams=streams)

    async def _send(self, data: str | bytes) -> None:
        await self.reading.wait()
        frame = json.loads(data) if isinstance(data, str) and data[:1] == "{" else data
        if isinstance(frame, dict):
            frame.pop("v")
        self.sent.append(frame)

    async def settle(self) -> None:
        for _ in range(50):
            await asyncio.sleep(0)

    async def take(self) -> list[Any]:
        """What was sent since the last time."""
        await self.settle()
        sent, self.sent = self.sent, []
        return sent

    def commit(self, *events: Event) -> None:
        self.topic.offer(1, events, events[-1].cursor)


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    stage = Stage()
    stage.feed.attach(Attach(cursor=0))
    assert (await stage.take())[0]["kind"] == "attached"
    yield stage
    stage.task.cancel()


def piece(index: int, text: str = "x", take: int = 1, **more: Any) -> Delta:
    return Delta("s", take, index, text, **more)


def shout(cursor: int, text: str = "x") -> Event:
    return Event(cursor, "broadcast", json.dumps(text).encode())


async def test_nothing_is_sent_before_the_client_has_attached() -> None:
    stage = Stage()
    stage.commit(shout(1))
    stage.topic.signal(Status("thinking", "t"))
    assert await stage.take() == []
    stage.feed.attach(Attach(cursor=0))
    assert [f["kind"] for f in await stage.take()] == ["attached", "broadcast"]
    stage.task.cancel()


async def test_a_piece_that_comes_twice_is_sent_once(stage: Stage) -> None:
    for delta in (piece(0, "a"), piece(1, "b"), piece(1, "b"), piece(0, "a"), piece(2, "c")):
        stage.topic.signal(delta)
    assert [f["text"] for f in await stage.take()] == ["a", "b", "c"]


async def test_a_gap_is_filled_with_the_whole_text(stage: Stage) -> None:
    stage.topic.signal(piece(0, "a"))
    stage.streams["s"] = StreamText("s", 1, 3, "abcd")
    stage.topic.signal(piece(3, "d"))
    stage.topic.signal(piece(2, "c"))
    stage.topic.signal(piece(4, "e"))
    first, whole, last = await stage.take()
    assert first["text"] == "a"
    assert (whole["index"], whole["text"], whole["reset"]) == (3, "abcd", True)
    assert (last["index"], last["text"]) == (4, "e")


async def test_who_comes_late_is_given_the_text_and_not_its_pieces_again() -> None:
    stage = Stage()
    stage.streams["s"] = StreamText("s", 1, 5, "so far")
    stage.feed.attach(Attach(cursor=0))
    await stage.settle()
    stage.topic.signal(piece(4))
    stage.topic.signal(piece(5))
    stage.topic.signal(piece(6, "!"))
    sent = (await stage.take())[1:]
    assert [(f["index"], f["text"]) for f in sent] == [(5, "so far"), (6, "!")]
    stage.task.cancel()


async def test_a_retry_begins_anew_and_the_old_attempt_is_not_heard_any_more(stage: Stage) -> None:
    stage.topic.signal(piece(0, "old"))
    stage.topic.signal(piece(0, "new", take=2, reset=True))
    stage.topic.signal(piece(1, "late", take=1))
    stage.topic.signal(piece(1, "er", take=2))
    stage.topic.signal(piece(0, "new", take=2, reset=True))  # the layer says it once more
    sent = await stage.take()
    assert [(f["text"], f.get("reset", False)) for f in sent] == [
        ("old", False), ("new", True), ("er", False),
    ]  # fmt: skip


async def test_a_stream_that_became_a_message_is_over(stage: Stage) -> None:
    stage.topic.signal(piece(0, "a"))
    stage.commit(Event(1, "message", b'{"seq":1}', ends="s"))
    assert [f["kind"] for f in await stage.take()] == ["delta", "message"]
    stage.topic.signal(piece(1, "late"))
    assert await stage.take() == []


async def test_the_end_of_a_stream_that_nobody_told_of_is_found(stage: Stage) -> None:
    stage.topic.signal(piece(0, "a"))
    await stage.take()
    known = Head(1, 0)
    known.streams = {"s": (1, 0)}
    stage.topic.checked(known, 0)
    assert await stage.take() == []
    stage.topic.checked(Head(1, 0), 0)  # gone: its message may be on its way
    assert await stage.take() == []
    stage.topic.checked(Head(1, 0), 0)
    (gone,) = await stage.take()
    assert (gone["stream"], gone["reset"], gone["done"]) == ("s", True, True)


async def test_pieces_that_do_not_come_are_found_at_the_second_look(stage: Stage) -> None:
    stage.topic.signal(piece(0, "a"))
    await stage.take()
    stage.streams["s"] = StreamText("s", 1, 2, "abc")
    head = Head(1, 0)
    head.streams = {"s": (1, 2)}
    stage.topic.checked(head, 0)
    assert await stage.take() == []  # they may be on their way
    stage.topic.checked(head, 0)
    assert [f["text"] for f in await stage.take()] == ["abc"]


async def test_signals_of_a_client_that_does_not_read_are_dropped_the_oldest_first(stage: Stage) -> None:
    stage.reading.clear()
    stage.topic.signal(Broadcast("first"))
    await stage.settle()
    for n in range(feeds.KEPT_SIGNALS + 10):
        stage.topic.signal(Broadcast(f"{n}"))
    stage.topic.signal(Broadcast("x" * feeds.KEPT_CHARACTERS * 2))
    stage.topic.signal(Broadcast("last"))
    stage.reading.set()
    sent = [f["data"] for f in await stage.take()]
    assert (sent[0], sent[-1]) == ("first", "last")
    assert sum(map(len, sent)) <= feeds.KEPT_CHARACTERS + 10


async def test_what_is_for_another_connection_is_passed_over(stage: Stage) -> None:
    stage.commit(
        Event(1, "direct", b'{"to":"you","data":"secret"}'),
        Event(2, "close", b'{"to":"you","code":1000,"reason":""}'),
        Event(3, "direct", b'{"to":"me","data":{"$bytes":"AP8="}}'),
        Event(4, "gone", b"null"),
        Event(5, "message", b'{"seq":1}', private=True),
        shout(6),
    )
    stage.topic.signal(Broadcast("now", to="you"))
    stage.topic.signal(Broadcast("now", to=ME))
    sent = await stage.take()
    assert {json.dumps(f, sort_keys=True) for f in sent} == {
        '{"data": "now", "direct": true, "kind": "broadcast"}',
        '{"base64": "AP8=", "cursor": 3, "direct": true, "kind": "broadcast"}',
        '{"cursor": 6, "data": "x", "kind": "broadcast"}',
    }


async def test_an_agent_closes_in_order(stage: Stage) -> None:
    stage.commit(shout(1), Event(2, "close", b'{"to":"me","code":4000,"reason":"bye"}'), shout(3))
    with pytest.raises(Closed) as closed:
        await stage.task
    assert (closed.value.code, closed.value.reason) == (4000, "bye")
    assert [f["cursor"] for f in stage.sent] == [1]


async def test_a_database_that_is_away_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(feeds, "RETRY", 0.01)
    stage = Stage()
    stage.failures = 3
    stage.feed.attach(Attach(cursor=0))
    async with asyncio.timeout(60):
        while not stage.sent:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert [f["kind"] for f in stage.sent] == ["attached"]
    assert stage.failures == 0
    stage.task.cancel()


async def test_the_patience_with_a_full_window_begins_anew_with_each_step(
    stage: Stage, settings: Any
) -> None:
    settings.AGENTS = {**settings.AGENTS, "SOCKET_SEEN_TIMEOUT": 60.0, "MAX_UNSEEN_EVENTS": 2}
    stage.commit(*(shout(n) for n in range(1, 6)))
    assert len(await stage.take()) == 2
    first = stage.feed._full_since
    await asyncio.sleep(0.01)
    settings.AGENTS = {**settings.AGENTS, "SOCKET_SEEN_TIMEOUT": 0.2}
    stage.feed.seen(1)
    assert len(await stage.take()) == 1
    anew = stage.feed._full_since
    assert first is not None and anew is not None and anew > first
    stage.feed.seen(0)  # sees nothing new
    with pytest.raises(TooManyFramesError):
        await asyncio.wait_for(stage.task, 30)
    assert asyncio.get_running_loop().time() >= anew + 0.2


async def test_a_client_may_go_back_and_is_sent_it_again(stage: Stage) -> None:
    stage.commit(*(shout(n) for n in range(1, 4)))
    assert len(await stage.take()) == 3
    stage.feed.attach(Attach(cursor=1))
    assert [f["cursor"] for f in await stage.take()] == [1, 2, 3]  # attached, and what is behind it


async def test_another_actor_under_the_name_begins_anew(stage: Stage) -> None:
    stage.commit(shout(1), shout(2))
    await stage.take()
    stage.head = Head(2, 3)
    stage.topic.offer(2, [shout(1), shout(2), shout(3)], 3)
    attached = (await stage.take())[0]
    assert (attached["kind"], attached["cursor"], attached["snapshot"]) == ("attached", 3, {})


async def test_raw_clients_get_data_alone_and_no_window() -> None:
    stage = Stage(raw=True)
    stage.feed.attach(Attach(cursor=0))
    await stage.settle()
    stage.commit(
        shout(1, "text"),
        Event(2, "broadcast", b'{"$bytes":"AP8="}'),
        Event(3, "message", b'{"seq":1}'),
        Event(4, "typing", b"1"),
        Event(5, "state", b'{"patch":{}}'),
        Event(6, "direct", b'{"to":"me","data":"me"}'),
    )
    stage.topic.signal(piece(0))
    stage.topic.signal(Status("s", "t"))
    stage.topic.signal(Broadcast({"$bytes": "AQ=="}))
    assert sorted(map(str, await stage.take())) == sorted(map(str, ["text", b"\x00\xff", "me", b"\x01"]))
    stage.task.cancel()
