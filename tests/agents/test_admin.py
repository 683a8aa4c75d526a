"""The pages of actors and turns, as an operator's browser gets them."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any

import pytest
from django.http import HttpResponse
from django.test import Client
from django.utils import timezone
from django.utils.html import escape

from agents import adminkit, display
from agents.models import Actor, Blob, TurnRecord
from scheduler.models import Task
from tests.adminpages import HOSTILE, Page, page, signed_in

pytestmark = pytest.mark.django_db

ACTORS = "/admin/agents/actor/"
TURNS = "/admin/agents/turnrecord/"
NOW = dt.datetime(2026, 11, 30, 12, tzinfo=dt.UTC)


def an_actor(name: str = "alice", **fields: Any) -> Actor:
    return Actor.objects.create(**{"kind": "support", "name": name} | fields)


def a_task(actor: Actor, task_id: str, **fields: Any) -> Task:
    fields = {"method": "process", "due_at": NOW} | fields
    return Task.objects.create(actor=actor, task_id=task_id, **fields)


def a_turn(actor: Actor, version: int = 1, **fields: Any) -> TurnRecord:
    fields = {
        "turn_id": uuid.uuid4(), "origin": "call", "method": "receive", "outcome": "done",
        "started_at": NOW, "duration_seconds": 1.5,
    } | fields  # fmt: skip
    return TurnRecord.objects.create(actor=actor, version=version, **fields)


@pytest.fixture
def client(alice: Any) -> Client:
    return signed_in(alice)


def change(obj: Any) -> str:
    return display.url_of(obj)


# Who may look


def test_the_team_may_look_and_strangers_may_not(bob: Any, charlie: Any) -> None:
    actor = an_actor()
    for url in (ACTORS, change(actor), TURNS):
        assert page(signed_in(bob), url).status == 200
        assert page(signed_in(charlie), url).status == 302
        assert page(Client(), url).status == 302


def test_the_page_of_an_actor_shows_only_what_its_reader_may_see(bob: Any) -> None:
    actor = an_actor()
    a_task(actor, "secret-task")
    a_turn(actor, method="secret_turn")
    team = signed_in(bob)
    assert "secret-task" in page(team, change(actor)).text
    bob.user_permissions.set(bob.user_permissions.filter(codename="view_actor"))
    seen = page(team, change(actor))
    assert seen.status == 200
    assert "secret-task" not in seen.html and "secret_turn" not in seen.html
    assert not [href for href in seen.hrefs() if "/scheduler/" in href]


# Nothing can be changed here


def test_no_form_can_add_change_or_delete(client: Client) -> None:
    actor = an_actor(state={"tone": "brief"})
    turn = a_turn(actor)
    for obj, url in ((actor, ACTORS), (turn, TURNS)):
        before = type(obj).objects.values().get()
        assert client.post(change(obj), {"name": "renamed", "state": "{}"}).status_code == 403
        assert client.get(f"{url}add/").status_code == 403
        assert client.post(f"{url}{obj.pk}/delete/", {"post": "yes"}).status_code == 403
        deletion = {"action": "delete_selected", "_selected_action": obj.pk, "post": "yes"}
        client.post(url, deletion)
        assert type(obj).objects.values().get() == before


def test_an_agents_write_survives_an_operator_who_has_its_page_open(client: Client) -> None:
    """OPS-01"""
    actor = an_actor(state={"tone": "brief"})
    opened = page(client, change(actor))
    assert not opened.fields("textarea", "select")
    Actor.objects.filter(pk=actor.pk).update(state={"tone": "long"})
    client.post(change(actor), {"kind": "support", "name": "alice"})
    assert Actor.objects.get().state == {"tone": "long"}


# Nothing that people wrote runs


@pytest.mark.parametrize("hostile", HOSTILE)
def test_names_and_state_are_shown_as_text_everywhere(client: Client, hostile: str) -> None:
    """OPS-03"""
    actor = an_actor(
        hostile,
        kind=hostile[:30],
        state={hostile: [hostile]},
        token=uuid.uuid4(),
        lease_expires_at=timezone.now(),
    )
    a_task(actor, hostile, method=hostile, error=hostile, status="parked", parked_at=NOW)
    turn = a_turn(actor, method=hostile, origin="call", state_change={"patch": {hostile: hostile}})
    Blob.objects.create(
        actor=actor, key=hostile, path="x", content_type=hostile, size=1, sha256="0" * 64, created_at=NOW
    )
    other = f"{ACTORS}{an_actor(hostile).pk}/do/pause/"  # of a kind that there can be
    pages = {
        "list": page(client, ACTORS),
        "detail": page(client, change(actor)),
        "history": page(client, f"{ACTORS}{actor.pk}/history/"),
        "search": page(client, ACTORS, q=hostile),
        "turns": page(client, TURNS, actor=actor.pk),
        "turn": page(client, change(turn)),
        "kind": page(client, ACTORS, kind=hostile),
        "verb": page(client, other),
        "message": Page(client.post(other, {"reason": hostile}, follow=True)),
        "log of who did what": page(client, "/admin/agents/operation/"),
        "front page": page(client, "/admin/"),
    }
    for where, seen in pages.items():
        assert seen.status == 200, where
        assert seen.harmless, where
    assert "paused" in pages["message"].text
    for where in ("list", "detail", "history", "turns", "turn", "verb", "message", "log of who did what"):
        assert " ".join(hostile.split())[:20] in pages[where].text, where


@pytest.mark.parametrize("hostile", HOSTILE)
def test_the_tests_would_see_it_if_something_ran(hostile: str) -> None:
    assert not Page(HttpResponse(f"<title>{hostile}</title><p title='{hostile}'>{hostile}</p>")).harmless
    assert Page(HttpResponse(f"<p>{escape(hostile)}</p>")).harmless


# Long tables


def _fill(actors: int) -> Actor:
    rows = [Actor(kind="support", name=f"{uuid.uuid4()} {n}") for n in range(actors)]
    made = Actor.objects.bulk_create(rows)
    Task.objects.bulk_create(
        Task(actor=actor, task_id="t", method="process", due_at=NOW, status="parked" if n % 2 else "pending")
        for n, actor in enumerate(made)
    )
    TurnRecord.objects.bulk_create(
        TurnRecord(
            actor=actor, version=1, turn_id=uuid.uuid4(), origin="call", method="receive", outcome="done",
            started_at=NOW, duration_seconds=0.1, first_seq=1, last_seq=2,
        )
        for actor in made
    )  # fmt: skip
    return made[0]


def test_pages_ask_the_same_number_of_questions_however_long_the_tables_are(
    client: Client, django_assert_max_num_queries: Any
) -> None:
    first = _fill(3)
    urls = [ACTORS, f"{ACTORS}?q=a", f"{ACTORS}?stuck=parked", f"{ACTORS}?kind=-", change(first), TURNS,
            f"{TURNS}?actor={first.pk}&outcome=done", change(first.turns.get())]  # fmt: skip
    for url in urls:
        client.get(url)  # warm: content types
        with django_assert_max_num_queries(14) as few:
            assert client.get(url).status_code == 200
        few_queries = len(few)
        _fill(120)
        with django_assert_max_num_queries(few_queries):
            many = client.get(url)
        assert len(many.content) < 200_000
        Actor.objects.exclude(pk=first.pk).delete()


def test_no_page_selects_from_all_actors(client: Client) -> None:
    """OPS-02; ``python -m benchmarks.admin`` measures it with 100,000 actors and 1,000,000 messages."""
    first = _fill(60)
    for url in (ACTORS, change(first), TURNS, change(first.turns.get())):
        for field in page(client, url).fields("select"):
            assert field.get("name") == "action"
        assert page(client, url).html.count("<option") < 10


def test_a_list_counts_no_further_than_its_bound(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adminkit, "COUNT_LIMIT", 100)
    _fill(100)
    assert "There are more than" not in page(client, ACTORS).text
    an_actor()
    seen = page(client, ACTORS)
    assert "There are more than 100" in seen.text
    assert "100 actors" in seen.text


def test_big_values_are_not_fetched_for_a_list_and_cut_on_a_page(
    client: Client, django_assert_max_num_queries: Any
) -> None:
    actor = an_actor(state={"big": "x" * 600_000})
    with django_assert_max_num_queries(14) as asked:
        client.get(ACTORS)
    assert not [q for q in asked.captured_queries if '"agents_actor"."state"' in q["sql"]]
    seen = page(client, change(actor))
    assert len(seen.html) < 300_000
    assert "more characters" in seen.text


# What is stuck


@pytest.fixture
def cast() -> dict[str, Actor]:
    now = timezone.now()
    hour = dt.timedelta(hours=1)
    lease = {"token": uuid.uuid4(), "turn_id": uuid.uuid4(), "turn_started_at": now}
    actors = {
        "idle": an_actor("idle"),
        "running": an_actor("running", **lease, lease_expires_at=now + hour),
        "lost": an_actor("lost", **lease, lease_expires_at=now - hour),
        "due": an_actor("due", alarm=now - hour),
        "later": an_actor("later", kind="test-clerk", alarm=now + hour),
        "parked": an_actor("parked"),
    }
    a_task(actors["parked"], "one", status="parked")
    a_task(actors["due"], "two")
    return actors


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ({"stuck": "running"}, {"running"}),
        ({"stuck": "lost"}, {"lost"}),
        ({"stuck": "due"}, {"due"}),
        ({"stuck": "parked"}, {"parked"}),
        ({"kind": "test-clerk"}, {"later"}),
        ({"kind": "-"}, {"idle", "running", "lost", "due", "parked"}),
        ({"q": "ar"}, {"parked"}),
        ({"q": "nobody"}, set()),
    ],
)
def test_filters_and_search_answer_which(
    client: Client, cast: dict[str, Actor], query: dict[str, str], names: set[str]
) -> None:
    from tests.scheduler.clerks import agents as clerks

    assert clerks.ClerkAgent.kind == "test-clerk"  # the one kind that is installed here for sure
    Actor.objects.exclude(pk=cast["later"].pk).update(kind="not-installed-anywhere")
    hrefs = page(client, ACTORS, **query).hrefs()
    found = {name for name, actor in cast.items() if any(change(actor) in href for href in hrefs)}
    assert found == names


def test_the_list_says_who_runs_and_what_waits(client: Client, cast: dict[str, Actor]) -> None:
    seen = page(client, ACTORS)
    for word in ("running", "lost", "idle", "1 h ago", "in 60 min"):
        assert word in seen.text
    assert f"/admin/scheduler/task/?actor={cast['parked'].pk}&status=parked" in seen.hrefs()
    assert f"/admin/scheduler/task/?actor={cast['due'].pk}&status=pending" in seen.hrefs()


def test_the_page_of_an_actor_has_its_state_tasks_turns_and_ways_on(client: Client) -> None:
    actor = an_actor(
        "+15550001111", seq=4, version=9, state={"status": "Grüße"}, token=uuid.uuid4(),
        turn_id=uuid.uuid4(), turn_started_at=NOW, lease_expires_at=timezone.now() + dt.timedelta(hours=1),
    )  # fmt: skip
    a_task(actor, "nudge", due_at=timezone.now() + dt.timedelta(hours=22))
    a_task(actor, "crm", status="parked", parked_at=NOW, attempts=6, error="HTTPStatusError: 503")
    a_turn(actor, 9, method="process", state_change={"patch": {"status": "Grüße"}}, first_seq=3, last_seq=4)
    seen = page(client, change(actor))
    for words in (
        '"status": "Grüße"',
        "nudge",
        "in 22 h",
        "parked",
        "HTTPStatusError: 503",
        "v9",
        "#3-4",
        "Lease",
    ):
        assert words in seen.text
    assert seen.text.index("crm") < seen.text.index("nudge")  # what needs somebody comes first
    hrefs = seen.hrefs()
    for href in (
        f"/admin/conversations/message/transcript/{actor.pk}/",
        f"/admin/scheduler/task/?actor={actor.pk}",
        f"/admin/scheduler/attempt/?actor={actor.pk}",
        f"{TURNS}?actor={actor.pk}",
    ):
        assert href in hrefs


def test_an_actor_without_state_and_lease_says_so(client: Client) -> None:
    seen = page(client, change(an_actor()))
    assert "Nothing was written yet" in seen.text
    assert "Lease" not in seen.text


@pytest.mark.parametrize("value", ["0", "999999999", "x", "-1", "9" * 40, "1;2", ""])
def test_an_actor_that_is_not_there_filters_nothing_or_everything_but_never_fails(
    client: Client, value: str
) -> None:
    a_turn(an_actor())
    assert page(client, TURNS, actor=value).status == 200


# How moments and lengths read


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0004, "0 ms"), (0.42, "420 ms"), (1, "1.0 s"), (9.96, "10.0 s"), (59, "59 s"), (60, "1 min"),
     (3600, "1 h"), (86_400, "1 d"), (8_640_000, "100 d")],
)  # fmt: skip
def test_a_length_of_time_has_one_unit(seconds: float, text: str) -> None:
    assert display.seconds(seconds) == text
