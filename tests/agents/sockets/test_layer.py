"""The channel layer makes things quick. It may lose everything, be flushed, be away, or hang."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from agents import runtime
from agents.models import Actor, Event
from agents.names import group_name
from agents.sockets import publisher as publishing
from agents.sockets.layer import RedisLayer
from agents.sockets.publisher import MAX_EVENTS_BYTES, News, Publisher, publisher
from agents.sockets.signals import Status
from agents.turn import ActorRow
from conversations.models import Message
from tests.agents.sockets.chatters.agents import ChatterAgent, RawAgent
from tests.agents.sockets.redis_line import RedisLine
from tests.agents.sockets.site import Client, Site, deployed, running
from tests.servers import Redis, missing
from tests.servers import running as processes
from tests.settings import LAYER
from tests.waiting import wait_until

pytestmark = [pytest.mark.processes, pytest.mark.redis, pytest.mark.django_db(transaction=True)]

KIND = ChatterAgent.kind
#: The database is not asked in time: what comes within it has come through the layer, which is given the time
#: that it needs on a busy machine.
DEAF = {"SOCKET_HEADS_INTERVAL": 60.0, "PUBLISH_TIMEOUT": 10.0}


@pytest.fixture
def keys() -> Iterator[Callable[[], list[bytes]]]:
    """The layer's keys; all of them are dropped in the end."""
    database = redis.Redis.from_url(os.environ["REDIS_URL"])

    def keys() -> list[bytes]:
        return list(database.scan_iter(f"{LAYER}*", count=1000))

    yield keys
    for key in keys():
        database.delete(key)
    database.close()


def forget() -> int:
    """Drops the layer's keys, as a flush of Redis would."""
    with redis.Redis.from_url(os.environ["REDIS_URL"]) as database:
        return sum(database.delete(key) for key in list(database.scan_iter(f"{LAYER}*", count=1000)))


def joined(site: Site, name: str, kind: str = KIND) -> bool:
    """Whether a hub's channel is in the actor's group."""
    with redis.Redis.from_url(os.environ["REDIS_URL"]) as database:
        return bool(database.zcard(f"{LAYER}:group:{group_name(kind, name)}"))


def everything(client: Client, up_to: int, timeout: float = 30.0) -> list[int]:
    """The cursors of all events up to one, in the order of their coming, acknowledged."""
    got: list[int] = []
    while not got or got[-1] < up_to:
        frame = client.recv(timeout)
        assert frame["kind"] != "attached", frame
        if "cursor" in frame and frame["kind"] not in ("hello", "attached"):
            got.append(frame["cursor"])
            if len(got) % 50 == 0:
                client.send("seen", cursor=frame["cursor"])
    client.send("seen", cursor=got[-1])
    return got


@pytest.fixture
def deaf(alone: None, keys: Any, settings: Any) -> Iterator[Site]:
    """A site that does not ask the database for a minute."""
    settings.AGENTS = {**settings.AGENTS, **DEAF}
    with running("--no-scheduler", agents=DEAF) as site:
        yield site


def test_what_another_process_does_comes_at_once(deaf: Site, operator: str, name: str) -> None:
    with deaf.admitted(KIND, name, session=operator) as client:
        wait_until(lambda: joined(deaf, name), 30)
        stub = ChatterAgent.named(name)
        stub.sync.shout("event")
        assert client.recv() == {"kind": "broadcast", "cursor": 1, "data": "event"}
        stub.sync.shout("at once", now=True)
        assert client.recv() == {"kind": "broadcast", "data": "at once"}
        stub.sync.mark("thinking", 0)
        assert client.recv()["status"] == "thinking"
        assert client.recv()["status"] == ""
        stub.sync.stream_call("word")
        kinds: list[str] = []
        while not kinds or kinds[-1] != "message":
            kinds.append(client.recv()["kind"])
        assert "delta" in kinds


def test_large_events_are_only_announced_and_read_from_the_database(
    deaf: Site, operator: str, name: str
) -> None:
    with deaf.admitted(KIND, name, session=operator) as client:
        wait_until(lambda: joined(deaf, name), 30)
        ChatterAgent.named(name).sync.shout("x" * (MAX_EVENTS_BYTES + 1))
        assert len(client.recv()["data"]) == MAX_EVENTS_BYTES + 1


def test_raw_frames_and_bytes_come_through_as_well(deaf: Site, operator: str, name: str) -> None:
    with deaf.client(RawAgent.kind, name, session=operator) as client:
        client.recv()
        wait_until(lambda: joined(deaf, name, RawAgent.kind), 30)
        stub = RawAgent.named(name)
        stub.sync.shout_bytes(b"\x00\xff")
        assert client.ws.recv() == b"\x00\xff"
        stub.sync.shout_bytes(b"now", True)
        assert client.ws.recv() == b"now"


def test_what_a_process_does_itself_is_not_shown_twice(
    alone: None, keys: Any, operator: str, name: str
) -> None:
    with running("--no-scheduler") as site, site.admitted(KIND, name, session=operator) as client:
        wait_until(lambda: joined(site, name), 30)
        for n in range(10):
            client.call("shout", f"{n}", now=True)
        client.call("shout", "last")
        got = [client.until("broadcast")["data"] for _ in range(11)]
        assert got == [*map(str, range(10)), "last"]
        assert client.silent(0.5)


def test_a_runtime_that_ended_and_began_again_publishes_as_before(
    deaf: Site, operator: str, name: str
) -> None:
    """Three tasks, two broadcasts each, each task on an event loop of its own: none meets a closed one."""
    with deaf.admitted(KIND, name, session=operator) as client:
        wait_until(lambda: joined(deaf, name), 30)
        for task in range(3):
            for n in range(2):
                ChatterAgent.named(name).sync.shout(f"{task}.{n}")
            wait_until(lambda: not publisher._waiting)
            time.sleep(0.1)
            runtime.shutdown(1)
        assert [client.recv()["data"] for _ in range(6)] == [
            "0.0",
            "0.1",
            "1.0",
            "1.1",
            "2.0",
            "2.1",
        ]


def test_forked_processes_publish_as_well(deaf: Site, operator: str, name: str) -> None:
    """As Celery's prefork pool has it: the parent has a layer, and a runtime, before it forks."""
    import subprocess
    import sys

    from tests.agents.sockets.site import ROOT
    from tests.processes import database_url

    code = f"""
import os, django
django.setup()
from tests.agents.sockets.chatters.agents import ChatterAgent
stub = ChatterAgent.named({name!r})
stub.sync.shout("parent")
for n in range(2):
    if os.fork() == 0:
        stub.sync.shout(f"child {{n}} first")
        stub.sync.shout(f"child {{n}} second")
        from agents import runtime
        runtime.shutdown(1)
        os._exit(0)
    os.wait()
stub.sync.shout("parent again")
from agents import runtime
runtime.shutdown(1)
"""
    with deaf.admitted(KIND, name, session=operator) as client:
        wait_until(lambda: joined(deaf, name), 30)
        done = subprocess.run(
            [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code],
            cwd=ROOT,
            env={
                **os.environ,
                "DJANGO_SETTINGS_MODULE": "tests.agents.sockets.settings",
                "AGENT_APPS": "tests.agents.sockets.chatters",
                "DATABASE_URL": database_url(),
            },
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        said = [client.recv()["data"] for _ in range(6)]
        assert said[0] == "parent"
        assert said[-1] == "parent again"
        assert said[1:5] == ["child 0 first", "child 0 second", "child 1 first", "child 1 second"]


@pytest.mark.postgres
@pytest.mark.skipif(bool(missing("redis-server")), reason="needs redis-server")
@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_a_worker_broadcasts_from_task_after_task(
    alone: None, operator: str, name: str, tmp_path: Path, pool: str
) -> None:
    """WS-09: three tasks of one worker's process, two broadcasts each; nothing comes but through Redis."""
    with (
        deployed(tmp_path, pool=pool, agents=DEAF) as (site, worker, redis),
        redis.client() as database,
        site.admitted(KIND, name, session=operator) as client,
    ):
        wait_until(lambda: database.zcard(f"{LAYER}:group:{group_name(KIND, name)}"), 30)
        for n in range(3):
            client.send("say", id=f"{n}", text=f"twice {n}")
            for which in ("first", "second"):
                assert client.until("broadcast")["data"] == f"twice {n}: {which}"
        assert "Traceback" not in worker.said() + site.output


def test_a_layer_that_was_flushed_is_made_up_for_and_joined_again(
    alone: None, keys: Any, operator: str, name: str
) -> None:
    with running("--no-scheduler") as site, site.admitted(KIND, name, session=operator) as client:
        wait_until(lambda: joined(site, name), 30)
        stub = ChatterAgent.named(name)
        assert forget() >= 1
        stub.sync.shout("lost by the layer")
        assert client.recv()["data"] == "lost by the layer"  # the database knew
        wait_until(lambda: joined(site, name), 30)
        stub.sync.shout("quick again")
        assert client.recv()["data"] == "quick again"


def test_a_group_is_joined_again_before_the_layer_forgets_who_is_in_it(
    alone: None, keys: Any, operator: str, name: str
) -> None:
    """Nothing is said meanwhile that could show that the group has been forgotten."""
    settings = {"SOCKET_RENEWAL": 1.0, "SOCKET_HEADS_INTERVAL": 60.0}
    with running("--no-scheduler", agents=settings) as site, site.admitted(KIND, name, session=operator):
        for _ in range(2):
            wait_until(lambda: joined(site, name), 30)
            assert forget() >= 1
        wait_until(lambda: joined(site, name), 30)


def test_the_group_is_left_with_the_last_socket(
    alone: None, keys: Callable[[], list[bytes]], operator: str, name: str
) -> None:
    with running("--no-scheduler") as site:
        with site.admitted(KIND, name, session=operator):
            with site.admitted(KIND, name, session=operator):
                wait_until(lambda: joined(site, name), 30)
            time.sleep(0.3)
            assert joined(site, name)
        wait_until(lambda: not joined(site, name))


def test_a_thousand_broadcasts_past_the_layers_capacity_all_arrive_in_order(
    alone: None, keys: Any, operator: str, name: str
) -> None:
    """The layer drops what is over 100 messages; it is flushed in the middle as well."""
    with (
        running("--no-scheduler") as site,
        site.admitted(KIND, name, session=operator) as one,
        site.admitted(KIND, name, session=operator) as two,
    ):
        wait_until(lambda: joined(site, name), 30)
        stub = ChatterAgent.named(name)

        def shout() -> None:
            for _ in range(100):
                stub.sync.shout_many(10)

        def flush() -> None:
            for _ in range(5):
                time.sleep(0.2)
                forget()

        threads = [threading.Thread(target=work) for work in (shout, flush)]
        results: list[list[int]] = []
        threads += [
            threading.Thread(target=lambda c=c: results.append(everything(c, 1000))) for c in (one, two)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(100)
        assert results == [list(range(1, 1001))] * 2


@pytest.fixture
def line(settings: Any) -> Iterator[RedisLine]:
    """A line to Redis for the server; this process publishes over it, too."""
    line = RedisLine(os.environ["REDIS_URL"])
    settings.CHANNEL_LAYERS = {
        "default": {
            "BACKEND": "agents.sockets.layer.RedisLayer",
            "CONFIG": {"hosts": [line.url], "prefix": LAYER},
        }
    }
    yield line
    runtime.shutdown(0)
    line.down()


async def test_groups_are_asked_for_members_before_anything_is_sent_to_them(
    keys: Callable[[], list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = RedisLayer(hosts=[os.environ["REDIS_URL"]], prefix=LAYER)
    groups = [group_name(KIND, f"asked {number}") for number in range(3)]
    assert await layer.inhabited(groups) == []
    channel = await layer.new_channel()
    await layer.group_add(groups[1], channel)
    assert await layer.inhabited(groups) == [groups[1]]

    sent: list[str] = []
    monkeypatch.setattr(layer, "group_send", lambda group, message: recorded(sent, message["name"]))
    monkeypatch.setattr(publishing, "reaching_layer", lambda: layer)
    publisher = Publisher()
    for number in range(3):
        row = ActorRow(number, KIND, f"asked {number}", 0, 0, 0, None, False, None)  # type: ignore[arg-type]
        publisher.signal(row, Status("thinking", "t"))
    assert publisher._sending is not None
    await publisher._sending
    assert sent == ["asked 1"]

    await layer.group_discard(groups[1], channel)
    assert await layer.inhabited(groups) == []
    await layer.close_pools()


async def recorded(into: list[str], name: str) -> None:
    into.append(name)


def test_redis_restarts_in_the_middle_and_every_client_has_the_whole_log(
    alone: None, keys: Any, line: RedisLine, operator: str, name: str
) -> None:
    with (
        running("--no-scheduler", REDIS_URL=line.url) as site,
        site.admitted(KIND, name, session=operator) as client,
    ):
        wait_until(lambda: joined(site, name), 30)
        stub = ChatterAgent.named(name)
        for n in range(100):
            stub.sync.shout_many(10)
            if n == 20:
                line.down()
                forget()
            if n == 60:
                line.up()
        assert everything(client, 1000) == list(range(1, 1001))
        # It is quick again, and the log says what happened in a few lines.
        wait_until(lambda: joined(site, name), 30)
        stub.sync.shout("over")
        assert client.recv()["data"] == "over"
        complaints = [line for line in site.lines if "the channel layer does not answer" in line]
        assert 1 <= len(complaints) <= 20  # of 40 turns; as a rule 2


CAPACITY = 20


@pytest.fixture
def server(tmp_path: Path, settings: Any) -> Iterator[Redis]:
    """A Redis of the test's own, which may be killed; this process publishes to it, too."""
    server = Redis(tmp_path)
    config = {"hosts": [server.url], "capacity": CAPACITY, "prefix": LAYER}
    with processes(server):
        settings.CHANNEL_LAYERS = {
            "default": {"BACKEND": "agents.sockets.layer.RedisLayer", "CONFIG": config}
        }
        yield server
        runtime.shutdown(0)


@pytest.mark.skipif(bool(missing("redis-server")), reason="needs redis-server")
def test_redis_is_full_and_killed_in_the_middle_of_a_thousand_broadcasts_and_nobody_misses_one(
    alone: None, server: Redis, operator: str, name: str
) -> None:
    """The layer keeps CAPACITY messages for a process that does not fetch them; what comes then, it drops."""
    """The layer keeps so many messages for a process that does not fetch them; what comes then, it drops."""
    stub, told = ChatterAgent.named(name), 0

    def shout(up_to: int) -> None:
        nonlocal told
        while told < up_to:
            stub.sync.shout_many(2)
            told += 2

    with (
        server.client() as redis,
        running("--no-scheduler", REDIS_URL=server.url) as site,
        site.admitted(KIND, name, session=operator) as one,
        site.admitted(KIND, name, session=operator) as two,
    ):
        group = f"{LAYER}:group:{group_name(KIND, name)}"
        wait_until(lambda: redis.zcard(group), 30)
        shout(200)
        os.kill(site.process.pid, signal.SIGSTOP)
        try:
            while not full(redis):
                assert told < 600
                shout(told + 20)
            shout(told + 40)  # what the layer has no room for
        finally:
            os.kill(site.process.pid, signal.SIGCONT)
        shout(800)
        server.kill()
        shout(900)
        server.start()
        shout(1000)
        assert [everything(client, 1000) for client in (one, two)] == [list(range(1, 1001))] * 2
        wait_until(lambda: redis.zcard(group), 30)  # and it is quick again


def full(redis: Any) -> bool:
    """Whether some process's channel has as much as it may."""
    return any(redis.zcard(key) >= CAPACITY for key in redis.keys(f"{LAYER}specific*"))


LOSSY = {"DJANGO_SETTINGS_MODULE": "tests.agents.sockets.lossy_settings"}


@pytest.mark.parametrize("seed", ["1", "2"])
def test_a_layer_that_loses_most_and_tells_some_twice_costs_nobody_anything(
    alone: None, keys: Any, operator: str, name: str, seed: str
) -> None:
    """Two processes, in each a client and turns; of three messages of the layer one arrives."""
    lossy = {**LOSSY, "TEST_SEED": seed}
    with (
        running(agents={"SOCKET_HEADS_INTERVAL": 0.5}, **lossy) as here,
        running("--no-scheduler", agents={"SOCKET_HEADS_INTERVAL": 0.5}, **lossy) as there,
        here.admitted(KIND, name, session=operator) as one,
        there.admitted(KIND, name, session=operator) as two,
    ):
        for n in range(50):
            for client in (one, two):
                client.send("call", id=str(n), method="shout", args=[f"{n}"])
        one.send("say", id="said", text="stream 30 0.02")
        wait_until(lambda: Event.objects.filter(actor__name=name, type="broadcast").count() == 100, 60)
        wait_until(lambda: Message.objects.filter(actor__name=name).count() == 2, 60)
        head = Actor.objects.get(name=name).cursor
        for client in (one, two):
            assert everything(client, head) == list(range(1, head + 1))


def test_a_redis_that_hangs_holds_up_no_commit_and_no_client(
    alone: None, keys: Any, line: RedisLine, operator: str, name: str
) -> None:
    with (
        running("--no-scheduler", REDIS_URL=line.url) as site,
        site.admitted(KIND, name, session=operator) as client,
    ):
        wait_until(lambda: joined(site, name), 30)
        line.hang()
        stub = ChatterAgent.named(name)
        for n in range(5):
            stub.sync.shout(f"{n}")
        assert [client.recv()["data"] for _ in range(5)] == list("01234")
        # What its own process does is as it was; so is a new socket.
        assert client.call("echo", 1) == 1
        with site.admitted(KIND, f"{name}-2", session=operator) as other:
            assert other.call("echo", 2) == 2


def test_without_any_channel_layer_everything_comes_all_the_same(
    alone: None, keys: Any, operator: str, name: str
) -> None:
    with running("--no-scheduler", REDIS_URL="redis://127.0.0.1:1/0") as site:  # nobody is there
        with site.admitted(KIND, name, session=operator) as client:
            client.call("shout", "own")
            assert client.until("broadcast")["data"] == "own"
            ChatterAgent.named(name).sync.shout("other")
            assert client.until("broadcast")["data"] == "other"
        assert site.stop() == 0


# The publisher alone


def news(count: int, size: int) -> News:
    from agents.sockets.events import Event as Shown

    news = News(1)
    for n in range(count):
        news.add_events(1, [Shown(n + 1, "broadcast", b"x" * size)], n + 1)
    return news


def test_events_go_along_as_long_as_they_are_small_together() -> None:
    assert len(news(2, MAX_EVENTS_BYTES // 2).events) == 2
    assert news(2, MAX_EVENTS_BYTES // 2 + 1).events == []
    assert news(2, MAX_EVENTS_BYTES // 2 + 1).head == 2


def test_news_of_another_life_of_the_actor_does_not_mix() -> None:
    from agents.sockets.events import Event as Shown

    both = news(3, 10)
    both.add_events(2, [Shown(1, "broadcast", b"y")], 1)
    assert (both.id, both.head, [e.cursor for e in both.events]) == (2, 1, [1])


def test_publishing_off_the_loop_comes_to_the_loop(name: str) -> None:
    """A synchronous helper that a turn runs in a thread may set a status."""
    from agents.sockets.signals import Status
    from agents.testing import on_runtime
    from agents.turn import ActorRow

    row = ActorRow(1, KIND, name, 0, 0, 0, None, False, None)  # type: ignore[arg-type]

    async def work(engine: Any) -> None:
        await asyncio.to_thread(publisher.signal, row, Status("x", "t"))

    on_runtime(work)
