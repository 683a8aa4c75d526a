"""Several processes on one database: killed, stopped, exhausted, racing."""

from __future__ import annotations

import datetime as dt
import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from agents import conf
from agents.exceptions import ActorBusyError
from agents.models import Actor, TurnRecord
from agents.store import get_store
from agents.testing import advance, drain
from agents.turn import Tell
from conversations.models import Message
from scheduler.models import Attempt, Task
from tests.agents.cast import Counter, Keeper, Mortal, Waiter, Writer
from tests.agents.facts import attempts, messages, row, tasks
from tests.faults.processes import ROOT, Worker, workers
from tests.processes import database_url
from tests.scheduler.clerks.agents import ClerkAgent
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.processes,
    pytest.mark.django_db(transaction=True),
    pytest.mark.timeout(180),
]

# Leases of which a test can wait for the end.
SHORT: dict[str, Any] = {"LEASE": 4.0, "LEASE_RENEWAL": 0.4, "STOP_POLL": 0.1, "SWEEP_INTERVAL": 0.2}


def its_lease_ends(stub: Any) -> None:
    """As if the process that holds it had been away for so long."""
    Actor.objects.filter(kind=stub.kind, name=stub.name).update(
        lease_expires_at=dt.datetime.now(dt.UTC) - dt.timedelta(seconds=1)
    )


def tell(stub: Any, method: str, payload: Any = None, **options: Any) -> None:
    get_store().tell([Tell(stub.kind, stub.name, method, payload, **options)])


# How many tells race the drains, in all. 20,000 take minutes on two busy cores.
TELLS = int(os.environ.get("TEST_TELLS", "2000"))


# Two at once


def test_two_processes_with_200_calls_each_that_read_modify_and_write_make_400():
    with workers(("add", "c", 200), ("add", "c", 200)) as (one, other):
        results = one.hear() + other.hear()
    assert sorted(results) == list(range(1, 401))
    assert Counter.named("c").sync.count() == 400
    assert row(Counter.named("c")).version == 400
    assert TurnRecord.objects.count() == 400


def test_two_first_messages_in_two_processes_make_one_actor():
    calls = [("call", "test-counter", "+15550001111", "log", json.dumps([text])) for text in ("one", "two")]
    with workers(*calls) as (one, other):
        assert sorted([one.hear(), other.hear()]) == [1, 2]
    assert Actor.objects.count() == 1
    assert sorted(messages(Counter.named("+15550001111"))) == ["one", "two"]


def test_two_patches_of_different_keys_from_two_processes_both_stand(tmp_path):
    slow = ("call", "test-counter", "c", "slow_add", json.dumps([str(tmp_path / "go on")]))
    with workers(slow, ("call", "test-counter", "c", "log", '["x"]')) as (one, other):
        time.sleep(0.3)  # whoever comes second waits for the other, or for its commit
        (tmp_path / "go on").touch()
        assert (one.hear(), other.hear()) == (1, 1)
    assert row(Counter.named("c")).state == {"count": 1}
    assert messages(Counter.named("c")) == ["x"]


def test_actors_of_two_processes_that_call_each_other_at_the_same_moment_one_fails_in_each_round(tmp_path):
    rounds = 15
    with workers(("meet", "a", "b", tmp_path, rounds), ("meet", "b", "a", tmp_path, rounds)) as (one, other):
        outcomes = list(zip(one.hear(), other.hear(), strict=True))
    assert len(outcomes) == rounds
    for (first, took), (second, too) in outcomes:
        assert sorted([first, second]) == ["ActorDeadlockError", "answer"]
        assert max(took, too) < conf.get("PATIENCE") / 2


# Killed


def test_a_worker_that_is_killed_in_the_middle_of_a_task_is_followed_by_another_at_the_real_lease(tmp_path):
    """With the lease as it is in production, and a sweep every second: within 20 s, on an idle machine."""
    assert conf.get("LEASE") + 2 * conf.get("SWEEP_INTERVAL") < 20
    path = tmp_path / "outside"
    stub = Waiter.named("w")
    with workers(("drain",), ("drain",)) as both:
        killed = tmp_path / "killed"
        nap = {"seconds": 120, "mark": "reply", "path": str(path), "until": str(killed)}
        tell(stub, "nap", nap)
        wait_until(lambda: path.exists() and path.read_text().endswith("\n"))
        pid = int(path.read_text().split()[-1])
        next(worker for worker in both if worker.pid == pid).signal(signal.SIGKILL)
        killed.touch()
        wait_until(lambda: attempts(stub) == ["lost", "done"], 60)
    assert messages(stub) == ["reply"]
    lines = [line.rsplit(" ", 1)[0] for line in path.read_text().splitlines()]
    assert lines == ["begun reply", "begun reply", "ended reply"]
    assert tasks(stub) == []
    assert [a.number for a in Attempt.objects.order_by("id")] == [1, 2]


def test_a_turn_that_is_paused_beyond_its_lease_commits_nothing_when_it_wakes(tmp_path):
    stub = Waiter.named("w")
    path, woken = tmp_path / "outside", tmp_path / "woken"
    args = json.dumps([120, "paused", str(path), str(woken)])
    with workers(("call", stub.kind, stub.name, "sleep", args)) as (worker,):
        wait_until(path.exists)
        worker.signal(signal.SIGSTOP)
        with pytest.raises(ActorBusyError):
            stub.sync.call("sleep", (0, "too early"), patience=0)
        its_lease_ends(stub)
        assert stub.sync.call("sleep", (0, "another"), patience=30) == "another"
        woken.touch()  # its body may end as soon as it wakes
        worker.signal(signal.SIGCONT)
        assert worker.hear() == "TurnLostError"
    assert messages(stub) == ["another"]
    assert row(stub).version == 1


def test_a_worker_that_is_paused_beyond_its_lease_records_nothing_of_its_task(tmp_path):
    stub = Waiter.named("w")
    path, paused = tmp_path / "outside", tmp_path / "paused"
    tell(stub, "nap", {"seconds": 120, "mark": "reply", "path": str(path), "until": str(paused)})
    with workers(("drain",)) as (first,):
        wait_until(path.exists)
        first.signal(signal.SIGSTOP)
        its_lease_ends(stub)
        paused.touch()
        with workers(("drain",)):
            wait_until(lambda: attempts(stub) == ["lost", "done"])
            first.signal(signal.SIGCONT)
            time.sleep(0.5)
            assert attempts(stub) == ["lost", "done"]
    assert messages(stub) == ["reply"]
    assert tasks(stub) == []


def test_a_stop_from_another_process_reaches_a_worker(tmp_path):
    """Within a second: it is seen by the next look (tests/agents/test_stop.py)."""
    stub = Waiter.named("w")
    path = tmp_path / "outside"
    with workers(("drain",)) as _:
        tell(stub, "nap", {"seconds": 90, "path": str(path)})
        wait_until(path.exists)
        assert stub.sync.stop() is True
        wait_until(lambda: attempts(stub) == ["stopped"])
        wait_until(lambda: tasks(stub) == [])


# Tasks that end their process


@pytest.mark.parametrize("method", ["exits", "hoards"])
def test_a_task_that_ends_its_process_or_takes_all_its_memory_is_parked_after_its_retries(method, tmp_path):
    stub = Mortal.named("m")
    path = tmp_path / "pids"
    tell(stub, method, str(path), max_retries=1)
    memory = 0 if method == "exits" else 700 * 1024 * 1024
    settings = SHORT if method == "exits" else {"SWEEP_INTERVAL": 0.2}  # one that lives keeps its lease

    def is_over() -> bool:
        return tasks(stub) == [(method, "parked", 2)] and bool(messages(stub))

    for _ in range(8):
        if is_over():
            break
        with workers(("drain",), memory=memory, **settings) as (worker,):
            process = worker.process

            def has_ended(process: subprocess.Popen[str] = process) -> bool:
                return process.poll() is not None or is_over()

            wait_until(has_ended, 60)
    assert tasks(stub) == [(method, "parked", 2)]
    assert messages(stub) == [f"parked {method} 2"]
    assert len(path.read_text().splitlines()) == 2
    outcomes = attempts(stub)
    assert outcomes[:2] == (["lost", "lost"] if method == "exits" else ["failed", "failed"])


def test_a_body_that_blocks_its_process_past_budget_and_grace_cannot_commit_and_others_have_the_actor(
    tmp_path,
):
    settings: dict[str, Any] = {**SHORT, "CALL_BUDGET": 0.3, "BUDGET_GRACE": 0.3, "LEASE": 90.0}
    stub, over = Writer.named("w"), tmp_path / "over"
    args = json.dumps([str(over), 90])
    with workers(("call", stub.kind, stub.name, "blocks", args), **settings) as (worker,):
        wait_until(lambda: Actor.objects.filter(token__isnull=False).exists())
        stub.sync.call("everything", patience=45)  # while the body still blocks: not after its lease
        over.touch()
        assert worker.hear() in ("ActorMethodTimeoutError", "TurnLostError")
    assert messages(stub) == ["hello"]


# Fair between processes


def test_a_drain_of_many_tasks_lets_a_call_of_another_process_through():
    stub = Keeper.named("k")
    for n in range(200):
        tell(stub, "keep_slowly", str(n))
    with workers(("drain",)):
        wait_until(lambda: Message.objects.count() > 10, 30)
        before = Message.objects.count()
        stub.sync.keep("the call")
        log = messages(stub)
        assert log.index("the call") - before <= 100  # as a rule 5; not after all of them
        wait_until(lambda: tasks(stub) == [], 60)
    assert [m for m in messages(stub) if m != "the call"] == [str(n) for n in range(200)]


# Nothing is lost


@pytest.mark.timeout(1000)
def test_no_told_task_is_lost_between_tells_of_four_processes_and_the_drains_that_they_wake():
    """Without any sweep: every wake-up is one that a commit made."""
    each = TELLS // 4
    stub = Keeper.named("k")
    began = time.monotonic()
    with workers(*[("tell", "k", each)] * 4, MAX_INBOX=100_000) as tellers:
        for teller in tellers:
            assert teller.hear() == "told"
        wait_until(lambda: not Task.objects.exists(), 900)
        print(f"{4 * each} tells and their tasks in {time.monotonic() - began:.1f} s")
        for teller in tellers:
            assert teller.end() == 0
    assert row(stub).state == {"count": 4 * each}
    assert Attempt.objects.filter(outcome="done").count() == 4 * each
    assert Attempt.objects.count() == 4 * each
    assert (row(stub).token, row(stub).alarm) == (None, None)


# The end of a process


def test_a_process_that_is_asked_to_stop_gives_its_tasks_back_and_another_runs_them_at_once(tmp_path):
    stub, rested = ClerkAgent.named("c"), tmp_path / "rested"
    tell(stub, "rest", str(rested))
    env = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "DATABASE_URL": database_url(),
        "AGENT_APPS": "tests.scheduler.clerks",
        "TEST_AGENTS": json.dumps({"SHUTDOWN_GRACE": 0.5, "LEASE": 120.0}),
    }
    command = [sys.executable, "manage.py", "run_scheduler"]
    spare = Worker("drain")
    scheduler = subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.DEVNULL)
    try:
        spare.ready()
        wait_until(lambda: attempts(stub) == ["running"], 30)
        spare.go()
        scheduler.send_signal(signal.SIGTERM)
        # The grace and a sweep: not after its lease.
        wait_until(lambda: attempts(stub) == ["released", "running"], 60)
        rested.touch()
        assert scheduler.wait(30) == 0
        wait_until(lambda: attempts(stub) == ["released", "done"])
    finally:
        for process in (scheduler, spare.process):
            process.kill()
            process.wait(30)
        spare.kill()
    assert row(stub).state == {"count": 0, "rested": True}
    assert [a.number for a in Attempt.objects.order_by("id")] == [1, 1]  # it was not counted


def test_the_dead_are_found_by_whoever_comes_next_also_by_a_clock_that_moved():
    stub = Waiter.named("w")
    with workers(("drain",)) as (worker,):
        tell(stub, "nap", {"seconds": 120, "mark": "reply"}, max_retries=0)
        wait_until(lambda: attempts(stub) == ["running"])
        worker.signal(signal.SIGKILL)
        worker.process.wait(30)
    assert drain() == 0  # its lease still lives
    advance(16)
    drain()
    assert attempts(stub) == ["lost"]
