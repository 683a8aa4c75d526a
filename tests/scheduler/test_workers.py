"""Celery workers and beat as real processes: what a message does there, and how they end.

On PostgreSQL: several processes write. Leases are long where a test shows that nobody waits for one.
"""

from __future__ import annotations

import datetime as dt
import itertools
import json
import os
import re
import signal
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from celery import current_app
from django.db import transaction
from django.db.models import Count
from django.utils import timezone
from django_celery_beat.models import IntervalSchedule, PeriodicTask

from agents.models import Actor
from agents.store import get_store
from agents.turn import Tell
from conversations.models import Message
from scheduler import tasks
from scheduler.models import Attempt, Pulse, Task
from tests.processes import database_url
from tests.scheduler.clerks.agents import ClerkAgent
from tests.scheduler.turns import new_actor, run
from tests.servers import (
    Beat,
    Redis,
    Worker,
    descendants,
    ended_well,
    free_port,
    missing,
    production,
    running,
)
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.processes,
    pytest.mark.postgres,
    pytest.mark.django_db(transaction=True),
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(missing("redis-server")), reason="needs redis-server"),
]

KIND = ClerkAgent.kind
PATIENT = 90.0  # seconds; the machine may be busy

POOLS = pytest.mark.parametrize("pool", ["threads", "prefork"])


@pytest.fixture
def redis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Redis]:
    """A broker; what this process publishes goes there too."""
    redis = Redis(tmp_path)
    monkeypatch.setattr(current_app.conf, "broker_url", redis.url)
    with running(redis):
        yield redis


@pytest.fixture
def environment(redis: Redis, tmp_path: Path) -> Callable[..., dict[str, str]]:
    def environment(
        *, broker: dict[str, Any] | None = None, pool: str = "threads", threads: int = 2, **agents: Any
    ) -> dict[str, str]:
        return production(
            database_url(),
            redis.url,
            tmp_path,
            AGENT_APPS="tests.scheduler.clerks",
            TEST_AGENTS=json.dumps(agents),
            TEST_BROKER=json.dumps(broker or {}),
            WORKER_POOL=pool,
            WORKER_THREADS=str(threads),
        )

    return environment


@pytest.fixture
def worker(environment: Any, tmp_path: Path) -> Callable[..., Worker]:
    def worker(name: str = "one", **settings: Any) -> Worker:
        return Worker(name, tmp_path, environment(**settings))

    return worker


@pytest.fixture
def beat(environment: Any, tmp_path: Path) -> Callable[..., Beat]:
    def beat(name: str = "beat", every: str = "seconds", **settings: Any) -> Beat:
        sweeps_are_sent()
        return Beat(name, tmp_path, environment(**settings))

    return beat


def sweeps_are_sent() -> None:
    """The migration's row: tests empty the tables."""
    second, _ = IntervalSchedule.objects.get_or_create(every=1, period="seconds")
    PeriodicTask.objects.get_or_create(
        name="agents: sweep",
        defaults={"task": "scheduler.tasks.sweep", "interval": second, "expire_seconds": 2},
    )


def tell(*names: str, method: str = "add", payload: Any = None) -> None:
    """Every wake-up is lost: this process publishes none."""
    get_store().tell([Tell(KIND, name, method, payload) for name in names])


def publish(*names: str) -> None:
    """The wake-up that a site would have published."""
    now = get_store().sql.now().timestamp()
    ids = get_store().find([(KIND, name) for name in names])
    tasks.drain.apply_async(args=[[(id, KIND, now) for id in ids.values()], now], producer=producer())


def producer() -> Any:
    """Of this test's broker; Celery's own pool keeps the connections of the test before."""
    return current_app.amqp.Producer(current_app.connection_for_write())


def outcomes(method: str = "add", **filters: Any) -> list[str]:
    rows = Attempt.objects.filter(method=method, **filters).order_by("pk")
    return list(rows.values_list("outcome", flat=True))


def done(count: int, method: str = "add", timeout: float = PATIENT) -> None:
    wait_until(lambda: outcomes(method).count("done") >= count, timeout, f"{count} runs of {method}")


def runs(method: str = "nap") -> None:
    wait_until(lambda: "running" in outcomes(method), PATIENT, f"{method} to run")


# What a message does


def test_the_sweep_alone_suffices_when_every_wake_up_is_lost(worker, beat):
    with running(one := worker(), sweeps := beat()):
        one.ready()
        tell(*(f"n{n}" for n in range(20)))
        done(20)
        wait_until(lambda: "beat" in Pulse.objects.ages(), PATIENT)
        ended_well(one, sweeps)
    assert Actor.objects.filter(state={"count": 1}).count() == 20


def test_what_a_transaction_told_begins_after_its_commit_also_when_a_worker_is_idle(worker, beat):
    """STATE-04: no worker is faster than the commit, and none needs a second try."""
    with running(one := worker(), beat()):
        one.ready()
        tell("before")
        done(1)
        with transaction.atomic():
            ClerkAgent.named("alice").sync.tell("add")
            time.sleep(2.5)  # sweeps pass
            assert len(outcomes()) == 1
        done(2)
        ended_well(one)
    assert [(a.outcome, a.number) for a in Attempt.objects.all()] == [("done", 1)] * 2
    assert Actor.objects.get(name="alice").state == {"count": 1}


@POOLS
def test_a_worker_without_beat_and_without_a_broker_sweeps_by_itself(pool, worker, redis):
    redis.kill()
    with running(worker(pool=pool)):
        tell("alice")
        done(1)


def test_redis_keeps_no_account_of_messages_that_are_only_hints(worker, redis):
    with running(one := worker()), redis.client() as client:
        one.ready()
        client.config_resetstat()
        for n in range(10):
            tell(f"n{n}")
            publish(f"n{n}")
        done(10)
        ended_well(one)
        # Celery's own way is a ZADD and an HSET for each, and a ZREM and an HDEL.
        asked = client.info("commandstats")
        assert asked["cmdstat_brpop"]["calls"] >= 10
        assert not {"cmdstat_zadd", "cmdstat_hset", "cmdstat_zrem", "cmdstat_hdel"} & set(asked)


def test_a_few_threads_carry_many_turns_that_wait(worker, tmp_path):
    with running(one := worker(threads=1)):
        one.ready()
        names = [f"n{n}" for n in range(40)]
        tell(*names, method="rest", payload=str(tmp_path / "rested"))
        publish(*names)
        # All at once, though one thread brought them.
        wait_until(lambda: outcomes("rest") == ["running"] * 40, PATIENT)
        (tmp_path / "rested").touch()
        done(40, "rest")
        ended_well(one)


def test_a_worker_whose_slots_are_full_leaves_work_to_others(worker, beat, tmp_path):
    with running(full := worker("full", TURNS=2)):
        full.ready()
        tell("a", "b", method="rest", payload=str(tmp_path / "rested"))
        publish("a", "b")
        wait_until(lambda: outcomes("rest") == ["running", "running"], PATIENT)
        with running(other := worker("other"), beat()):
            other.ready()
            names = [f"n{n}" for n in range(30)]
            tell(*names)
            for name in names:
                publish(name)
            done(30)
            assert outcomes("rest") == ["running", "running"]


def test_an_hour_without_workers_leaves_no_heap(worker, redis):
    # Beat's sweeps of an hour, as they lie there when the first worker comes back.
    sender = producer()
    for _ in range(3600):
        tasks.sweep.apply_async(expires=0.001, producer=sender)
    tell("alice")
    with redis.client() as client, running(one := worker()):
        one.ready()
        wait_until(lambda: client.llen("agents") == 0, PATIENT, "an empty queue")
        publish("alice")
        done(1)
        # None of them swept: beat's pulse was not seen.
        assert "beat" not in Pulse.objects.ages()
        ended_well(one)


def test_a_delay_longer_than_the_brokers_visibility_timeout_fires_once(worker, beat, redis):
    """The broker hands out again, to any worker, what it believes lost: nothing of ours waits there."""
    short = {"visibility_timeout": 2, "unacked_restore_interval": 1, "unacked_restore_throttle": 1}
    workers = [worker(name, broker=short) for name in ("one", "two", "three")]
    with running(*workers, beat(broker=short)):
        for one in workers:
            one.ready()
        run(new_actor("alice", KIND), lambda timers: timers.schedule(9.0, "add", id="later"))
        task = Task.objects.get()
        with redis.client() as client:
            while timezone.now() < task.due_at - dt.timedelta(seconds=3):
                waiting = [json.loads(message) for message in client.lrange("agents", 0, -1)]
                assert all(message["headers"]["eta"] is None for message in waiting)
                time.sleep(0.5)
        done(1)
        time.sleep(5)  # more than twice the timeout: a copy would run now
        assert outcomes() == ["done"]
        assert Actor.objects.get(name="alice").state == {"count": 1}


def test_two_beats_change_nothing(worker, beat):
    """Twenty schedules of 2 s, two beats, two workers: each occurrence runs once."""
    with running(one := worker("one"), two := worker("two"), beat("first"), beat("second")):
        one.ready(), two.ready()
        for n in range(20):
            run(new_actor(f"n{n}", KIND), lambda timers: timers.every(2, "add", id="tick"))
        until = time.monotonic() + 20
        done(100)
        time.sleep(max(0.0, until - time.monotonic()))
        ended_well(one, two)
    counted = Attempt.objects.filter(method="add", outcome="done").values("actor_id")
    twice = counted.values("actor_id", "due_at").annotate(n=Count("pk")).filter(n__gt=1)
    assert list(twice) == []
    for actor_id in Actor.objects.values_list("pk", flat=True):
        ran = Attempt.objects.filter(actor_id=actor_id, method="add").order_by("pk")
        assert all(attempt.started_at >= attempt.due_at for attempt in ran)
        dues = [attempt.due_at for attempt in ran]
        assert all(b - a >= dt.timedelta(seconds=1.9) for a, b in itertools.pairwise(dues))
    for actor in Actor.objects.all():
        assert actor.state == {"count": actor.attempts.filter(outcome="done").count()}


def test_model_clients_keep_their_connections(worker, tmp_path):
    connections: set[Any] = set()

    class Model(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            connections.add(self.client_address)
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    env = {"MODEL_CLIENT": "tests.scheduler.clerks.agents.model_client"}
    try:
        with running(one := worker(ENV=env)):
            one.ready()
            for n in range(30):
                tell("alice", method="ask", payload=f"http://127.0.0.1:{server.server_port}/")
                publish("alice")
                done(n + 1, "ask")
            ended_well(one)
    finally:
        server.shutdown()
        server.server_close()
    assert len(connections) == 1, f"{len(connections)} connections for 30 turns"


# How they end


@POOLS
def test_a_deploy_gives_running_turns_to_another_worker_at_once(pool, worker, tmp_path):
    with running(one := worker(pool=pool, LEASE=120.0, SHUTDOWN_GRACE=1.0)):
        one.ready()
        tell("alice", method="rest", payload=str(tmp_path / "rested"))
        publish("alice")
        runs("rest")
        with running(two := worker("two", LEASE=120.0)):
            two.ready()
            assert one.terminate() == 0, one.said()[-3000:]
            began = time.monotonic()
            # The attempt is given back, uncounted, and runs elsewhere long before its lease would have ended.
            wait_until(lambda: outcomes("rest") == ["released", "running"], 60)
            print(f"runs elsewhere {time.monotonic() - began:.1f} s after the end of its worker")
            (tmp_path / "rested").touch()
            done(1, "rest")
            ended_well(two)
    assert [a.number for a in Attempt.objects.filter(method="rest").order_by("pk")] == [1, 1]


@POOLS
def test_a_deploy_lets_turns_end_that_need_no_longer_than_the_grace(pool, worker):
    with running(one := worker(pool=pool, SHUTDOWN_GRACE=30.0)):
        one.ready()
        tell("alice", method="nap", payload=4.0)
        publish("alice")
        runs()
        assert one.terminate() == 0
    assert outcomes("nap") == ["done"]


@pytest.mark.parametrize("amid", ["tool", "model"])
def test_a_deploy_in_the_middle_of_a_run_repeats_no_tool_and_keeps_nobody_waiting(amid, worker, tmp_path):
    """OPS-05: within the grace a tool ends and is remembered; after it, SIGKILL meets a model's call."""
    path, answer = tmp_path / "outside", tmp_path / "outside.answer"
    settings: dict[str, float] = {"SHUTDOWN_GRACE": 5.0}
    if amid == "model":
        settings = {"SHUTDOWN_GRACE": 60.0, "LEASE": 6.0, "LEASE_RENEWAL": 1.0}
    with running(one := worker(**settings)):
        one.ready()
        tell("alice", method="work", payload=str(path))
        publish("alice")
        seen = "begun\n" if amid == "tool" else "begun\nended\n"
        wait_until(lambda: path.exists() and path.read_text() == seen, PATIENT)
        assert one.process is not None
        one.process.terminate()
        if amid == "model":
            time.sleep(0.5)
            one.kill()
        else:
            assert one.wait() == 0
        tell("alice")  # what comes meanwhile
        answer.touch()
        with running(two := worker("two")):
            done(1)
            assert outcomes("work") == ["released" if amid == "tool" else "lost", "done"]
            ended_well(two)
    assert path.read_text() == "begun\nended\n"
    assert Actor.objects.get(name="alice").state == {"count": 1, "worked": True}


def test_a_worker_killed_in_the_middle_of_a_tool_that_may_not_run_twice_goes_on_without_it(worker, tmp_path):
    """OPS-05: the user reads that it was interrupted, the actor takes what comes, the tool has run once."""
    path = tmp_path / "outside"
    settings = {"LEASE": 4.0, "LEASE_RENEWAL": 1.0}
    with running(one := worker(**settings)):
        one.ready()
        tell("alice", method="charge", payload=str(path))
        publish("alice")
        wait_until(lambda: path.exists() and path.read_text() == "begun\n", PATIENT)
        one.kill()
        tell("alice")  # what comes meanwhile
        with running(two := worker("two")):
            done(1)
            assert outcomes("charge") == ["lost", "done"]
            ended_well(two)
    assert path.read_text() == "begun\n"
    said = Message.objects.filter(actor__name="alice").order_by("seq").values_list("role", "content")
    assert [role for role, _ in said] == ["assistant", "assistant"]
    assert "interrupted" in said[1][1]
    assert Actor.objects.get(name="alice").state == {"count": 1}


@pytest.mark.parametrize("who", ["child", "parent"])
def test_a_worker_killed_in_the_middle_of_a_callback(who, worker, beat, tmp_path):
    """Visible as lost, run again within a stated time (a lease), and the next occurrence still fires."""
    lease, rested = {"LEASE": 6.0, "LEASE_RENEWAL": 1.0}, tmp_path / "rested"
    with running(one := worker(pool="prefork", **lease), beat()):
        one.ready()
        run(new_actor("alice", KIND), lambda timers: timers.every(1, "rest", str(rested), id="tick"))
        runs("rest")
        if who == "child":
            for pid in descendants(one.pid):
                os.kill(pid, signal.SIGKILL)
        else:
            one.kill()
            one.start()
        rested.touch()
        wait_until(lambda: outcomes("rest")[:2] == ["lost", "done"], PATIENT)
        done(2, "rest")
    first, second = Attempt.objects.filter(method="rest").order_by("pk")[:2]
    print(f"run again {(second.started_at - first.started_at).total_seconds():.1f} s after it had begun")
    assert (first.number, second.number) == (1, 2)


@POOLS
def test_each_process_of_a_worker_shows_what_it_has_done(pool, worker):
    """With a pool of processes each child has a port of its own; together they have every turn once."""
    first = free_port()
    with running(one := worker(pool=pool, METRICS_PORTS=f"{first}-{first + 20}")):
        one.ready()
        names = [f"counted {n}" for n in range(6)]
        tell(*names)
        publish(*names)
        done(6)
        wait_until(lambda: len(ports_of(one)) == (1 if pool == "threads" else 2), PATIENT, "their ports")
        assert len(set(ports_of(one))) == len(ports_of(one))
        wait_until(lambda: sum(map(turns_of, ports_of(one))) == 6, PATIENT, "six turns to be told")
        ended_well(one)


def ports_of(worker: Worker) -> list[int]:
    return [
        int(port)
        for port in re.findall(r"metrics of this process: http://127\.0\.0\.1:(\d+)/", worker.said())
    ]


def turns_of(port: int) -> int:
    """The turns that the process behind this port has done."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        told = answer.read().decode()
    line = rf'^agents_turns_total{{kind="{KIND}",origin="task",outcome="done"}} (\S+)$'
    return sum(int(float(count)) for count in re.findall(line, told, re.MULTILINE))
