"""The support agent, whole turns: the official client asks the offline model over real HTTP."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from agents.env import env
from agents.testing import advance, drain, on_runtime, reset_clock
from conversations import media
from conversations.models import Message, OutboundText, Stream
from examples.agents import NUDGE, NUDGE_AFTER, SupportAgent
from scheduler.models import Attempt, Task, TaskStatus
from tests.examples.played_model import played_model

pytestmark = pytest.mark.django_db(transaction=True)

THEIRS, OURS = "+15550001111", "+15550009999"


@pytest.fixture(autouse=True)
def offline(live_server: Any, settings: Any) -> Iterator[None]:
    """The site itself serves the model, as on a development site."""
    settings.DEBUG = True
    settings.AGENTS = {"SITE_URL": live_server.url}
    yield
    close_clients()
    reset_clock()


def close_clients() -> None:
    """Before the settings change: the next use makes new ones."""
    on_runtime(lambda engine: env.close())


@pytest.fixture
def alice() -> Any:
    return SupportAgent.named(THEIRS).sync


def text(words: str, **change: Any) -> dict[str, Any]:
    return {
        "text": words,
        "from": THEIRS,
        "to": OURS,
        "id": uuid.uuid4().hex,
        "event_id": uuid.uuid4().hex,
        "received_at": "2026-11-30T12:00:00+00:00",
        "media": [],
        "channel": "sms",
        **change,
    }


def log() -> list[tuple[str, str]]:
    return list(Message.objects.order_by("seq").values_list("role", "content"))


def sent() -> list[str]:
    return list(OutboundText.objects.order_by("id").values_list("text", flat=True))


def test_a_text_is_answered_by_a_text_and_a_nudge_is_pending(alice):
    alice.tell("receive", text("hello"))
    drain()
    assert log() == [("user", "hello"), ("assistant", "[offline model] I read: hello")]
    reply = OutboundText.objects.get()
    assert (reply.from_number, reply.to_number) == (OURS, THEIRS)
    assert reply.text == "[offline model] I read: hello"
    nudge = Task.objects.get()
    assert (nudge.task_id, nudge.method, nudge.status) == ("nudge", "nudge", TaskStatus.PENDING)
    assert abs((nudge.due_at - reply.created_at).total_seconds() - NUDGE_AFTER) < 60


def test_an_order_is_looked_up_and_the_tool_turns_are_in_the_log(alice):
    alice.tell("receive", text("Where is order 1042?"))
    drain()
    assert [role for role, _ in log()] == ["user", "assistant", "tool", "assistant"]
    call, result, answer = Message.objects.order_by("seq")[1:]
    assert call.tool_calls is not None
    assert call.tool_calls[0]["name"] == "lookup_order"
    assert call.tool_calls[0]["args"] == {"order_id": "1042"}
    assert (result.tool_call_id, result.name) == (call.tool_calls[0]["id"], "lookup_order")
    assert "two kettles" in result.content
    assert sent() == [answer.content]
    assert answer.content == f"[offline model] {result.content}"
    # The next reply has the pair in its history, and the model takes it.
    alice.tell("receive", text("thanks"))
    drain()
    assert sent()[1:] == ["[offline model] I read: thanks"]


def said(words: str) -> dict[str, Any]:
    """What the chat page sends."""
    return {
        "text": words,
        "id": uuid.uuid4().hex,
        "channel": "web",
        "from": "alice",
        "user_id": "1",
        "claims": {},
        "metadata": {},
    }


def test_who_writes_on_the_chat_page_reads_the_answer_as_a_stream_and_gets_no_text(alice):
    message = said("Where is order 1042?")
    alice.tell("receive", message)
    drain()
    assert [role for role, _ in log()] == ["user", "assistant", "tool", "assistant"]
    question, call, result, answer = Message.objects.order_by("seq")
    assert question.metadata == {"id": message["id"]}
    assert call.content == ""
    assert call.tool_calls is not None and call.tool_calls[0]["args"] == {"order_id": "1042"}
    assert answer.content == f"[offline model] {result.content}"
    assert (
        answer.metadata is not None and answer.metadata["stream"]
    )  # it was shown while it was being written
    assert not Stream.objects.exists()
    assert sent() == []


def test_a_text_after_a_chat_is_answered_by_a_text(alice):
    alice.tell("receive", said("hello"))
    drain()
    alice.tell("receive", text("and from the phone"))
    drain()
    assert sent() == ["[offline model] I read: and from the phone"]


def test_texts_before_the_reply_are_answered_together_by_one_run(alice):
    alice.tell("receive", text("one"))
    alice.tell("receive", text("two"))
    drain()
    assert sent() == ["[offline model] I read: one / two"]
    assert Attempt.objects.filter(method="process").count() == 1


def test_the_nudge_goes_out_after_a_day_once(alice):
    alice.tell("receive", text("hello"))
    drain()
    advance(NUDGE_AFTER - 60)
    drain()
    assert len(sent()) == 1
    advance(120)
    drain()
    assert sent()[1:] == [NUDGE]
    assert log()[-1] == ("assistant", NUDGE)
    advance(10 * NUDGE_AFTER)
    drain()
    assert len(sent()) == 2


def test_whoever_wrote_meanwhile_is_nudged_a_day_after_the_last_reply(alice):
    alice.tell("receive", text("hello"))
    drain()
    advance(NUDGE_AFTER - 60)
    alice.tell("receive", text("and another thing"))
    drain()
    advance(120)
    drain()
    assert NUDGE not in sent()
    advance(NUDGE_AFTER)
    drain()
    assert sent().count(NUDGE) == 1


def test_a_person_who_waits_for_an_answer_is_not_nudged(alice, settings):
    alice.tell("receive", text("hello"))
    drain()
    close_clients()
    settings.AGENTS = {**settings.AGENTS, "MODEL": "no-such-model"}  # from now on the model fails
    alice.tell("receive", text("are you there?"))
    drain()
    advance(NUDGE_AFTER + 60)
    drain()
    assert NUDGE not in sent()


def test_a_model_that_is_away_fails_the_attempt_and_the_retry_answers_once(alice, settings):
    away = {**settings.AGENTS, "SITE_URL": "http://127.0.0.1:9"}
    here, settings.AGENTS = settings.AGENTS, away
    alice.tell("receive", text("hello"))
    drain()
    assert log() == [("user", "hello")]
    assert sent() == []
    close_clients()
    settings.AGENTS = here
    advance(10)
    drain()
    assert log() == [("user", "hello"), ("assistant", "[offline model] I read: hello")]
    assert len(sent()) == 1
    outcomes = list(Attempt.objects.filter(method="process").order_by("id").values_list("outcome", flat=True))
    assert outcomes == ["failed", "done"]


@pytest.mark.parametrize(
    "ids", [["d1", "d2"], ["c1", "c2"]], ids=["with ids of its own", "with the same ids"]
)
def test_a_model_that_is_asked_again_and_calls_in_another_order_gets_each_calls_own_result(
    alice, settings, ids
):
    """A retry asks for a streamed answer anew. Some models count their calls: the ids are the same."""

    def calls(ids: list[str], *orders: str) -> list[tuple[str, str, dict[str, Any]]]:
        return [(id, "lookup_order", {"order_id": order}) for id, order in zip(ids, orders, strict=True)]

    answers = [
        calls(["c1", "c2"], "1042", "1043"),
        None,
        calls(ids, "1043", "1042"),
        "They are on their way.",
    ]
    with played_model(*answers) as url:
        settings.AGENTS = {**settings.AGENTS, "OPENAI_BASE_URL": url, "MODEL": "played"}
        alice.tell("receive", said("Where are my orders?"))
        drain()
        advance(10)
        drain()
        close_clients()
    outcomes = list(Attempt.objects.filter(method="process").order_by("id").values_list("outcome", flat=True))
    assert outcomes == ["failed", "done"]
    asked, *results, answer = Message.objects.order_by("seq")[1:]
    assert answer.content == "They are on their way."
    wanted = {call["id"]: call["args"]["order_id"] for call in asked.tool_calls or []}
    assert list(wanted.items()) == list(zip(ids, ["1043", "1042"], strict=True))
    for result in results:
        assert f"Order {wanted[result.tool_call_id]} " in result.content


def test_what_came_by_another_way_is_answered_in_the_log_alone(alice):
    alice.receive({"text": "hello"})
    drain()
    assert log()[-1] == ("assistant", "[offline model] I read: hello")
    assert sent() == []


def test_a_picture_without_words_is_answered(alice):
    """Its bytes cannot be had: what is nowhere is tried for a while, and then the text goes on without."""
    picture = {"url": "https://media.invalid/a", "content_type": "image/png", "size": 1, "sha256": None}
    alice.tell("receive", text("", media=[picture]))
    alice.tell("receive", text(" "))
    for _ in range(media.TRIES):
        drain()
        advance(max(media.PAUSES))
    assert sent() == [
        "[offline model] I read: [a picture came with this text and could not be loaded] / (an empty text)"
    ]


def test_a_long_answer_is_cut_to_what_a_text_may_have(alice):
    alice.tell("receive", text("a" * 1529))
    drain()
    assert log()[-1][1] == "[offline model] I read: " + "a" * 1529
    assert sent()[0].endswith("a...")
    assert len(sent()[0]) < 1530


def test_the_history_can_be_read_while_nothing_is_there_and_afterwards(alice):
    assert alice.history() == []
    alice.receive({"text": "hello"})
    drain()
    assert [(m["seq"], m["role"]) for m in alice.history()] == [(1, "user"), (2, "assistant")]
    assert [m["seq"] for m in alice.history(last=1)] == [2]
