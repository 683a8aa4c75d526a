"""Connections as agents see them: who is there, over all processes; coming, going, and being sent away."""

from __future__ import annotations

import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from agents import faults
from agents.models import Actor, Connection
from agents.sockets import connections
from agents.sockets.connections import Facts
from scheduler.models import Task
from tests.agents.sockets.chatters.agents import ChatterAgent, DoormanAgent
from tests.agents.sockets.site import Site, running
from tests.waiting import wait_until

pytestmark = [pytest.mark.processes, pytest.mark.django_db(transaction=True)]

KIND = ChatterAgent.kind
DOORMAN = DoormanAgent.kind
QUICK = {"CONNECTION_REFRESH": 0.5, "CONNECTION_EXPIRY": 8.0}


def book(name: str) -> tuple[list[str], list[str]]:
    state = Actor.objects.filter(kind=DOORMAN, name=name).values_list("state", flat=True).first() or {}
    return state.get("came", []), state.get("went", [])


def test_an_agent_counts_its_connections_over_all_processes(site: Site, operator: str, name: str) -> None:
    with running("--no-scheduler") as second:
        with (
            site.admitted(KIND, name, session=operator) as one,
            second.admitted(KIND, name, session=operator) as two,
            site.admitted(KIND, f"{name}-2", session=operator),
        ):
            assert one.call("count") == two.call("count") == 2
            assert ChatterAgent.named(name).sync.count() == 2
        assert second.stop() == 0
    wait_until(lambda: ChatterAgent.named(name).sync.count() == 0)


def test_an_agent_sees_who_they_are(site: Site, operator: str, bob: Any, name: str) -> None:
    with (
        site.admitted(KIND, name, session=operator, User_Agent="Browser/1") as one,
        site.by_token(KIND, name, name="Ada") as two,
    ):
        second = two.until("hello")
        staff, guest = one.call("who")
        assert (staff["user_id"], staff["claims"], staff["headers"]["user-agent"]) == (
            str(bob.pk), {}, "Browser/1",
        )  # fmt: skip
        assert (guest["user_id"], guest["claims"]) == ("", {"name": "Ada"})
        assert guest["id"] == second["connection"]
        assert not {"cookie", "authorization"} & staff["headers"].keys()


def test_what_is_sent_to_one_connection_reaches_nobody_else(site: Site, operator: str, name: str) -> None:
    with (
        site.client(KIND, name, session=operator) as one,
        site.admitted(KIND, name, session=operator) as two,
    ):
        id = one.until("hello")["connection"]
        one.attach(cursor=0)
        two.call("whisper", id, "for you")
        assert one.until("broadcast") == {
            "kind": "broadcast", "cursor": 1, "data": "for you", "direct": True,
        }  # fmt: skip
        two.call("whisper", id, "at once", now=True)
        assert one.until("broadcast") == {"kind": "broadcast", "data": "at once", "direct": True}
        two.call("shout", "for all")
        assert two.until("broadcast") == {"kind": "broadcast", "cursor": 2, "data": "for all"}
        assert two.passed == []


def test_an_agent_closes_a_connection_behind_what_it_sent(site: Site, operator: str, name: str) -> None:
    with (
        site.client(KIND, name, session=operator) as one,
        site.admitted(KIND, name, session=operator) as two,
    ):
        id = one.until("hello")["connection"]
        one.attach(cursor=0)
        two.call("hang_up", id, 4000, "enough ä", "last words")
        assert one.closed() == 4000
        assert one.passed[-1]["data"] == "last words"
        assert one.ws.close_reason == "enough ä"
        wait_until(lambda: two.call("count") == 1)


def test_a_connection_that_has_not_attached_yet_is_closed_in_the_end(operator: str, name: str) -> None:
    with (
        running("--no-scheduler", agents={"SOCKET_ATTACH_TIMEOUT": 1.0}) as site,
        site.client(KIND, name, session=operator) as one,
    ):
        id = one.until("hello")["connection"]
        ChatterAgent.named(name).sync.hang_up(id, 1000, "")
        assert one.closed() == 1000


@pytest.mark.parametrize("code", [999, 1002, 1005, 1006, 1015, 2999, 5000])
def test_codes_that_no_application_may_close_with_are_refused(name: str, code: int) -> None:
    id = uuid.uuid4().hex
    connections.opened([Facts(id, KIND, name)])
    with pytest.raises(ValueError, match="3000 to 4999"):
        ChatterAgent.named(name).sync.hang_up(id, code, "")


# Coming and going


def test_on_connect_is_a_turn_behind_hello_and_on_disconnect_a_task(site: Site, name: str) -> None:
    with site.by_token(DOORMAN, name, name="Ada") as client:
        id = client.recv()["connection"]
        assert client.until("broadcast")["data"] == "welcome Ada"
        assert book(name) == ([id], [])
    wait_until(lambda: book(name) == ([id], [id]))


def test_a_refusal_of_on_connect_closes_with_4403_and_leaves_nothing(site: Site, name: str) -> None:
    with site.by_token(DOORMAN, name, refuse=True) as client:
        assert client.recv()["kind"] == "hello"
        client.send("say", id="1", text="but I want in")
        assert client.closed() == 4403
        assert client.ws.close_reason == "no shoes"
    time.sleep(0.5)
    assert book(name) == ([], [])
    assert not Task.objects.exists()  # neither what was said, nor a farewell


def test_an_error_of_on_connect_closes_with_1011(site: Site, name: str) -> None:
    with site.by_token(DOORMAN, name, broken=True) as client:
        assert client.recv()["kind"] == "hello"
        assert client.closed() == 1011


def test_what_a_client_says_waits_for_on_connect(site: Site, name: str, tmp_path: Path) -> None:
    from agents.sockets import connect_token

    with site.client(DOORMAN, name, origin=None, X_Until=str(tmp_path / "greeted")) as client:
        client.send("attach", token=connect_token(DOORMAN, name))
        client.send("say", id="1", text="hello")
        client.send("ping")
        assert client.until("pong")
        assert book(name) == ([], [])
        (tmp_path / "greeted").touch()
        client.until("ack")
        assert book(name)[0] != []


def test_a_client_that_leaves_while_it_is_greeted_is_told_of_after_it(
    site: Site, name: str, tmp_path: Path
) -> None:
    from agents.sockets import connect_token

    with site.client(DOORMAN, name, origin=None, X_Until=str(tmp_path / "greeted")) as client:
        client.send("attach", token=connect_token(DOORMAN, name))
        id = client.until("hello")["connection"]
        # A client that leaves between the claim of its turn and the method is not greeted, and rightly so.
        wait_until((tmp_path / "greeted.begun").exists)
    wait_until(lambda: not Connection.objects.filter(pk=id).exists())
    (tmp_path / "greeted").touch()
    wait_until(lambda: book(name) == ([id], [id]))


def test_a_client_that_is_greeted_at_the_moment_it_leaves_is_told_of(name: str) -> None:
    """Between the look whether it was greeted and the end of its row."""
    facts = Facts(uuid.uuid4().hex, DOORMAN, name, "", {}, {})
    connections.opened([facts])
    greeted: list[str] = []

    def greet() -> None:
        if not greeted:
            greeted.append(facts.id)
            with transaction.atomic():
                connections.greet(facts)

    with faults.at("connection.ungreeted", greet):
        assert connections.closed([facts]) == [None]
    assert greeted and not Connection.objects.exists()
    assert [task.method for task in Task.objects.all()] == ["on_disconnect"]


def test_a_client_that_leaves_before_its_turn_came_is_not_greeted(
    site: Site, name: str, tmp_path: Path
) -> None:
    with site.by_token(DOORMAN, name, name="first") as first:
        first.until("broadcast")
        from agents.sockets import connect_token

        with site.client(DOORMAN, name, origin=None, X_Until=str(tmp_path / "greeted")) as slow:
            slow.send("attach", token=connect_token(DOORMAN, name))
            slow.until("hello")
            wait_until(lambda: Actor.objects.filter(name=name, token__isnull=False).exists())
            with site.by_token(DOORMAN, name) as late:
                late_id = late.until("hello")["connection"]
            wait_until(lambda: not Connection.objects.filter(pk=late_id).exists())
            (tmp_path / "greeted").touch()
        wait_until(lambda: len(book(name)[1]) == 1)
        assert late_id not in book(name)[0]


@pytest.mark.usefixtures("alone")
def test_the_connections_of_a_process_that_died_are_gone_within_the_expiry(name: str) -> None:
    with running(agents=QUICK) as alive:
        with (
            running("--no-scheduler", agents=QUICK) as dying,
            alive.by_token(DOORMAN, name) as one,
            dying.by_token(DOORMAN, name) as two,
        ):
            kept, lost = one.until("hello")["connection"], two.until("hello")["connection"]
            one.until("broadcast")
            two.until("broadcast")
            assert Connection.objects.count() == 2
            dying.process.kill()
            wait_until(lambda: Connection.objects.live().count() == 1, 30)
            wait_until(lambda: book(name)[1] == [lost], 30)
            time.sleep(1.5)
            assert Connection.objects.get().id.hex == kept  # whoever lives is spoken of
        wait_until(lambda: set(book(name)[1]) == {kept, lost})


@pytest.mark.usefixtures("alone")
def test_a_connection_that_was_thought_dead_gets_its_row_back(name: str) -> None:
    with running("--no-scheduler", agents=QUICK) as site, site.by_token(KIND, name) as client:
        client.until("hello")
        Connection.objects.all().delete()
        wait_until(lambda: Connection.objects.live().count() == 1)


def test_on_disconnect_is_told_once_whoever_finds_the_dead_first(name: str) -> None:
    facts = Facts(uuid.uuid4().hex, DOORMAN, name, claims={"name": "Ada"}, headers={"a": "b"})
    connections.opened([facts])
    connections.greet(facts)
    assert connections.closed([facts, facts]) == [None, None]
    assert connections.closed([facts]) == [None]
    (task,) = Task.objects.all()
    assert (task.method, task.lane, task.max_retries) == ("on_disconnect", "hook", 0)
    assert task.payload == {"id": facts.id, "user_id": "", "claims": {"name": "Ada"}, "headers": {"a": "b"}}


def statements(fn: Any, *args: Any) -> tuple[Any, int]:
    """What a function returns, and how many statements it ran; beginning and ending do not count."""
    with CaptureQueriesContext(connection) as queries:
        result = fn(*args)
    return result, sum(q["sql"].split()[0] in ("SELECT", "INSERT", "UPDATE", "DELETE") for q in queries)


def test_rows_are_written_and_deleted_in_batches(name: str) -> None:
    several = [Facts(uuid.uuid4().hex, KIND, f"{name}-{n}") for n in range(20)]
    heads, count = statements(connections.opened, several)
    assert ([head.cursor for head in heads], count) == ([0] * 20, 2)
    assert statements(connections.refresh, several)[1] == 1
    assert statements(connections.closed, several)[1] == 1
    assert not Connection.objects.exists()
