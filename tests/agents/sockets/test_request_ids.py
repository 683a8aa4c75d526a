"""The id of a socket's handshake, and what has it: log lines, and what is said through it."""

from __future__ import annotations

import re

import pytest

from scheduler.models import Task
from tests.agents.sockets.chatters.agents import ChatterAgent, RawAgent
from tests.agents.sockets.site import Site
from tests.waiting import wait_until

pytestmark = [pytest.mark.processes, pytest.mark.django_db(transaction=True)]


@pytest.mark.parametrize(
    ("given", "logged"),
    [
        ("proxy-1234-socket", "proxy-1234-socket"),
        ("+15550001111", "[0-9a-f]{32}"),
        ("x" * 65, "[0-9a-f]{32}"),
    ],
)
def test_the_lines_about_a_sockets_frames_have_its_id(
    site: Site, operator: str, name: str, given: str, logged: str
) -> None:
    with site.client(RawAgent.kind, name, session=operator, X_Request_ID=given) as client:
        client.until("hello")
        client.ws.send("boom")
        assert client.closed() == 1011
    line = re.compile(rf"a frame of test-raw/{name} could not be handled.* request={logged}\b")
    wait_until(lambda: line.search(site.output), 30, "the line with the id")


def test_what_is_said_through_a_socket_carries_its_id(site: Site, operator: str, name: str) -> None:
    with site.admitted(ChatterAgent.kind, name, session=operator, X_Request_ID="proxy-5678-socket") as client:
        client.send("say", id="1", text="stream in no form")
        wait_until(lambda: Task.objects.filter(actor__name=name, status="parked").exists())
    assert Task.objects.get(actor__name=name).carried.split()[0] == "proxy-5678-socket"
