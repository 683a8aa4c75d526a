"""What people wrote, as the API gives it."""

from __future__ import annotations

from typing import Any

import pytest

from agents.models import Actor
from conversations.models import Message
from scheduler.models import Task
from tests.adminpages import HOSTILE
from tests.agents.sockets.site import Site
from tests.api.conftest import KIND, Sign, at, call

pytestmark = [pytest.mark.processes, pytest.mark.django_db(transaction=True)]


def test_what_people_wrote_is_data_to_the_api_wherever_it_stands(site: Site, api: Sign, alice: Any) -> None:
    """OPS-03: a browser that is led to an answer, or to a refusal, shows no page of it."""
    client = api(alice)
    for number, hostile in enumerate(HOSTILE):
        call(client, "add", "user", hostile, name=hostile)
        call(client, "set", {"note": hostile, hostile: 1}, name=hostile)
        actor = Actor.objects.get(kind=KIND, name=hostile)
        seq = actor.seq + 1
        Message.objects.create(
            actor=actor, seq=seq, role="tool", content=hostile, tool_call_id=hostile, at=actor.created_at
        )
        Actor.objects.filter(pk=actor.pk).update(seq=seq)
        Task.objects.create(
            actor=actor, task_id=hostile, method=hostile, payload={hostile: hostile}, error=hostile,
            due_at=actor.created_at, parked_at=actor.created_at, status="parked",
        )  # fmt: skip
        answers = [
            client.get(at(path, name=hostile)) for path in ("", "messages/", "state/", "tasks/", "attempts/")
        ]
        answers += [
            client.get("/api/actors/", params={"search": hostile}),
            client.get("/api/tasks/", params={"kind": KIND}),
        ]
        assert [answer.status_code for answer in answers] == [200] * len(answers), number
        assert hostile in answers[1].json()["results"][-1]["content"]
        assert answers[2].json()["state"]["note"] == hostile
        refused = [
            client.get(f"/api/actors/{KIND}/{hostile.replace('/', '')}/"),
            client.get("/api/actors/", params={"cursor": hostile}),
            client.get("/api/tasks/", params={"status": hostile}),
            client.get("/api/" + hostile.replace("/", "")),
            client.post(at("call/echo/", name=hostile), json={"args": hostile}),
            client.post(at("call/echo/", name=hostile), json={"kwargs": {hostile: 1, "value": 2, "x": 3}}),
            client.post(at("messages/"), content=hostile, headers={"Content-Type": "application/json"}),
        ]
        for answer in answers + refused:
            assert answer.headers["Content-Type"].startswith("application/json"), answer.url
            assert answer.headers["X-Content-Type-Options"] == "nosniff", answer.url
        assert hostile not in client.get("/api/docs/").text
