"""The Celery dispatcher within one process, against a Redis that the test may stop and freeze."""

from __future__ import annotations

import asyncio
import base64
import datetime as dt
import gc
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import time_machine
from celery import current_app
from django.apps import apps
from django.utils import timezone
from django_celery_beat.models import PeriodicTask
from django_celery_beat.schedulers import DatabaseScheduler

from agents import store
from agents.models import Actor
from agents.store import get_store
from agents.testing import advance
from agents.turn import Tell
from conversations import outbox
from scheduler import tasks
from scheduler.dispatchers import broker, drains
from scheduler.dispatchers import celery as dispatcher
from scheduler.dispatchers.publisher import Publisher
from scheduler.drain import drain
from scheduler.models import Attempt, Pulse, PulseName, Task
from tests.scheduler.clerks.agents import ClerkAgent
from tests.scheduler.turns import new_actor, run
from tests.servers import Redis, missing, production
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.processes,
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(bool(missing("redis-server")), reason="needs redis-server"),
]

ROOT = Path(__file__).resolve().parents[2]
KIND = ClerkAgent.kind
QUEUE = "agents"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    redis = Redis(tmp_path_factory.mktemp("redis"))
    redis.start()
    yield redis
    redis.kill()


@pytest.fixture
def redis(
    server: Redis, monkeypatch: pytest.MonkeyPatch, agents_settings: Callable[..., None]
) -> Iterator[Redis]:
    """An empty broker, to which this process publishes, however slow the machine is."""
    agents_settings(PUBLISH_TIMEOUT=30.0)
    if not server.running:
        server.start()
    server.thaw()
    with server.client() as client:
        client.flushall()
    monkeypatch.setattr(current_app.conf, "broker_url", server.url)
    monkeypatch.setattr(dispatcher, "_broker", broker.Broker())
    monkeypatch.setattr(dispatcher, "_publisher", Publisher(dispatcher._send))
    dispatcher.connect()
    yield server
    dispatcher.disconnect()
    dispatcher._broker.close()
    server.thaw()


@pytest.fixture
def worker(redis: Redis) -> Iterator[dispatcher.Worker]:
    """This process as a worker, without Celery's own part of one."""
    yield dispatcher.start()
    dispatcher.end()


@pytest.fixture
def agents_settings(settings: Any) -> Callable[..., None]:
    def change(**values: Any) -> None:
        settings.AGENTS = {**settings.AGENTS, **values}

    return change


def messages(redis: Redis, task: Any = tasks.drain) -> list[list[Any]]:
    """The arguments of the calls that are in the queue, oldest first."""
    with redis.client() as client:
        raw = [json.loads(message) for message in reversed(client.lrange(QUEUE, 0, -1))]
    return [
        json.loads(base64.b64decode(message["body"]))[0]
        for message in raw
        if message["headers"]["task"] == task.name
    ]


def headers(redis: Redis) -> list[dict[str, Any]]:
    with redis.client() as client:
        return [json.loads(message)["headers"] for message in client.lrange(QUEUE, 0, -1)]


def tell(count: int, method: str = "add", payload: Any = None, prefix: str = "n") -> None:
    """Tells ``count`` actors something in one commit, as a turn or a webhook does."""
    tells = [Tell(KIND, f"{prefix}{n}", method, payload) for n in range(count)]
    _, alarms = get_store().tell(tells)
    store.wake(alarms)


def published(redis: Redis, count: int) -> list[list[Any]]:
    wait_until(lambda: len(messages(redis)) >= count)
    dispatcher._publisher.flush()
    return messages(redis)


# Publishing


def test_the_wake_ups_of_a_commit_go_out_in_one_message_with_a_list_of_actors(redis):
    tell(64)
    ((wakes, said),) = published(redis, 1)
    assert len(wakes) == 64
    assert {kind for _, kind, _ in wakes} == {KIND}
    assert abs(said - get_store().sql.now().timestamp()) < 60


def test_what_gathers_while_the_broker_is_talked_to_goes_together(redis, monkeypatch):
    told, send = threading.Event(), dispatcher._publisher._send
    monkeypatch.setattr(dispatcher._publisher, "_send", lambda *wakes: told.wait(60) and send(*wakes))
    for n in range(50):
        tell(1, prefix=f"{n}-")
    told.set()
    wait_until(lambda: sum(len(wakes) for wakes, _ in messages(redis)) == 50)
    assert sorted(len(wakes) for wakes, _ in messages(redis))[-1] >= 25
    assert len(messages(redis)) <= 3


def test_a_turn_that_tells_hundreds_is_spread_over_workers(redis):
    tell(250)
    assert [len(wakes) for wakes, _ in published(redis, 3)] == [100, 100, 50]


def test_a_near_alarm_is_handed_over_with_its_exact_moment_and_a_far_one_stays_in_the_database(redis):
    def schedule(seconds: float) -> Any:
        return lambda timers: timers.schedule(seconds, "add", id="x")

    near, far = new_actor("near", KIND), new_actor("far", KIND)
    run(far, schedule(3600))
    run(near, schedule(1.5))
    ids = [near, far]
    alarms = {row.actor_id: row for row in get_store().sql.alarms(ids, get_store().sql.now())}
    store.wake(list(alarms.values()))
    ((wakes, _),) = published(redis, 1)
    assert [(id, kind) for id, kind, _ in wakes] == [(near, KIND)]
    assert (at := alarms[near].at) is not None
    assert wakes[0][2] == pytest.approx(at.timestamp(), abs=1e-5)
    # Nothing in the broker waits for its time: no countdown, and no clock of another machine.
    assert [(h["eta"], h["expires"]) for h in headers(redis)] == [(None, None)]


def test_a_tell_in_a_transaction_wakes_when_it_commits_and_not_before(redis):
    from django.db import transaction

    with transaction.atomic():
        ClerkAgent.named("alice").sync.tell("add")
        time.sleep(0.5)
        assert messages(redis) == []
    ((wakes, _),) = published(redis, 1)
    assert len(wakes) == 1


def test_texts_that_wait_are_said_to_wait(redis):
    outbox.wake()
    wait_until(lambda: messages(redis, tasks.send_texts) == [[]])


@pytest.mark.parametrize("frozen", [True, False], ids=["hangs", "is gone"])
def test_a_broker_that(frozen, redis, caplog, agents_settings):
    def heard(prefix: str, before: int) -> int:
        tell(1, prefix=prefix)
        dispatcher._publisher.flush()
        found = len(messages(redis))
        return found if found > before else 0

    agents_settings(PUBLISH_TIMEOUT=0.5)
    before = wait_until(lambda: heard("before", 0))
    redis.freeze() if frozen else redis.kill()

    # The publisher gives up after PUBLISH_TIMEOUT, for a connection that it had and for a new one.
    took = []
    for _ in range(3):
        began = time.monotonic()
        with pytest.raises(Exception, match=r"Timeout|refused|closed"):
            dispatcher._broker.send(tasks.drain, [], 0.0)
        took.append(time.monotonic() - began)
    print(f"given up after {', '.join(f'{seconds * 1000:.0f} ms' for seconds in took)}")
    assert min(took) < 10

    # No commit waits for that, and none fails.
    tasks_before = Task.objects.count()
    began = time.monotonic()
    for n in range(100):
        tell(1, prefix=f"during{n}-")
    assert time.monotonic() - began < 100 * 0.5 - 5
    assert Task.objects.count() == tasks_before + 100
    wait_until(lambda: "the sweep finds what they were for" in caplog.text)

    # It is well again as soon as the broker is.
    redis.thaw() if frozen else redis.start()
    wait_until(lambda: heard("after", before if frozen else 0))


def test_connections_that_broke_are_not_kept_open(redis, agents_settings):
    agents_settings(PUBLISH_TIMEOUT=0.1)
    redis.freeze()

    def opened(times: int) -> int:
        for _ in range(times):
            with pytest.raises(Exception, match="Timeout"):
                dispatcher._broker.send(tasks.drain, [], 0.0)
        gc.collect()
        return len(list(Path("/proc/self/fd").iterdir()))

    assert opened(15) <= opened(3) + 2


def test_a_queue_that_nobody_empties_does_not_grow(redis, monkeypatch):
    monkeypatch.setattr(broker, "CROWDED", 5)
    for n in range(20):
        tell(1, prefix=f"{n}-")
        dispatcher._publisher.flush()
        dispatcher._broker._looked_at -= broker.LOOK_INTERVAL  # as if that time had passed
    assert 1 <= len(messages(redis)) <= 6


# In a worker


def drained(method: str = "add") -> int:
    return Attempt.objects.filter(method=method, outcome="done").count()


def wakes_of(*names: str, seconds: float = 0.0) -> list[tuple[int, str, float]]:
    now = get_store().sql.now().timestamp()
    ids = get_store().find([(KIND, name) for name in names])
    return [(id, KIND, now + seconds) for id in ids.values()]


def said() -> float:
    """When a message was sent that doesn't get old while the machine is slow."""
    return get_store().sql.now().timestamp() + 600


def tell_silently(*names: str, method: str = "add", payload: Any = None) -> None:
    """Tells, and every wake-up is lost."""
    get_store().tell([Tell(KIND, name, method, payload) for name in names])


def test_a_message_drains_its_actors(worker):
    tell_silently("alice", "bob")
    dispatcher.take(wakes_of("alice", "bob"), said())
    wait_until(lambda: drained() == 2)


def test_a_near_wake_up_waits_for_its_moment(worker):
    new_actor("alice", KIND)
    run(new_actor("alice", KIND), lambda timers: timers.schedule(1.0, "add", id="x"))
    task, later = Task.objects.get(), new_actor("bob", KIND)
    near = (task.actor_id, KIND, task.due_at.timestamp())
    began = time.monotonic()
    dispatcher.take([near, (later, KIND, task.due_at.timestamp() + 60)], said())
    assert time.monotonic() - began < 30  # the message is done with; the moments come later
    wait_until(lambda: drained() == 1)
    attempt = Attempt.objects.get()
    print(f"{(attempt.started_at - task.due_at) / dt.timedelta(milliseconds=1):.0f} ms late")
    assert attempt.started_at >= task.due_at


def test_what_was_due_when_it_was_said_runs_at_once_whatever_the_worker_believes_of_the_clock(
    redis, agents_settings
):
    agents_settings(SWEEP_INTERVAL=100.0)  # no sweep finds it
    try:
        worker = dispatcher.start()
        asyncio.run_coroutine_threadsafe(worker._clock(), worker.loop).result()
        worker._ahead -= 60.0  # as after an answer that was a minute on its way
        tell_silently("alice")
        dispatcher.take(wakes_of("alice"), said())
        wait_until(lambda: drained() == 1)
    finally:
        dispatcher.end()


def test_an_old_message_is_left_to_the_sweeps_that_came_after_it(worker):
    tell_silently("alice")
    dispatcher.take(wakes_of("alice"), said() - 7200)
    time.sleep(0.3)
    assert drained() == 0


def test_a_sweep_finds_what_no_wake_up_told(worker):
    tell_silently("alice", "bob")
    assert dispatcher.sweep()
    wait_until(lambda: drained() == 2)
    wait_until(lambda: set(Pulse.objects.ages()) == {PulseName.BEAT, PulseName.SWEEP})


def test_a_sweep_goes_on_while_there_is_a_backlog(redis, agents_settings):
    agents_settings(TURNS=5)
    try:
        dispatcher.start()
        tell_silently(*(f"n{n}" for n in range(60)))
        assert dispatcher.sweep()
        wait_until(lambda: drained() == 60, 60)
    finally:
        dispatcher.end()


def test_a_sweep_goes_on_past_an_actor_that_it_woke_and_that_has_no_lease_yet(
    redis, agents_settings, monkeypatch
):
    agents_settings(TURNS=2, SWEEP_INTERVAL=60.0)
    tell_silently(*(f"n{n}" for n in range(6)))
    first, claims = Actor.objects.order_by("alarm", "pk").values_list("pk", flat=True)[0], threading.Event()

    async def late(engine, actor_id, *rest):
        if actor_id == first:
            await asyncio.to_thread(claims.wait, 60)
        return await drain(engine, actor_id, *rest)

    monkeypatch.setattr(drains, "drain", late)
    try:
        dispatcher.start()
        assert dispatcher.sweep()
        wait_until(lambda: drained() == 5)
        claims.set()
        wait_until(lambda: drained() == 6)
    finally:
        claims.set()
        dispatcher.end()


def test_a_sweep_that_wakes_fewer_than_it_sees_goes_on_with_them(redis, agents_settings, tmp_path):
    """Three of four slots are taken for long: of three that are due, one has room."""
    agents_settings(TURNS=4, SWEEP_INTERVAL=60.0)
    rested = tmp_path / "rested"
    try:
        dispatcher.start()
        tell_silently("a", "b", "c", method="rest", payload=str(rested))
        assert dispatcher.sweep()
        wait_until(lambda: Attempt.objects.filter(method="rest", outcome="running").count() == 3)
        tell_silently("x", "y", "z")
        assert dispatcher.sweep()
        wait_until(lambda: drained() == 3)
        assert drained("rest") == 0
    finally:
        rested.touch()
        dispatcher.end()


def test_those_that_are_due_at_one_moment_run_then_however_few_a_sweep_may_wake(redis, agents_settings):
    agents_settings(TURNS=2, SWEEP_INTERVAL=60.0)
    names = [f"n{n}" for n in range(7)]
    due = get_store().sql.now() + dt.timedelta(seconds=3)
    for name in names:
        run(new_actor(name, KIND), lambda timers: timers.schedule_at(due, "add", id="x"))
    try:
        dispatcher.start()
        assert dispatcher.sweep()  # sees the first two; another would not follow for a minute
        wait_until(lambda: drained() == len(names))
    finally:
        dispatcher.end()
    assert min(Attempt.objects.values_list("started_at", flat=True)) >= due


def test_a_worker_that_nobody_asks_does_not_take_its_own_sweeps_for_being_asked(
    redis, agents_settings, caplog
):
    agents_settings(TURNS=1, SWEEP_INTERVAL=0.5)

    def unasked() -> int:
        return caplog.text.count("sweeping unasked")

    try:
        dispatcher.start()
        wait_until(lambda: unasked() == 1)
        due = get_store().sql.now() + dt.timedelta(seconds=0.8)
        for name in ("a", "b", "c"):
            run(new_actor(name, KIND), lambda timers: timers.schedule_at(due, "add", id="x"))
        wait_until(lambda: drained() == 3)
        time.sleep(0.5 * dispatcher.UNASKED + 1)  # it sweeps every half second, and waits for nobody
        assert unasked() == 1
    finally:
        dispatcher.end()


def test_a_sweep_skips_actors_that_are_leased(worker, tmp_path):
    tell_silently("alice", method="rest", payload=str(tmp_path / "rested"))
    assert dispatcher.sweep()
    wait_until(lambda: Attempt.objects.filter(method="rest", outcome="running").exists())
    tell_silently("alice")
    assert get_store().sweep([KIND], 10, dt.timedelta(seconds=2)) == []
    (tmp_path / "rested").touch()
    # Whoever frees the lease runs what came meanwhile.
    wait_until(lambda: drained() == 1)


def test_a_worker_that_nobody_asks_sweeps_by_itself(redis, agents_settings):
    agents_settings(SWEEP_INTERVAL=0.1)
    try:
        dispatcher.start()
        tell_silently("alice")
        wait_until(lambda: drained() == 1)
        wait_until(lambda: set(Pulse.objects.ages()) == {PulseName.SWEEP})
    finally:
        dispatcher.end()


def test_a_worker_whose_slots_are_full_leaves_work_to_others(redis, agents_settings, monkeypatch):
    agents_settings(TURNS=1, SHUTDOWN_GRACE=0.2)
    monkeypatch.setattr(dispatcher, "PATIENCE", 0.3)
    headers(redis)  # what talking to a broker takes to import doesn't count
    try:
        dispatcher.start()
        tell_silently("busy", method="nap", payload=60.0)
        dispatcher.take(wakes_of("busy"), said())
        wait_until(lambda: Attempt.objects.filter(method="nap", outcome="running").exists())

        # A sweep is passed on; a message is waited with for a while, and dropped.
        assert not dispatcher.sweep()
        tasks.sweep()
        assert [h["kwargsrepr"] for h in headers(redis)] == ["{'passed': 1}"]
        tasks.sweep(passed=tasks.PASSES)
        assert len(headers(redis)) == 1
        tell_silently("alice")
        began = time.monotonic()
        dispatcher.take(wakes_of("alice"), said())
        assert time.monotonic() - began >= 0.3

        # What its own turns tell, and what comes due, goes to the broker.
        tell(1, prefix="own")
        ((wakes, _),) = published(redis, 1)
        assert len(wakes) == 1
        assert drained() == 0
    finally:
        dispatcher.end()


def test_after_a_stop_what_is_due_goes_to_others_and_nothing_begins_here(worker, redis):
    dispatcher.stop()
    wait_until(lambda: worker.drains.over)
    tell(1)
    published(redis, 1)
    assert not dispatcher.sweep()
    assert drained() == 0


def test_what_is_given_back_at_the_end_wakes_another_worker(redis, agents_settings):
    agents_settings(SHUTDOWN_GRACE=0.2, LEASE=60.0)
    dispatcher.start()
    tell_silently("alice", method="nap", payload=90.0)
    dispatcher.take(wakes_of("alice"), said())
    wait_until(lambda: Attempt.objects.filter(method="nap", outcome="running").exists())
    dispatcher.end()
    assert Attempt.objects.get().outcome == "released"
    told = [id for wakes, _ in published(redis, 1) for id, _, _ in wakes]
    assert set(told) == {Task.objects.get().actor_id}


# The process


def test_no_thread_is_started_by_an_import(tmp_path):
    code = """
import django, threading
django.setup()
import agents.agent, agents.runtime, agents.server, agents.testing, agentsite.celery, agentsite.asgi
import conversations.views, scheduler.tasks, scheduler.dispatchers.celery, scheduler.dispatchers.local
agentsite.celery.app.finalize()
print([thread.name for thread in threading.enumerate()])
"""
    env = production("sqlite:///" + str(tmp_path / "x.sqlite3"), "redis://127.0.0.1:1/0", tmp_path)
    done = subprocess.run([sys.executable, "-c", code], env=env, cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "['MainThread']", done.stderr


def test_no_task_has_an_event_loop_of_its_own():
    ours = [path for app in ("agents", "conversations", "scheduler") for path in (ROOT / app).rglob("*.py")]
    # A command may: its process has nothing else to do.
    assert [p for p in ours if "asyncio.run(" in p.read_text() and p.parent.name != "commands"] == []


def test_beats_sweep_is_every_second_with_an_expiry_of_two(db):
    # Tests empty the tables: what the migration made is made again.
    migration = import_module("scheduler.migrations.0002_sweep")
    migration.create(apps, None)
    migration.create(apps, None)
    sweep = PeriodicTask.objects.get(task="scheduler.tasks.sweep")
    assert (str(sweep.interval), sweep.expire_seconds, sweep.enabled) == ("every second", 2, True)
    prune = PeriodicTask.objects.get(task="scheduler.tasks.prune")
    assert (str(prune.interval), prune.expire_seconds) == ("every hour", 1800)


def test_an_hour_without_beat_leaves_no_heap_and_what_was_due_runs_once_in_order(worker, redis):
    import_module("scheduler.migrations.0002_sweep").create(apps, None)
    ids = [new_actor(f"n{n}", KIND) for n in range(5)]
    for id in ids:
        run(id, lambda timers: timers.every(300, "add", id="tick"))

    def after(seconds: float) -> Any:
        return lambda timers: timers.schedule(seconds, "add", id=f"after {seconds}")

    for seconds in (1200, 60, 600):
        run(ids[0], after(seconds))

    # Beat ran an hour ago: for beat, by what it keeps; for the tasks, by the database's clock.
    advance(3600)
    now = timezone.now()
    PeriodicTask.objects.update(last_run_at=now - dt.timedelta(hours=1))
    with time_machine.travel(now, tick=False):
        beat = DatabaseScheduler(app=current_app)
        for _ in range(20):
            beat.tick()
        beat.close()
        beat._finalize.cancel()  # which would write once more when this process ends
        beat.producer.connection.release()
    ours = [h["task"] for h in headers(redis) if h["task"].startswith("scheduler.")]
    assert sorted(ours) == [tasks.prune.name, tasks.sweep.name]

    tasks.sweep()  # as a worker does with that message
    wait_until(lambda: drained() == 8)
    assert get_store().sweep([KIND], 10, dt.timedelta()) == []  # nothing is due any more
    attempts = Attempt.objects.order_by("pk")
    assert list(attempts.filter(actor=ids[0]).values_list("task_id", flat=True)) == [
        "after 60", "tick", "after 600", "after 1200"
    ]  # fmt: skip
    assert Task.objects.filter(task_id="tick", due_at__gt=get_store().sql.now()).count() == 5
    assert attempts.exclude(outcome="done", number=1).count() == 0
