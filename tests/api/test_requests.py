"""Agents that answer HTTP themselves."""

from __future__ import annotations

import socket
from typing import Any

import httpx
import pytest
from django.test import Client as Browser

from agents import conf
from agents.models import TurnRecord
from agents.sockets import connect_token
from conversations.models import Message
from tests.agents.sockets.site import Site
from tests.api.conftest import KIND, Sign, code
from tests.api.talkers.agents import PublicAgent, ReticentAgent

pytestmark = [pytest.mark.processes, pytest.mark.django_db(transaction=True)]


def at(path: str = "", kind: str = KIND, name: str = "olga") -> str:
    return f"/agents/{kind}/{name}/{path}"


def test_a_request_is_a_turn_and_its_answer_comes_when_that_is_committed(owner: httpx.Client) -> None:
    answer = owner.post(at("orders/7"), json={})
    assert (answer.status_code, answer.json()) == (201, {"seq": 1})
    assert answer.headers["Location"] == "/orders/7"
    assert Message.objects.get().content == "order 7"
    record = TurnRecord.objects.get()
    assert (record.origin, record.method) == ("request", "on_request")


def test_the_agent_is_told_what_was_asked_and_no_secrets(owner: httpx.Client, olga: Any) -> None:
    for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
        body = b"" if method == "GET" else "hällo".encode()
        answer = owner.request(method, at(""), params={"q": "1"}, content=body)
        assert answer.status_code == 200, answer.text
        assert answer.json() == {
            "method": method, "url": at(), "query": {"q": "1"}, "user": "olga", "claims": {}, "cookie": False,
            "body": "" if method == "GET" else "hällo", "name": "olga",
        }  # fmt: skip
    head = owner.head(at(""))
    assert (head.status_code, head.content) == (200, b"")
    assert owner.request("OPTIONS", at("")).status_code == 405
    assert not TurnRecord.objects.exists()  # nothing was written


def test_it_is_behind_the_same_authorization(api: Sign, operator: httpx.Client, charlie: Any) -> None:
    assert operator.get(at()).status_code == 200
    assert api(charlie).get(at()).status_code == 403
    nobody = api(None)
    assert nobody.get(at()).status_code == 401
    bearer = {"Authorization": f"Bearer {connect_token(KIND, 'olga', {'sub': 7})}"}
    assert nobody.get(at(), headers=bearer).json()["claims"] == {"sub": 7}
    assert nobody.get(at(name="other"), headers=bearer).status_code == 401


def test_a_form_of_a_session_is_there_though_its_token_was_looked_for(site: Site, olga: Any) -> None:
    browser = Browser()
    browser.force_login(olga)
    cookies = {"sessionid": browser.cookies["sessionid"].value, "csrftoken": "a" * 32}
    url = f"http://127.0.0.1:{site.port}"
    with httpx.Client(base_url=url, cookies=cookies, trust_env=False) as session:
        assert session.post(at("form"), data={"a": "b"}).status_code == 403
        answer = session.post(at("form"), data={"a": "b", "csrfmiddlewaretoken": "a" * 32})
        assert answer.json()["given"]["a"] == "b"


def test_what_it_returns_becomes_a_response(owner: httpx.Client) -> None:
    none, text, data, page = (owner.get(at(path)) for path in ("none", "text", "bytes", "page"))
    assert (none.status_code, none.content) == (204, b"")
    assert (text.text, text.headers["Content-Type"]) == ("<b>words</b>", "text/plain; charset=utf-8")
    assert (data.content, data.headers["Content-Type"]) == (b"\0\1", "application/octet-stream")
    assert page.headers["Content-Type"].startswith("text/html")
    for answer in (none, text, data, page):
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Cache-Control"] == "no-store"


def test_what_it_raises_is_answered_and_nothing_is_committed(owner: httpx.Client) -> None:
    for path, status, said in (
        ("fails", 500, "method_error"),
        ("forbidden", 403, "permission_denied"),
        ("missing", 404, "not_found"),
        ("streams", 500, "bad_response"),
        ("odd", 422, "codec_error"),
    ):
        answer = owner.get(at(path))
        assert (answer.status_code, code(answer)) == (status, said), path
        assert "secret" not in answer.text
    assert code(owner.post(at("json"), content=b"{bad")) == "codec_error"
    assert not Message.objects.exists()


def test_there_is_nothing_where_a_class_answers_no_requests(operator: httpx.Client, api: Sign) -> None:
    answer = operator.get(at(kind=ReticentAgent.kind))
    assert (answer.status_code, code(answer)) == (404, "unknown_method")
    assert api(None).get(at(kind=PublicAgent.kind)).status_code == 404


def test_bodies_are_limited_both_ways(owner: httpx.Client, site: Site) -> None:
    most = conf.get("MAX_REQUEST_BYTES")
    assert owner.post(at("form"), content=b"a=" + b"x" * (most - 2)).status_code == 200
    too_much = owner.post(at("form"), content=b"a=" + b"x" * (most - 1))
    assert (too_much.status_code, code(too_much)) == (413, "limit_exceeded")
    most = conf.get("MAX_RESPONSE_BYTES")
    assert len(owner.get(at(f"long/{most}")).content) == most
    too_much = owner.get(at(f"long/{most + 1}"))
    assert (too_much.status_code, code(too_much)) == (422, "limit_exceeded")


def test_a_body_without_a_length_is_read_and_limited(owner: httpx.Client) -> None:
    def pieces(count: int) -> Any:
        yield from (b"x" * 1024 for _ in range(count))

    assert len(owner.post(at(""), content=pieces(10)).json()["body"]) == 10 * 1024
    assert owner.post(at(""), content=pieces(1025)).status_code == 413


def test_a_body_that_never_comes_is_nobodys_turn(site: Site, owner: httpx.Client) -> None:
    with socket.create_connection(("127.0.0.1", site.port)) as wire:
        head = f"POST {at('orders/1')} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n"
        who = owner.headers["Authorization"]
        wire.sendall(f"{head}Authorization: {who}\r\n\r\n{{}}".encode())
    assert owner.get(at("none")).status_code == 204
    assert not Message.objects.exists()
