"""Tasks and attempts over HTTP, and the verbs: the same as the admin's and the commands'."""

from __future__ import annotations

import datetime as dt
from typing import Any

import httpx
import pytest
from django.contrib.admin.models import CHANGE, DELETION, LogEntry
from django.test import Client as Browser
from django.urls import reverse
from rest_framework.authtoken.models import Token

from agents.models import Actor
from agents.permissions import permission_of
from conversations.models import Message
from scheduler.models import Attempt, AttemptOutcome, Step, Task, TaskStatus
from tests.agents.sockets.site import Site
from tests.api.conftest import KIND, Sign, at, code, grant
from tests.api.talkers.agents import ReticentAgent, TalkerAgent
from tests.waiting import wait_until

pytestmark = [pytest.mark.processes, pytest.mark.django_db(transaction=True)]

LATER = dt.datetime.now(dt.UTC) + dt.timedelta(days=2)


@pytest.fixture
def actor(transactional_db: None) -> Actor:
    return Actor.objects.create(kind=KIND, name="olga")


def a_task(actor: Actor, task_id: str, **fields: Any) -> Task:
    return Task.objects.create(actor=actor, task_id=task_id, **{"method": "later", "due_at": LATER} | fields)


def a_parked(actor: Actor, task_id: str = "park", **fields: Any) -> Task:
    return a_task(actor, task_id, status=TaskStatus.PARKED, parked_at=LATER, error="ValueError: x", **fields)


@pytest.fixture
def runner(site: Site, bob: Any) -> Browser:
    """Bob, who may also change tasks. In this process: the site's knows content types of older tests."""
    grant(bob, "scheduler.change_task")
    key = Token.objects.create(user=bob).key
    return Browser(headers={"Authorization": f"Token {key}"})


def test_tasks_are_listed_and_shown(actor: Actor, operator: httpx.Client) -> None:
    a_parked(actor, payload={"a": 1})
    a_task(actor, "nudge", every_seconds=60.0)
    other = Actor.objects.create(kind=ReticentAgent.kind, name="r")
    a_task(other, "far", method="m")
    rows = operator.get(at("tasks/")).json()["results"]
    assert [(row["id"], row["status"]) for row in rows] == [("nudge", "pending"), ("park", "parked")]
    assert rows[0]["every_seconds"] == 60.0 and "payload" not in rows[0]
    parked = operator.get(at("tasks/"), params={"status": "parked"}).json()["results"]
    assert [row["error"] for row in parked] == ["ValueError: x"]
    assert operator.get(parked[0]["path"]).json() == {**parked[0], "payload": {"a": 1}}
    everywhere = operator.get("/api/tasks/", params={"limit": 2}).json()
    assert [row["id"] for row in everywhere["results"]] == ["far", "nudge"]
    assert [row["id"] for row in operator.get(everywhere["next"]).json()["results"]] == ["park"]
    chosen = operator.get("/api/tasks/", params={"kind": ReticentAgent.kind, "method": "m"}).json()["results"]
    assert [row["name"] for row in chosen] == ["r"]
    assert code(operator.get("/api/tasks/", params={"status": "gone"})) == "bad_request"


def test_a_task_is_found_at_its_own_actor_alone(actor: Actor, operator: httpx.Client) -> None:
    Actor.objects.create(kind=KIND, name="other")
    task = a_task(actor, "nudge")
    assert operator.get(at(f"tasks/{task.pk}/")).status_code == 200
    missing = operator.get(at(f"tasks/{task.pk}/", name="other"))
    assert (missing.status_code, code(missing)) == (404, "task_gone")


def test_who_may_look_and_who_may_act(
    actor: Actor, api: Sign, owner: httpx.Client, operator: httpx.Client, django_user_model: Any
) -> None:
    task = a_parked(actor)
    for url in ("/api/tasks/", at("tasks/"), at(f"tasks/{task.pk}/"), at("attempts/")):
        assert owner.get(url).status_code == 403, url  # though it is her conversation
        assert operator.get(url).status_code == 200, url
    for verb in ("replay", "run-now", "cancel"):
        refused = operator.post(at(f"tasks/{task.pk}/{verb}/"))
        assert (refused.status_code, code(refused)) == (403, "permission_denied"), verb
    # The permissions, but of another kind.
    dana = django_user_model.objects.create_user("dana", is_staff=True)
    names = ["scheduler.view_task", "scheduler.change_task", permission_of(ReticentAgent.kind)]
    grant(dana, *names)
    assert api(dana).get("/api/tasks/").json()["results"] == []
    assert api(dana).get(at("tasks/")).status_code == 403
    assert api(dana).post(at(f"tasks/{task.pk}/replay/")).status_code == 403
    task.refresh_from_db()
    assert task.status == TaskStatus.PARKED and not LogEntry.objects.exists()


def test_a_parked_task_is_replayed_and_runs(actor: Actor, runner: Browser) -> None:
    task = a_parked(actor, method="reply", payload="again", attempts=6)
    Step.objects.create(actor=actor, task_pk=task.pk, name="s", use=1)
    answer = runner.post(at(f"tasks/{task.pk}/replay/"))
    assert answer.status_code == 200, answer.content
    assert (answer.json()["status"], answer.json()["attempts"]) == ("pending", 0)
    wait_until(lambda: Message.objects.filter(content="You said: again").exists(), 20)
    assert not Step.objects.exists()


def test_a_pending_task_is_run_now_and_another_is_cancelled(actor: Actor, runner: Browser) -> None:
    now, gone = a_task(actor, "now", method="reply", payload="now"), a_task(actor, "gone")
    assert runner.post(at(f"tasks/{now.pk}/run-now/")).json()["id"] == "now"
    assert runner.post(at(f"tasks/{gone.pk}/cancel/")).json() == {"cancelled": True}
    wait_until(lambda: Message.objects.filter(content="You said: now").exists(), 20)
    missing = runner.post(at(f"tasks/{gone.pk}/cancel/"))
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "task_gone")


def test_a_verb_that_does_not_fit_is_409(actor: Actor, runner: Browser) -> None:
    parked, pending = a_parked(actor), a_task(actor, "nudge")
    for url in (at(f"tasks/{parked.pk}/run-now/"), at(f"tasks/{pending.pk}/replay/")):
        refused = runner.post(url)
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "task_state")
    assert runner.get(at(f"tasks/{parked.pk}/replay/")).status_code == 405
    assert runner.post(at(f"tasks/{10**17}/replay/")).status_code == 404


def test_attempts_are_listed_and_run_again(actor: Actor, runner: Browser) -> None:
    attempt = Attempt.objects.create(
        actor=actor, task_pk=7, task_id="reply", lane="timer", method="reply", payload="once more", number=1,
        turn_id="12345678123456781234567812345678", outcome=AttemptOutcome.FAILED, due_at=LATER,
        started_at=LATER, ended_at=LATER, error="ValueError: x",
    )  # fmt: skip
    (row,) = runner.get(at("attempts/"), {"task": "7", "outcome": "failed"}).json()["results"]
    assert (row["number"], row["error"], row["delivery"]) == (attempt.pk, "ValueError: x", 1)
    assert runner.get(at("attempts/"), {"task": 8}).json()["results"] == []
    assert runner.post(at(f"attempts/{attempt.pk}/replay/")).json()["method"] == "reply"
    wait_until(lambda: Message.objects.filter(content="You said: once more").exists(), 20)
    assert runner.post(at(f"attempts/{attempt.pk + 1000}/replay/")).status_code == 404


def test_the_api_leaves_the_same_entries_as_the_admin(actor: Actor, runner: Browser, bob: Any) -> None:
    """OPS-06"""
    browser = Browser()
    browser.force_login(bob)
    entries: list[list[tuple[Any, ...]]] = []
    for act in (
        lambda task, verb: runner.post(at(f"tasks/{task.pk}/{verb.replace('_', '-')}/")),
        lambda task, verb: browser.post(
            reverse("admin:scheduler_task_operate", args=[task.pk]), {"verb": verb, "confirmed": "1"}
        ),
    ):
        LogEntry.objects.all().delete()
        made = [
            (a_parked(actor), "replay"),
            (a_task(actor, "run_now"), "run_now"),
            (a_task(actor, "cancel"), "cancel"),
        ]
        for task, verb in made:
            act(task, verb)
        fields = ("user_id", "action_flag", "change_message", "object_repr")
        entries.append(list(LogEntry.objects.order_by("pk").values_list(*fields)))
        wait_until(lambda: not Task.objects.exists(), 20)
    assert entries[0] == entries[1]
    assert [flag for _, flag, _, _ in entries[0]] == [CHANGE, CHANGE, DELETION]


def test_a_task_of_a_kind_that_is_gone_is_in_no_ones_way(operator: httpx.Client) -> None:
    old = Actor.objects.create(kind="test-gone", name="a")
    task = a_task(old, "t")
    rows = operator.get("/api/tasks/").json()["results"]
    assert [row["number"] for row in rows] == [task.pk]
    assert code(operator.get(rows[0]["path"])) == "unknown_kind"
    assert TalkerAgent.kind == KIND
