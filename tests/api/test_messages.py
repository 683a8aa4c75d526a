"""The log behind a number, waiting for more, saying something, waiting for the reply."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from agents.models import Actor
from agents.sockets import connect_token
from conversations import replies, shown
from conversations.models import Message
from scheduler.models import InboxKey
from tests.api.conftest import KIND, Sign, at, call, code
from tests.api.talkers.agents import PublicAgent, ReticentAgent, TalkerAgent

pytestmark = [pytest.mark.processes, pytest.mark.django_db(transaction=True)]


def say(client: httpx.Client, text: str, key: str | None = None, **query: Any) -> httpx.Response:
    headers = {} if key is None else {"Idempotency-Key": key}
    return client.post(at("messages/"), json={"text": text}, headers=headers, params=query)


def later(seconds: float, fn: Callable[[], Any]) -> threading.Timer:
    timer = threading.Timer(seconds, fn)
    timer.start()
    return timer


# Reading


def test_the_log_is_read_behind_a_number_page_by_page(owner: httpx.Client) -> None:
    """MSG-12"""
    call(owner, "many", 5)
    Message.objects.update(at=Message.objects.first().at)  # type: ignore[union-attr]
    seen, after, more = [], 0, True
    while more:
        page = owner.get(at("messages/"), params={"after": after, "limit": 2}).json()
        seen += [(m["seq"], m["role"], m["content"]) for m in page["results"]]
        after, more = page["after"], page["more"]
        assert page["seq"] == 5
    assert seen == [(n, "user", f"m{n}") for n in range(1, 6)]
    assert owner.get(at("messages/"), params={"after": 5}).json()["results"] == []
    beyond = owner.get(at("messages/"), params={"after": 2**63 - 1}).json()
    assert beyond == {"results": [], "after": 2**63 - 1, "seq": 5, "more": False}


def test_what_the_system_says_is_for_operators(owner: httpx.Client, operator: httpx.Client) -> None:
    call(operator, "add", "system", "be terse")
    call(operator, "add", "user", "hello")
    call(operator, "add", "system", "be kind")
    assert len(operator.get(at("messages/")).json()["results"]) == 3
    page = owner.get(at("messages/"), params={"limit": 1}).json()
    assert [m["content"] for m in page["results"]] == ["hello"] and page["after"] == 2
    rest = owner.get(at("messages/"), params={"after": 2}).json()
    assert rest == {"results": [], "after": 3, "seq": 3, "more": False}


def test_parameters_out_of_range_are_refused(owner: httpx.Client) -> None:
    for query in (
        {"after": -1}, {"after": 2**63}, {"after": "x"}, {"limit": 0}, {"limit": 201},
        {"wait": -1}, {"wait": 60.001}, {"wait": "nan"}, {"wait": "inf"}, {"wait": "x"},
    ):  # fmt: skip
        refused = owner.get(at("messages/"), params=query)
        assert (refused.status_code, code(refused)) == (400, "bad_request"), query
        assert list(refused.json()["error"]["fields"]) == list(query)
    refused = say(owner, "hello", wait_for_reply=61)
    assert "wait_for_reply" in refused.json()["error"]["fields"]


def test_a_page_is_bounded_in_bytes(owner: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    call(owner, "many", 30, "user", "x" * 100)
    actor = Actor.objects.get()
    monkeypatch.setattr(shown, "SNAPSHOT_BYTES", 2000)
    found, after = shown.after(actor.pk, 0, 30, 50, private=True)
    assert 5 < len(found) < 20 and after == len(found)
    monkeypatch.setattr(shown, "SNAPSHOT_BYTES", 1)
    assert len(shown.after(actor.pk, 0, 30, 50, private=True)[0]) == 1


def test_a_request_waits_for_the_next_message(owner: httpx.Client, operator: httpx.Client) -> None:
    call(owner, "add", "user", "first")
    adding = later(0.5, lambda: call(operator, "add", "user", "second"))
    page = owner.get(at("messages/"), params={"after": 1, "wait": 20}).json()
    assert [m["content"] for m in page["results"]] == ["second"]
    adding.join()


def test_a_request_waits_for_an_actor_that_does_not_exist_yet(
    owner: httpx.Client, operator: httpx.Client
) -> None:
    adding = later(0.5, lambda: call(operator, "add", "user", "first"))
    page = owner.get(at("messages/"), params={"wait": 20}).json()
    assert [m["content"] for m in page["results"]] == ["first"]
    adding.join()


def test_waiting_is_not_ended_by_what_is_not_for_its_reader(
    owner: httpx.Client, operator: httpx.Client
) -> None:
    adding = later(0.3, lambda: call(operator, "add", "system", "hidden"))
    page = owner.get(at("messages/"), params={"wait": 4}).json()
    assert page["results"] == [] and page["after"] == page["seq"] == 1
    adding.join()


def test_a_request_waits_for_what_another_process_does(owner: httpx.Client) -> None:
    """The database is asked where nobody tells."""
    adding = later(0.3, lambda: TalkerAgent.named("olga").sync.add("user", "from here"))
    page = owner.get(at("messages/"), params={"wait": 20}).json()
    assert [m["content"] for m in page["results"]] == ["from here"]
    adding.join()


# Saying


def test_what_is_said_is_in_the_inbox_when_it_is_answered(owner: httpx.Client, api: Sign) -> None:
    answer = say(owner, "hello", "k1", wait_for_reply=0)
    assert answer.status_code == 202
    assert answer.json() == {"id": "k1", "duplicate": False, "message": None, "reply": None}
    assert InboxKey.objects.get().key == "say:k1"
    page = owner.get(at("messages/"), params={"wait": 20}).json()
    assert page["results"][0]["content"] == "hello"
    assert page["results"][0]["metadata"] == {"id": "k1"}
    state = owner.get(at("state/")).json()["state"]["last"]
    assert state["from"] == "olga" and state["claims"] == {} and state["user_id"]


def test_the_same_key_says_nothing_twice(owner: httpx.Client) -> None:
    first = say(owner, "hello", "k1", wait_for_reply=20).json()
    again = say(owner, "hello", "k1", wait_for_reply=20)
    assert again.status_code == 200
    assert again.json() == {**first, "duplicate": True}
    assert say(owner, "hello", "k1").json()["duplicate"]
    assert Message.objects.filter(role="user").count() == 1
    # Without a key it is another one.
    assert say(owner, "hello", wait_for_reply=20).json()["reply"]["seq"] > first["reply"]["seq"]


def test_the_reply_is_waited_for_and_is_the_one_to_what_was_said(owner: httpx.Client) -> None:
    for n in range(3):
        answer = say(owner, f"hello {n}", wait_for_reply=20)
        assert answer.status_code == 200
        said = answer.json()
        assert said["reply"]["content"] == f"You said: hello {n}"
        assert said["message"]["content"] == f"hello {n}" and said["message"]["metadata"]["id"] == said["id"]


def test_an_agent_that_keeps_no_ids_is_waited_for_by_its_words(owner: httpx.Client) -> None:
    said = say(owner, "unnamed hello", "k1", wait_for_reply=20).json()
    assert said["reply"]["content"] == "You said: unnamed hello"
    assert say(owner, "unnamed hello", "k1", wait_for_reply=20).json() == {**said, "duplicate": True}


def test_without_a_reply_in_time_it_is_202_and_goes_on(owner: httpx.Client, operator: httpx.Client) -> None:
    began = time.monotonic()
    answer = say(owner, "silence", "k1", wait_for_reply=1)
    assert answer.status_code == 202 and 1 <= time.monotonic() - began < 45
    assert answer.json()["reply"] is None
    replying = later(0.3, lambda: call(operator, "add", "assistant", "here I am"))
    answer = say(owner, "silence", "k1", wait_for_reply=20)
    assert (answer.status_code, answer.json()["reply"]["content"]) == (200, "here I am")
    replying.join()


def test_what_cannot_be_said_is_refused(owner: httpx.Client, operator: httpx.Client, api: Sign) -> None:
    bodies: list[Any] = [{}, {"text": ""}, {"text": "  \n"}, {"text": 7}, {"text": None}, []]
    for body in [*bodies, {"text": "a", "metadata": 1}]:
        refused = owner.post(at("messages/"), json=body)
        assert (refused.status_code, code(refused)) == (400, "bad_request"), body
    for key, status in (("", 400), ("k" * 129, 400), ("k" * 128, 202)):
        answer = say(owner, "silence", key)
        assert answer.status_code == status, key
    deaf = operator.post(at("messages/", ReticentAgent.kind), json={"text": "hello"})
    assert (deaf.status_code, code(deaf)) == (404, "unknown_method")
    long = say(owner, "x" * 300_000)
    assert (long.status_code, code(long)) == (413, "limit_exceeded")


def test_nobody_in_particular_may_talk_where_the_class_lets_them(api: Sign) -> None:
    nobody = api(None)
    assert nobody.post(at("messages/", PublicAgent.kind), json={"text": "hi\0"}).status_code == 202
    page = nobody.get(at("messages/", PublicAgent.kind), params={"wait": 20}).json()
    assert page["results"][0]["content"] == "hi\ufffd"


def test_claims_and_metadata_reach_the_agent(api: Sign, operator: httpx.Client) -> None:
    bearer = {"Authorization": f"Bearer {connect_token(KIND, 'olga', {'sub': 7})}"}
    body = {"text": "hello", "metadata": {"page": "/pricing"}}
    answer = api(None).post(at("messages/"), json=body, headers=bearer, params={"wait_for_reply": 20})
    assert answer.status_code == 200
    last = operator.get(at("state/")).json()["state"]["last"]
    assert last == {"from": "", "user_id": "", "claims": {"sub": 7}, "metadata": {"page": "/pricing"}}


# The rule, without a site


def row(seq: int, role: str, content: str = "", **fields: Any) -> dict[str, Any]:
    empty = {"parts": None, "name": "", "tool_calls": None, "tool_call_id": "", "metadata": None}
    return {"seq": seq, "role": role, "content": content, "at": fields.pop("at", None), **empty, **fields}


def test_the_reply_is_the_first_words_of_the_assistant_behind_what_was_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shown, "message", lambda row: row["seq"])
    log = [
        row(1, "assistant", "to somebody else"),
        row(2, "user", "hello", metadata={"id": "other"}),
        row(3, "assistant", "to the other"),
        row(4, "user", "hello", metadata={"id": "mine"}),
        row(5, "assistant", "let me look", tool_calls=[{"id": "c", "name": "look", "args": {}}]),
        row(6, "tool", "found", tool_call_id="c"),
        row(7, "assistant", " "),
        row(8, "user", "are you there?"),
        row(9, "assistant", "it is here"),
        row(10, "assistant", "anything else?"),
    ]
    awaited = replies.Awaited("mine", "hello", 0)
    awaited._take(log[:5])
    assert (awaited.message, awaited.reply) == (4, None)
    awaited._take(log[5:])
    assert awaited.reply == 9


def test_nothing_is_told_by_a_message_that_carries_another_id() -> None:
    awaited = replies.Awaited("mine", "hello", 0)
    awaited._take([row(1, "user", "hello", metadata={"id": "other"}), row(2, "assistant", "hi")])
    assert awaited.message is None and awaited.reply is None
