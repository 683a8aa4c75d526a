"""list_tasks and replay_tasks, as an operator types them."""

from __future__ import annotations

import argparse
import datetime as dt
import json
import signal
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from scheduler import replays, selection
from scheduler.models import Attempt, ReplayItem, ReplayJob, Task
from tests.scheduler.test_verbs import FUTURE, PAST, a_task, an_attempt, parked
from tests.scheduler.turns import new_actor

pytestmark = pytest.mark.django_db


def manage(*args: Any) -> tuple[str, str]:
    out, err = StringIO(), StringIO()
    call_command(*map(str, args), stdout=out, stderr=err, no_color=True)
    return out.getvalue(), err.getvalue()


def refused(*args: Any) -> tuple[str, str, str]:
    out, err = StringIO(), StringIO()
    with pytest.raises(CommandError) as caught:
        call_command(*map(str, args), stdout=out, stderr=err, no_color=True)
    return str(caught.value), out.getvalue(), err.getvalue()


@pytest.fixture
def tasks() -> dict[str, Task]:
    alice, bob = new_actor("+15550001111"), new_actor("bob", kind="billing")
    return {
        "nudge": a_task(alice, "nudge", method="nudge"),
        "due": a_task(alice, "due", due_at=PAST, lane="inbox", method="receive"),
        "tick": a_task(alice, "tick", method="tick", every_seconds=90.0),
        "report": a_task(bob, "report", method="report", cron="0 9 * * *", tz="Europe/Paris"),
        "stuck": parked(bob, "stuck"),
        "old": parked(alice, "old"),
    }


def listed(*args: Any) -> list[str]:
    return [task["id"] for task in json.loads(manage("list_tasks", "--json", *args)[0])]


# list_tasks


def test_the_list_answers_what_is_scheduled_and_what_is_stuck(tasks: dict[str, Task]) -> None:
    out, err = manage("list_tasks")
    lines = out.splitlines()
    assert lines[0].split() == [
        "task", "actor", "method", "lane", "status", "due", "repeats", "attempts", "id", "error",
    ]  # fmt: skip
    assert len(lines) == 7
    assert not err
    by_id = {line.split("  ")[0].strip(): line for line in lines[1:]}
    stuck = by_id[str(tasks["stuck"].pk)]
    assert "billing/bob" in stuck and "parked" in stuck and "6/6" in stuck and "ValueError: no" in stuck
    assert "2090-01-01 00:00:00Z" in by_id[str(tasks["nudge"].pk)]
    assert "every 90 s" in by_id[str(tasks["tick"].pk)]
    assert "0 9 * * * Europe/Paris" in by_id[str(tasks["report"].pk)]


@pytest.mark.parametrize(
    ("filters", "ids"),
    [
        (["--kind", "billing"], {"report", "stuck"}),
        (["--name", "+15550001111"], {"nudge", "due", "tick", "old"}),
        (["--name", "+1555"], set()),
        (["--method", "process"], {"stuck", "old"}),
        (["--task-id", "tick"], {"tick"}),
        (["--status", "parked"], {"stuck", "old"}),
        (["--status", "pending"], {"nudge", "due", "tick", "report"}),
        (["--due"], {"due"}),
        (["--kind", "billing", "--status", "parked"], {"stuck"}),
    ],
)
def test_filters_narrow_the_list(tasks: dict[str, Task], filters: list[str], ids: set[str]) -> None:
    assert set(listed(*filters)) == ids


def test_json_has_every_field(tasks: dict[str, Task]) -> None:
    (task,) = json.loads(manage("list_tasks", "--json", "--task-id", "report")[0])
    report = tasks["report"]
    assert task == {
        "task": report.pk, "kind": "billing", "name": "bob", "id": "report", "method": "report",
        "payload": {"n": 1}, "lane": "timer", "status": "pending", "due_at": FUTURE.isoformat(),
        "every_seconds": None, "cron": "0 9 * * *", "tz": "Europe/Paris", "attempts": 0, "max_retries": 5,
        "created_at": Task.objects.get(pk=report.pk).created_at.isoformat(), "parked_at": None, "error": None,
    }  # fmt: skip


def test_the_list_is_bounded_and_says_so(tasks: dict[str, Task]) -> None:
    out, err = manage("list_tasks", "--json", "--limit", 2)
    assert len(json.loads(out)) == 2
    assert "More than 2" in err
    assert not manage("list_tasks", "--limit", 6)[1]


def test_an_empty_list_is_said_or_is_empty_json() -> None:
    assert manage("list_tasks")[0] == "No tasks.\n"
    assert json.loads(manage("list_tasks", "--json")[0]) == []


def test_what_people_wrote_cannot_drive_the_terminal() -> None:
    actor = new_actor("\x1b[2Jevil\u202e\nline")
    a_task(actor, "\x1b]0;title\x07", error="\x1b[31mred")
    parked(actor, "\x1b[1m")
    for out in (manage("list_tasks")[0], manage("replay_tasks", "--all")[0]):
        assert all(line.isprintable() for line in out.splitlines())
        assert "\\x1b[2Jevil\\u202e\\nline" in out


@pytest.mark.parametrize("limit", ["0", "-1", "many", "1.5", "²"])
def test_a_bad_limit_is_refused(limit: str) -> None:
    assert "whole number" in refused("list_tasks", f"--limit={limit}")[0]


# replay_tasks


def status(tasks: dict[str, Task]) -> dict[str, str]:
    return {task.task_id: task.status for task in Task.objects.filter(pk__in=[t.pk for t in tasks.values()])}


def test_replay_by_number(tasks: dict[str, Task]) -> None:
    out, err = manage("replay_tasks", tasks["stuck"].pk)
    assert f"replayed task {tasks['stuck'].pk} billing/bob process (stuck)\n" in out
    assert out.endswith("is done: 1 replayed, 0 not, 0 left\n")
    assert not err
    assert status(tasks)["stuck"] == "pending"
    assert status(tasks)["old"] == "parked"


@pytest.mark.parametrize(
    ("filters", "replayed"),
    [
        (["--kind", "billing"], {"stuck"}),
        (["--name", "+15550001111"], {"old"}),
        (["--method", "process"], {"stuck", "old"}),
        (["--method", "nudge"], set()),
        (["--task-id", "old"], {"old"}),
        (["--all"], {"stuck", "old"}),
        (["--since", "2026-01-01T00:00:00Z"], {"stuck", "old"}),
        (["--since", "2026-01-01T00:00:01Z"], set()),
        (["--until", "2026-01-01T00:00:00+00:00"], {"stuck", "old"}),
        (["--until", "2025-12-31"], set()),
        (["--since", "2025-12-31", "--until", "2026-01-02", "--kind", "billing"], {"stuck"}),
        (["--since", "1h"], set()),
    ],
)
def test_filters_say_which_parked_tasks(
    tasks: dict[str, Task], filters: list[str], replayed: set[str]
) -> None:
    would = manage("replay_tasks", "--dry-run", *filters)[0]
    assert status(tasks) == {task.task_id: task.status for task in tasks.values()}
    assert would.endswith(f"{len(replayed)} would be replayed\n")
    out, _ = manage("replay_tasks", *filters)
    assert f"{len(replayed)} replayed, 0 not" in out
    now = status(tasks)
    assert {id for id in ("stuck", "old") if now[id] == "pending"} == replayed
    lines = [line.removeprefix("replayed ") for line in out.splitlines() if line.startswith("replayed ")]
    would_be = [line.removeprefix("would replay ") for line in would.splitlines()[:-1]]
    assert [line.split(", parked 2026-01-01 00:00:00Z with ")[0] for line in would_be] == lines
    # The same job as in the admin, which anybody may stop and resume.
    assert [job.total for job in ReplayJob.objects.all()] == [len(replayed)] * bool(replayed)


def test_many_tasks_have_no_line_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler.management.commands.replay_tasks.LINES", 3)
    actor = new_actor()
    for number in range(8):
        parked(actor, f"task {number}")
    assert manage("replay_tasks", "--all", "--dry-run")[0].endswith("8 would be replayed\n")
    out, _ = manage("replay_tasks", "--all")
    assert "task 3" not in out and out.endswith("8 replayed, 0 not, 0 left\n")
    assert not Task.objects.parked().exists()


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_it_is_stopped_by_ctrl_c_and_goes_on_from_there(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    actor = new_actor()
    for number in range(5):
        parked(actor, f"task {number}")
    deal_with = replays._deal_with

    def interrupted(*args: Any) -> bool:
        if ReplayJob.objects.get().done == 2:
            signal.raise_signal(signal.Signals[name])
        return deal_with(*args)

    before = signal.getsignal(signal.Signals[name])
    monkeypatch.setattr(replays, "SLICE", 0)
    monkeypatch.setattr(replays, "_deal_with", interrupted)
    out, _ = manage("replay_tasks", "--all", "--per-minute", "100000", "--reason", "why")
    job = ReplayJob.objects.get()
    assert (job.status, job.done, job.left) == ("stopped", 3, 2)
    assert f"job {job.pk} is stopped: 3 replayed, 0 not, 2 left\ngo on with: manage.py replay_tasks" in out
    assert Task.objects.parked().count() == 2
    assert signal.getsignal(signal.Signals[name]) is before
    monkeypatch.undo()
    out, _ = manage("replay_tasks", "--resume", job.pk)
    assert f"job {job.pk} is done: 5 replayed, 0 not, 0 left" in out
    assert not Task.objects.parked().exists()
    assert ReplayItem.objects.filter(status="done").count() == 5


def test_what_cannot_be_replayed_is_said_and_does_not_stop_the_rest(tasks: dict[str, Task]) -> None:
    message, out, err = refused("replay_tasks", tasks["nudge"].pk, tasks["stuck"].pk)
    assert message == "1 could not be replayed."
    assert "1 replayed, 1 not" in out
    assert "Only a parked task" in err
    assert status(tasks)["stuck"] == "pending"


def test_nothing_is_replayed_unless_something_is_named(tasks: dict[str, Task]) -> None:
    assert "Say which" in refused("replay_tasks")[0]
    assert "Say which" in refused("replay_tasks", "--dry-run")[0]
    assert "No such task: 999999." in refused("replay_tasks", 999999, tasks["stuck"].pk)[0]
    assert status(tasks)["stuck"] == "parked"


def test_an_attempt_is_replayed_as_a_new_task() -> None:
    actor = new_actor()
    first, second = an_attempt(actor), an_attempt(actor, outcome="running")
    assert manage("replay_tasks", "--dry-run", "--attempt", first.pk)[0].endswith("1 would be replayed\n")
    assert not Task.objects.exists()
    message, out, err = refused("replay_tasks", "--attempt", first.pk, second.pk)
    assert message == "1 could not be replayed."
    assert f"as task {Task.objects.get().pk}" in out
    assert "has not ended" in err
    assert "No such attempt: 999999." in refused("replay_tasks", "--attempt", 999999)[0]
    assert "stands alone" in refused("replay_tasks", "--attempt", first.pk, "--kind", "support")[0]
    assert Attempt.objects.count() == 2


# Moments


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-11-30T12:00:00Z", dt.datetime(2026, 11, 30, 12, tzinfo=dt.UTC)),
        ("2026-11-30 12:00+02:00", dt.datetime(2026, 11, 30, 10, tzinfo=dt.UTC)),
        ("2026-11-30", dt.datetime(2026, 11, 30, tzinfo=dt.UTC)),
        ("2026-11-30T12:00", dt.datetime(2026, 11, 30, 12, tzinfo=dt.UTC)),
    ],
)
def test_a_moment_is_iso_8601(text: str, moment: dt.datetime) -> None:
    assert selection.moment(text) == moment


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("15m", 900), ("2h", 7200), ("1d", 86_400)])
def test_a_moment_may_be_so_long_ago(text: str, seconds: int) -> None:
    before = timezone.now()
    moment = selection.moment(text) + dt.timedelta(seconds=seconds)
    assert before <= moment <= timezone.now()


@pytest.mark.parametrize(
    "text", ["", "yesterday", "2026-13-01", "2026-02-30", "2h ago", "-2h", "25:00", "2w"]
)
def test_what_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="not a moment"):
        selection.moment(text)
