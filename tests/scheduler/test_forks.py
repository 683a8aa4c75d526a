"""Forks: a conversation runs on from one of its turns, in a copy that texts nobody."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction

from agents import Agent
from agents.exceptions import ForkError
from agents.models import Actor, Operation, Page, TurnRecord
from agents.testing import advance, drain, reset_clock
from agents.threads import with_connection
from conversations import outbox
from conversations.models import OutboundText
from scheduler import forks
from scheduler.audit import audit
from tests.adminpages import signed_in
from tests.agents.facts import attempts, messages, row

pytestmark = pytest.mark.django_db(transaction=True)

THEIRS, OURS = "+15550001111", "+15550009999"
model: list[str] = []


class ForkedAgent(Agent):
    kind = "test-forked"

    async def receive(self, message):
        await self.messages.add("user", message["text"])
        state = await self.get_state()
        await self.set_state({"count": state.get("count", 0) + 1})
        await self.storage.put("last", message["text"])
        await self.queue("process", id="process")

    async def process(self):
        (last,) = await self.messages.last(1)
        reply = f"{model[0]} to {last.content}"
        await self.messages.add("assistant", reply)
        await self.sms.send(reply)
        await ForkedAgent.named("other").tell("note", "told")
        self.at_commit(model.append, "committed")

    async def note(self, text):
        await self.messages.add("user", text)

    async def calls(self, payload=None):
        await ForkedAgent.named("other").note("called")


class ForkedLibrarian(Agent):
    kind = "test-forked-librarian"

    async def receive(self, message):
        await self.sql.exec("CREATE TABLE IF NOT EXISTS books (title TEXT, body TEXT)")
        await self.sql.exec("INSERT INTO books VALUES (?, ?)", message["text"], message["text"] * 4000)

    async def titles(self):
        rows = await self.sql.exec("SELECT title, length(body) AS size FROM books ORDER BY rowid")
        return [(row["title"], row["size"]) for row in rows]


@pytest.fixture(autouse=True)
def _old_model(monkeypatch: pytest.MonkeyPatch) -> Any:
    model[:] = ["old"]
    monkeypatch.setattr(forks, "LONGEST_PAUSE", 1000.0)  # however slow this machine is
    yield
    reset_clock()


def stub(name: str = THEIRS) -> Any:
    return ForkedAgent.named(name)


def talked() -> None:
    for words in ("one", "two", "three"):
        message = {"text": words, "from": THEIRS, "to": OURS, "channel": "sms", "id": words}
        stub().sync.tell("receive", message)
        drain(stub())
        advance(2000)


def version_of(method: str, number: int) -> int:
    rows = TurnRecord.objects.filter(method=method, actor__name=THEIRS).order_by("version")
    return rows.values_list("version", flat=True)[number]


def run_on(made: forks.Fork) -> Any:
    copy = stub(made.actor.name)
    for _ in range(made.inputs + 1):
        drain(copy)
        advance(forks.LONGEST_PAUSE)
    return copy


def test_a_conversation_runs_on_from_a_turn_in_a_copy_that_texts_nobody():
    talked()
    before = messages(stub()), row(stub()).state, row(stub()).version
    texts, committed = OutboundText.objects.count(), model.count("committed")
    model[0] = "new"
    made = forks.fork("test-forked", THEIRS, version_of("receive", 1), by="alice", reason="a new model")
    assert made.actor.state == {"count": 1} and made.inputs == 2
    assert messages(stub(made.actor.name)) == ["one", "old to one"]
    copy = run_on(made)
    assert messages(copy) == ["one", "old to one", "two", "new to two", "three", "new to three"]
    assert row(copy).state == {"count": 3}
    assert (messages(stub()), row(stub()).state, row(stub()).version) == before
    # Nobody was texted or told, and the application's rows are as they were.
    mine = OutboundText.objects.filter(actor=made.actor)
    assert [(t.status, t.reason, t.text) for t in mine] == [
        ("failed", "sandbox", "new to two"), ("failed", "sandbox", "new to three"),
    ]  # fmt: skip
    assert OutboundText.objects.exclude(actor=made.actor).count() == texts
    assert not any(outbox.resend(text) for text in mine)
    assert model.count("committed") == committed
    assert messages(stub("other")) == [] or set(messages(stub("other"))) == {"told"}
    assert Operation.objects.filter(verb="fork", detail__fork=made.actor.name).exists()
    assert [
        found for found in audit(settled=0) if found.check not in ("outbound", "overdue", "inbound")
    ] == []


def test_a_fork_from_a_task_of_its_own_begins_with_that_task():
    talked()
    model[0] = "new"
    made = forks.fork("test-forked", THEIRS, version_of("process", 2), by="alice")
    copy = run_on(made)
    assert messages(copy) == [*messages(stub())[:-1], "new to three"]


def test_a_copy_has_the_rows_of_the_database_in_its_first_turn_and_keeps_them():
    live = ForkedLibrarian.named(THEIRS)
    for words in ("one", "two", "six"):
        live.sync.tell("receive", {"text": words})
        drain(live)
    before = live.sync.titles()
    assert len(before) == 3 and Page.objects.count() > 9
    made = forks.fork("test-forked-librarian", THEIRS, 3, by="alice")
    assert made.as_of_now == ["sql"] and made.inputs == 1
    copy = ForkedLibrarian.named(made.actor.name)
    assert copy.sync.titles() == before
    drain(copy)  # its first turn: the text comes once more, to what is there now
    assert copy.sync.titles() == [*before, ("six", 12_000)]
    assert live.sync.titles() == before
    assert {found.check for found in audit(settled=0)}.isdisjoint({"versions", "pages"})


@pytest.mark.postgres
def test_an_actor_is_copied_without_its_lock():
    talked()
    with ThreadPoolExecutor(1) as thread, transaction.atomic():
        Actor.objects.select_for_update(no_key=True).get(pk=row(stub()).pk)
        version = version_of("process", 2)
        forked = thread.submit(with_connection, forks.fork, "test-forked", THEIRS, version, by="alice")
        assert forked.result(30).inputs == 1
        thread.submit(lambda: connection.close()).result(30)


def test_what_has_no_past_is_said():
    talked()
    early = forks.fork("test-forked", THEIRS, version_of("receive", 0), by="alice")
    assert early.as_of_now == ["keys"]
    assert not early.actor.started and early.actor.state is None
    late = forks.fork("test-forked", THEIRS, version_of("process", 2), by="alice")
    assert late.as_of_now == []


def test_a_copy_calls_no_other_actor():
    stub().sync.tell("calls", {})
    drain(stub())
    made = forks.fork("test-forked", THEIRS, 1, by="alice")
    drain(stub(made.actor.name))
    assert attempts(stub(made.actor.name)) == ["failed"]
    assert messages(stub("other")) == ["called"]


def test_a_turn_that_is_not_there_and_one_that_no_task_began_are_refused():
    with pytest.raises(ForkError):
        forks.fork("test-forked", THEIRS, 1, by="alice")
    stub().sync.note("by a call")
    for version in (1, 2):
        with pytest.raises(ForkError):
            forks.fork("test-forked", THEIRS, version, by="alice")
    assert Actor.objects.filter(sandbox=True).count() == 0


def test_forks_from_the_command_and_the_admin(alice: Any, bob: Any):
    talked()
    out = StringIO()
    call_command("fork_actor", "test-forked", THEIRS, "1", stdout=out)
    assert "3 inputs run again" in out.getvalue() and "as of now, not of then: keys" in out.getvalue()
    with pytest.raises(CommandError, match="fork_failed"):
        call_command("fork_actor", "test-forked", THEIRS, "99")
    url = f"/admin/agents/actor/{row(stub()).pk}/do/fork/"
    assert signed_in(bob).post(url, {"version": "1"}).status_code == 403
    assert "fork_failed" in signed_in(alice).post(url, {"version": "99"}).text
    assert "runs on from there" in signed_in(alice).post(url, {"version": "1"}, follow=True).text
    assert Actor.objects.filter(sandbox=True).count() == 2
