"""Takeover: an operator answers in a conversation, and its agent goes on when it is released."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from io import StringIO
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.core.files.uploadedfile import SimpleUploadedFile
from django.core.management import CommandError, call_command
from django.test import Client

from agents import Agent, pauses
from agents.exceptions import ActorNotTakenOverError, ActorTakenOverError, MessageError
from agents.models import Actor, Blob, Operation, TurnRecord
from agents.testing import advance, drain
from conversations import consent, takeover
from conversations.exceptions import OptedOutError
from conversations.models import ConsentSource, ConsentState, Message, OutboundText, Takeover
from scheduler.audit import audit
from scheduler.dispatchers import local
from scheduler.models import Attempt, Task
from tests.adminpages import page, signed_in
from tests.agents.facts import attempts, messages, row, tasks
from tests.waiting import there_is, wait_until

pytestmark = pytest.mark.django_db(transaction=True)

THEIRS, OURS = "+15550001111", "+15550009999"


class DeskAgent(Agent):
    kind = "test-desk"

    async def on_create(self):
        await self.set_state({"created": True})

    async def receive(self, message):
        await self.messages.add("user", message["text"])
        if message["text"] == "fail":
            raise ValueError("no")
        await self.queue("process", id="process")

    async def process(self):
        await self.messages.add("assistant", "from the agent")
        await self.sms.send("from the agent")

    async def slow(self, path):
        await there_is(path)
        await self.messages.add("assistant", "slow")

    async def keeps(self, payload):
        await self.messages.add("user", "kept")
        await self.checkpoint()
        raise ValueError("after the checkpoint")

    async def add(self, text):
        await self.messages.add("assistant", text)

    async def on_resume(self, seqs):
        await self.set_state({"resumed": seqs, "before": await self.messages.count()})
        await self.cancel_schedule("process")


class QuietAgent(Agent):
    """Has no on_resume."""

    kind = "test-desk-quiet"

    async def receive(self, message):
        await self.messages.add("user", message["text"])


def stub() -> Any:
    return DeskAgent.named(THEIRS)


def text(words: str, id: str = "", to: Any = None) -> None:
    message = {"text": words, "from": THEIRS, "to": OURS, "channel": "sms", "id": id or words}
    (to or stub()).sync.tell("receive", message)


def taken(**options: Any) -> Takeover:
    return takeover.take_over(row(stub()).pk, by="alice", **options)


def released() -> Takeover:
    return takeover.release(row(stub()).pk, by="alice")


def answer(words: str, **options: Any) -> int:
    return takeover.answer("test-desk", THEIRS, words, by="alice", **options)


def test_take_over_answer_release():
    text("hello")
    drain()
    taken(reason="angry customer")
    text("is anybody there?")
    assert drain() == 1
    assert messages(stub()) == ["hello", "from the agent", "is anybody there?"]
    assert answer("I am Alice.") == 4
    text("thanks")
    drain()
    assert [t.text for t in OutboundText.objects.order_by("pk")] == ["from the agent", "I am Alice."]
    assert set(OutboundText.objects.values_list("to_number", flat=True)) == {THEIRS}
    released()
    drain()
    assert row(stub()).state == {"created": True, "resumed": [3, 4, 5], "before": 5}
    text("and now?")
    drain()
    assert messages(stub())[-1] == "from the agent"
    verbs = list(Operation.objects.order_by("pk").values_list("verb", "by", "reason"))
    assert verbs == [
        ("take_over", "alice", "angry customer"), ("answer", "alice", ""), ("release", "alice", ""),
    ]  # fmt: skip
    assert [found for found in audit(settled=0) if found.check != "outbound"] == []


def test_turns_of_the_framework_are_on_record_and_run_no_code_of_the_agent():
    text("first ever")
    taken()
    drain()
    answer("hello")
    records = TurnRecord.objects.order_by("version").values_list("origin", "method", "first_seq")
    assert list(records) == [("takeover", "receive", 1), ("takeover", "answer", 2)]
    assert not row(stub()).started
    assert row(stub()).state is None
    released()
    drain()
    assert (row(stub()).state or {})["created"]


def test_texts_go_past_what_waits_in_the_inbox_and_the_rest_keeps_its_place():
    stub().sync.tell("add", "one")
    taken()
    stub().sync.tell("add", "two")
    text("hello")
    stub().sync.tell("add", "three")
    text("again")
    assert drain() == 2
    assert messages(stub()) == ["hello", "again"]
    assert tasks(stub()) == [("add", "pending", 0)] * 3
    assert list(audit(settled=0)) == []
    released()
    drain()
    assert messages(stub()) == ["hello", "again", "one", "two", "three"]


def test_a_takeover_lets_the_turn_that_runs_end_and_its_drain_goes_no_further(tmp_path):
    over = tmp_path / "over"
    for _ in range(2):
        stub().sync.tell("slow", str(over))
    text("meanwhile")
    with ThreadPoolExecutor(1) as thread:
        ran = thread.submit(drain)
        wait_until(lambda: Attempt.objects.exists())
        taken()
        over.touch()
        ran.result()
    drain()
    assert messages(stub()) == ["slow", "meanwhile"]
    assert attempts(stub()) == ["done", "done"]
    assert tasks(stub()) == [("slow", "pending", 0)]
    released()
    drain()
    assert (row(stub()).state or {})["resumed"] == [2]


def test_a_takeover_may_stop_the_turn_that_runs(tmp_path):
    stub().sync.tell("slow", str(tmp_path / "never"))
    with ThreadPoolExecutor(1) as thread:
        ran = thread.submit(drain)
        wait_until(lambda: Attempt.objects.exists())
        taken(stop=True)
        ran.result(timeout=60)
    assert attempts(stub()) == ["stopped"]
    assert messages(stub()) == []


def test_takeovers_and_drains_may_race():
    """Whenever it comes: each text is in the log once, and after it the agent says nothing."""
    local.start()
    for number in range(8):
        agent = DeskAgent.named(f"race{number}")
        text("a", f"{number}a", agent)
        with ThreadPoolExecutor(1) as thread:
            thread.submit(text, "b", f"{number}b", agent)
            takeover.take_over(row(agent).pk, by="alice")
        text("c", f"{number}c", agent)
        wait_until(lambda: [m for m in messages(agent) if m in "abc"] == ["a", "b", "c"])  # noqa: B023
        wait_until(lambda: row(agent).token is None)  # noqa: B023
        said = len(messages(agent))
        takeover.release(row(agent).pk, by="alice")
        wait_until(lambda: (row(agent).state or {}).get("resumed") is not None)  # noqa: B023
        assert (row(agent).state or {})["before"] == said
    local.stop()


def test_calls_are_refused_while_an_operator_answers():
    stub().sync.add("one")
    taken()
    with pytest.raises(ActorTakenOverError) as refused:
        stub().sync.add("two")
    assert (refused.value.code, refused.value.hold) == ("taken_over", "taken")
    with pytest.raises(ActorTakenOverError, match="alice"):
        taken()


def test_only_who_has_taken_over_answers_and_releases():
    with pytest.raises(ActorNotTakenOverError):
        answer("hello")
    assert not Actor.objects.exists()
    stub().sync.add("one")
    with pytest.raises(ActorNotTakenOverError):
        answer("hello")
    with pytest.raises(ActorNotTakenOverError):
        released()
    taken()
    with pytest.raises(MessageError):
        answer("  ")
    assert messages(stub()) == ["one"]


def test_an_answer_is_said_once_however_often_its_form_is_sent():
    text("hello")
    taken()
    drain()
    assert answer("yes", key="k1") == answer("yes", key="k1") == 2
    assert answer("yes", key="k2") == 3
    assert OutboundText.objects.count() == 2


def test_who_wants_no_texts_gets_none_from_operators_either():
    text("hello")
    taken()
    drain()
    consent.record(THEIRS, OURS, ConsentState.OPTED_OUT, ConsentSource.KEYWORD)
    with pytest.raises(OptedOutError):
        answer("please come back")
    assert messages(stub()) == ["hello"]


def test_a_conversation_on_a_page_is_answered_in_its_log_alone():
    stub().sync.tell("receive", {"text": "hi", "channel": "web", "id": "w1"})
    taken()
    drain()
    answer("hello")
    assert messages(stub()) == ["hi", "hello"]
    assert not OutboundText.objects.exists()
    assert Message.objects.filter(seq=1, metadata__id="w1").exists()


def test_what_the_agent_failed_to_receive_is_shown_and_not_tried_again():
    text("fail")
    drain()
    assert messages(stub()) == []
    taken()
    drain()
    assert messages(stub()) == ["fail"]
    assert tasks(stub()) == []


def test_an_operator_can_take_over_what_is_paused():
    text("hello")
    pauses.pause_kind("test-desk", by="bob")
    pauses.pause("test-desk", THEIRS, by="bob")
    assert drain() == 0
    taken()
    assert drain() == 1
    assert answer("hello") == 2
    released()
    assert drain() == 0  # paused, as before
    pauses.resume("test-desk", THEIRS, by="bob")
    pauses.resume_kind("test-desk", by="bob")
    drain()
    assert (row(stub()).state or {})["resumed"] == [1, 2]


def test_timers_wait_and_run_after_the_release_behind_on_resume():
    text("hello")
    drain(DeskAgent.named("nobody"))
    wait = QuietAgent.named("q")
    wait.sync.tell("receive", {"text": "x"})
    taken()
    Task.objects.create(actor=row(stub()), task_id="process", method="process", due_at=row(stub()).created_at)
    advance(3600)
    drain()
    assert messages(stub()) == ["hello"]
    released()
    drain()
    # on_resume ran first, and took back the answer that was on its way
    assert messages(stub()) == ["hello"]
    assert (row(stub()).state or {})["resumed"] == [1]


def test_a_class_without_on_resume_just_goes_on():
    quiet = QuietAgent.named(THEIRS)
    quiet.sync.tell("receive", {"text": "one"})
    takeover.take_over(row(quiet).pk, by="alice")
    drain()
    takeover.release(row(quiet).pk, by="alice")
    assert tasks(quiet) == []


def test_a_takeover_through_the_command():
    def run(*arguments: str) -> str:
        out = StringIO()
        call_command("take_over", *arguments, stdout=out)
        return out.getvalue().strip()

    text("hello")
    assert run("test-desk", THEIRS).startswith(f"test-desk/{THEIRS} is yours")
    drain()
    assert run("test-desk", THEIRS, "--say", "hi") == "said as message 2"
    assert run("test-desk", THEIRS, "--release").endswith("is its agent's again")
    with pytest.raises(CommandError, match="not_taken_over"):
        run("test-desk", THEIRS, "--release")
    with pytest.raises(CommandError, match="no test-desk/nobody"):
        run("test-desk", "nobody")


def test_the_transcript_says_who_answers_and_has_the_buttons(alice: Any, bob: Any):
    text("hello")
    drain()
    url = f"/admin/conversations/message/transcript/{row(stub()).pk}/"
    client, other = signed_in(alice), signed_in(bob)
    assert "Take over" in client.get(url).text
    assert "Take over" not in other.get(url).text
    assert other.post(f"{url}operate/", {"verb": "take_over"}).status_code == 403
    assert Client().post(f"{url}operate/", {"verb": "take_over"}).status_code == 302
    assert client.get(f"{url}operate/").status_code == 405
    shown = client.post(f"{url}operate/", {"verb": "take_over", "reason": "<b>"}, follow=True).text
    assert "taken over" in shown and "&lt;b&gt;" in shown
    assert "taken over" in other.get(url).text
    client.post(f"{url}operate/", {"verb": "answer", "text": "hi", "key": "k"}, follow=True)
    assert messages(stub())[-1] == "hi"
    assert "already" not in client.post(f"{url}operate/", {"verb": "release"}, follow=True).text
    assert LogEntry.objects.count() == 3
    assert "has taken this" in client.post(f"{url}operate/", {"verb": "release"}, follow=True).text


PNG = b"\x89PNG\r\n\x1a\n" + b"a picture"


def answered(client: Client, text: str, *files: SimpleUploadedFile, key: str = "") -> str:
    """What the page says to an answer with files."""
    url = f"/admin/conversations/message/transcript/{row(stub()).pk}/operate/"
    said = {"verb": "answer", "text": text, "key": key, "files": list(files)}
    return str(client.post(url, said, follow=True).text)


def test_an_answer_with_a_picture_is_kept_shown_and_texted(alice: Any):
    text("hello")
    taken()
    drain()
    client = signed_in(alice)
    picture = SimpleUploadedFile("../the <b>chart</b>.jpg", PNG, "image/jpeg")
    shown = answered(
        client, "Look:", picture, SimpleUploadedFile("a.pdf", b"%PDF-", "application/pdf"), key="k"
    )
    said = Message.objects.get(role="assistant")
    parts: Any = said.parts
    assert said.content == "Look:"
    # As what it is, under a name that is not the uploader's.
    assert [part["type"] for part in parts] == ["text", "image", "file"]
    assert parts[1]["mime_type"] == "image/png" and "chart" not in str(parts)
    (sent,) = OutboundText.objects.all()
    keys = [item["blob"] for item in sent.media]
    assert (sent.text, len(keys)) == ("Look:", 2)
    assert [part["extras"]["blob"] for part in parts[1:]] == keys
    assert parts[1]["url"] in shown
    assert client.get(parts[1]["url"]).content == PNG
    # The same once more says and keeps nothing; a picture needs no words.
    picture.seek(0)
    answered(client, "Look:", picture, key="k")
    assert (OutboundText.objects.count(), Blob.objects.count()) == (1, 2)
    picture.seek(0)
    answered(client, "", picture)
    assert OutboundText.objects.order_by("pk").last().text == ""  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ([("a.exe", b"MZ", "application/x-msdownload")], "of a type that is not sent"),
        ([("a.svg", b"<svg onload=alert(1)>", "image/svg+xml")], "is no PNG, JPEG, GIF or WebP"),
        ([("a.png", b"no picture", "image/png")], "is no PNG, JPEG, GIF or WebP"),
        ([("a.png", b"", "image/png")], "is empty"),
        ([("a.png", PNG + b"x" * 600, "image/png"), ("b.png", PNG + b"x" * 600, "image/png")], "1,000 bytes"),
        ([("a.png", PNG, "image/png")] * 11, "10 files at most"),
        ([], "needs words, or a picture"),
    ],
)
def test_a_file_that_is_not_sent_says_why_and_nothing_is_said(
    alice: Any, settings: Any, files: list[Any], why: str
):
    settings.AGENTS = {**settings.AGENTS, "MAX_MEDIA_BYTES": 1000}
    text("hello")
    taken()
    drain()
    words = "Look:" if files else ""
    shown = answered(signed_in(alice), words, *(SimpleUploadedFile(*file) for file in files))
    assert why in shown
    assert messages(stub()) == ["hello"]
    assert not Blob.objects.exists() and not OutboundText.objects.exists()


def test_an_answer_to_somebody_who_has_opted_out_leaves_no_file(alice: Any):
    text("hello")
    taken()
    drain()
    consent.record(THEIRS, OURS, ConsentState.OPTED_OUT, ConsentSource.KEYWORD)
    shown = answered(signed_in(alice), "Look:", SimpleUploadedFile("a.png", PNG, "image/png"))
    assert "wants no texts" in shown
    assert not Blob.objects.exists() and not OutboundText.objects.exists()


def test_a_file_goes_along_from_the_command(tmp_path: Any):
    text("hello")
    taken()
    drain()
    (tmp_path / "a.png").write_bytes(PNG)
    command = ["take_over", "test-desk", THEIRS, "--say", "Look:", "--file"]
    call_command(*command, str(tmp_path / "a.png"), stdout=StringIO())
    assert len(OutboundText.objects.get().media) == 1
    for file, why in ((tmp_path / "none.png", "none.png"), (tmp_path, "irectory")):
        with pytest.raises(CommandError, match=why):
            call_command(*command, str(file), stdout=StringIO())


def test_a_file_without_words_is_an_answer_too_and_takes_nothing_over(tmp_path: Any):
    text("hello")
    drain()
    (tmp_path / "a.png").write_bytes(PNG)
    command = ["take_over", "test-desk", THEIRS, "--file", str(tmp_path / "a.png")]
    with pytest.raises(CommandError, match="not_taken_over"):
        call_command(*command, stdout=StringIO())
    assert not Takeover.objects.exists()
    taken()
    call_command(*command, stdout=StringIO())
    assert [len(sent.media) for sent in OutboundText.objects.order_by("pk")] == [0, 1]


def test_one_actor_and_many_are_paused_alike_from_the_admin(alice: Any):
    """OPS-06: the same rows, the same waiting, the same entries, by a form and by a bulk action."""
    client = signed_in(alice)
    names = ["one", "two", "three"]
    for name in names:
        DeskAgent.named(name).sync.add("x")
        DeskAgent.named(name).sync.tell("add", "y")
    rows = [row(DeskAgent.named(name)) for name in names]
    for action in ("pause", "resume"):
        client.post(f"/admin/agents/actor/{rows[0].pk}/do/{action}/", {"reason": ""})
        client.post("/admin/agents/actor/", {"action": action, "_selected_action": [r.pk for r in rows[1:]]})
        paused = {r.paused_at is not None for r in Actor.objects.all()}
        assert paused == {action == "pause"}
        assert {r.alarm is None for r in Actor.objects.all()} == {action == "pause"}
    assert Operation.objects.filter(by="alice").values_list("verb", flat=True).count() == 6
    assert LogEntry.objects.count() == 6
    drain()
    assert [messages(DeskAgent.named(name)) for name in names] == [["x", "y"]] * 3


def test_kinds_are_paused_on_a_page_of_their_own(alice: Any, bob: Any):
    client = signed_in(alice)
    client.post("/admin/agents/pause/add/", {"kind": "test-desk", "reason": "why"})
    assert Operation.objects.get().reason == "why"
    with pytest.raises(Exception, match="paused"):
        stub().sync.add("x")
    assert signed_in(bob).get("/admin/agents/pause/add/").status_code == 403
    (paused,) = pauses.Pause.objects.all()
    client.post(f"/admin/agents/pause/{paused.pk}/delete/", {"post": "yes"})
    stub().sync.add("x")
    assert "pause" in page(client, "/admin/agents/operation/").text
