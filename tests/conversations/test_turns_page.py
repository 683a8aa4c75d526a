"""A conversation turn by turn, and its state as of any of them, as an operator's browser gets them."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.test import Client

from agents import Agent
from agents.models import Actor, TurnRecord
from conversations.models import OutboundText
from tests.adminpages import HOSTILE, Page, page, signed_in

pytestmark = pytest.mark.django_db(transaction=True)


class Shown(Agent):
    kind = "shown"

    async def answer(self, text, status):
        await self.messages.add("user", text)
        await self.messages.add("assistant", f"You said {text}")
        await self.set_state({"status": status})
        await self.schedule(3600, "note", id="later")
        await self.sms.send("Hi.", to="+15550001111", sender="+15550009999")

    async def note(self, key):
        await self.set_state({"noted": key})
        await self.storage.put(key, 1)


@pytest.fixture
def client(alice: Any) -> Client:
    return signed_in(alice)


@pytest.fixture
def actor() -> Actor:
    stub = Shown.named("x").sync
    stub.answer("one", "first")
    stub.note("k1")
    stub.answer("two", "second")
    stub.note("k2")
    return Actor.objects.get(kind="shown")


def transcript(client: Client, actor: Actor, **query: Any) -> Page:
    seen = page(client, f"/admin/conversations/message/transcript/{actor.pk}/", **query)
    assert seen.status == 200
    return seen


def test_each_turn_stands_behind_its_last_message_with_what_it_wrote(client: Client, actor: Actor) -> None:
    OutboundText.objects.update(status="undelivered", error="no such number")
    seen = transcript(client, actor)
    places = [seen.text.index(words) for words in (
        "You said one", "answer v1", "note v2", "You said two", "answer v3", "note v4",
    )]  # fmt: skip
    assert places == sorted(places)
    first = seen.text[places[1] : places[2]]
    for words in ("#1-2", "later", "undelivered", "+15550001111", "no such number", '"status": "first"'):
        assert words in first, words
    assert "k1" in seen.text[places[2] : places[3]]


def test_the_state_is_that_of_now_or_as_of_any_turn(client: Client, actor: Actor) -> None:
    now = transcript(client, actor)
    assert now.response.context["state"]["text"] == '{\n  "noted": "k2",\n  "status": "second"\n}'
    then = [url for url in now.hrefs() if "?version=2" in url]
    assert then
    state = page(client, then[0].split("#")[0]).response.context["state"]
    assert state["text"] == '{\n  "noted": "k1",\n  "status": "first"\n}'
    assert "initial_state answers" in transcript(client, actor, version=0).text
    for version in ("5", "-1", "x", "9" * 30):
        transcript(client, actor, version=version)
    assert "there is no version 5" in transcript(client, actor, version=5).text
    TurnRecord.objects.filter(version__lte=3).delete()
    assert "not kept any more" in transcript(client, actor, version=2).text


def test_an_earlier_page_has_the_turns_of_its_messages_alone(client: Client, actor: Actor) -> None:
    for n in range(30):
        Shown.named("x").sync.answer(f"more {n}", "open")
    seen = transcript(client, actor, page=1)
    shown = [turn["version"] for entry in seen.response.context["page"].entries for turn in entry.turns]
    assert shown == list(range(1, 28))  # 50 messages: 25 answers, and the two notes between them


def test_many_turns_are_not_more_queries(
    client: Client, actor: Actor, django_assert_max_num_queries: Any
) -> None:
    transcript(client, actor)
    with django_assert_max_num_queries(20) as few:
        transcript(client, actor, version=1)
    most = len(few)
    for n in range(20):
        Shown.named("x").sync.answer(f"more {n}", "open")
    transcript(client, actor)
    with django_assert_max_num_queries(most):
        transcript(client, actor, version=1)


def test_whoever_may_not_see_turns_sees_the_log_alone(charlie: Any, actor: Actor) -> None:
    charlie.is_staff = True
    charlie.save()
    wanted = ["view_message", "view_kind_support"]
    charlie.user_permissions.set(Permission.objects.filter(codename__in=wanted))
    other = signed_in(charlie)
    assert page(other, f"/admin/conversations/message/transcript/{actor.pk}/").status == 404
    Actor.objects.filter(pk=actor.pk).update(kind="support")
    seen = transcript(other, actor, version=1)
    assert "You said one" in seen.text
    assert "answer v1" not in seen.text and "first" not in seen.text


def test_what_people_and_models_wrote_is_text(client: Client, actor: Actor) -> None:
    for hostile in HOSTILE:
        wrote = {
            "tasks": [{"id": hostile, "method": hostile, "due_at": "2026-11-30T12:00:00+00:00"}],
            "cancelled": [hostile], "told": [{"kind": hostile, "method": hostile}], "files": [hostile],
            "keys": [hostile],
        }  # fmt: skip
        TurnRecord.objects.update(method=hostile, wrote=wrote, state_change={"patch": {hostile: hostile}})
        Actor.objects.update(state={hostile: hostile})
        assert transcript(client, actor).harmless
