"""A site for the tests of sockets: one process for all that don't break it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from django.test import Client as Browser

from agents.models import Actor, Connection
from agents.runtime import shutdown
from scheduler.models import Task
from tests.agents.sockets.chatters import agents as _agents  # noqa: F401 - this process knows them, too
from tests.agents.sockets.site import Site, running
from tests.waiting import wait_until


class Sites:
    """The process that most tests share: started when it is asked for, and again after somebody ended it."""

    def __init__(self) -> None:
        self._stack: ExitStack | None = None
        self._site: Site | None = None

    def get(self) -> Site:
        if self._site is None:
            self._stack = ExitStack()
            self._site = self._stack.enter_context(running())
        return self._site

    def end(self) -> None:
        if self._stack is not None:
            self._stack.close()
        self._stack = self._site = None


@pytest.fixture(scope="package")
def sites(django_db_setup: None) -> Iterator[Sites]:
    """Only for the tests here: beside others it would run their tasks and send their texts."""
    sites = Sites()
    yield sites
    sites.end()


@pytest.fixture
def site(sites: Sites, transactional_db: None) -> Iterator[Site]:
    """The site. At the end of the test it is at rest: the tables are about to be emptied."""
    site = sites.get()
    yield site
    assert site.process.poll() is None, site.output
    wait_until(at_rest, 30, "everybody to be gone, and everything to be done")


def at_rest() -> bool:
    """Whether no process has anything to do with the tables that are about to be emptied."""
    return not (
        Connection.objects.exists()
        or Task.objects.due().exists()
        or Actor.objects.filter(token__isnull=False).exists()
    )


@pytest.fixture
def alone(sites: Sites, transactional_db: None) -> None:
    """Nobody else works on this database: the processes that the test starts run what it tells."""
    sites.end()


@pytest.fixture(autouse=True)
def _runtime_ends() -> Iterator[None]:
    yield
    shutdown(0)


@pytest.fixture
def name() -> str:
    """The name of an actor of one's own."""
    return uuid.uuid4().hex


@pytest.fixture
def signed_in() -> Callable[[Any], str]:
    """The key of a fresh session of a user."""

    def sign_in(user: Any) -> str:
        browser = Browser()
        browser.force_login(user)
        return browser.cookies["sessionid"].value

    return sign_in


@pytest.fixture
def operator(bob: Any, signed_in: Callable[[Any], str]) -> str:
    """The session of somebody who may look at actors."""
    return signed_in(bob)
