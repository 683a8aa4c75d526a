"""Streams as readers see them: word by word, from the middle, through retries, stops and dead processes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agents.models import Actor
from agents.store import get_store
from conversations.models import Message, Stream, StreamChunk
from scheduler.models import Attempt, Task
from tests.agents.sockets.chatters.agents import ChatterAgent
from tests.agents.sockets.site import Client, Site, running
from tests.waiting import wait_until

pytestmark = [pytest.mark.processes, pytest.mark.django_db(transaction=True)]

KIND = ChatterAgent.kind


class Reader:
    """What a client shows: the text of each stream, and the messages. It follows the protocol page."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.texts: dict[str, str] = {}
        self.indexes: dict[str, int] = {}
        self.ended: set[str] = set()
        self.messages: list[dict[str, Any]] = []
        self.frames: list[dict[str, Any]] = []
        self.gaps = 0

    def take(self, timeout: float = 10.0) -> dict[str, Any]:
        frame = self.client.recv(timeout)
        self.frames.append(frame)
        if frame["kind"] == "delta" and frame["stream"] not in self.ended:
            self._delta(frame)
        if frame["kind"] == "message":
            message = frame["message"]
            self.messages.append(message)
            stream = message.get("metadata", {}).get("stream")
            self.texts.pop(stream, None)
            self.ended.add(stream)
        if "cursor" in frame and frame["kind"] in ("message", "state", "broadcast", "event"):
            self.client.send("seen", cursor=frame["cursor"])
        return frame

    def _delta(self, frame: dict[str, Any]) -> None:
        stream, index = frame["stream"], frame["index"]
        if frame.get("reset"):
            self.texts[stream] = frame["text"]
            if frame.get("done"):
                del self.texts[stream]
                self.indexes.pop(stream, None)
                return
        else:
            self.gaps += index != self.indexes.get(stream, -1) + 1
            self.texts[stream] = self.texts.get(stream, "") + frame["text"]
        self.indexes[stream] = index

    def until(self, condition: Any, timeout: float = 60.0) -> None:
        deadline = time.monotonic() + timeout
        while not condition():
            self.take(max(0.1, deadline - time.monotonic()))

    @property
    def text(self) -> str:
        """The text of the one stream in progress."""
        (text,) = self.texts.values()
        return text


@pytest.fixture
def client(site: Site, operator: str, name: str) -> Iterator[Client]:
    with site.admitted(KIND, name, session=operator) as client:
        yield client


def test_a_reply_comes_piece_by_piece_and_ends_as_a_message(
    client: Client, name: str, tmp_path: Path
) -> None:
    reader = Reader(client)
    client.send("say", id="1", text=f"stream 10 {tmp_path}/")
    for n in range(10):
        reader.until(lambda n=n: f"[{n}]" in "".join(reader.texts.values()))
        (tmp_path / str(n)).touch()
    reader.until(lambda: len(reader.messages) == 2)
    deltas = [f for f in reader.frames if f["kind"] == "delta"]
    assert 10 <= len(deltas) <= 11
    assert [f["index"] for f in deltas] == list(range(len(deltas)))
    assert "".join(f["text"] for f in deltas) == "".join(f"[{n}]" for n in range(10))
    message = reader.messages[1]
    assert message["content"] == "".join(f"[{n}]" for n in range(10))
    assert message["metadata"]["stream"] == deltas[0]["stream"]
    assert (reader.texts, reader.gaps) == ({}, 0)
    # Its status came and went with it.
    assert [f["status"] for f in reader.frames if f["kind"] == "status"] == ["writing", ""]
    assert not Stream.objects.exists()
    assert not StreamChunk.objects.exists()


def test_pieces_are_gathered_so_that_nobody_pays_for_each_token(client: Client) -> None:
    """300 pieces one after another: a handful of frames, and the whole text."""
    reader = Reader(client)
    client.send("say", id="1", text="stream 300 0")
    reader.until(lambda: len(reader.messages) == 2)
    deltas = [f for f in reader.frames if f["kind"] == "delta"]
    assert len(deltas) < 100
    assert reader.messages[1]["content"] == "".join(f"[{n}]" for n in range(300))
    assert reader.gaps == 0


def test_who_comes_late_gets_the_text_so_far_and_then_the_rest(
    site: Site, client: Client, operator: str, name: str, tmp_path: Path
) -> None:
    client.send("say", id="1", text=f"stream 20 {tmp_path / 'go-on'}")
    early = Reader(client)
    early.until(lambda: "[4]" in "".join(early.texts.values()))
    with site.client(KIND, name, session=operator) as other:
        late = Reader(other)
        other.send("attach")
        late.until(lambda: late.texts)
        assert late.text.startswith("[0][1][2][3][4]")
        assert late.frames[-1]["reset"] is True
        (tmp_path / "go-on").touch()
        late.until(lambda: late.messages)
        early.until(lambda: len(early.messages) == 2)
        assert late.gaps == 0
        assert late.messages[-1] == early.messages[1]


def test_a_client_that_comes_back_in_the_middle_has_one_message_in_the_end(
    site: Site, client: Client, operator: str, name: str, tmp_path: Path
) -> None:
    """The connection is dropped after some pieces, and is back a second later with the last cursor."""
    client.send("say", id="1", text=f"stream 20 {tmp_path / 'go-on'}")
    reader = Reader(client)
    reader.until(lambda: "[5]" in "".join(reader.texts.values()))
    cursor = max(f["cursor"] for f in reader.frames if "cursor" in f)
    stream = next(iter(reader.texts))
    client.ws.close()
    time.sleep(0.7)
    with site.client(KIND, name, session=operator) as again:
        reader.client = again
        again.send("attach", cursor=cursor)
        (tmp_path / "go-on").touch()
        reader.until(lambda: len(reader.messages) == 2)
    whole = "".join(f"[{n}]" for n in range(20))
    assert reader.messages[1]["content"] == whole
    assert reader.messages[1]["metadata"]["stream"] == stream  # the same bubble
    assert (reader.texts, reader.gaps) == ({}, 0)


def test_a_stop_keeps_what_was_shown_and_says_so(
    site: Site, client: Client, operator: str, name: str
) -> None:
    reader = Reader(client)
    client.send("say", id="1", text="stream 600 0.1")
    reader.until(lambda: "[3]" in "".join(reader.texts.values()))
    stream, shown = next(iter(reader.texts.items()))
    client.send("stop", id="s1")
    reader.until(lambda: reader.frames[-1]["kind"] == "ack")
    assert reader.frames[-1] == {"kind": "ack", "id": "s1", "stopped": True}
    reader.until(lambda: len(reader.messages) == 2)
    user, reply = reader.messages
    assert user["content"] == "stream 600 0.1"
    assert reply["metadata"] == {"interrupted": True, "stream": stream}
    assert reply["content"].startswith(shown)
    # What the readers saw is what is stored: a reload shows the same, once.
    with site.client(KIND, name, session=operator) as again:
        assert again.attach()["snapshot"]["messages"] == [user, reply]
        assert again.silent(0.3)
        # Later messages work.
        again.send("say", id="2", text="stream 3 0")
        later = Reader(again)
        later.until(lambda: len(later.messages) == 2)
        assert later.messages[-1]["content"] == "[0][1][2]"
    assert Attempt.objects.get(method="reply", outcome="stopped")
    assert not Stream.objects.exists()
    rendered = ChatterAgent.named(name).sync.rendered()
    assert {"role": "assistant", "content": reply["content"]} in rendered  # the next request has it


def test_a_stop_from_a_second_tab_works_as_well(site: Site, client: Client, operator: str, name: str) -> None:
    reader = Reader(client)
    client.send("say", id="1", text="stream 600 0.1")
    reader.until(lambda: reader.texts)
    with site.client(KIND, name, session=operator) as second:
        second.send("stop", id="s1")
        assert second.until("ack")["stopped"] is True
        second.send("stop", id="s2")
        second.until("ack")
    reader.until(lambda: len(reader.messages) == 2)
    assert reader.messages[1]["metadata"]["interrupted"] is True


def test_a_client_that_leaves_does_not_end_the_reply(
    site: Site, client: Client, operator: str, name: str
) -> None:
    client.send("say", id="1", text="stream 15 0.1")
    reader = Reader(client)
    reader.until(lambda: reader.texts)
    client.ws.close()
    wait_until(lambda: Message.objects.filter(actor__name=name).count() == 2)
    with site.client(KIND, name, session=operator) as again:
        messages = again.attach()["snapshot"]["messages"]
        assert messages[1]["content"] == "".join(f"[{n}]" for n in range(15))
    assert not [line for line in site.lines if "took too long to shut down" in line]


def tell(name: str, plan: dict[str, Any], **options: Any) -> None:
    ChatterAgent.named(name).sync.tell("stream_task", plan, **options)


def test_a_retry_begins_the_stream_anew_and_readers_are_told(client: Client, name: str) -> None:
    reader = Reader(client)
    tell(name, {"text": "hello", "failures": 2})
    reader.until(lambda: reader.messages)
    deltas = [f for f in reader.frames if f["kind"] == "delta"]
    resets = [f for f in deltas if f.get("reset")]
    assert [f["text"].split(":")[0] for f in resets] == ["take 2", "take 3"]
    assert all(f["index"] == 0 for f in resets)
    (stream,) = {f["stream"] for f in deltas}
    (message,) = reader.messages
    assert (message["content"], message["metadata"]) == ("take 3: hello", {"stream": stream})
    assert reader.gaps == 0
    assert not Stream.objects.exists()


def test_who_comes_between_two_attempts_sees_what_the_first_had_shown(
    site: Site, client: Client, operator: str, name: str
) -> None:
    tell(name, {"text": "hello", "failures": 1, "after": 600})
    wait_until(lambda: Attempt.objects.filter(outcome="failed").exists())
    with site.client(KIND, name, session=operator) as other:
        reader = Reader(other)
        other.send("attach")
        reader.until(lambda: reader.texts)
        assert reader.text == "take 1: hello"
        now = get_store().sql.now()  # the pause is over
        Task.objects.update(due_at=now)
        Actor.objects.update(alarm=now)
        reader.until(lambda: reader.messages)
        assert reader.messages[0]["content"] == "take 2: hello"


@pytest.mark.parametrize("plan", [{"failures": 9}, {"gives_up": True}])
def test_a_task_that_is_parked_leaves_what_was_shown(client: Client, name: str, plan: dict[str, Any]) -> None:
    reader = Reader(client)
    tell(name, {"text": "hello", **plan}, max_retries=1)
    reader.until(lambda: reader.messages)
    (message,) = reader.messages
    take = 2 if "failures" in plan else 1
    assert message["content"] == f"take {take}: hello"
    assert message["metadata"]["interrupted"] is True
    assert Task.objects.parked().count() == 1
    assert not Stream.objects.exists()


def test_a_call_that_fails_leaves_nothing_and_readers_throw_it_away(client: Client, name: str) -> None:
    reader = Reader(client)
    client.send("call", id="1", method="stream_call", args=["hello", True])
    reader.until(lambda: reader.frames and reader.frames[-1]["kind"] == "error")
    reader.until(lambda: not reader.texts)
    assert any(f["kind"] == "delta" and f["text"] for f in reader.frames)
    gone = [f for f in reader.frames if f["kind"] == "delta"][-1]
    assert (gone["reset"], gone["done"], gone["text"]) == (True, True, "")
    assert not Message.objects.exists()
    assert not Stream.objects.exists()
    assert not StreamChunk.objects.exists()
    # And what comes later is as if it had never been.
    assert client.call("add", "user", "hi") == 1


def test_a_call_that_is_stopped_leaves_nothing_either(client: Client, name: str) -> None:
    reader = Reader(client)
    client.send("call", id="1", method="stream_call", args=["x" * 500])
    reader.until(lambda: reader.texts)
    client.send("stop", id="s")
    reader.until(lambda: not reader.texts)
    assert not Message.objects.exists()
    wait_until(lambda: not Stream.objects.exists())


def test_a_call_streams_like_a_task(client: Client) -> None:
    reader = Reader(client)
    client.send("call", id="1", method="stream_call", args=["hello"])
    reader.until(lambda: reader.frames and reader.frames[-1]["kind"] == "result")
    assert reader.frames[-1]["value"] == 1
    reader.until(lambda: reader.messages)
    assert reader.messages[0]["content"] == "hello"


def test_two_streams_at_once_do_not_mix(client: Client, name: str) -> None:
    reader = Reader(client)
    client.send("call", id="1", method="stream_two")
    reader.until(lambda: len(reader.messages) == 2)
    assert sorted(m["content"] for m in reader.messages) == ["a" * 20, "b" * 20]
    assert reader.gaps == 0


# A process that dies. Short leases, so that nobody waits for fifteen seconds.

# A lease lasts until the test ends it.
LEASES = {"LEASE": 120.0, "CONNECTION_REFRESH": 1.0, "CONNECTION_EXPIRY": 3.0}


@pytest.mark.usefixtures("alone")
def test_a_process_that_dies_in_the_middle_leaves_the_stream_to_the_retry(operator: str, name: str) -> None:
    with (
        running("--no-scheduler", agents=LEASES) as site,
        site.admitted(KIND, name, session=operator) as client,
    ):
        reader = Reader(client)
        with running(agents=LEASES) as worker:
            tell(name, {"text": "x" * 20, "dies": True}, max_retries=0)
            worker.ended(30)
        assert "".join(StreamChunk.objects.order_by("position").values_list("text", flat=True)).startswith(
            "take 1: "
        )
        # Nobody has claimed the actor yet. The next turn, whatever it is, finds the text in its log.
        Actor.objects.update(lease_expires_at=get_store().sql.now())
        assert client.call("contents") == []  # a read claims nothing
        assert ChatterAgent.named(name).sync.rendered() != []
        (message,) = Message.objects.all()
        assert message.content.startswith("take 1: x")
        assert (message.metadata or {})["interrupted"] is True
        reader.until(lambda: reader.messages)
        assert reader.messages[0]["content"] == message.content
        assert not Stream.objects.exists()


@pytest.mark.usefixtures("alone")
def test_nobody_need_want_the_actor_for_its_stream_to_be_ended(operator: str, name: str) -> None:
    """The process of a call died: the sweep finds it, and readers are told to throw it away."""
    with (
        running("--no-scheduler", agents=LEASES) as site,
        site.admitted(KIND, name, session=operator) as client,
    ):
        reader = Reader(client)
        with (
            running("--no-scheduler", agents=LEASES) as dying,
            dying.admitted(KIND, name, session=operator) as other,
        ):
            other.send("call", id="1", method="stream_call", args=["x" * 500])
            other.until("delta")
            wait_until(lambda: StreamChunk.objects.count() > 3)
            dying.process.kill()
        reader.until(lambda: reader.texts)
        Actor.objects.update(lease_expires_at=get_store().sql.now())
        age()
        reader.until(lambda: not reader.texts, 60)
    assert not Stream.objects.exists()
    assert not Message.objects.exists()


def age() -> None:
    """Lets the streams there are look as if nobody had written them for a while."""
    import datetime as dt

    from django.db.models import F

    Stream.objects.update(written_at=F("written_at") - dt.timedelta(minutes=5))


@pytest.mark.usefixtures("alone")
def test_a_stream_that_pauses_for_long_is_not_taken_for_abandoned(
    operator: str, name: str, tmp_path: Path
) -> None:
    from conversations import streams

    with running() as site, site.admitted(KIND, name, session=operator) as client:
        client.send("say", id="1", text=f"stream 10 {tmp_path / 'go-on'}")
        wait_until(lambda: StreamChunk.objects.filter(text__contains="[6]").exists())
        age()
        time.sleep(0.5)
        assert streams.unattended() == []
        (tmp_path / "go-on").touch()
        reader = Reader(client)
        reader.until(lambda: len(reader.messages) == 2)
        assert "interrupted" not in reader.messages[1]["metadata"]


@pytest.mark.usefixtures("alone")
def test_deltas_that_are_lost_are_made_up_for(operator: str, name: str, tmp_path: Path) -> None:
    """The stream is written in another process, and no channel layer tells of it: the database does."""
    with (
        running("--no-scheduler", agents={"SOCKET_HEADS_INTERVAL": 0.3}, REDIS_URL="") as site,
        site.admitted(KIND, name, session=operator) as client,
        running(REDIS_URL=""),
    ):
        reader = Reader(client)
        ChatterAgent.named(name).sync.tell("reply", f"stream 30 {tmp_path / 'go-on'}")
        reader.until(lambda: "[6]" in "".join(reader.texts.values()))
        (tmp_path / "go-on").touch()
        reader.until(lambda: reader.messages)
        deltas = [f for f in reader.frames if f["kind"] == "delta"]
        assert all(f["reset"] for f in deltas if f["text"])
        lengths = [len(f["text"]) for f in deltas if f["text"]]
        assert lengths == sorted(lengths)
        assert reader.messages[0]["content"] == "".join(f"[{n}]" for n in range(30))


def test_the_actor_is_free_for_readers_while_it_writes(client: Client, name: str, tmp_path: Path) -> None:
    text = f"stream 20 {tmp_path / 'go-on'}"
    client.send("say", id="1", text=text)
    wait_until(lambda: Stream.objects.exists())
    assert client.call("contents") == [text]
    assert json.dumps(client.call("echo", 1))
    assert Actor.objects.get(name=name).token is not None
    (tmp_path / "go-on").touch()
