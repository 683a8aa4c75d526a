"""Streams in a turn: what is saved, what becomes a message, what is refused."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agents import Agent, GiveUp, Retry, reads
from agents.exceptions import LimitError, MessageError, ReadOnlyTurnError, TurnEndedError
from agents.models import Actor, Event, TurnRecord
from agents.sockets.publisher import publisher
from agents.sockets.signals import Delta
from agents.testing import CrashError, advance, crash_at, drain, reset_clock, shutdown
from conversations import streams
from conversations.models import Message, Stream, StreamChunk
from conversations.streams import MessageStream
from scheduler.models import Task

pytestmark = pytest.mark.django_db(transaction=True)

#: Streams that a method left for the test to look at.
outside: list[Any] = []
#: What readers have been sent.
shown: list[Delta] = []


async def is_shown(out: MessageStream, text: str) -> None:
    """Writes a piece, and returns when readers have been sent it."""
    before = len(shown)
    await out.write(text)
    async with asyncio.timeout(60):
        while len(shown) == before:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


class Scribe(Agent[dict[str, Any]]):
    kind = "test-scribe"

    async def write(self, *pieces: str, role: str = "assistant", **fields: Any) -> int | None:
        async with self.messages.stream(role) as out:
            for piece in pieces:
                await out.write(piece)
            for name, value in fields.items():
                setattr(out, name, value)
        return out.seq

    async def slowly(self, pieces: list[str]) -> int | None:
        async with self.messages.stream() as out:
            for piece in pieces:
                await is_shown(out, piece)
        return out.seq

    async def goes_on(self) -> str:
        try:
            async with self.messages.stream() as out:
                await is_shown(out, "half a")
                raise ConnectionError("the model went away")
        except ConnectionError:
            await self.messages.add("assistant", "Sorry, once more.")
        return out.text

    async def checkpoints(self) -> None:
        async with self.messages.stream() as out:
            await is_shown(out, "before ")
            await self.messages.add("user", "in between")
            await self.checkpoint()
            await out.write("after")

    async def halves(self) -> None:
        async with self.messages.stream() as out:
            await out.write("a\ud83d")
            await out.write("\ude00b\0")
            await out.write("\ud83d")

    async def refused(self) -> None:
        def refuse() -> None:
            raise ValueError("refused")

        await self.slowly(["never"])
        self.at_commit(refuse)

    async def keeps(self) -> None:
        outside.append(self.messages.stream())
        async with outside[-1] as out:
            await out.write("x")

    async def after_the_end(self) -> None:
        out = self.messages.stream()
        async with out:
            await out.write("x")
        await out.write("y")

    @reads
    async def peek(self) -> None:
        async with self.messages.stream() as out:
            await out.write("x")

    async def in_step(self) -> None:
        async def fn() -> None:
            async with self.messages.stream() as out:
                await out.write("x")

        await self.step("stream", fn)

    async def task(self, plan: dict[str, Any]) -> None:
        async with self.messages.stream() as out:
            await is_shown(out, plan["text"])
        if plan.get("retry"):
            raise Retry(after=0)
        raise GiveUp

    async def other(self) -> None:
        raise GiveUp("without a stream")


@pytest.fixture(autouse=True)
def _ends() -> Any:
    outside.clear()
    yield
    shutdown(0)
    reset_clock()


@pytest.fixture(autouse=True)
def deltas(monkeypatch: pytest.MonkeyPatch) -> list[Delta]:
    """What readers are sent."""
    shown.clear()
    signal = publisher.signal

    def record(actor: Any, signaled: Any) -> None:
        if isinstance(signaled, Delta):
            shown.append(signaled)
        signal(actor, signaled)

    monkeypatch.setattr(publisher, "signal", record)
    return shown


def nothing_is_left() -> bool:
    return not Stream.objects.exists() and not StreamChunk.objects.exists()


def test_a_stream_is_a_message_when_it_has_ended() -> None:
    scribe = Scribe.named("a")
    assert scribe.sync.write("one ", "two") == 1
    message = Message.objects.get()
    assert (message.role, message.content, message.seq) == ("assistant", "one two", 1)
    assert Event.objects.get().payload == {"seq": 1}
    assert nothing_is_left()


def test_the_first_piece_is_saved_at_once_and_the_rest_as_it_gathers(deltas: list[Delta]) -> None:
    assert Scribe.named("a").sync.slowly(["a", "b", "c"]) == 1
    assert [(d.index, d.text, d.done) for d in deltas] == [
        (0, "a", False), (1, "b", False), (2, "c", False), (3, "", True),
    ]  # fmt: skip
    assert Message.objects.get().metadata == {"stream": deltas[0].uid}
    # Pieces are saved beside the turn's commits: they move no version, and leave no record.
    assert Actor.objects.get().version == 1
    assert TurnRecord.objects.count() == 1


def test_a_stream_in_which_nothing_was_written_is_nothing() -> None:
    scribe = Scribe.named("a")
    assert scribe.sync.write() is None
    assert scribe.sync.write("") is None
    assert not Message.objects.exists()
    assert nothing_is_left()


def test_what_else_the_message_has_may_be_set_on_the_way() -> None:
    calls = [{"id": "c1", "name": "lookup", "args": {"n": 1}}]
    assert Scribe.named("a").sync.write("let me see", tool_calls=calls, metadata={"model": "m"}) == 1
    message = Message.objects.get()
    assert message.tool_calls == calls
    assert message.metadata == {"model": "m", "stream": message.metadata["stream"]}  # type: ignore[index]
    assert Scribe.named("a").sync.write(tool_calls=calls) == 2  # no text at all
    assert Scribe.named("a").sync.write("by name", role="user", name="Ada") == 3
    assert Message.objects.get(seq=3).name == "Ada"


def test_a_pair_of_surrogates_may_come_in_two_pieces() -> None:
    Scribe.named("a").sync.halves()
    assert Message.objects.get().content == "a😀b\ufffd\ufffd"


def test_a_long_text_goes_in_several_pieces(deltas: list[Delta]) -> None:
    text = "x" * (streams.PIECE * 2 + 1)
    Scribe.named("a").sync.write(text)
    assert [len(d.text) for d in deltas] == [streams.PIECE, streams.PIECE, 1, 0]
    assert Message.objects.get().content == text


def test_much_text_in_many_writes_is_bounded_by_what_is_saved(deltas: list[Delta]) -> None:
    scribe = Scribe.named("a")
    scribe.sync.write(*["y" * 1000] * 300)
    assert "".join(d.text for d in deltas) == "y" * 300_000
    assert Message.objects.get().content == "y" * 300_000


def test_a_stream_is_as_long_as_a_message_may_be(settings: Any) -> None:
    settings.AGENTS = {**settings.AGENTS, "MAX_MESSAGE_BYTES": 1000}
    scribe = Scribe.named("a")
    with pytest.raises(LimitError) as error:
        scribe.sync.write("é" * 250, "é" * 251)
    assert (error.value.limit, error.value.actual) == ("MAX_MESSAGE_BYTES", 1002)
    assert not Message.objects.exists()
    assert nothing_is_left()
    # The metadata that names the stream counts as well.
    assert scribe.sync.write("é" * 475) == 1


@pytest.mark.parametrize("role", ["tool", "wizard", None])
def test_a_role_that_no_stream_has_is_refused(role: Any) -> None:
    with pytest.raises(MessageError, match="role"):
        Scribe.named("a").sync.write("x", role=role)


def test_what_is_no_text_is_refused() -> None:
    with pytest.raises(MessageError, match="takes text, got bytes"):
        Scribe.named("a").sync.write(b"x")


def test_a_stream_is_written_inside_its_block_and_its_turn() -> None:
    with pytest.raises(MessageError, match="inside its async with"):
        Scribe.named("a").sync.after_the_end()
    Scribe.named("a").sync.keeps()
    (out,) = outside
    with pytest.raises((MessageError, TurnEndedError)):
        asyncio.run(out.write("late"))


def test_reads_and_steps_do_not_stream() -> None:
    with pytest.raises(ReadOnlyTurnError):
        Scribe.named("a").sync.peek()


def test_an_agent_that_goes_on_without_its_stream_throws_it_away(deltas: list[Delta]) -> None:
    assert Scribe.named("a").sync.goes_on() == "half a"
    assert [m.content for m in Message.objects.all()] == ["Sorry, once more."]
    assert (deltas[-1].reset, deltas[-1].done) == (True, True)
    assert nothing_is_left()


def test_a_checkpoint_in_the_middle_leaves_the_stream_open() -> None:
    Scribe.named("a").sync.checkpoints()
    assert list(Message.objects.order_by("seq").values_list("role", "content")) == [
        ("user", "in between"),
        ("assistant", "before after"),
    ]
    assert nothing_is_left()


def test_a_turn_whose_commit_fails_leaves_no_stream(deltas: list[Delta]) -> None:
    scribe = Scribe.named("a")
    scribe.sync.write("first")
    with pytest.raises(ValueError, match="refused"):
        scribe.sync.refused()
    assert Message.objects.count() == 1
    assert nothing_is_left()
    assert (deltas[-1].reset, deltas[-1].done) == (True, True)


def test_the_retry_of_a_task_takes_its_stream_over(deltas: list[Delta]) -> None:
    scribe = Scribe.named("a")
    scribe.sync.tell("task", {"text": "hello", "retry": True}, max_retries=1)
    drain()
    assert {d.uid for d in deltas} == {deltas[0].uid}
    assert [(d.take, d.index, d.reset) for d in deltas if d.text] == [(1, 0, False), (2, 0, True)]
    message = Message.objects.get()
    assert (message.content, message.metadata) == ("hello", {"interrupted": True, "stream": deltas[0].uid})
    assert Task.objects.parked().count() == 1
    assert nothing_is_left()


def test_an_interrupted_message_is_counted_and_shown_like_any_other() -> None:
    scribe = Scribe.named("a")
    scribe.sync.write("before")
    scribe.sync.tell("task", {"text": "half"}, max_retries=0)
    scribe.sync.tell("write", "after")
    drain()
    actor = Actor.objects.get()
    assert (actor.seq, actor.cursor) == (3, 3)
    contents = list(Message.objects.order_by("seq").values_list("content", flat=True))
    assert contents == ["before", "half", "after"]
    assert [e.payload for e in Event.objects.order_by("cursor")] == [{"seq": n} for n in (1, 2, 3)]
    record = TurnRecord.objects.get(outcome="failed")
    assert (record.first_seq, record.last_seq) == (2, 2)


def test_a_task_that_never_streamed_leaves_no_message() -> None:
    Scribe.named("a").sync.tell("other", max_retries=0)
    drain()
    assert not Message.objects.exists()
    assert TurnRecord.objects.get(outcome="failed").first_seq is None


def test_a_piece_whose_saving_failed_is_taken_back_with_its_call() -> None:
    """It is in the database, and nobody here knows."""
    with crash_at("commit.committed"), pytest.raises(CrashError):
        Scribe.named("a").sync.write("x")
    assert nothing_is_left()


def test_a_task_whose_piece_could_not_be_saved_fails_and_is_tried_again() -> None:
    Scribe.named("a").sync.tell("write", "x")
    with crash_at("commit.commit"):
        drain()
    assert not Message.objects.exists()
    advance(5)
    drain()
    assert Message.objects.get().content == "x"
    assert nothing_is_left()
