"""Windows: what they keep, where they cut, and how little they read."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.exceptions import MessageError
from agents.models import Actor
from conversations import adapters, history
from conversations.adapters.repair import exchanges
from conversations.adapters.windows import (
    SUMMARY,
    Bounds,
    bounds_of,
    estimate_tokens,
    summary_of,
    window,
    with_summary,
)
from conversations.messages import StoredMessage, row_of
from conversations.models import Message
from tests.conversations.conftest import Conversation, in_thread
from tests.conversations.logs import AT, RANDOM_LOGS, call, log_of, result
from tests.conversations.providers import CHECKS, check_anthropic, check_openai


def _seqs(messages: list[StoredMessage]) -> list[int]:
    return [message.seq for message in messages]


def _twenty_turns() -> list[StoredMessage]:
    """A prompt, then twenty times: a question, two calls with their results, an answer."""
    messages: list[Any] = [("system", "be kind")]
    for n in range(20):
        messages += [
            ("user", f"question {n}"),
            call(f"a{n}", f"b{n}"),
            result(f"b{n}"),
            result(f"a{n}"),
            ("assistant", f"answer {n}"),
        ]
    return log_of([*messages, ("user", "the newest question")])


@pytest.mark.parametrize("last", range(1, 104))
def test_a_window_of_any_length_begins_with_a_user_text_and_cuts_no_pair(last: int):
    log = _twenty_turns()
    cut = window(log, Bounds(last=last))
    assert cut[0].content == "be kind"
    assert cut[1].role == "user"
    assert cut[-1].content == "the newest question"
    assert len(cut) - 1 <= last
    assert _seqs(cut[1:]) != [] and sorted(_seqs(cut[1:])) == list(range(cut[1].seq, len(log) + 1))
    check_openai(adapters.to_openai(cut))
    check_anthropic(adapters.to_anthropic(cut))


@pytest.mark.parametrize(
    ("last", "seqs"),
    [(1, [8]), (2, [8]), (3, [6, 7, 8]), (6, [6, 7, 8]), (7, [2, 3, 4, 5, 6, 7, 8]), (50, list(range(2, 9)))],
)
def test_a_window_is_the_longest_end_that_begins_with_a_user_message(last: int, seqs: list[int]):
    log = log_of(
        [
            ("system", "prompt"),
            ("user", "a"),
            call("c"),
            result("c"),
            ("assistant", "b"),
            ("user", "c"),
            ("assistant", "d"),
            ("user", "e"),
        ]
    )
    assert _seqs(window(log, Bounds(last=last))) == [1, *seqs]


def test_a_long_run_of_tools_keeps_the_question_and_the_newest_exchanges():
    log = log_of(
        [("user", "old"), ("user", "go"), *(m for n in range(9) for m in (call(f"{n}"), result(f"{n}")))]
    )
    assert _seqs(window(log, Bounds(last=6))) == [2, 17, 18, 19, 20]
    assert _seqs(window(log, Bounds(last=5))) == [2, 17, 18, 19, 20]
    assert _seqs(window(log, Bounds(last=3))) == [2, 19, 20]


def test_the_question_and_the_newest_exchange_are_there_even_when_they_are_more_than_was_asked():
    log = log_of([("user", "go"), call("a"), result("a"), call("b", "c"), result("b"), result("c")])
    for bounds in (Bounds(last=1), Bounds(max_tokens=1)):
        assert _seqs(window(log, bounds)) == [1, 4, 5, 6]
    assert _seqs(window(log_of([("user", "x" * 1000)]), Bounds(max_tokens=1))) == [1]


def test_a_result_that_came_late_stays_with_its_call():
    log = log_of([("user", "go"), call("a"), ("user", "hello?"), result("a"), ("assistant", "done")])
    assert _seqs(window(log, Bounds(last=5))) == [1, 2, 4, 3, 5]
    assert _seqs(window(log, Bounds(last=4))) == [3, 5]


def test_a_log_without_a_user_gives_its_end():
    log = log_of([("assistant", "a"), call("c"), result("c"), ("assistant", "b")])
    assert _seqs(window(log, Bounds(last=3))) == [2, 3, 4]
    assert _seqs(window(log, Bounds(last=2))) == [4]
    assert _seqs(window(log_of([call("c"), result("c")]), Bounds(last=1))) == [1, 2]


def test_the_prompt_is_always_there_and_later_system_messages_go_with_their_neighbours():
    log = log_of(
        [
            ("system", "p1"),
            ("system", "p2"),
            ("user", "a"),
            ("system", "s"),
            ("user", "b"),
            ("assistant", "c"),
        ]
    )
    assert _seqs(window(log, Bounds(last=2))) == [1, 2, 5, 6]
    assert _seqs(window(log, Bounds(last=3))) == [1, 2, 4, 5, 6]
    assert _seqs(window(log, Bounds(last=4))) == [1, 2, 3, 4, 5, 6]


def test_max_tokens_counts_the_prompt_and_holds_to_the_estimate():
    log = _twenty_turns()
    whole = sum(estimate_tokens(exchange) for exchange in exchanges(log))
    newest = [log[0], log[-1]]
    least = sum(estimate_tokens(exchange) for exchange in exchanges(newest))
    assert window(log, Bounds(max_tokens=least)) == newest
    assert len(window(log, Bounds(max_tokens=whole))) == len(log)
    assert len(window(log, Bounds(max_tokens=whole - 1))) == len(log) - 5
    for max_tokens in range(least, whole, 50):
        cut = window(log, Bounds(max_tokens=max_tokens))
        assert sum(estimate_tokens(exchange) for exchange in exchanges(cut)) <= max_tokens


def test_both_bounds_hold_together():
    log = _twenty_turns()
    few = window(log, Bounds(last=6))
    assert window(log, Bounds(last=6, max_tokens=10**6)) == few
    assert len(window(log, Bounds(last=100, max_tokens=120))) < len(window(log, Bounds(last=100)))


def test_a_token_is_four_bytes_and_a_message_four_tokens():
    def tokens(message: Any) -> int:
        return estimate_tokens(exchanges(log_of([message]))[0])

    assert tokens(("user", "x" * 8)) == 4 + 2
    assert tokens(("user", "x" * 9)) == 4 + 3
    assert tokens(("user", "日" * 4)) == 4 + 3
    image = {"role": "user", "content": "x", "parts": [{"type": "image", "url": "https://example.org/a.png"}]}
    assert tokens(image) == 4 + 1 + 1600


@pytest.mark.parametrize("value", [0, -1, True, "5", 2.0])
def test_bounds_are_positive_integers(value: Any):
    with pytest.raises(MessageError):
        bounds_of(value, None)
    with pytest.raises(MessageError):
        bounds_of(None, value)
    assert bounds_of(None, None) is None


@settings(max_examples=150, deadline=None)
@given(RANDOM_LOGS, st.integers(1, 20) | st.none(), st.integers(1, 400) | st.none())
def test_any_window_of_any_log_is_accepted_by_everybody(
    log: list[StoredMessage], last: int | None, max_tokens: int | None
):
    cut = window(log, Bounds(last, max_tokens))
    for rendering, check in CHECKS.items():
        render = getattr(adapters, rendering)
        check(render(cut))
        assert render(cut) == render(window(log, Bounds(last, max_tokens)))
    users = [message for message in log if message.role == "user"]
    if users:
        assert users[-1] in cut
        first = next(message for message in adapters.to_openai(cut) if message["role"] != "system")
        assert first["role"] == "user"


# A tokenizer, and a summary


def test_texts_are_counted_by_the_tokenizer_that_the_caller_gives():
    log = log_of([("user", "a b c"), ("assistant", "d"), ("user", "e f")])
    counted: list[str] = []

    def words(text: str) -> int:
        counted.append(text)
        return len(text.split())

    assert _seqs(window(log, Bounds(max_tokens=3 * 4 + 6, count_tokens=words))) == [1, 2, 3]
    assert _seqs(window(log, Bounds(max_tokens=3 * 4 + 5, count_tokens=words))) == [3]
    assert {"a b c", "d", "e f"} == set(counted)
    assert estimate_tokens(exchanges(log_of([call("c", args={"q": 1})]))[0], words) == 4 + 8 + 1 + 1 + 4 + 11


@pytest.mark.parametrize("wrong", [lambda text: -1, lambda text: 1.5, lambda text: None, lambda text: True])
def test_a_tokenizer_that_gives_no_number_is_refused(wrong: Any):
    with pytest.raises(MessageError):
        window(log_of([("user", "x"), ("user", "y")]), Bounds(max_tokens=5, count_tokens=wrong))
    with pytest.raises(MessageError):
        bounds_of(None, 5, "cl100k_base")  # type: ignore[arg-type]


async def test_a_summary_stands_behind_the_prompt_in_every_format(conversation: Conversation):
    log = conversation.turn()
    messages: list[Any] = [("system", "p"), ("user", "a"), ("assistant", "b"), ("user", "c")]
    await log.append_many({"role": role, "content": content} for role, content in messages)
    said = SUMMARY + "They met."
    openai = await log.to_openai(last=1, summary="They met.")
    assert [(m["role"], m["content"]) for m in openai] == [("system", "p"), ("system", said), ("user", "c")]
    items = await log.to_openai_responses(last=1, summary="They met.")
    assert [item["content"] for item in items] == ["p", said, "c"]
    assert await log.to_anthropic(last=1, summary="They met.") == [
        {"role": "user", "content": [{"type": "text", "text": said}, {"type": "text", "text": "c"}]}
    ]
    assert await log.system_prompt(last=1) == "p"
    assert (await log.to_langchain(last=1, summary="They met."))[0]["content"] == f"p\n\n{said}"
    assert [m["type"] for m in await log.to_langchain_messages(last=1, summary="They met.")] == [
        "system",
        "human",
    ]
    assert (await log.to_ai_sdk(last=1, summary="They met."))[1]["parts"][0]["text"] == said
    assert (await log.to_openai(summary="They met."))[1]["content"] == said
    assert await log.to_openai(last=1, summary=" ") == await log.to_openai(last=1)
    with pytest.raises(MessageError):
        await log.to_openai(last=1, summary=7)  # type: ignore[arg-type]


async def test_a_summary_takes_its_tokens_from_the_window(conversation: Conversation):
    await conversation.append(*[("user", "x" * 40)] * 10)
    log = conversation.turn()
    without = await log.to_openai(max_tokens=100)
    within = await log.to_openai(max_tokens=100, summary="y" * 100)
    assert (len(without), len(within)) == (7, 1 + 4)


@settings(max_examples=100, deadline=None)
@given(RANDOM_LOGS, st.integers(1, 20) | st.none())
def test_a_window_with_a_summary_is_accepted_by_everybody(log: list[StoredMessage], last: int | None):
    cut = with_summary(log if last is None else window(log, Bounds(last)), summary_of("They met."))
    for rendering, check in CHECKS.items():
        rendered = getattr(adapters, rendering)(cut)
        check(rendered)
        assert "They met." in str(rendered)


async def test_the_prompt_of_a_window_is_what_openai_gets_of_the_same_window(conversation: Conversation):
    await conversation.append(("system", "p"), ("user", "a"), ("system", "old"), ("user", "b"), ("user", "c"))
    log = conversation.turn()
    assert await log.system_prompt() == "p\n\nold"
    assert await log.system_prompt(last=2) == "p"
    assert [m["content"] for m in await log.to_openai(last=2)] == ["p", "b", "c"]


# From the database


async def test_the_methods_take_windows(conversation: Conversation):
    await conversation.append(("system", "p"), ("user", "a"), call("c"), result("c"), ("assistant", "b"))
    log = conversation.turn()
    await log.add("user", "d")
    assert [m["content"] for m in await log.to_openai(last=1)] == ["p", "d"]
    assert [m["content"] for m in await log.to_anthropic(last=4)] == ["d"]
    assert [m["content"] for m in await log.to_langchain(max_tokens=1)] == ["p", "d"]
    assert [m["type"] for m in await log.to_langchain_messages(last=5)] == [
        "system", "human", "ai", "tool", "ai", "human",
    ]  # fmt: skip
    with pytest.raises(MessageError):
        await log.to_openai(last=0)


def _stored(actor: Actor, messages: list[StoredMessage]) -> None:
    Message.objects.bulk_create(
        Message(actor=actor, seq=message.seq, at=message.at, **row_of(message)) for message in messages
    )


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "WINDOW_MARGIN", 1)
    monkeypatch.setattr(history, "TOKEN_WINDOW_PAGE", 2)
    monkeypatch.setattr(history, "MAX_WINDOW_PAGE", 3)
    monkeypatch.setattr(history, "USER_PAGE", 2)
    monkeypatch.setattr(history, "PROMPT_PAGE", 2)


def _logs_with_edges() -> list[list[StoredMessage]]:
    """Logs longer than a small page, with their difficulty before, at and behind each page's edge."""
    tools = [m for n in range(6) for m in (call(f"{n}"), result(f"{n}"))]
    chat = [("user", "a"), ("assistant", "b")] * 4
    made: list[list[Any]] = [
        [("system", "p"), *chat, *tools],
        [("user", "only"), *tools],
        [*tools, *chat],
        [("system", "p")] * 5,
        [("system", "p")] * 5 + chat,
        [("system", " "), ("system", "p"), *chat],
        [("assistant", "a")] * 9,
        [*chat, call("x"), ("user", "hello?"), result("x"), result("x"), result("ghost"), ("user", "b")],
        [*chat, ("system", "note"), ("user", "b"), call("x", "y"), result("y")],
        [("user", ""), *[result("ghost")] * 7, ("assistant", "a")],
    ]
    return [log_of(messages) for messages in made]


@pytest.mark.parametrize("number", range(len(_logs_with_edges())))
def test_a_window_from_the_database_is_the_window_of_the_whole_log(
    transactional_db: None, small_pages: None, number: int
):
    log = _logs_with_edges()[number]
    actor = Actor.objects.create(kind="support", name=f"log {number}")
    _stored(actor, log)
    for committed in range(len(log) + 1):
        for bounds in (
            *(Bounds(last=n) for n in (1, 2, 3, 5, 8, 30)),
            *(Bounds(max_tokens=n) for n in (1, 20, 60, 900)),
        ):
            found = history.window_of(actor.pk, committed, log[committed:], bounds)
            assert _seqs(found) == _seqs(window(log, bounds)), (committed, bounds)


def test_a_window_reads_about_what_it_holds(transactional_db: None, monkeypatch: pytest.MonkeyPatch):
    actor = Actor.objects.create(kind="support", name="long")
    messages: list[Any] = [("system", "be kind")]
    for n in range(500):
        messages += [("user", f"q{n}"), call(f"c{n}"), result(f"c{n}"), ("assistant", f"a{n}")]
    log = log_of(messages)
    _stored(actor, log)
    read: list[int] = []
    original = history.message_of

    def counted(row: Any) -> StoredMessage:
        read.append(row["seq"])
        return original(row)

    monkeypatch.setattr(history, "message_of", counted)
    with CaptureQueriesContext(connection) as queries:
        cut = history.window_of(actor.pk, len(log), [], Bounds(last=40))
    assert cut == window(log, Bounds(last=40))
    assert len(cut) == 41
    assert len(queries) == 2
    assert len(read) == 40 + history.WINDOW_MARGIN + history.PROMPT_PAGE


def test_the_question_before_a_very_long_run_of_tools_is_found_by_one_more_query(transactional_db: None):
    actor = Actor.objects.create(kind="support", name="tools")
    log = log_of([("user", "go"), *(m for n in range(600) for m in (call(f"{n}"), result(f"{n}")))])
    _stored(actor, log)
    with CaptureQueriesContext(connection) as queries:
        cut = history.window_of(actor.pk, len(log), [], Bounds(last=41))
    assert _seqs(cut) == [1, *range(len(log) - 39, len(log) + 1)]
    assert len(queries) == 3


@pytest.mark.parametrize("size", [100, 10_000])
def test_a_window_costs_the_same_queries_and_rows_on_a_log_of_any_length(
    transactional_db: None, monkeypatch: pytest.MonkeyPatch, size: int
):
    actor = Actor.objects.create(kind="support", name="long", seq=size)
    turns: list[Any] = [("user", "q"), call("c"), result("c"), ("assistant", "a")]
    rows = [row_of({"role": m[0], "content": m[1]} if isinstance(m, tuple) else m) for m in turns]
    Message.objects.bulk_create(
        [Message(actor=actor, seq=seq, at=AT, **rows[seq % 4]) for seq in range(1, size + 1)], batch_size=500
    )
    read: list[int] = []
    original = history.message_of

    def counted(row: Any) -> StoredMessage:
        read.append(row["seq"])
        return original(row)

    monkeypatch.setattr(history, "message_of", counted)
    with CaptureQueriesContext(connection) as queries:
        cut = history.window_of(actor.pk, size, [], Bounds(last=40))
    assert _seqs(cut) == list(range(size - 36, size + 1))  # from a question on
    assert len(queries) == 2
    assert len(read) == 40 + history.WINDOW_MARGIN + history.PROMPT_PAGE
    # No plan can read more: both are ranges of seqs.
    assert all("seq" in query["sql"] and "LIMIT" not in query["sql"] for query in queries)


def test_a_log_whose_beginning_was_pruned_still_has_windows(transactional_db: None):
    actor = Actor.objects.create(kind="support", name="pruned")
    log = log_of([("user", "a"), ("assistant", "b")] * 10)[7:]
    _stored(actor, log)
    assert _seqs(history.window_of(actor.pk, 20, [], Bounds(last=50))) == list(range(9, 21))


async def test_a_window_in_a_read_is_bounded_by_its_seq(conversation: Conversation):
    await conversation.append(*[("user", str(n)) for n in range(90)])
    log = conversation.turn(read_only=True)
    await conversation.append(("user", "later"))
    assert [m["content"] for m in await log.to_openai(last=2)] == ["88", "89"]
    assert await in_thread(lambda: Message.objects.count()) == 91
