"""The list of conversations, as an operator's browser gets it."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from agents import Agent
from agents.models import Actor
from conversations import standing
from conversations.models import Message, Seen
from scheduler.models import Task
from tests.adminpages import HOSTILE, page, signed_in

pytestmark = pytest.mark.django_db

LIST = "/admin/conversations/conversation/"
#: Statements of any list, however many rows.
MOST_QUERIES = 20


@pytest.fixture
def client(alice: Any) -> Client:
    return signed_in(alice)


def talk(name: str, *said: tuple[str, str], ago: float = 60, kind: str = "support", **fields: Any) -> Actor:
    """A conversation whose last message came ``ago`` seconds ago, the others a second apart before it."""
    actor = Actor.objects.create(kind=kind, name=name, seq=len(said), **fields)
    last = timezone.now() - dt.timedelta(seconds=ago)
    Message.objects.bulk_create(
        Message(actor=actor, seq=n, role=role, content=text, at=last - dt.timedelta(seconds=len(said) - n))
        for n, (role, text) in enumerate(said, 1)
    )
    standing.refresh([actor.pk])
    return actor


def names(client: Client, **query: Any) -> list[str]:
    """The names of the conversations in the list, in their order."""
    response = client.get(LIST, query)
    assert response.status_code == 200, response.status_code
    return [row.actor.name for row in response.context["cl"].result_list]


def test_the_newest_is_first_with_its_last_words_and_who_waits(client: Client) -> None:
    talk("old", ("user", "hello?"), ("assistant", "Good day."), ago=500)
    talk("waits", ("user", "Where is my order?"), ("tool", "not words of anybody"), ago=900)
    talk("new", ("user", "thanks"), ("assistant", "Bye."), ago=5)
    assert names(client) == ["new", "old", "waits"]
    text = page(client, LIST).text
    assert "Bye." in text and "Where is my order?" in text and "not words of anybody" not in text
    assert "15 min" in text
    talk("waits longer", ("user", "hm"), ago=100_000)
    assert names(client, waiting="any") == ["waits longer", "waits"]
    assert names(client, waiting="1h") == names(client, waiting="1d") == ["waits longer"]


def test_what_is_new_to_one_reader_is_not_new_to_another(client: Client, alice: Any, bob: Any) -> None:
    actor = talk("x", *[("user", "one")] * 7)
    assert names(client, new="yes") == ["x"]
    assert page(client, f"/admin/conversations/message/transcript/{actor.pk}/").status == 200
    assert names(client, new="yes") == []
    assert names(signed_in(bob), new="yes") == ["x"]
    Actor.objects.filter(pk=actor.pk).update(seq=9)
    assert names(client, new="yes") == ["x"]
    assert Seen.objects.get(user=alice).seq == 7


def test_a_condition_on_the_state_finds_conversations(client: Client) -> None:
    talk("open", ("user", "a"), state={"status": "open", "cart": {"items": [{"count": 3}]}})
    talk("closed", ("user", "b"), state={"status": "closed"})
    talk("unwritten", ("user", "c"))
    assert (
        names(client, state='$.status = "open"')
        == names(client, state="cart.items[0].count >= 3")
        == ["open"]
    )
    assert names(client, state="$.status", since="1h", kind="support") == ["closed", "open"]


class DiscreetAgent(Agent):
    kind = "test-discreet"
    sensitive = ("pin",)


@pytest.mark.parametrize(
    "condition",
    ['$.card.pin = "4711"', '$["card"]["pin"]', '$.card has "4711"', '$.card = {"pin": "4711"}', "$.pin > 4"],
)
def test_no_condition_tells_what_is_sensitive(client: Client, condition: str) -> None:
    state = {"status": "open", "card": {"pin": "4711"}, "pin": 5}
    talk("discreet", ("user", "a"), state=state, kind=DiscreetAgent.kind)
    talk("open", ("user", "a"), state=state)
    assert names(client, state=condition) == ["open"]
    assert sorted(names(client, state='$.status = "open"')) == ["discreet", "open"]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"state": "$.a ~ 1"}, "not understood"),
        ({"state": "$.a > [1]"}, "compares numbers and texts"),
        ({"state": "<script>alert(1)</script>"}, "no condition"),
        ({"since": "yesterday"}, "not a moment"),
        ({"since": "2026-13-45"}, "not a moment"),
        ({"since": "999999d"}, "date value out of range"),
    ],
)
def test_a_filter_that_makes_no_sense_is_answered_in_words(
    client: Client, query: dict[str, str], words: str
) -> None:
    talk("x", ("user", "a"))
    seen = page(client, LIST, **query)
    assert seen.status == 200 and words in seen.text and seen.harmless
    assert "0 conversations" in seen.text


@pytest.mark.parametrize(
    "name", ["waiting", "new", "tasks", "kind", "p", "o", "nonsense", "actor__state__x", "q"]
)
def test_no_value_of_any_parameter_is_an_error(client: Client, name: str) -> None:
    talk("x", ("user", "a"))
    for value in ("", "\0", "-1", "9" * 30, "'", "é", "[]"):
        assert client.get(LIST, {name: value}, follow=True).status_code in (200, 400), value


def test_words_of_any_message_and_parts_of_names_find_a_conversation(client: Client) -> None:
    talk("+15550001111", ("user", "my parcel is late"), ("assistant", "Sorry."), ago=10)
    talk("+15550002222", ("user", "hello"), ("assistant", "Good day."), ago=20)
    assert (
        names(client, q="parcel")
        == names(client, q="1111")
        == names(client, q="LATE parcel")
        == ["+15550001111"]
    )
    assert names(client, q="+1555000") == ["+15550001111", "+15550002222"]
    assert names(client, q="nothing of the kind") == []


def test_a_conversation_with_parked_tasks_says_so_and_is_found(client: Client) -> None:
    stuck, fine = talk("stuck", ("user", "a")), talk("fine", ("user", "b"), ago=5)
    now = timezone.now()
    Task.objects.create(
        actor=stuck, task_id="t", method="process", due_at=now, status="parked", parked_at=now
    )
    Actor.objects.filter(pk=fine.pk).update(alarm=now - dt.timedelta(hours=1))
    assert names(client, tasks="parked") == ["stuck"]
    assert names(client, tasks="due") == ["fine"]
    seen = page(client, LIST)
    assert f"/admin/scheduler/task/?actor={stuck.pk}&status=parked" in seen.hrefs()


def test_of_other_kinds_nothing_is_there_not_even_in_a_search(client: Client, charlie: Any) -> None:
    talk("mine", ("user", "common words"), kind="support")
    talk("theirs", ("user", "common words"), kind="discreet")
    assert names(client, q="common") == ["theirs", "mine"]
    charlie.is_staff = True
    charlie.save()
    other = signed_in(charlie)
    assert other.get(LIST).status_code == 403
    for codename in ("view_message", "view_kind_support"):
        charlie.user_permissions.add(Permission.objects.get(codename=codename))
    for query in ({}, {"q": "common"}, {"q": "theirs"}, {"waiting": "any"}, {"state": "$.x != 1"}):
        assert "theirs" not in page(other, LIST, **query).text
    assert names(other, q="common") == names(other) == ["mine"]


def test_the_state_and_the_tasks_are_told_to_those_alone_who_may_look_at_them(charlie: Any) -> None:
    talk("open", ("user", "a"), state={"status": "open"}, alarm=timezone.now() - dt.timedelta(hours=1))
    stuck = talk("stuck", ("user", "b"), state={"status": "closed"})
    Task.objects.create(actor=stuck, task_id="t", method="m", status="parked", due_at=timezone.now())
    charlie.is_staff = True
    charlie.save()
    other = signed_in(charlie)

    def allow(*codenames: str) -> None:
        charlie.user_permissions.set(Permission.objects.filter(codename__in=codenames))

    def told(**query: Any) -> bool:
        """Whether the list answers the question at all."""
        response = other.get(LIST, query)
        return response.status_code == 200 and len(response.context["cl"].result_list) < 2

    allow("view_message", "view_kind_support")
    seen = page(other, LIST)
    assert seen.status == 200 and "stuck" in seen.text
    assert "parked" not in seen.text and not any("/scheduler/task/" in href for href in seen.hrefs())
    assert not {"state", "tasks"} & {field.get("name") for field in seen.fields("input")}
    for question in ({"state": '$.status = "open"'}, {"tasks": "parked"}, {"tasks": "due"}):
        assert not told(**question)
    allow("view_message", "view_kind_support", "view_task")
    assert "parked" in page(other, LIST).text
    assert told(tasks="parked") and told(tasks="due") and not told(state='$.status = "open"')
    allow("view_message", "view_kind_support", "view_turnrecord")
    assert "parked" not in page(other, LIST).text
    assert told(state='$.status = "open"') and not told(tasks="parked")


def test_what_people_wrote_is_text(client: Client) -> None:
    for hostile in HOSTILE:
        talk(hostile, ("user", hostile), state={"a": hostile})
    for query in ({}, {"q": HOSTILE[0]}, {"state": f'$.a = "{HOSTILE[1]}"'}, {"since": HOSTILE[2]}):
        assert page(client, LIST, **query).harmless


def test_more_rows_are_not_more_queries(client: Client) -> None:
    def count(**query: Any) -> int:
        with CaptureQueriesContext(
            connection,
        ) as queries:
            assert client.get(LIST, query).status_code == 200
        return len(queries)

    talk("first", ("user", "words"))
    queries = {"q": "words", "waiting": "any", "state": "$.x != 1", "new": "yes", "tasks": "parked"}
    count()
    few = [count(), *(count(**{name: value}) for name, value in queries.items())]
    for n in range(30):
        talk(f"n{n}", ("user", "words"), ("assistant", "more"), state={"x": n})
    many = [count(), *(count(**{name: value}) for name, value in queries.items())]
    assert many == few and max(many) <= MOST_QUERIES
