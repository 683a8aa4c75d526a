"""Replay jobs: what is chosen, at what pace, stopped in the middle and resumed; each task once."""

from __future__ import annotations

import datetime as dt
import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, connections, transaction
from django.utils import timezone

from agents import Agent
from agents.exceptions import LimitError, TaskError
from agents.models import Actor, Operation
from agents.testing import advance, drain
from agents.threads import with_connection
from scheduler import replays
from scheduler.dispatchers import local
from scheduler.models import Attempt, ReplayItem, ReplayJob, Task
from tests.adminpages import Page, signed_in
from tests.agents.facts import row
from tests.waiting import somebody_waits_for_a_lock, wait_until

pytestmark = pytest.mark.django_db(transaction=True)

#: The whole of it: REPLAY_TASKS=10000.
TASKS = int(os.environ.get("REPLAY_TASKS", "300"))


class ReplayedAgent(Agent):
    kind = "test-replayed"

    async def process(self, payload=None):
        await self.messages.add("user", json.dumps(payload, sort_keys=True))

    async def plain(self):
        await self.messages.add("user", "plain")


def parked(count: int = 1, method: str = "process", payload: Any = None, **more: Any) -> list[int]:
    actors = Actor.objects.bulk_create(
        [Actor(kind="test-replayed", name=f"{method}{n}") for n in range(count)], batch_size=5000
    )
    now = timezone.now()
    values = {"status": "parked", "parked_at": now, "due_at": now, "attempts": 6, "error": "ValueError: no"}
    tasks = Task.objects.bulk_create(
        [Task(actor=a, task_id="t", method=method, payload=payload, **values | more) for a in actors],
        batch_size=5000,
    )
    return [task.pk for task in tasks]


def job(selection: replays.Selection | None = None, **options: Any) -> ReplayJob:
    chosen = selection or replays.Selection(kind="test-replayed")
    return replays.start(chosen, by="alice", reason="they failed", **options)


def ran() -> dict[int, int]:
    """How many attempts each actor's task had."""
    counted: dict[int, int] = {}
    for actor_id in Attempt.objects.values_list("actor_id", flat=True):
        counted[actor_id] = counted.get(actor_id, 0) + 1
    return counted


@pytest.mark.timeout(max(120, TASKS // 5))
def test_a_replay_that_is_stopped_in_the_middle_and_resumed_runs_each_task_once():
    parked(TASKS)
    local.start()  # the dispatcher works on it, and drains
    mine = job()
    wait_until(lambda: ReplayJob.objects.filter(pk=mine.pk, done__gt=TASKS // 10).exists(), timeout=120)
    assert replays.stop(mine, by="alice")
    stopped_at = mine.done
    assert 0 < stopped_at < TASKS
    # Somebody else goes on with it, in several threads at once.
    assert replays.resume(mine, by="bob")

    def work() -> None:
        try:
            replays.work_off(ReplayJob.objects.get(pk=mine.pk))
        finally:
            connections.close_all()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    mine.refresh_from_db()
    assert (mine.status, mine.done, mine.refused) == ("done", TASKS, 0)
    wait_until(lambda: not Task.objects.exists(), timeout=max(30, TASKS / 20))
    local.stop()
    counted = ran()
    assert len(counted) == TASKS
    assert set(counted.values()) == {1}
    assert Operation.objects.filter(verb__contains="replay").count() == 3


@pytest.mark.postgres
def test_an_actor_whose_row_somebody_holds_holds_up_its_own_tasks_alone():
    numbers = parked(3)
    first = Task.objects.get(pk=numbers[0]).actor_id
    mine = job()
    with ThreadPoolExecutor(1) as thread:
        with transaction.atomic():
            Actor.objects.select_for_update(no_key=True).get(pk=first)
            assert thread.submit(with_connection, replays.advance).result(30) == 2
            assert thread.submit(with_connection, replays.advance).result(30) == 0
        mine.refresh_from_db()
        assert (mine.status, mine.done) == ("running", 2)
        thread.submit(lambda: connection.close()).result(30)
    assert replays.work_off(mine).status == "done"
    assert mine.done == 3


@pytest.mark.postgres
def test_sweeps_go_on_while_a_look_at_replay_jobs_waits():
    mine = parked(1)
    due = Task.objects.create(
        actor=Actor.objects.create(kind="test-replayed", name="due"), task_id="t", method="plain",
        due_at=timezone.now(),
    )  # fmt: skip
    replaying = job(replays.Selection(kind="test-replayed", numbers=mine))
    with ThreadPoolExecutor(1) as thread:
        with transaction.atomic():
            ReplayJob.objects.select_for_update().get(pk=replaying.pk)
            local.start()
            wait_until(somebody_waits_for_a_lock)
            # Its alarm without a wake-up: only a sweep finds it.
            alarm = Actor.objects.filter(pk=due.actor_id)
            thread.submit(with_connection, alarm.update, alarm=due.due_at).result(30)
            wait_until(lambda: not Task.objects.filter(pk=due.pk).exists())
        wait_until(lambda: ReplayJob.objects.get(pk=replaying.pk).status == "done")
        thread.submit(lambda: connection.close()).result(30)


def test_what_is_chosen_is_what_the_filters_say():
    now = timezone.now()
    old = parked(1, "plain", parked_at=now - dt.timedelta(days=2))
    new = parked(2, "process", error="TimeoutError: slow")

    def chosen(**filters: Any) -> list[int]:
        return sorted(replays.Selection(**filters).rows().values_list("pk", flat=True))

    assert chosen() == sorted(old + new)
    assert chosen(kind="other") == []
    assert chosen(kind="test-replayed", method="plain") == old
    assert chosen(name="process1") == [new[1]]
    assert chosen(since=now - dt.timedelta(days=1)) == new
    assert chosen(until=now - dt.timedelta(days=1)) == old
    assert chosen(error="timeout") == new
    assert chosen(numbers=[new[0]], task_id="t") == [new[0]]


def test_payloads_are_changed_merged_or_left_and_checked_first():
    change = replays.Change("patch", {"x": None, "y": 2})
    (one,) = parked(1, payload={"x": 1, "z": 3})
    shown = list(replays.preview(replays.Selection().rows(), change))
    assert [(p.row.pk, p.payload, p.error) for p in shown] == [(one, {"z": 3, "y": 2}, "")]
    replays.work_off(job(change=change))
    drain()
    assert Attempt.objects.get().payload == {"z": 3, "y": 2}

    for wrong, error in (
        (replays.Change("patch", [1]), TaskError),
        (replays.Change("replace", "x" * 300_000), LimitError),
    ):
        with pytest.raises(error):
            job(change=wrong)


def test_a_change_that_a_task_cannot_take_is_refused_and_the_others_run():
    parked(1, "plain")
    parked(1, "process", payload="text")
    mine = replays.work_off(job(change=replays.Change("patch", {"x": 1})))
    assert (mine.done, mine.refused) == (0, 2)
    again = replays.work_off(job(change=replays.Change("replace", {"x": 1})))
    assert (again.done, again.refused) == (1, 1)
    assert "takes no payload" in again.items.get(status="refused").error
    drain()
    assert Attempt.objects.get().payload == {"x": 1}


def test_finished_tasks_run_again_as_new_ones():
    stub = ReplayedAgent.named("a")
    stub.sync.tell("process", {"n": 1})
    stub.sync.tell("process", {"n": 2})
    drain()
    chosen = replays.Selection(source="finished", kind="test-replayed", name="a")
    mine = replays.work_off(job(chosen))
    assert mine.done == 2
    assert {item.task_pk for item in mine.items.all()} == set(Task.objects.values_list("pk", flat=True))
    drain()
    assert row(stub).seq == 4


def test_a_pace_is_kept_and_counts_from_the_resumption(monkeypatch):
    parked(10)
    mine = job(per_minute=60)
    moment = ReplayJob.objects.get(pk=mine.pk).resumed_at
    for seconds, so_far in ((0, 1), (0.5, 1), (2, 3), (2, 3), (4, 5)):
        now = moment + dt.timedelta(seconds=seconds)
        mine.refresh_from_db()
        assert replays._room(mine, now) == so_far - mine.done
        monkeypatch.setattr(replays.get_store().sql, "now", lambda now=now: now)
        replays.advance(seconds=5)
        mine.refresh_from_db()
        assert mine.done == so_far
    monkeypatch.undo()
    replays.stop(mine, by="alice")
    assert replays.advance() == 0
    replays.resume(mine, by="alice")
    assert replays._room(mine, mine.resumed_at) == 1


def test_a_job_of_nothing_of_too_much_or_without_a_pace_is_refused(monkeypatch):
    with pytest.raises(TaskError, match="Nothing"):
        job()
    parked(3)
    with pytest.raises(TaskError, match="pace"):
        job(per_minute=0)
    monkeypatch.setattr(replays, "MOST", 3)
    assert job().total == 3
    monkeypatch.setattr(replays, "MOST", 2)
    with pytest.raises(TaskError, match="More than 2"):
        job()
    assert ReplayJob.objects.count() == 1


def test_what_cannot_be_replayed_is_refused_and_says_why():
    pending, gone, fine = parked(3)
    mine = job()
    Task.objects.filter(pk=pending).update(status="pending")
    Task.objects.filter(pk=gone).delete()
    replays.work_off(mine)
    assert (mine.done, mine.refused) == (1, 2)
    assert ReplayItem.objects.get(number=fine).status == "done"
    assert "parked" in ReplayItem.objects.get(number=pending).error


def test_a_process_that_dies_with_a_job_holds_it_for_a_while_only():
    parked(2)
    mine = job()
    ReplayJob.objects.update(held_until=timezone.now() + dt.timedelta(seconds=replays.HELD))
    assert replays.advance() == 0
    advance(replays.HELD + 1)
    assert replays.advance() == 2
    replays.advance()
    mine.refresh_from_db()
    assert mine.status == "done"


def run(*arguments: str) -> str:
    out = StringIO()
    call_command("replay_tasks", *arguments, stdout=out, stderr=out)
    return out.getvalue()


def test_the_command_makes_shows_stops_and_resumes_jobs():
    parked(3, payload={"a": 1})
    said = run("--kind", "test-replayed", "--patch", '{"b": 2}', "--dry-run")
    assert '{"a": 1, "b": 2}' in said and "3 would be replayed" in said
    assert not ReplayJob.objects.exists()
    said = run("--kind", "test-replayed", "--patch", '{"b": 2}', "--background", "--reason", "why")
    (mine,) = ReplayJob.objects.all()
    assert said == f"job {mine.pk}: 3 tasks\n"
    assert "is stopped" in run("--stop", str(mine.pk))
    with pytest.raises(CommandError, match="not running"):
        run("--stop", str(mine.pk))
    assert "is done: 3 replayed, 0 not, 0 left" in run("--resume", str(mine.pk))
    assert "why" in run("--jobs")
    for wrong in (
        ["--payload", "{", "--all"],
        ["--resume", "99"],
        ["--all", "--payload", "1", "--patch", "{}"],
    ):
        with pytest.raises(CommandError):
            run(*wrong)


def test_a_replay_from_the_admin_shows_what_would_run_then_asks_why(alice: Any, bob: Any):
    parked(3, payload={"a": "<script>alert(1)</script>"})
    url = "/admin/scheduler/replayjob/add/"
    assert signed_in(bob).get(url).status_code == 403
    client = signed_in(alice)
    given = {"source": "parked", "kind": "test-replayed", "change": "patch", "payload": '{"b": 2}'}
    shown = Page(client.post(url, given | {"look": "yes"}))
    assert "What would run: 3 tasks" in shown.text and '"b": 2' in shown.text
    assert shown.harmless
    assert "Say why" in Page(client.post(url, given | {"begin": "yes"})).text
    assert not ReplayJob.objects.exists()
    begun = Page(client.post(url, given | {"begin": "yes", "reason": "a fix", "per_minute": 60}, follow=True))
    mine = ReplayJob.objects.get()
    assert (mine.total, mine.by, mine.reason, mine.per_minute) == (3, "alice", "a fix", 60)
    assert "0 replayed, 0 not" in begun.text
    operate = f"/admin/scheduler/replayjob/{mine.pk}/operate/"
    assert signed_in(bob).post(operate, {"verb": "stop"}).status_code == 403
    assert "stopped" in Page(client.post(operate, {"verb": "stop"}, follow=True)).text
    assert "running" in Page(client.post(operate, {"verb": "resume"}, follow=True)).text
    assert "The job is running" in Page(client.post(operate, {"verb": "resume"}, follow=True)).text
    task = Task.objects.parked().order_by("pk").first()
    assert task is not None
    own = Page(client.get(f"/admin/scheduler/task/{task.pk}/change/"))
    assert f"{url}?numbers={task.pk}" in own.hrefs()
    assert "alert(1)" in Page(client.get(f"{url}?numbers={task.pk}")).text
    wrong = Page(client.post(url, given | {"payload": "[1]", "look": "yes"}))
    assert "A patch is an object" in wrong.text
    assert Page(client.get("/admin/scheduler/replayjob/")).status == 200
