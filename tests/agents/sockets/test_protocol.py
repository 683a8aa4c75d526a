"""What a client asks for and what it is told: attach, say, call, stop, ping, and what is no frame."""

from __future__ import annotations

import json
import random
import string
import uuid
from pathlib import Path
from typing import Any

import pytest

from agents import codec
from agents.models import Actor
from conversations.models import Message
from scheduler.models import Task
from tests.agents.sockets.chatters.agents import ChatterAgent
from tests.agents.sockets.site import Client, Site
from tests.waiting import wait_until

pytestmark = [pytest.mark.processes, pytest.mark.django_db(transaction=True)]

KIND = ChatterAgent.kind


@pytest.fixture
def client(site: Site, operator: str, name: str) -> Any:
    with site.admitted(KIND, name, session=operator) as client:
        yield client


# Saying


def test_what_is_said_is_acknowledged_when_it_is_safe_and_comes_back_as_a_message(
    client: Client, name: str, bob: Any
) -> None:
    client.send("say", id="a1", text="hello", metadata={"ui": "v2"})
    assert client.until("ack") == {"kind": "ack", "id": "a1"}
    frame = client.until("message")
    message = frame["message"]
    assert (frame["cursor"], message["seq"], message["role"]) == (1, 1, "user")
    assert (message["content"], message["metadata"]) == ("hello", {"id": "a1"})
    assert message["at"].endswith("Z")
    state = client.until("state")
    assert state["cursor"] == 2
    assert state["patch"]["last"] == {
        "channel": "web", "from": "bob", "user_id": str(bob.pk), "claims": {},
    }  # fmt: skip


def test_the_same_id_twice_is_one_message(client: Client, name: str) -> None:
    for _ in range(3):
        client.send("say", id="same", text="once")
    acks = [client.until("ack") for _ in range(3)]
    assert [ack.get("duplicate", False) for ack in acks] == [False, True, True]
    client.send("say", id="other", text="twice")
    client.until("message")
    assert client.until("message")["message"]["content"] == "twice"
    assert Message.objects.filter(actor__name=name).count() == 2


def test_the_same_id_from_another_socket_is_one_message_too(
    client: Client, site: Site, operator: str, name: str
) -> None:
    client.send("say", id="same", text="once")
    assert "duplicate" not in client.until("ack")
    with site.admitted(KIND, name, session=operator) as again:
        again.send("say", id="same", text="once")
        assert again.until("ack")["duplicate"] is True
    wait_until(lambda: not Task.objects.exists())
    assert Message.objects.filter(actor__name=name).count() == 1


def test_what_is_said_is_taken_in_order_while_the_actor_thinks(client: Client, name: str) -> None:
    client.send("call", id="nap", method="nap", args=[20])
    wait_until(lambda: Actor.objects.filter(name=name, token__isnull=False).exists())
    for n in range(10):
        client.send("say", id=str(n), text=f"{n}")
    for n in range(10):
        assert client.until("ack")["id"] == str(n)
    client.send("stop")  # it thinks all the while
    assert client.until("ack")["stopped"] is True
    assert [client.until("message")["message"]["content"] for _ in range(10)] == list("0123456789")


def test_text_that_no_database_takes_is_stored_all_the_same(client: Client, name: str) -> None:
    client.ws.send(json.dumps({"v": 1, "kind": "say", "id": "\ud83d", "text": "a\0b\ud800"}))
    assert client.until("ack")["id"] == "\ufffd"
    assert client.until("message")["message"]["content"] == "a\ufffdb\ufffd"


@pytest.mark.parametrize("size", [256 * 1024 - 200, 256 * 1024])
def test_a_text_that_no_inbox_takes_is_refused_and_the_socket_goes_on(client: Client, size: int) -> None:
    client.send("say", id="big", text="x" * size)
    frame = client.until("ack", "error")
    assert frame["kind"] == ("ack" if size < 256 * 1024 else "error")
    if frame["kind"] == "error":
        assert (frame["id"], frame["code"]) == ("big", "limit_exceeded")
    client.send("say", id="small", text="x")
    assert client.until("ack")["id"] == "small"


def test_an_agent_that_receives_nothing_says_so(site: Site, operator: str, name: str) -> None:
    with site.admitted("test-silent", name, session=operator) as client:
        client.send("say", id="1", text="hello?")
        assert client.until("error")["code"] == "unknown_method"


# Calling


def test_a_call_is_answered_with_its_result(client: Client) -> None:
    assert client.call("echo", {"a": [1, None, "é"]}) == {"a": [1, None, "é"]}
    assert client.call("echo", 1, b=2) == [1, {"b": 2}]
    assert client.call("echo") is None


def test_values_go_out_tagged_and_come_in_plain(client: Client) -> None:
    assert client.call("today") == {"$date": "2026-11-30"}
    # What looks like a tag is a dict with such a key; what comes back has its key escaped.
    assert client.call("echo", {"$date": "2026-11-30"}) == {"$$date": "2026-11-30"}
    assert codec.decode(client.call("echo", {"$date": "x"})) == {"$date": "x"}


@pytest.mark.parametrize(
    ("method", "args", "code"),
    [
        ("secret", [], "private_method"),
        ("receive", [{}], "private_method"),
        ("_hook", [], "private_method"),
        ("authorize", [], "private_method"),
        ("set_state", [{}], "private_method"),
        ("no_such", [], "unknown_method"),
        ("initial_state", [], "private_method"),
        ("add", ["user"], "bad_arguments"),
        ("add", ["user", "x", "y"], "bad_arguments"),
        ("add", ["wizard", "x"], "bad_message"),
        ("forbid", [], "permission_denied"),
        ("fail", [], "method_error"),
        ("stop", [], "private_method"),
    ],
)
def test_what_may_not_or_does_not_work_is_an_error_with_a_code(
    client: Client, method: str, args: list[Any], code: str
) -> None:
    client.send("call", id="7", method=method, args=args)
    error = client.until("error")
    assert (error["id"], error["code"]) == ("7", code)
    assert client.call("echo", "still here") == "still here"


def test_staff_are_told_more_than_others(site: Site, client: Client, name: str) -> None:
    client.send("call", id="1", method="fail")
    error = client.until("error")
    assert error["message"] == "ValueError: the secret of the insides"
    assert uuid.UUID(error["turn"])
    with site.by_token(KIND, name) as guest:
        guest.send("call", id="1", method="fail")
        error = guest.until("error")
        assert error == {"kind": "error", "id": "1", "code": "method_error", "message": "fail failed"}


def test_a_call_that_fails_leaves_nothing_for_anybody(client: Client) -> None:
    client.send("call", id="1", method="fail")
    client.until("error")
    assert client.call("tell_all", "after", None) == 1  # the first event there is
    assert client.until("event")["type"] == "after"
    assert [f for f in client.passed if f["kind"] == "broadcast"] == []


def test_calls_are_one_at_a_time_and_in_order(client: Client) -> None:
    client.send("call", id="0", method="nap", args=[0.5])
    for n in range(1, 6):
        client.send("call", id=str(n), method="echo", args=[n])
    assert [client.until("result")["id"] for _ in range(6)] == list("012345")


def test_a_call_waits_for_an_actor_that_is_busy_elsewhere(client: Client, name: str, tmp_path: Path) -> None:
    import threading

    stub, rested = ChatterAgent.named(name), tmp_path / "rested"
    other = threading.Thread(target=lambda: stub.sync.rest(str(rested)))
    other.start()
    wait_until(lambda: Actor.objects.filter(name=name, token__isnull=False).exists())
    client.send("call", id="1", method="set", args=[{"a": 1}])
    assert client.silent(0.5)
    rested.touch()
    assert client.until("result", id="1")["value"]["a"] == 1
    other.join()


# Stopping, pinging


def test_a_ping_is_answered_also_while_a_turn_runs(client: Client, tmp_path: Path) -> None:
    client.send("call", id="nap", method="rest", args=[str(tmp_path / "rested")])
    client.send("ping", id="p1")
    client.send("ping")
    assert client.until("pong") == {"kind": "pong", "id": "p1"}
    assert client.until("pong") == {"kind": "pong"}
    assert client.passed == []
    (tmp_path / "rested").touch()
    assert client.until("result", id="nap")


def test_a_stop_is_answered_at_once_and_ends_the_turn_that_runs(client: Client, name: str) -> None:
    client.send("call", id="nap", method="nap", args=[20])
    wait_until(lambda: Actor.objects.filter(name=name, token__isnull=False).exists())
    client.send("stop", id="s1")
    assert client.until("ack") == {"kind": "ack", "id": "s1", "stopped": True}
    error = client.until("error", id="nap")
    assert error["code"] == "stopped"
    assert client.call("echo", "on") == "on"


def test_a_stop_with_nothing_running_is_answered_and_not_kept(client: Client) -> None:
    client.send("stop", id="s1")
    assert client.until("ack") == {"kind": "ack", "id": "s1", "stopped": False}
    assert client.call("nap", 0.1) == "rested"


def test_a_stop_for_another_turn_stops_nothing(client: Client, name: str) -> None:
    client.send("call", id="nap", method="nap", args=[25])
    wait_until(lambda: Actor.objects.filter(name=name, token__isnull=False).exists())
    client.send("stop", id="s1", turn=str(uuid.uuid4()))
    assert client.until("ack")["stopped"] is False
    client.send("stop", id="s2", turn=str(Actor.objects.get(name=name).turn_id))
    assert client.until("ack")["stopped"] is True
    assert client.until("error", id="nap")["code"] == "stopped"


# What is no frame


def test_what_is_no_frame_is_answered_and_the_socket_goes_on(client: Client) -> None:
    for text in ("hello", "{bad json", "", "\0", "[]"):
        client.ws.send(text)
        assert client.until("error")["code"] == "bad_frame"
    client.ws.send(b"binary")
    assert client.until("error")["code"] == "bad_frame"
    client.ws.send('{"v": 2, "kind": "ping"}')
    assert client.until("error")["code"] == "version_mismatch"
    client.send("nonsense", id="9")
    error = client.until("error")
    assert (error["code"], error["id"]) == ("unknown_frame", "9")
    client.send("say", id="1", text="still here")
    assert client.until("ack")["id"] == "1"


def malformed(rng: random.Random) -> str | bytes:
    """Something that a broken, or a hostile, client could send."""
    good: dict[str, Any] = {
        "v": 1,
        "kind": rng.choice(["attach", "say", "call", "stop", "seen", "ping", "hello", ""]),
        "id": rng.choice(["1", 1, None, "x" * 200, {}]),
        "text": rng.choice(["", 0, [], " "]),
        "method": rng.choice(["", "nope", 5, "__init__", "secret"]),
        "cursor": rng.choice([-1, 1.5, "x", None, 2**70, True]),
        "turn": rng.choice(["x", 3, []]),
        "token": rng.choice(["x", 5]),
        "streams": rng.choice(["all", ["x"], {}, 1]),
    }
    match rng.randrange(6):
        case 0:
            return "".join(rng.choices(string.printable, k=rng.randrange(40)))
        case 1:
            return rng.randbytes(rng.randrange(40))
        case 2:
            text = json.dumps(good)
            return text[: rng.randrange(len(text))]
        case 3:
            return json.dumps({**good, "v": rng.choice([0, 2, "1", None])})
        case 4:
            return json.dumps(rng.choice([[], 1, None, [[[]]], "x", {"v": 1}]))
        case _:
            for key in rng.sample(sorted(good), rng.randrange(4)):
                del good[key]
            good["kind"] = rng.choice(["attach", "say", "call", "seen", "nope"])
            good["cursor"] = -1
            good["id"] = {}
            return json.dumps(good)


def test_ten_thousand_malformed_frames_end_no_consumer(site: Site, operator: str, name: str) -> None:
    """Each is answered with an error; then the same socket sends a valid frame and gets its answer."""
    rng = random.Random(20261130)
    errors, before = 0, len(site.lines)
    with site.admitted(KIND, name, session=operator) as client:
        for _ in range(100):
            for _ in range(100):
                client.ws.send(malformed(rng))
            for _ in range(100):
                frame = client.recv()
                assert frame["kind"] == "error", frame
                errors += 1
        client.send("say", id="last", text="well-formed")
        assert client.until("ack")["id"] == "last"
        assert client.until("message")["message"]["content"] == "well-formed"
    assert errors == 10_000
    assert site.lines[before:] == []
