"""The state as of any turn whose record is kept, and what a record says that its turn wrote."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from agents import Agent, codec
from agents.exceptions import PastUnknownError
from agents.models import Actor, TurnRecord
from agents.past import state_at

pytestmark = pytest.mark.django_db(transaction=True)


class Historian(Agent):
    kind = "historian"

    def initial_state(self):
        return {"status": "idle"}

    async def put(self, patch):
        await self.set_state(patch)

    async def anew(self, state):
        await self.replace_state(state)

    async def twice(self):
        await self.set_state({"half": 1})
        await self.checkpoint()
        await self.set_state({"half": None, "whole": dt.date(2026, 11, 30)})

    async def busy(self):
        await self.messages.add("user", "hello")
        await self.schedule(60, "put", id="later")
        await self.queue("put", {"a": 1}, id="gone")
        await self.cancel_schedule("gone")
        await self.storage.put("k", 1)
        await self.sms.send("Hi.", to="+15550001111", sender="+15550009999")
        await type(self).named("a name that is nobody's business").tell("put", {"b": 2})

    async def undecided(self):
        await self.cancel_schedule("later")


def actor() -> Actor:
    return Actor.objects.get(kind="historian", name="x")


def test_every_version_has_the_state_it_had():
    stub = Historian.named("x").sync
    seen: list[Any] = [None]
    for call, value in (
        (stub.put, {"a": {"b": 1}}),
        (stub.put, {"a": {"b": None, "c": [None, 2]}, "status": "open"}),
        (stub.anew, {"day": dt.date(2026, 1, 1), "none": None}),
        (stub.put, {"day": {"plain": True}}),
        (stub.anew, {}),
    ):
        call(value)
        seen.append(actor().state)
    assert seen[-1] == {}
    stub.twice()
    seen += [{"half": 1}, codec.encode({"whole": dt.date(2026, 11, 30)})]
    now = actor()
    assert [state_at(now, version) for version in range(now.version + 1)] == seen


def test_a_row_that_was_read_before_later_commits_still_answers():
    stub = Historian.named("x").sync
    stub.put({"n": 1})
    early = actor()
    stub.put({"n": 2})
    assert state_at(early, 1) == {"n": 1, "status": "idle"}


def test_what_retention_took_is_unknown_and_everything_since_is_known():
    stub = Historian.named("x").sync
    for n in range(4):
        stub.put({"n": n})
    TurnRecord.objects.filter(version__lte=2).delete()
    now = actor()
    assert [state_at(now, version)["n"] for version in (2, 3, 4)] == [1, 2, 3]
    for version in (0, 1, -1, 5):
        with pytest.raises(PastUnknownError) as error:
            state_at(now, version)
        assert error.value.code == "past_unknown"


def test_records_of_before_they_said_how_are_unknown():
    stub = Historian.named("x").sync
    for n in range(2):
        stub.put({"n": n})
    TurnRecord.objects.filter(version=2).update(state_undo=None)
    assert state_at(actor(), 2)["n"] == 1
    with pytest.raises(PastUnknownError):
        state_at(actor(), 1)


def test_a_record_says_what_else_its_turn_wrote():
    stub = Historian.named("x").sync
    stub.busy()
    stub.undecided()
    stub.put({"quiet": True})
    busy: Any
    busy, undecided, quiet = TurnRecord.objects.filter(actor=actor()).order_by("version")
    (later,) = busy.wrote.pop("tasks")
    assert later["id"] == "later" and later["method"] == "put"
    due_at, committed_at = dt.datetime.fromisoformat(later["due_at"]), busy.committed_at
    assert abs((due_at - committed_at).total_seconds() - 60) < 30
    (uid,) = busy.wrote.pop("texts")
    assert str(actor().outbound_texts.get().uid) == uid
    assert busy.wrote == {
        "cancelled": ["gone"],
        "keys": ["k"],
        "told": [{"kind": "historian", "method": "put"}],
    }
    assert undecided.wrote == {"cancelled": ["later"]}
    assert quiet.wrote is None
