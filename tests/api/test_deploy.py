"""A deploy, as who waits for a reply by the API sees it. In a file alone: no other site runs what is due."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from rest_framework.authtoken.models import Token

from conversations.models import Message
from scheduler.models import Attempt
from tests.agents.sockets.site import Site, running
from tests.api.conftest import at
from tests.waiting import wait_until

pytestmark = [pytest.mark.processes, pytest.mark.django_db(transaction=True)]


def test_a_deploy_in_the_middle_of_a_reply_loses_nothing_and_whoever_waits_waits_on(
    olga: Any, bob: Any, tmp_path: Path
) -> None:
    """OPS-05: SIGTERM, then SIGKILL, while a model is asked for what the API waits for."""
    agents = {"API_WAIT": 60.0, "LEASE": 4.0, "LEASE_RENEWAL": 1.0, "SHUTDOWN_GRACE": 60.0}
    asked = {"json": {"text": f"work in {tmp_path}"}, "headers": {"Idempotency-Key": "deployed"}}
    keys = {user: Token.objects.create(user=user).key for user in (olga, bob)}
    answers: list[httpx.Response] = []

    def client_of(user: Any, site: Site) -> httpx.Client:
        headers = {"Authorization": f"Token {keys[user]}"}
        url = f"http://127.0.0.1:{site.port}"
        return httpx.Client(base_url=url, headers=headers, timeout=90, trust_env=False)

    def ask(site: Site) -> None:
        with client_of(olga, site) as client:
            answers.append(client.post(at("messages/"), params={"wait_for_reply": 60}, **asked))  # type: ignore[arg-type]

    with running(AGENT_APPS="tests.api.talkers", agents=agents) as one:
        waiting = threading.Thread(target=ask, args=[one])
        waiting.start()
        wait_until((tmp_path / "outside").exists)
        one.process.terminate()
        waiting.join(30)
        one.process.kill()
        one.ended()
    (first,) = answers
    assert (first.status_code, first.json()["reply"]) == (202, None)
    with running(AGENT_APPS="tests.api.talkers", agents=agents) as two:
        (tmp_path / "go").touch()
        ask(two)
        again = answers[-1]
        assert (again.status_code, again.json()["id"]) == (200, first.json()["id"])
        assert again.json()["reply"]["content"] == f"You said: work in {tmp_path}"
        # Who operates sees what became of the run; the actor takes what is said next.
        with client_of(bob, two) as client:
            found = client.get(at("attempts/"), params={"method": "reply"}).json()["results"]
            assert [a["outcome"] for a in found if a["method"] == "reply"] == ["done", "lost"]
            said = client.post(at("messages/"), json={"text": "thanks"}, params={"wait_for_reply": 60})
            assert (said.status_code, said.json()["reply"]["content"]) == (200, "You said: thanks")
            assert not client.get(at()).json()["running"]
    assert (tmp_path / "outside").read_text() == "done\n"
    assert Message.objects.filter(role="user").count() == 2
    assert not Attempt.objects.filter(outcome="running").exists()
