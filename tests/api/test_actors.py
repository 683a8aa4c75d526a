"""Actors, their state, calls and stops, over HTTP."""

from __future__ import annotations

import base64
import threading
from typing import Any

import httpx
import pytest
from django.test import Client as Browser

from agents.models import Actor
from agents.permissions import permission_of
from agents.sockets import connect_token
from conversations.models import Message
from tests.agents.sockets.site import Site
from tests.api.conftest import KIND, Sign, at, call, code, grant
from tests.api.talkers.agents import PublicAgent, ReticentAgent
from tests.waiting import wait_until

pytestmark = [pytest.mark.processes, pytest.mark.django_db(transaction=True)]

NAMES = ["+15550005006", "José", "a b", "user@example.org", "日本", "a/b", "..", "~", "%2F"]


# Who


def test_without_a_key_it_is_401_and_with_a_wrong_one_too(api: Sign, site: Site) -> None:
    nobody = api(None)
    for headers in ({}, {"Authorization": "Token nonsense"}, {"Authorization": "Basic Ym9iOmJvYg=="}):
        answer = nobody.get(at(), headers=headers)
        assert answer.status_code == 401
        assert answer.headers["WWW-Authenticate"] == "Token"
    assert code(nobody.get(at())) == "not_authenticated"
    assert code(nobody.get(at(), headers={"Authorization": "Token nonsense"})) == "authentication_failed"


def test_whoever_the_class_admits_sees_the_conversation_and_others_do_not(
    api: Sign, owner: httpx.Client, operator: httpx.Client, charlie: Any
) -> None:
    call(owner, "add", "user", "hello")
    assert owner.get(at()).json()["seq"] == operator.get(at()).json()["seq"] == 1
    refused = api(charlie).get(at())
    assert (refused.status_code, code(refused)) == (403, "permission_denied")
    assert api(None).get(at()).status_code == 401
    # A class that admits everybody.
    assert api(None).get(at("messages/", PublicAgent.kind)).status_code == 200


def test_a_token_admits_to_its_actor_alone(api: Sign, owner: httpx.Client) -> None:
    call(owner, "add", "user", "hello")
    nobody = api(None)
    bearer = {"Authorization": f"Bearer {connect_token(KIND, 'olga', {'sub': 7})}"}
    assert nobody.get(at("messages/"), headers=bearer).json()["seq"] == 1
    assert nobody.get(at("messages/", name="other"), headers=bearer).status_code == 401
    assert nobody.get("/api/actors/", headers=bearer).status_code == 401
    stale = {"Authorization": f"Bearer {connect_token(KIND, 'olga', max_age=1e-9)}"}
    assert code(nobody.get(at("messages/"), headers=stale)) == "authentication_failed"


def test_a_session_counts_and_changes_something_only_with_its_csrf_token(site: Site, olga: Any) -> None:
    browser = Browser()
    browser.force_login(olga)
    cookies = {"sessionid": browser.cookies["sessionid"].value, "csrftoken": "a" * 32}
    with httpx.Client(base_url=f"http://127.0.0.1:{site.port}", cookies=cookies, trust_env=False) as session:
        assert session.get(at("state/")).status_code == 200
        refused = session.post(at("call/echo/"), json={"args": [1]})
        assert (refused.status_code, code(refused)) == (403, "permission_denied")
        allowed = session.post(at("call/echo/"), json={"args": [1]}, headers={"X-CSRFToken": "a" * 32})
        assert allowed.json() == {"result": 1}


def test_every_name_has_an_address(operator: httpx.Client) -> None:
    """WS-08"""
    for name in NAMES:
        assert call(operator, "add", "user", "hello", name=name) == 1
        shown = operator.get(at(name=name)).json()
        assert shown["name"] == name
        assert operator.get(shown["path"]).json() == shown


def test_a_name_that_is_not_escaped_is_told_how_it_is_written(operator: httpx.Client) -> None:
    refused = operator.get(f"/api/actors/{KIND}/+15550005006/")
    assert (refused.status_code, code(refused)) == (404, "invalid_name")
    assert "~2B15550005006" in refused.json()["error"]["message"]
    assert code(operator.get("/api/actors/no-such-kind/olga/")) == "unknown_kind"


def test_asking_creates_nothing(operator: httpx.Client) -> None:
    missing = operator.get(at())
    assert (missing.status_code, code(missing)) == (404, "no_actor")
    assert operator.get(at("messages/")).json() == {"results": [], "after": 0, "seq": 0, "more": False}
    assert operator.get(at("state/")).json()["state"]["mood"] == "calm"
    assert call(operator, "echo", 1) == 1
    assert not Actor.objects.exists()


# Lists


def test_actors_are_listed_by_kind_newest_first_and_in_pages(api: Sign, operator: httpx.Client) -> None:
    Actor.objects.bulk_create(Actor(kind=KIND, name=f"a{n}") for n in range(5))
    Actor.objects.create(kind=ReticentAgent.kind, name="r")
    first = operator.get("/api/actors/", params={"kind": KIND, "limit": 2}).json()
    assert [row["name"] for row in first["results"]] == ["a4", "a3"]
    Actor.objects.create(kind=KIND, name="late")  # moves no page
    second = operator.get(first["next"]).json()
    assert [row["name"] for row in second["results"]] == ["a2", "a1"]
    third = operator.get(second["next"]).json()
    assert [row["name"] for row in third["results"]] == ["a0"] and third["next"] is None
    assert [row["name"] for row in operator.get(third["previous"]).json()["results"]] == ["a2", "a1"]
    assert len(operator.get("/api/actors/").json()["results"]) == 7
    found = operator.get("/api/actors/", params={"search": "A3"}).json()["results"]
    assert [row["name"] for row in found] == ["a3"]


def test_lists_are_for_operators_and_show_their_kinds_alone(
    api: Sign, owner: httpx.Client, charlie: Any, django_user_model: Any
) -> None:
    Actor.objects.create(kind=KIND, name="mine")
    Actor.objects.create(kind=ReticentAgent.kind, name="other")
    assert owner.get("/api/actors/").status_code == 403
    dana = django_user_model.objects.create_user("dana", is_staff=True)
    assert api(dana).get("/api/actors/").status_code == 403
    grant(dana, permission_of(KIND))
    client = api(dana)
    assert [row["name"] for row in client.get("/api/actors/").json()["results"]] == ["mine"]
    assert client.get("/api/actors/", params={"kind": ReticentAgent.kind}).status_code == 403
    assert code(client.get("/api/actors/", params={"kind": "nonsense"})) == "unknown_kind"
    assert client.get(at("messages/", name="mine")).status_code == 200
    assert client.get(at("messages/", ReticentAgent.kind, "other")).status_code == 403


def test_a_cursor_that_is_none_is_the_callers_mistake(operator: httpx.Client) -> None:
    made_up = (b"p=abc", b"o=abc", b"p=%00", b"p=1%27")
    for cursor in ("nonsense", *(base64.b64encode(text).decode() for text in made_up)):
        refused = operator.get("/api/actors/", params={"cursor": cursor})
        assert (refused.status_code, code(refused)) == (404, "not_found"), cursor


def test_a_page_has_1_to_200_rows(operator: httpx.Client) -> None:
    for limit in ("0", "201", "-1", "x", ""):
        refused = operator.get("/api/actors/", params={"limit": limit})
        assert (refused.status_code, code(refused)) == (400, "bad_request")
        assert "limit" in refused.json()["error"]["fields"]
    assert operator.get("/api/actors/", params={"limit": "200"}).status_code == 200


# State


def test_the_state_has_an_etag_that_changes_with_it_alone(owner: httpx.Client) -> None:
    call(owner, "set", {"mood": "good"})
    first = owner.get(at("state/"))
    assert first.json()["state"]["mood"] == "good"
    etag = first.headers["ETag"]
    same = owner.get(at("state/"), headers={"If-None-Match": f'"other", W/{etag}'})
    assert (same.status_code, same.content, same.headers["ETag"]) == (304, b"", etag)
    call(owner, "add", "user", "a commit that leaves the state alone")
    assert owner.get(at("state/"), headers={"If-None-Match": etag}).status_code == 304
    call(owner, "set", {"mood": "better"})
    changed = owner.get(at("state/"), headers={"If-None-Match": etag})
    assert changed.json()["state"]["mood"] == "better" and changed.headers["ETag"] != etag


def test_a_state_that_is_not_shared_is_for_operators(
    operator: httpx.Client, api: Sign, django_user_model: Any
) -> None:
    assert operator.get(at("state/", ReticentAgent.kind)).json() == {"state": {}}
    bearer = {"Authorization": f"Bearer {connect_token(ReticentAgent.kind, 'olga')}"}
    refused = api(None).get(at("state/", ReticentAgent.kind), headers=bearer)
    assert (refused.status_code, code(refused)) == (403, "permission_denied")


# Calls


def test_an_exposed_method_is_called_and_committed_when_it_answers(owner: httpx.Client) -> None:
    assert call(owner, "add", "user", "hello") == 1
    assert Message.objects.get().content == "hello"
    answer = owner.post(at("call/echo/"), json={"args": [{"a": [1, None]}], "kwargs": {"b": "ü"}})
    assert answer.json() == {"result": [{"a": [1, None]}, {"b": "ü"}]}
    assert owner.post(at("call/echo/")).json() == {"result": None}


def test_what_may_not_be_called_says_why(owner: httpx.Client) -> None:
    for method, status, said in (
        ("hidden", 403, "private_method"),
        ("receive", 403, "private_method"),
        ("get_state", 403, "private_method"),
        ("_hook", 403, "private_method"),
        ("nothing", 404, "unknown_method"),
        ("forbid", 403, "permission_denied"),
        ("too_much", 422, "limit_exceeded"),
    ):
        refused = owner.post(at(f"call/{method}/"), json={})
        assert (refused.status_code, code(refused)) == (status, said), method
    refused = owner.post(at("call/add/"), json={"args": [1, 2, 3]})
    assert (refused.status_code, code(refused)) == (400, "bad_request")
    assert owner.get(at("call/echo/")).status_code == 405


def test_a_method_that_fails_keeps_its_insides_from_its_users(
    owner: httpx.Client, operator: httpx.Client
) -> None:
    failed = owner.post(at("call/fail/"), json={})
    assert failed.status_code == 422
    assert failed.json() == {"error": {"code": "method_error", "message": "fail failed"}}
    seen = operator.post(at("call/fail/"), json={}).json()["error"]
    assert seen["message"] == "ValueError: the secret of the insides" and len(seen["turn"]) == 36
    assert not Message.objects.exists()


BODIES = [
    (b'{"args": [NaN]}', "codec_error"),
    (b'{"args": [1e999]}', "codec_error"),
    (b"{bad", "codec_error"),
    (b'"\xff"', "codec_error"),
    (b"[" * 100_000, "codec_error"),
    (b"[]", "bad_request"),
    (b'{"args": {}}', "bad_request"),
    (b'{"kwargs": []}', "bad_request"),
]


def test_a_body_is_strict_plain_json(owner: httpx.Client) -> None:
    """MSG-15"""
    for body, said in BODIES:
        refused = owner.post(at("call/echo/"), content=body, headers={"Content-Type": "application/json"})
        assert (refused.status_code, code(refused)) == (400, said), body[:40]


def test_nul_characters_are_replaced_on_the_way_in(owner: httpx.Client) -> None:
    body = b'{"args": ["user", "ab\\u0000cd\\ud800"]}'
    answer = owner.post(at("call/add/"), content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 200
    assert Message.objects.get().content == "ab\ufffdcd\ufffd"


def test_other_types_of_bodies_are_refused(owner: httpx.Client) -> None:
    refused = owner.post(at("call/echo/"), data={"args": "1"})
    assert (refused.status_code, code(refused)) == (415, "unsupported_media_type")


def test_a_turn_is_stopped(owner: httpx.Client) -> None:
    answers: list[httpx.Response] = []
    nap = threading.Thread(target=lambda: answers.append(owner.post(at("call/nap/"), json={"args": [60]})))
    nap.start()
    wait_until(lambda: owner.post(at("stop/"), json={}).json()["stopped"])
    nap.join(60)
    assert (answers[0].status_code, code(answers[0])) == (409, "stopped")
    assert owner.post(at("stop/"), json={}).json() == {"stopped": False}
    assert not Message.objects.exists()


def test_a_method_past_its_budget_is_504(owner: httpx.Client) -> None:
    late = owner.post(at("call/nap/"), json={"args": [60]})
    assert (late.status_code, code(late)) == (504, "method_timeout")


def test_the_state_is_whole_while_turns_write_it(owner: httpx.Client, operator: httpx.Client) -> None:
    """STATE-03"""

    def write() -> None:
        for n in range(20):
            call(owner, "set", {"a": n, "b": n})

    call(owner, "set", {"a": -1, "b": -1})
    writing = threading.Thread(target=write)
    writing.start()
    for _ in range(50):
        state = operator.get(at("state/")).json()["state"]
        assert state["a"] == state["b"] and state["mood"] == "calm"
    writing.join(60)
    assert operator.get(at("state/")).json()["state"]["a"] == 19
