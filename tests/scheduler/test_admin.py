"""The pages of tasks and attempts, and the verbs behind their buttons."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission
from django.test import Client
from django.utils import timezone

from agents import display
from agents.models import Actor
from scheduler.admin import tasks as task_pages
from scheduler.display import recurrence
from scheduler.models import Attempt, Step, Task
from tests.adminpages import HOSTILE, Page, page, signed_in
from tests.scheduler.test_verbs import FUTURE, PAST, a_task, an_attempt, expire, parked, running
from tests.scheduler.turns import new_actor

pytestmark = pytest.mark.django_db

TASKS = "/admin/scheduler/task/"
ATTEMPTS = "/admin/scheduler/attempt/"


@pytest.fixture
def client(alice: Any) -> Client:
    return signed_in(alice)


@pytest.fixture
def actor() -> int:
    return new_actor("+15550001111")


def change(obj: Any) -> str:
    return display.url_of(obj)


def act(client: Client, action: str, *rows: Any, **more: Any) -> Page:
    """Chooses an action for these rows of a list, and follows to what the operator sees then."""
    url = TASKS if isinstance(rows[0], Task) else ATTEMPTS
    data = {"action": action, "_selected_action": [row.pk for row in rows], "index": "0", **more}
    return Page(client.post(url, data, follow=True))


def press(client: Client, row: Any, verb: str, **more: Any) -> Page:
    """Presses a button of a row's own page."""
    return Page(
        client.post(change(row).replace("/change/", "/operate/"), {"verb": verb, **more}, follow=True)
    )


def log() -> list[tuple[str | None, int, str]]:
    return list(LogEntry.objects.order_by("pk").values_list("object_id", "action_flag", "change_message"))


# Lists


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ({"status": "parked"}, {"stuck"}),
        ({"status": "pending"}, {"later", "due", "retry", "tick", "told", "report"}),
        ({"due": "now"}, {"due", "told"}),
        ({"due": "retry"}, {"retry"}),
        ({"due": "recurring"}, {"tick", "report"}),
        ({"lane": "inbox"}, {"told"}),
        ({"method": "tick"}, {"tick"}),
        ({"method": "not_there"}, set()),
        ({"kind": "-"}, {"later", "due", "retry", "tick", "told", "report", "stuck"}),
        ({"q": "tick"}, {"tick"}),
        ({"q": "+1555"}, {"later", "due", "retry", "tick", "told"}),
        ({"q": "x y z"}, set()),
    ],
)
def test_filters_and_search_answer_what_is_stuck(
    client: Client, actor: int, query: dict[str, str], ids: set[str]
) -> None:
    other = new_actor("bob")
    Actor.objects.update(kind="not-installed")
    tasks = [
        a_task(actor, "later"),
        a_task(actor, "due", due_at=PAST),
        a_task(actor, "retry", attempts=1, error="ValueError"),
        a_task(actor, "tick", method="tick", every_seconds=5.0),
        a_task(actor, "told", lane="inbox", due_at=PAST),
        a_task(other, "report", cron="@daily", tz="UTC"),
        parked(other, "stuck"),
    ]
    hrefs = page(client, TASKS, **query).hrefs()
    assert {task.task_id for task in tasks if change(task) in hrefs} == ids


def test_the_list_shows_status_due_time_recurrence_and_error(client: Client, actor: int) -> None:
    parked(actor, "stuck", error="HTTPStatusError: 503")
    a_task(actor, "report", cron="0 9 * * *", tz="Europe/Paris", due_at=timezone.now())
    a_task(actor, "retry", attempts=2, error="ValueError: no")
    seen = page(client, TASKS).text
    for words in ("parked", "6 of 6 attempts", "HTTPStatusError: 503", "0 9 * * * Europe/Paris", "retrying",
                  "2 of 6 attempts", "support/+15550001111"):  # fmt: skip
        assert words in seen


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.5, "0.5 s"),
        (45, "45 s"),
        (60, "1 min"),
        (90, "90 s"),
        (5400, "90 min"),
        (86_400, "1 d"),
        (90_000, "25 h"),
    ],
)
def test_an_interval_is_shown_exactly(actor: int, seconds: float, text: str) -> None:
    assert recurrence(a_task(actor, every_seconds=seconds)) == f"every {text}"


def test_a_random_id_is_not_shown_where_it_says_nothing(client: Client, actor: int) -> None:
    random = uuid.uuid4().hex
    task = a_task(actor, random)
    assert random not in page(client, TASKS).text
    assert random in page(client, change(task)).text


# The page of one


def test_a_parked_task_shows_why_with_every_attempts_traceback(client: Client, actor: int) -> None:
    task = parked(actor, "stuck")
    for number in (1, 2):
        an_attempt(
            actor, task_pk=task.pk, task_id="stuck", number=number, outcome="failed", error="ValueError: no",
            traceback=f"Traceback (most recent call last):\n  line {number}\nValueError: no",
        )  # fmt: skip
    seen = page(client, change(task))
    assert "ValueError: no" in seen.text and "line 1" in seen.text and "line 2" in seen.text
    assert '"n": 1' in seen.text  # the payload
    assert "reply" in seen.text  # the saved step
    assert {button.get("value") for button in seen.fields("button")} >= {"replay", "cancel"}
    assert "run_now" not in {button.get("value") for button in seen.fields("button")}


def test_a_pending_task_offers_to_run_now(client: Client, actor: int) -> None:
    values = {b.get("value") for b in page(client, change(a_task(actor))).fields("button")}
    assert "run_now" in values and "replay" not in values


def test_an_attempt_shows_what_happened_and_what_was_asked(client: Client, actor: int) -> None:
    task = a_task(actor)
    attempt = an_attempt(
        actor, task_pk=task.pk, outcome="failed", error="ValueError: no", traceback="Traceback\n  here"
    )
    seen = page(client, change(attempt))
    for words in ("failed", "delivery 1", "ValueError: no", "here", '"n": 7'):
        assert words in seen.text
    assert change(task) in seen.hrefs()
    gone = an_attempt(actor)
    assert "(gone)" in page(client, change(gone)).text


# Verbs


def test_buttons_and_bulk_actions_leave_the_same_rows_and_the_same_log(client: Client) -> None:
    """OPS-06"""
    columns = ("task_id", "status", "attempts", "error", "parked_at", "method", "payload")
    for verb, make in (("replay", parked), ("run_now", a_task), ("cancel", a_task)):
        one, many = make(new_actor(f"{verb} one"), "t"), make(new_actor(f"{verb} many"), "t")
        press(client, one, verb, confirmed="yes")
        act(client, verb, many, confirmed="yes")
        rows = [list(Task.objects.filter(actor_id=task.actor_id).values(*columns)) for task in (one, many)]
        assert rows[0] == rows[1]
        assert bool(rows[0]) is (verb != "cancel")
        alarms = Actor.objects.filter(pk__in=[one.actor_id, many.actor_id]).values_list("alarm", flat=True)
        assert len({alarm is None for alarm in alarms}) == 1
        (first, flag, said), (second, flag_too, said_too) = log()[-2:]
        assert (flag, said) == (flag_too, said_too)
        assert {first, second} == {str(one.pk), str(many.pk)}
        assert not Step.objects.exists()


def test_an_action_says_what_it_did(client: Client, actor: int) -> None:
    assert "Replayed: 2 tasks." in act(client, "replay", parked(actor, "a"), parked(actor, "b")).text
    assert "Made due now: 1 task." in act(client, "run_now", a_task(actor, "c")).text
    assert "Cancelled: 1 task." in act(client, "cancel", a_task(actor, "d"), confirmed="yes").text


def test_what_an_action_cannot_do_it_says_and_does_the_rest(client: Client, actor: int) -> None:
    busy, _ = running(actor)
    stuck, waits = parked(actor, "stuck"), a_task(actor, "waits")
    seen = act(client, "replay", busy, stuck, waits)
    assert "Replayed: 1 task." in seen.text
    assert "running now" in seen.text and "Only a parked task" in seen.text
    assert Task.objects.get(pk=stuck.pk).status == "pending"
    assert "running now" in press(client, busy, "cancel", confirmed="yes").text
    assert Task.objects.filter(pk=busy.pk).exists()
    expire(actor)
    assert "Cancelled: 1 task." in press(client, busy, "cancel", confirmed="yes").text


def test_cancelling_asks_first(client: Client, actor: int) -> None:
    task, other = a_task(actor, "one"), a_task(actor, "the other")
    for asked in (act(client, "cancel", task), press(client, task, "cancel")):
        assert "will be gone" in asked.text and "one" in asked.text and "the other" not in asked.text
        assert Task.objects.filter(pk=task.pk).exists()
    form = {
        field["name"]: field["value"]
        for field in act(client, "cancel", task).fields("input")
        if field.get("type") == "hidden" and field["name"] != "csrfmiddlewaretoken"
    }
    Page(client.post(TASKS, form, follow=True))
    assert list(Task.objects.all()) == [other]


def test_all_that_a_filter_matches_can_be_chosen(client: Client, actor: int) -> None:
    for number in range(60):
        parked(actor, f"task {number}")
    shown = Task.objects.order_by("-pk")[:50]
    data = {"action": "replay", "_selected_action": [t.pk for t in shown], "select_across": "1", "index": "0"}
    assert "Replayed: 60 tasks." in Page(client.post(f"{TASKS}?status=parked", data, follow=True)).text
    assert LogEntry.objects.count() == 60


def test_an_action_is_bounded_and_says_so(
    client: Client, actor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_pages, "BATCH", 2)
    monkeypatch.setattr(task_pages, "MOST", 3)
    tasks = [parked(actor, f"task {number}") for number in range(4)]
    seen = act(client, "replay", *tasks)
    assert "Replayed: 3 tasks." in seen.text and "3 tasks at most" in seen.text


def test_attempts_are_replayed_as_new_tasks(client: Client, actor: int) -> None:
    first, second = an_attempt(actor), an_attempt(actor, outcome="failed")
    open_one = an_attempt(actor, outcome="running")
    seen = act(client, "replay", first, open_one)
    assert "Replayed: 1" in seen.text and "has not ended" in seen.text
    assert "Replayed: 1" in press(client, second, "replay").text
    assert [task.payload for task in Task.objects.all()] == [{"n": 7}, {"n": 7}]
    assert [entry[0] for entry in log()] == [str(first.pk), str(second.pk)]
    assert "replay" not in {b.get("value") for b in page(client, change(open_one)).fields("button")}


def test_a_task_that_went_meanwhile_is_said_and_not_a_failure(client: Client, actor: int) -> None:
    task = a_task(actor)
    Task.objects.all().delete()
    assert press(client, task, "run_now").status == 404
    assert act(client, "run_now", task).status == 200


@pytest.mark.parametrize("verb", ["", "delete", "_confirm", "operate"])
def test_another_verb_is_refused(client: Client, actor: int, verb: str) -> None:
    for row in (a_task(actor), an_attempt(actor)):
        assert "no such verb" in press(client, row, verb).text
    assert Task.objects.get().due_at == FUTURE


# Who may


def test_who_may_only_look_has_no_verbs(bob: Any, charlie: Any, actor: int) -> None:
    task, attempt = parked(actor), an_attempt(actor)
    team = signed_in(bob)
    for row, url in ((task, TASKS), (attempt, ATTEMPTS)):
        seen = page(team, change(row))
        assert seen.status == 200
        assert not [b for b in seen.fields("button") if b.get("name") == "verb"]
        assert not page(team, url).fields("select")
        assert press(team, row, "replay").status == 403
        act(team, "replay", row)
        assert signed_in(charlie).get(change(row)).status_code == 302
        assert signed_in(charlie).post(change(row).replace("/change/", "/operate/")).status_code == 302
        assert Client().post(change(row).replace("/change/", "/operate/")).status_code == 302
    assert Task.objects.get().status == "parked"


def test_who_may_change_tasks_may_operate(bob: Any, actor: int) -> None:
    bob.user_permissions.add(
        Permission.objects.get(codename="change_task", content_type__app_label="scheduler")
    )
    task = parked(actor)
    assert "Replayed" in press(signed_in(bob), task, "replay").text
    assert LogEntry.objects.get().user == bob


def test_a_verb_needs_a_post_with_a_token(alice: Any, actor: int) -> None:
    task = parked(actor)
    url = change(task).replace("/change/", "/operate/")
    assert signed_in(alice).get(url).status_code == 405
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(alice)
    assert strict.post(url, {"verb": "replay"}).status_code == 403
    assert Task.objects.get().status == "parked"


def test_nothing_can_be_added_edited_or_deleted(client: Client, actor: int) -> None:
    for row, url in ((a_task(actor), TASKS), (an_attempt(actor), ATTEMPTS)):
        before = type(row).objects.values().get(pk=row.pk)
        assert client.post(change(row), {"payload": "{}", "method": "x"}).status_code == 403
        assert client.get(f"{url}add/").status_code == 403
        assert client.post(f"{url}{row.pk}/delete/", {"post": "yes"}).status_code == 403
        client.post(url, {"action": "delete_selected", "_selected_action": row.pk, "post": "yes"})
        assert type(row).objects.values().get(pk=row.pk) == before


# What people wrote, and long tables


@pytest.mark.parametrize("hostile", HOSTILE)
def test_nothing_that_people_or_models_wrote_runs(client: Client, hostile: str) -> None:
    actor = new_actor(hostile, kind=hostile[:30])
    task = parked(actor, hostile, method=hostile, payload={hostile: hostile})
    Task.objects.filter(pk=task.pk).update(error=hostile, tz=hostile, cron=hostile)
    Step.objects.filter(task_pk=task.pk).update(name=hostile)
    attempt = an_attempt(
        actor, task_pk=task.pk, task_id=hostile, method=hostile, payload=[hostile], error=hostile,
        traceback=hostile, outcome="failed",
    )  # fmt: skip
    waiting = a_task(actor, f"2{hostile}", method=hostile)
    pages = [
        page(client, TASKS),
        page(client, TASKS, q=hostile, method=hostile, kind=hostile),
        page(client, change(task)),
        page(client, ATTEMPTS, actor=actor),
        page(client, change(attempt)),
        act(client, "cancel", task),
        act(client, "replay", waiting, task),  # its flash messages name the task
        press(client, attempt, "replay"),
        page(client, f"{TASKS}{task.pk}/history/"),
        page(client, "/admin/"),  # the log of recent actions
    ]
    for seen in pages:
        assert seen.status == 200
        assert seen.harmless
    assert "Only a parked task" in pages[6].text
    shown = " ".join(hostile.split())[:20]
    for seen in (pages[0], *pages[2:9]):
        assert shown in seen.text


def test_pages_ask_the_same_number_of_questions_however_long_the_tables_are(
    client: Client, actor: int, django_assert_max_num_queries: Any
) -> None:
    task = parked(actor)
    attempt = an_attempt(actor, task_pk=task.pk)
    for url in (TASKS, f"{TASKS}?status=parked&q=p&actor={actor}", change(task), ATTEMPTS, change(attempt)):
        client.get(url)
        with django_assert_max_num_queries(16) as few:
            assert client.get(url).status_code == 200
        others = Actor.objects.bulk_create(Actor(kind="support", name=f"{uuid.uuid4()}") for _ in range(150))
        Task.objects.bulk_create(
            Task(actor=other, task_id="p", method=f"m{n}", due_at=PAST, status="parked")
            for n, other in enumerate(others)
        )
        Attempt.objects.bulk_create(
            Attempt(
                actor_id=actor, task_pk=task.pk, task_id="p", lane="timer", method="m", number=n,
                turn_id=uuid.uuid4(), outcome="failed", due_at=PAST, started_at=PAST, traceback="x" * 500,
            )
            for n in range(150)
        )  # fmt: skip
        with django_assert_max_num_queries(len(few)):
            answer = client.get(url)
        assert len(answer.content) < 300_000
        selects = [f.get("name") for f in Page(answer).fields("select")]
        assert selects in ([], ["action"])
        Actor.objects.exclude(pk=actor).delete()
        Attempt.objects.exclude(pk=attempt.pk).delete()
