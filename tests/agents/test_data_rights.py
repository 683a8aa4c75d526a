"""Data rights: export, import, erasure; and that no table is forgotten."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth.models import Permission
from django.core.files.storage import default_storage
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.models import ForeignKey

from agents import Agent, erasing, masking, moving, pauses, reads
from agents.exceptions import ExportError, ImportRefusedError
from agents.holdings import HOLDINGS
from agents.models import Actor, Blob, Connection, Erasure, Operation
from agents.testing import drain
from conversations import consent, takeover
from conversations.inbox import accept
from conversations.models import (
    Consent,
    ConsentSource,
    ConsentState,
    InboundText,
    Message,
    OutboundText,
    Seen,
    Stream,
    StreamChunk,
    TextEvent,
)
from conversations.providers.base import ReceivedText
from conversations.providers.memory import MemoryProvider
from scheduler.models import ReplayJob, ReplaySource, Step, Task
from tests.adminpages import signed_in
from tests.agents.facts import messages, row
from tests.servers import ROOT
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

THEIRS, OURS = "+15550001111", "+15550009999"

MESSAGE = '{"table": "conversations.Message", "row": {%s}}\n'
#: Our tables that have nothing of any one actor, and why.
OF_NO_ACTOR = {
    "agents.Actor": "the actor itself, which goes last",
    "agents.Pause": "kinds",
    "agents.Operation": "stays without its name (own_holdings)",
    "agents.Erasure": "the line that is left",
    "conversations.Consent": "stays without its numbers (conversations.consent.erase)",
    "conversations.ConsentChange": "as its consent",
    "conversations.Pace": "numbers of ours",
    "scheduler.HourTally": "counts by kind",
    "scheduler.Pulse": "who sweeps",
    "scheduler.ReplayJob": "its tasks are named one by one",
}


class PersonAgent(Agent):
    kind = "test-person"
    sensitive = ("ssn",)

    async def receive(self, message):
        await self.messages.add("user", message["text"])
        await self.set_state({"who": message["text"], "ssn": "078-05-1120", "deep": [{"ssn": 1, "x": 2}]})
        await self.sms.send("hello to you")
        await self.schedule(3600, "later", {"about": message["text"]}, id="later")
        await self.blobs.put("letter", message["text"].encode(), "text/plain")
        await self.storage.put("note", message["text"])
        await self.sql.exec("CREATE TABLE IF NOT EXISTS t (x); INSERT INTO t VALUES (?)", message["text"])
        await self.emit("custom", message["text"])

    async def later(self, payload):
        await self.step("paid", self.pay)
        raise ValueError(f"secret {payload}")

    def pay(self):
        return "receipt of Ms Example"

    async def jot(self, words):
        await self.messages.add("user", words)

    async def slow(self):
        await self.blobs.put("slow", b"secret")
        await asyncio.sleep(30)

    @reads
    async def rows(self):
        return (await self.sql.exec("SELECT x FROM t")).to_array()

    @reads
    async def letter(self):
        return (await self.blobs.get("letter")).decode()


def stub() -> Any:
    return PersonAgent.named(THEIRS)


def text(words: str, id: str) -> None:
    received = ReceivedText(
        event_id=f"e{id}", message_id=f"m{id}", from_number=THEIRS, to_number=OURS, text=words, media=[]
    )
    accept(MemoryProvider(), received, "test-person")


@pytest.fixture
def person(alice: Any) -> Actor:
    """Somebody of whom there is something in every table."""
    text("I am Ms Example", "1")
    drain()
    Task.objects.filter(method="later").update(due_at=dt.datetime(2026, 1, 1, tzinfo=dt.UTC))
    pauses.pause("test-person", THEIRS, by="alice")
    pauses.resume("test-person", THEIRS, by="alice", reason=f"for {THEIRS}")
    drain()  # it fails, and is tried again
    actor = row(stub())
    taken = takeover.take_over(actor.pk, by="alice")
    takeover.release(actor.pk, by="alice")
    out = OutboundText.objects.get()
    TextEvent.objects.create(text=out, provider="memory", event_id="r1", provider_id="p1", said="delivered")
    now = actor.created_at
    task = Task.objects.get(method="later")
    Stream.objects.create(
        actor=actor, uid="s1", turn_id=taken.uid, task_pk=task.pk, number=1, take=1, chunks=1,
        role="assistant", written_at=now,
    )  # fmt: skip
    StreamChunk.objects.create(actor=actor, uid="s1", position=0, text="Ms Exa")
    job = ReplayJob.objects.create(by="alice", reason="again", source=ReplaySource.PARKED, total=1)
    job.items.create(actor=actor, number=task.pk, error="refused for Ms Example")
    Seen.objects.note(alice, actor.pk, 1)
    Connection.objects.create(id=taken.uid, kind="test-person", name=THEIRS, user_id="7")
    consent.record(THEIRS, OURS, ConsentState.OPTED_OUT, ConsentSource.KEYWORD, word="STOP MS EXAMPLE")
    for thing in (actor, InboundText.objects.get(), task):
        LogEntry.objects.log_actions(alice.pk, [thing], CHANGE, f"did something to {THEIRS}")
    return actor


def exported(**options: Any) -> list[str]:
    return list(moving.export("test-person", THEIRS, by="alice", **options))


def everything() -> str:
    """All that the database says, as text."""
    found = []
    with connection.cursor() as cursor:
        for table in connection.introspection.table_names(cursor):
            cursor.execute(f"SELECT * FROM {connection.ops.quote_name(table)}")
            found += [f"{table}: {value!r}" for line in cursor.fetchall() for value in line]
    return "\n".join(bytes(v).decode("latin1") if isinstance(v, memoryview) else v for v in found)


# No table is forgotten


def leads_to_an_actor(model: Any, seen: frozenset[Any] = frozenset()) -> bool:
    names = {f.name for f in model._meta.concrete_fields}
    if {"kind", "name"} <= names or any("number" in n and n != "number" for n in names) or "actor" in names:
        return True
    return any(
        isinstance(f, ForeignKey)
        and f.related_model not in seen
        and leads_to_an_actor(f.related_model, seen | {model})
        for f in model._meta.concrete_fields
    )


def test_every_table_is_handled_by_erasure_and_export():
    ours = ("agents", "conversations", "scheduler")
    for model in apps.get_models():
        label = model._meta.label
        if model._meta.app_label in ours:
            assert (label in HOLDINGS) != (label in OF_NO_ACTOR), (
                f"{label}: name it in its app's holdings.py, or here as of no actor"
            )
        elif leads_to_an_actor(model):
            pytest.fail(f"{label} leads to an actor: name it in its app's holdings.py")


def test_the_person_of_these_tests_has_something_in_every_table(person: Actor):
    assert [label for label, holding in HOLDINGS.items() if not holding.of(person).exists()] == []


# Erasure


def test_an_erasure_leaves_nothing_but_its_line_and_the_consent(person: Actor, alice: Any):
    path = Blob.objects.get().path
    other = PersonAgent.named("other")
    other.sync.tell("receive", {"text": "somebody else"})
    pauses.pause("test-person", "other", by="alice")
    erasure = erasing.erase("test-person", THEIRS, by="alice", reason="they asked")
    assert erasure is not None and erasure.counts["conversations.Message"] == 1
    left = everything()
    for word in (THEIRS, "Example", "078-05", "hello to you", "secret", "receipt", "STOP MS"):
        assert word not in left, [line for line in left.splitlines() if word in line]
    assert "somebody else" in left
    assert not default_storage.exists(path)
    assert consent.is_opted_out(THEIRS, OURS)
    assert Consent.objects.get().their_number == ""
    assert erasing.was_erased("test-person", THEIRS) and not erasing.was_erased("test-person", "other")
    assert {e.object_repr for e in LogEntry.objects.all()} == {"erased"}
    assert LogEntry.objects.count() == 3
    assert Operation.objects.filter(verb="take_over", by="alice", name="").exists()
    assert (erasure.by, erasure.reason) == ("alice", "they asked")


def test_an_erasure_twice_is_one(person: Actor):
    assert erasing.erase("test-person", THEIRS, by="alice") is not None
    assert erasing.erase("test-person", THEIRS, by="alice") is None
    assert Erasure.objects.count() == 1


def test_an_erasure_while_a_turn_runs_leaves_nothing_of_it():
    stub().sync.jot("hello")
    folder = f"agents/blobs/{row(stub()).pk}"

    def files() -> set[str]:  # another test's actor may have had the same number
        return set(default_storage.listdir(folder)[1]) if default_storage.exists(folder) else set()

    before = files()
    stub().sync.tell("slow")
    with ThreadPoolExecutor(1) as thread:
        ran = thread.submit(drain)
        wait_until(lambda: files() - before)
        erasing.erase("test-person", THEIRS, by="alice")
        ran.result(timeout=20)
    assert not Actor.objects.exists()
    assert not Blob.objects.exists()
    wait_until(lambda: files() <= before)


def test_a_text_that_comes_meanwhile_begins_anew_or_is_gone():
    for number in range(12):
        text("I am Ms Example", f"a{number}")
        with ThreadPoolExecutor(1) as thread:

            def late(number: int = number) -> None:
                text("late", f"b{number}")
                connection.close()

            told = thread.submit(late)
            erasing.erase("test-person", THEIRS, by="alice")
            told.result()
        assert not InboundText.objects.filter(text__contains="Example").exists()
        late_ones = InboundText.objects.filter(message_id=f"mb{number}")
        if late_ones.exists():  # the erasure was first: a new conversation
            drain()
            assert messages(stub()) == ["late"]
            erasing.erase("test-person", THEIRS, by="alice")
        assert not Actor.objects.exists()


def test_an_erased_address_begins_anew(person: Actor):
    before = person.pk
    erasing.erase("test-person", THEIRS, by="alice")
    stub().sync.jot("again")
    assert row(stub()).pk != before
    assert messages(stub()) == ["again"]
    assert row(stub()).version == 1


# Export and import


def test_what_is_exported_comes_back_the_same(person: Actor):
    lines = exported(sensitive=True)
    before = {label: holding.of(person).count() for label, holding in HOLDINGS.items() if holding.exported}
    log = list(Message.objects.values_list("seq", "role", "content", "metadata"))
    state = row(stub()).state
    erasing.erase("test-person", THEIRS, by="alice")
    actor = moving.load(lines, by="bob", reason="moved")
    after = {label: holding.of(actor).count() for label, holding in HOLDINGS.items() if holding.exported}
    assert after == before
    assert row(stub()).state == state
    assert list(Message.objects.values_list("seq", "role", "content", "metadata")) == log
    assert stub().sync.rows() == [{"x": "I am Ms Example"}]
    assert stub().sync.letter() == "I am Ms Example"
    # It is paused, and nothing that may have been sent there is sent here.
    assert actor.paused_at is not None and actor.alarm is None
    assert drain() == 0
    assert [t.status for t in OutboundText.objects.all()] == ["unknown"]
    # What referred to a task refers to the same one.
    task = Task.objects.get(method="later")
    assert Step.objects.get().task_pk == Stream.objects.get().task_pk == task.pk
    pauses.resume("test-person", THEIRS, by="bob")
    assert Operation.objects.filter(verb="import", by="bob", reason="moved").exists()


def test_a_copy_goes_under_another_name_and_an_actor_that_is_here_stays(person: Actor):
    lines = exported(redacted=True)
    with pytest.raises(ImportRefusedError, match="here already"):
        moving.load(exported(), by="bob")
    actor = moving.load(lines, by="bob", name="copy")
    assert (actor.kind, actor.name) == ("test-person", "copy")
    assert (row(stub()).state or {})["who"] == "I am Ms Example"


def test_sensitive_keys_are_in_an_export_only_if_asked_for(person: Actor, alice: Any):
    said = "".join(exported())
    assert "078-05-1120" not in said and masking.MASK in said
    assert "078-05-1120" in "".join(exported(sensitive=True))
    page = signed_in(alice).get(f"/admin/agents/actor/{person.pk}/change/").text
    assert "078-05-1120" not in page and masking.MASK in page
    erasing.erase("test-person", THEIRS, by="alice")
    moving.load(said.splitlines(), by="bob")
    assert row(stub()).state == {"who": "I am Ms Example", "deep": [{"x": 2}]}


def test_what_is_sensitive_is_exported_by_whoever_may_have_it_and_by_nobody_else(
    person: Actor, alice: Any, charlie: Any
):
    charlie.is_staff = True
    charlie.save()
    everything = Permission.objects.exclude(codename="export_sensitive_actor")
    charlie.user_permissions.set(everything)
    do = f"/admin/agents/actor/{person.pk}/do/"
    client, name = signed_in(charlie), "export-sensitive"
    assert client.post(f"{do}{name}/", {"reason": "x"}).status_code == 403
    assert f"{do}{name}/" not in client.get(f"/admin/agents/actor/{person.pk}/change/").text
    plain = client.post(f"{do}export/", {"reason": "x", "sensitive": "on"}).text
    assert "078-05-1120" not in plain and masking.MASK in plain

    charlie.user_permissions.set(
        Permission.objects.filter(codename__in=["export_sensitive_actor", "view_kind_test-person"])
    )
    client = signed_in(charlie)
    assert client.post(f"{do}export/", {"reason": "x"}).status_code == 403
    assert f"{do}{name}/" in signed_in(alice).get(f"/admin/agents/actor/{person.pk}/change/").text
    assert "This field is required" in client.post(f"{do}{name}/", {"reason": ""}).text
    assert "078-05-1120" in client.post(f"{do}{name}/", {"reason": "a move"}).text
    noted = Operation.objects.filter(verb="export", by=charlie.username).latest("pk")
    assert (noted.reason, noted.detail) == ("a move", {"redacted": False, "sensitive": True})
    charlie.user_permissions.remove(Permission.objects.get(codename="view_kind_test-person"))
    assert signed_in(charlie).post(f"{do}{name}/", {"reason": "x"}).status_code == 404


def test_a_mask_covers_keys_however_deep_and_keeps_what_is_taken_away():
    tree = {"ssn": "1", "a": [{"ssn": {"x": 1}}, 2], "patch": {"ssn": None}}
    assert masking.masked("test-person", tree) == {
        "ssn": "•••", "a": [{"ssn": "•••"}, 2], "patch": {"ssn": None}
    }  # fmt: skip
    assert masking.masked("test-counter", tree) == tree
    assert masking.masked("not-installed", tree) == tree


def test_a_redacted_export_has_shapes_alone(person: Actor):
    lines = exported(redacted=True)
    said = "".join(lines)
    for word in (THEIRS, OURS, "Example", "078-05", "hello", "secret", "receipt", "letter", '"note"'):
        assert word not in said, [line for line in lines if word in line]
    rows = [json.loads(line) for line in lines[1:-1]]
    (message,) = [r["row"] for r in rows if r.get("table") == "conversations.Message"]
    assert (message["role"], message["content"]) == ("user", "x xx xx xxxxxxx")
    numbers = {r["row"]["from_number"] for r in rows if r.get("table") == "conversations.InboundText"}
    to = {r["row"]["to_number"] for r in rows if r.get("table") == "conversations.OutboundText"}
    assert numbers == to  # who is who can still be seen


@pytest.mark.parametrize(
    "broken",
    [
        lambda lines: lines[:-1],
        lambda lines: lines[:3] + lines[4:],
        lambda lines: ["not JSON\n"],
        lambda lines: ["[]\n"],
        lambda lines: [],
        lambda lines: ['{"format": "another"}\n', '{"end": 1}\n'],
        lambda lines: [*lines[:2], '{"table": "auth.User", "row": {}}\n', '{"end": 3}\n'],
        lambda lines: [*lines[:2], MESSAGE % '"nonsense": 1', '{"end": 3}\n'],
        lambda lines: [*lines[:2], MESSAGE % '"seq": "x"', '{"end": 3}\n'],
    ],
)  # fmt: skip
def test_a_file_that_is_no_whole_export_is_refused_and_leaves_nothing(person: Actor, broken: Any):
    lines = exported()
    erasing.erase("test-person", THEIRS, by="alice")
    with pytest.raises(ImportRefusedError):
        moving.load(broken(lines), by="bob")
    assert not Actor.objects.exists()
    assert not Message.objects.exists()


def test_nobody_is_exported_who_is_not_there():
    with pytest.raises(ExportError):
        list(moving.export("test-person", "nobody", by="alice"))


def test_the_commands_move_and_erase(person: Actor, tmp_path: Path):
    def run(*arguments: str, **options: Any) -> str:
        out = StringIO()
        call_command(*arguments, stdout=out, **options)
        return out.getvalue().strip()

    file = tmp_path / "person.jsonl"
    assert f"is in {file}" in run("export_actor", "test-person", THEIRS, str(file), "--sensitive")
    assert file.stat().st_mode & 0o077 == 0
    with pytest.raises(CommandError, match="already"):
        run("export_actor", "test-person", THEIRS, str(file))
    with pytest.raises(CommandError, match="export_failed"):
        run("export_actor", "test-person", "nobody", str(tmp_path / "other"))
    assert [path.name for path in tmp_path.iterdir()] == ["person.jsonl"]
    assert run("erase_actor", "test-person", THEIRS, "--yes").endswith("is erased")
    with pytest.raises(CommandError, match="There is no"):
        run("erase_actor", "test-person", THEIRS, "--yes")
    assert run("import_actor", str(file)).endswith("is here, paused, with 1 messages")
    with pytest.raises(CommandError, match="import_refused"):
        run("import_actor", str(file))


@pytest.mark.postgres
@pytest.mark.processes
def test_an_actor_goes_to_another_kind_of_database_and_comes_back_the_same(person: Actor, tmp_path: Path):
    elsewhere = {**os.environ, "DATABASE_URL": f"sqlite:///{tmp_path / 'elsewhere.sqlite3'}"}

    def there(*arguments: str) -> None:
        command = [sys.executable, "manage.py", *arguments]
        subprocess.run(command, cwd=ROOT, env=elsewhere, check=True, capture_output=True, timeout=120)

    def rows(lines: list[str]) -> list[Any]:
        """What is in a file, but for who moved it, that it came in paused, and where rows and files lie."""
        found = [json.loads(line) for line in lines[1:-1]]
        kept = [line for line in found if line.get("table") != "agents.Operation" and "actor" not in line]
        for line in kept:
            for number in ("id", "task_pk", "text_id", "path"):
                line.get("row", {}).pop(number, None)
        return kept

    OutboundText.objects.update(status="sent")  # what waits is sent by nobody elsewhere
    here = exported(sensitive=True)
    (tmp_path / "here").write_text("".join(here))
    erasing.erase("test-person", THEIRS, by="alice")
    there("migrate", "-v0")
    there("import_actor", str(tmp_path / "here"))
    there("export_actor", "test-person", THEIRS, str(tmp_path / "there"), "--sensitive")
    moving.load((tmp_path / "there").read_text().splitlines(keepends=True), by="bob")
    back = exported(sensitive=True)
    assert rows(back) == rows(here)
    assert Message.objects.get().content == "I am Ms Example"


def test_the_admin_exports_and_erases_for_whoever_may(person: Actor, alice: Any, bob: Any):
    do = f"/admin/agents/actor/{person.pk}/do/"
    for verb in ("export", "erase", "pause", "nonsense"):
        assert signed_in(bob).post(f"{do}{verb}/", {"reason": "x"}).status_code == 403
    client = signed_in(alice)
    answer = client.post(f"{do}export/", {"reason": "", "redacted": "on"})
    assert answer["Content-Disposition"].startswith("attachment")
    assert "Example" not in answer.text and answer.text.count("\n") > 10
    assert "This field is required" in client.post(f"{do}erase/", {"reason": ""}).text
    assert "Erased" in client.post(f"{do}erase/", {"reason": "they asked"}, follow=True).text
    assert not Actor.objects.exists()
    assert THEIRS not in client.get("/admin/").text
