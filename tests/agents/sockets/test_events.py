"""What clients are shown: events in order, each once, from any cursor and after any absence."""

from __future__ import annotations

import time
from typing import Any

import pytest
from django.db import transaction

from agents.masking import MASK
from agents.models import Actor, Event
from agents.sockets import backlog, pruning
from agents.sockets.events import RESERVED
from tests.agents.sockets.chatters.agents import ChatterAgent
from tests.agents.sockets.site import PATIENCE, Client, Site, running
from tests.waiting import wait_until

pytestmark = [pytest.mark.processes, pytest.mark.django_db(transaction=True)]

KIND = ChatterAgent.kind


def cursors(frames: list[dict[str, Any]]) -> list[int]:
    return [frame["cursor"] for frame in frames]


def take(client: Client, count: int, timeout: float = PATIENCE) -> list[dict[str, Any]]:
    """The next events, in the order in which they come, acknowledged."""
    found: list[dict[str, Any]] = []
    while len(found) < count:
        frame = client.recv(timeout)
        if "cursor" in frame and frame["kind"] not in ("hello", "attached"):
            found.append(frame)
            client.send("seen", cursor=frame["cursor"])
    return found


def test_everything_that_a_turn_shows_comes_in_order(site: Site, operator: str, name: str) -> None:
    with site.admitted(KIND, name, session=operator) as client:
        client.send("call", id="1", method="add", args=["user", "hi"])
        client.send("call", id="2", method="set", args=[{"mood": "glad", "since": None}])
        client.send("call", id="3", method="shout", args=["news"])
        client.send("call", id="4", method="tell_all", args=["typing", {"who": "agent"}])
        message, state, broadcast, event = take(client, 4)
        assert (message["kind"], message["message"]["content"]) == ("message", "hi")
        assert state == {"kind": "state", "cursor": 2, "patch": {"mood": "glad", "since": None}}
        assert broadcast == {"kind": "broadcast", "cursor": 3, "data": "news"}
        assert event == {"kind": "event", "cursor": 4, "type": "typing", "payload": {"who": "agent"}}


def test_bytes_are_broadcast_as_they_are(site: Site, operator: str, name: str) -> None:
    with site.admitted(KIND, name, session=operator) as client:
        ChatterAgent.named(name).sync.shout_bytes(b"\x00\xff")
        (frame,) = take(client, 1)
        assert frame == {"kind": "broadcast", "cursor": 1, "base64": "AP8="}


def test_a_broadcast_now_carries_no_cursor_and_does_not_wait_for_the_commit(
    site: Site, operator: str, name: str
) -> None:
    with site.admitted(KIND, name, session=operator) as client:
        client.call("shout", "at once", now=True)
        assert client.until("broadcast") == {"kind": "broadcast", "data": "at once"}
    assert not Event.objects.exists()


def test_a_client_resumes_where_it_left(site: Site, operator: str, name: str) -> None:
    with site.admitted(KIND, name, session=operator) as client:
        client.call("shout_many", 10)
    with site.client(KIND, name, session=operator) as client:
        assert client.attach(cursor=4) == {"kind": "attached", "cursor": 4}
        assert [f["data"] for f in take(client, 6)] == list("456789")
        assert client.silent()


def test_a_client_at_the_head_misses_nothing_and_gets_nothing_twice(
    site: Site, operator: str, name: str
) -> None:
    with site.admitted(KIND, name, session=operator) as client:
        client.call("shout_many", 3)
    with site.client(KIND, name, session=operator) as client:
        assert client.attach(cursor=3) == {"kind": "attached", "cursor": 3}
        assert client.silent(0.3)
        client.call("shout", "next")
        assert cursors(take(client, 1) if not client.passed else client.passed[-1:]) == [4]


def test_without_a_cursor_there_is_a_snapshot(site: Site, operator: str, name: str) -> None:
    with site.admitted(KIND, name, session=operator) as client:
        client.call("many", 60)
        client.call("set", {"mood": "glad"})
    with site.client(KIND, name, session=operator) as client:
        attached = client.attach()
        assert attached["cursor"] == 61
        messages = attached["snapshot"]["messages"]
        assert [m["seq"] for m in messages] == list(range(11, 61))
        assert messages[-1]["content"] == "m59"
        assert attached["snapshot"]["state"] == {"mood": "glad", "since": {"$date": "2026-11-30"}}
        client.call("shout", "next")
        assert client.until("broadcast")["cursor"] == 62


def test_of_an_actor_that_wrote_nothing_the_snapshot_has_the_initial_state(
    site: Site, operator: str, name: str
) -> None:
    with site.client(KIND, name, session=operator) as client:
        snapshot = client.attach()["snapshot"]
        assert snapshot == {"messages": [], "state": {"mood": "calm", "since": {"$date": "2026-11-30"}}}
    assert not Actor.objects.filter(name=name).exists()


def test_an_initial_state_that_fails_is_left_out(site: Site, operator: str, name: str) -> None:
    with site.client("test-silent", name, session=operator) as client:
        assert client.attach()["snapshot"] == {"messages": []}


def test_a_class_that_does_not_share_its_state_keeps_it(site: Site, operator: str, name: str) -> None:
    with site.client("test-open", name, session=operator) as client:
        assert client.attach()["snapshot"] == {"messages": []}
        client.call("set", {"mood": "hidden"})
        client.call("shout", "seen")
        assert client.until("broadcast")["cursor"] == 1


def test_a_state_that_is_shared_keeps_what_is_sensitive_to_itself(
    site: Site, operator: str, name: str
) -> None:
    with site.admitted(KIND, name, session=operator) as client:
        client.call("set", {"mood": "glad", "card": {"pin": "4711"}})
        assert client.until("state")["patch"] == {"mood": "glad", "card": {"pin": MASK}}
    with site.client(KIND, name, session=operator) as client:
        assert client.attach()["snapshot"]["state"]["card"] == {"pin": MASK}


def test_a_snapshot_of_long_messages_stays_within_a_mebibyte(site: Site, operator: str, name: str) -> None:
    stub = ChatterAgent.named(name)
    for n in range(5):
        stub.sync.add("user", f"{n}".ljust(400 * 1024, "."))
    with site.client(KIND, name, session=operator) as client:
        messages = client.attach()["snapshot"]["messages"]
        assert [m["content"][0] for m in messages] == ["3", "4"]


def test_a_cursor_older_than_the_kept_events_gets_a_snapshot(site: Site, operator: str, name: str) -> None:
    with site.admitted(KIND, name, session=operator) as client:
        client.call("shout_many", 20)
    actor = Actor.objects.get(name=name)
    assert pruning.prune(actor.pk, 10) == 10
    with site.client(KIND, name, session=operator) as client:
        assert client.attach(cursor=10) == {"kind": "attached", "cursor": 10}  # 11 is still there
        assert cursors(take(client, 10)) == list(range(11, 21))
        assert client.attach(cursor=9)["snapshot"]["messages"] == []
        assert client.attach(cursor=0)["cursor"] == 20
        assert client.attach(cursor=21)["snapshot"] is not None  # from another life of the actor


def test_the_newest_events_are_kept_and_up_to_a_tenth_more(operator: str, name: str) -> None:
    with running("--no-scheduler", agents={"EVENTS_KEPT": 100}) as site:
        with site.admitted(KIND, name, session=operator) as client:
            for _ in range(15):
                client.call("shout_many", 10)
                take(client, 0)
                client.send("seen", cursor=10_000)
        actor = Actor.objects.get(name=name)
        assert actor.cursor == 150
        wait_until(lambda: Event.objects.filter(actor=actor).count() <= 110)
        assert list(Event.objects.order_by("cursor").values_list("cursor", flat=True)) == list(
            range(151 - Event.objects.count(), 151)
        )
        assert Event.objects.count() >= 100


def test_a_client_that_falls_behind_the_kept_events_begins_anew(site: Site, operator: str, name: str) -> None:
    """It reads slowly, and what it has not been sent is deleted meanwhile."""
    with site.admitted(KIND, name, session=operator) as client:
        client.send("call", id="1", method="shout_many", args=[600])
        client.until("broadcast", cursor=256)
        client.until("result")
        client.passed.clear()
        assert client.silent(0.3)
        pruning.prune(Actor.objects.get(name=name).pk, 590)
        client.send("seen", cursor=256)
        attached = client.recv()
        assert attached == {
            "kind": "attached",
            "cursor": 600,
            "snapshot": {"messages": [], "state": {"mood": "calm", "since": {"$date": "2026-11-30"}}},
        }


def test_a_subscription_is_all_that_comes(site: Site, operator: str, name: str) -> None:
    with site.admitted(KIND, name, session=operator) as actor:
        with site.client(KIND, name, session=operator) as client:
            assert "messages" in client.attach(streams=["messages"])["snapshot"]
            actor.call("set", {"a": 1})
            actor.call("shout", "x")
            actor.call("shout", "x", now=True)
            actor.call("mark", "thinking", 0)
            actor.call("add", "user", "hi")
            assert client.recv()["kind"] == "message"
            assert client.silent(0.3)
        with site.client(KIND, name, session=operator) as client:
            assert client.attach(streams=[])["snapshot"] == {}
            actor.call("add", "user", "hi")
            assert client.silent(0.3)
            client.attach(streams=["state"], cursor=0)
            actor.call("set", {"a": 2})
            assert [client.recv()["kind"] for _ in range(2)] == ["state", "state"]


def test_what_the_system_tells_the_model_is_for_operators(site: Site, operator: str, name: str) -> None:
    with site.admitted(KIND, name, session=operator) as client, site.by_token(KIND, name) as guest:
        guest.until("attached")
        client.call("add", "system", "the prompt")
        client.call("add", "user", "hi")
        assert client.until("message")["message"]["role"] == "system"
        frame = guest.until("message")
        assert (frame["message"]["role"], frame["cursor"]) == ("user", 2)
        assert [m["role"] for m in guest.attach()["snapshot"]["messages"]] == ["user"]
        assert [m["role"] for m in client.attach()["snapshot"]["messages"]] == ["system", "user"]
        guest.attach(cursor=0)
        assert guest.until("message")["cursor"] == 2


def test_every_socket_of_an_actor_gets_everything(site: Site, operator: str, name: str) -> None:
    with (
        site.admitted(KIND, name, session=operator) as one,
        site.admitted(KIND, name, session=operator) as two,
        site.admitted(KIND, f"{name}-2", session=operator) as other,
    ):
        one.call("shout_many", 50)
        assert cursors(take(two, 50)) == list(range(1, 51))
        assert other.silent(0.3)


def test_a_session_that_says_nothing_first_is_attached_by_its_first_frame(
    site: Site, operator: str, name: str
) -> None:
    with site.client(KIND, name, session=operator) as client:
        client.until("hello")
        ChatterAgent.named(name).sync.shout("between")
        client.send("ping")
        assert client.until("attached") == {"kind": "attached", "cursor": 0}
        assert client.until("broadcast")["data"] == "between"
        assert client.until("pong")


def test_a_session_that_says_nothing_at_all_is_attached_in_the_end(operator: str, name: str) -> None:
    with running("--no-scheduler", agents={"SOCKET_ATTACH_TIMEOUT": 0.5}) as site:
        began = time.monotonic()
        client = site.client(KIND, name, session=operator)
        client.until("hello")
        assert client.until("attached") == {"kind": "attached", "cursor": 0}
        assert time.monotonic() - began >= 0.5
        ChatterAgent.named(name).sync.shout("hear")
        assert client.until("broadcast")["data"] == "hear"
        client.ws.close()


def test_what_another_process_commits_comes_within_seconds_without_a_channel_layer(
    site: Site, operator: str, name: str
) -> None:
    """The layer is in the server's memory: only the database knows."""
    with site.admitted(KIND, name, session=operator) as client:
        stub = ChatterAgent.named(name)
        for n in range(3):
            stub.sync.shout(f"from elsewhere {n}")
            assert take(client, 1)[0]["data"] == f"from elsewhere {n}"


def test_an_actor_that_is_erased_and_made_anew_begins_anew_for_its_clients(
    site: Site, operator: str, name: str
) -> None:
    with site.admitted(KIND, name, session=operator) as client:
        client.call("shout_many", 5)
        Actor.objects.filter(name=name).delete()
        attached = client.until("attached")
        assert (attached["cursor"], attached["snapshot"]["messages"]) == (0, [])
        client.passed.clear()
        client.call("shout", "a new life")
        assert client.until("broadcast") == {"kind": "broadcast", "cursor": 1, "data": "a new life"}


def test_an_actor_made_anew_that_has_come_further_is_told_apart(site: Site, operator: str, name: str) -> None:
    with site.admitted(KIND, name, session=operator) as client:
        client.call("shout_many", 2)
        with transaction.atomic():
            Actor.objects.filter(name=name).delete()
        ChatterAgent.named(name).sync.shout_many(5)
        attached = client.until("attached")
        assert attached["cursor"] in (0, 5)
        if attached["cursor"] == 0:
            assert cursors(take(client, 5)) == [1, 2, 3, 4, 5]


def test_reserved_types_and_other_data_are_refused(name: str) -> None:
    stub = ChatterAgent.named(name)
    for type in sorted(RESERVED):
        with pytest.raises(ValueError, match="runtime's own"):
            stub.sync.tell_all(type, None)
    with pytest.raises(ValueError, match="64 characters"):
        stub.sync.tell_all("t" * 65, None)
    assert stub.sync.tell_all("t" * 64, None) == 1
    with pytest.raises(TypeError, match="text or bytes"):
        stub.sync.shout(5)
    from agents.exceptions import LimitError

    with pytest.raises(LimitError):
        stub.sync.shout("x" * (256 * 1024 - 1))
    stub.sync.shout("x" * (256 * 1024 - 2))  # with its quotes 256 KiB


def test_heads_of_many_actors_are_one_query(name: str, django_assert_num_queries: Any) -> None:
    for n in range(3):
        ChatterAgent.named(f"{name}-{n}").sync.shout_many(n + 1)
    addresses = [(KIND, f"{name}-{n}") for n in range(4)]
    with django_assert_num_queries(1):
        heads = backlog.heads(addresses)
    assert [heads[a].cursor for a in addresses] == [1, 2, 3, 0]
    assert heads[addresses[3]].id is None


def test_a_page_is_bounded_and_an_erased_message_leaves_its_place(
    name: str, django_assert_num_queries: Any
) -> None:
    stub = ChatterAgent.named(name)
    stub.sync.many(40)
    actor = Actor.objects.get(name=name)
    from conversations.models import Message

    Message.objects.filter(actor=actor, seq=3).delete()
    with django_assert_num_queries(2):
        page = backlog.page(actor.pk, 0)
    assert [e.cursor for e in page] == list(range(1, backlog.PAGE + 1))
    assert [e.type for e in page[:4]] == ["message", "message", "gone", "message"]
