"""A topic: what a process knows of an actor, and what it makes of news that is late, double or lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agents.sockets import topic as topics
from agents.sockets.backlog import Head, StreamText
from agents.sockets.events import Event
from agents.sockets.topic import Topic

#: The actor's events as the "database" has them.
Rows = dict[int, Event]


def event(cursor: int, size: int = 1) -> Event:
    return Event(cursor, "broadcast", b"x" * size)


def events(first: int, last: int) -> list[Event]:
    return [event(cursor) for cursor in range(first, last + 1)]


@pytest.fixture
def rows() -> Rows:
    return {}


@pytest.fixture
def topic(rows: Rows) -> Any:
    asked: list[int] = []

    async def page(id: int, after: int) -> list[Event]:
        asked.append(after)
        await asyncio.sleep(0.01)
        return [rows[c] for c in sorted(rows) if c > after][:4]

    async def stream(id: int, uid: str) -> list[StreamText]:
        return []

    topic = Topic(("kind", "name"), page, stream)
    topic.asked = asked  # type: ignore[attr-defined]
    return topic


def cursors(found: list[Event]) -> list[int]:
    return [e.cursor for e in found]


async def test_what_was_just_told_is_read_from_memory(topic: Any) -> None:
    assert topic.offer(1, events(1, 3), 3)
    assert topic.offer(1, events(4, 5), 5)
    assert (topic.head, cursors(await topic.after(0)), cursors(await topic.after(3))) == (
        5, [1, 2, 3, 4, 5], [4, 5],
    )  # fmt: skip
    assert topic.asked == []


async def test_what_comes_twice_or_late_changes_nothing(topic: Any) -> None:
    topic.offer(1, events(1, 5), 5)
    assert topic.offer(1, events(3, 5), 5)
    assert topic.offer(1, events(2, 3), 3)
    assert (topic.head, cursors(await topic.after(0))) == (5, [1, 2, 3, 4, 5])
    assert topic.offer(1, events(4, 7), 7)
    assert cursors(await topic.after(4)) == [5, 6, 7]


async def test_a_gap_is_read_from_the_database(topic: Any, rows: Rows) -> None:
    rows.update({c: event(c) for c in range(1, 9)})
    topic.offer(1, events(1, 2), 2)
    assert not topic.offer(1, events(5, 6), 6)  # something before it has not come
    assert topic.head == 6
    assert cursors(await topic.after(2)) == [3, 4, 5, 6]
    assert cursors(await topic.after(4)) == [5, 6]  # from memory
    assert topic.asked == [2]


async def test_news_without_events_says_only_how_far_it_is(topic: Any, rows: Rows) -> None:
    rows.update({c: event(c) for c in range(1, 4)})
    assert not topic.offer(1, (), 3)
    assert cursors(await topic.after(0)) == [1, 2, 3]


async def test_a_page_that_is_ahead_of_the_news_raises_the_head(topic: Any, rows: Rows) -> None:
    rows.update({c: event(c) for c in range(1, 5)})
    topic.offer(1, (), 1)
    assert cursors(await topic.after(0)) == [1, 2, 3, 4]
    assert topic.head == 4


async def test_sockets_that_ask_for_the_same_page_share_it(topic: Any, rows: Rows) -> None:
    rows.update({c: event(c) for c in range(1, 5)})
    topic.offer(1, (), 4)
    pages = [asyncio.create_task(topic.after(0)) for _ in range(5)]
    await asyncio.sleep(0)
    pages[0].cancel()  # one of them leaves
    assert [cursors(await page) for page in pages[1:]] == [[1, 2, 3, 4]] * 4
    assert topic.asked == [0]
    await topic.after(0)
    assert topic.asked == [0, 0]


async def test_what_is_kept_is_bounded_in_number_and_bytes(topic: Any) -> None:
    topic.offer(1, events(1, topics.KEPT_EVENTS), topics.KEPT_EVENTS)
    assert cursors(await topic.after(0))[0] == 1
    topic.offer(1, [event(topics.KEPT_EVENTS + 1)], topics.KEPT_EVENTS + 1)
    assert len(topic._tail) == topics.KEPT_EVENTS
    topic.offer(2, [event(1, topics.KEPT_BYTES), event(2, 1)], 2)
    assert cursors(list(topic._tail)) == [2]
    topic.offer(2, [event(3, topics.KEPT_BYTES * 2)], 3)
    assert cursors(list(topic._tail)) == [3]  # the newest stays, however large


async def test_one_that_nobody_follows_any_more_keeps_nothing(topic: Any, rows: dict[int, Event]) -> None:
    rows.update({c: event(c) for c in range(1, 5)})
    topic.offer(1, events(1, 4), 4)
    assert cursors(await topic.after(2)) == [3, 4] and topic.asked == []
    topic.end()
    assert cursors(await topic.after(2)) == [3, 4] and topic.asked == [2]  # whoever still asks is answered


def test_what_the_database_knows_more_is_said(topic: Any) -> None:
    topic.offer(1, events(1, 2), 2)
    assert topic.checked(Head(1, 5), known=2)
    assert topic.head == 5
    assert not topic.checked(Head(1, 5), known=5)
    # A look that began before the news came is no sign of a database that was restored.
    topic.offer(1, events(6, 7), 7)
    assert not topic.checked(Head(1, 5), known=5)
    assert topic.head == 7
    assert not topic.checked(Head(1, 3), known=7)
    assert topic.head == 3


def test_an_actor_that_exists_now_and_one_that_is_erased(topic: Any) -> None:
    assert not topic.checked(Head(), known=0)
    assert topic.checked(Head(1, 2), known=0)  # made elsewhere, and nobody told of it
    assert (topic.id, topic.head) == (1, 2)
    assert not topic.checked(Head(), known=2)
    assert (topic.id, topic.head) == (None, 0)
    topic.offer(2, events(1, 1), 1)
    assert (topic.id, topic.head) == (2, 1)


async def test_nothing_is_read_of_an_actor_that_is_not_there(topic: Any) -> None:
    assert await topic.after(0) == []
    assert await topic.stream("uid") is None
