"""A process that is alone with its sockets tells the channel layer nothing, and notices whoever comes."""

from __future__ import annotations

import time
from typing import Any

import pytest

from agents.sockets import publisher as publishing
from agents.sockets.company import ANSWERS, BELIEF, Company
from agents.sockets.publisher import Publisher
from agents.sockets.signals import Status
from agents.turn import ActorRow
from tests.agents.sockets.chatters.agents import ChatterAgent
from tests.agents.sockets.site import running
from tests.agents.sockets.test_layer import DEAF, joined, keys  # noqa: F401 - a fixture
from tests.waiting import wait_until

KIND = ChatterAgent.kind


def test_a_question_that_nobody_answers_in_time_says_that_one_is_alone_for_a_while() -> None:
    company = Company()
    assert not company.is_alone(100.0)
    assert company.ask(100.0)
    company.came_back(100.1)
    assert not company.is_alone(100.1 + ANSWERS - 0.01)
    assert company.is_alone(100.1 + ANSWERS)
    assert company.is_alone(100.1 + ANSWERS + BELIEF - 0.01)
    assert not company.is_alone(100.1 + ANSWERS + BELIEF)


def test_a_question_that_does_not_come_back_says_nothing() -> None:
    """Redis was flushed, or the layer is full: who knows what else is lost."""
    company = Company()
    company.ask(100.0)
    assert not company.is_alone(100.0 + ANSWERS + 1)


def test_it_is_asked_once_and_again_when_it_did_not_come_back_or_is_long_ago() -> None:
    company = Company()
    assert company.ask(100.0)
    assert not company.ask(100.0 + ANSWERS - 0.01)
    assert company.ask(100.0 + ANSWERS)
    company.came_back(102.0)
    assert not company.ask(102.0 + ANSWERS + BELIEF - 0.01)
    assert company.ask(102.0 + ANSWERS + BELIEF)


def test_whoever_speaks_ends_it_at_once_and_is_believed_to_stay_a_while() -> None:
    company = Company()
    company.ask(100.0)
    company.came_back(100.0)
    assert company.is_alone(102.0)
    company.heard(102.0)
    assert not company.is_alone(102.0)
    assert not company.ask(102.0 + BELIEF - 0.01)
    assert company.ask(102.0 + BELIEF)
    assert not company.is_alone(102.0 + BELIEF + ANSWERS)


class Layer:
    """Keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []

    async def group_send(self, group: str, message: dict[str, Any]) -> None:
        self.sent.append(message)


class Here:
    """A hub that has sockets for every actor."""

    def __init__(self) -> None:
        self.known = Company()
        self.taken = 0

    def company(self, address: Any) -> Company:
        return self.known

    def take(self, *news: Any) -> None:
        self.taken += 1


async def test_news_goes_to_the_layer_until_one_is_alone_and_again_when_somebody_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layer, hub, publisher = Layer(), Here(), Publisher()
    monkeypatch.setattr(publishing, "reaching_layer", lambda: layer)
    monkeypatch.setattr(publishing, "hubs_for", lambda address: [hub])
    row = ActorRow(1, KIND, "x", 0, 0, 0, None, False, None)  # type: ignore[arg-type]

    async def say() -> None:
        publisher.signal(row, Status("thinking", "t"))
        if publisher._sending is not None:
            await publisher._sending

    await say()
    await say()
    assert [message["asks"] for message in layer.sent] == [True, False]
    hub.known.came_back(time.monotonic() - ANSWERS)
    await say()
    assert len(layer.sent) == 2
    hub.known.heard(time.monotonic())
    await say()
    assert (len(layer.sent), hub.taken) == (3, 4)


@pytest.mark.processes
@pytest.mark.redis
@pytest.mark.django_db(transaction=True)
def test_a_process_that_joins_later_hears_at_once_what_the_first_one_does(
    alone: None,
    keys: Any,  # noqa: F811
    operator: str,
    name: str,
) -> None:
    """Neither asks the database for a minute: what the second one shows has come through the layer."""
    with (
        running("--no-scheduler", agents=DEAF) as first,
        first.admitted(KIND, name, session=operator) as one,
    ):
        wait_until(lambda: joined(first, name), 30)
        time.sleep(ANSWERS + 0.5)
        for n in range(3):  # to itself alone
            one.call("shout", f"alone {n}")
        with (
            running("--no-scheduler", agents=DEAF) as second,
            second.admitted(KIND, name, session=operator) as two,
        ):
            assert two.call("count") == 2

            def hears() -> bool:
                one.call("shout", "is anybody there?")
                return not two.silent(0.3)

            wait_until(hears, 30)  # the second one has joined, and has said so
            for n in range(20):
                one.call("shout", f"together {n}")
                two.until("broadcast", data=f"together {n}")
                two.call("shout", f"and back {n}")
                one.until("broadcast", data=f"and back {n}")
