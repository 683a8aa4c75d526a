"""Origins: whose pages may open sockets."""

from __future__ import annotations

from typing import Any

import pytest

from agents.sockets import admission


@pytest.fixture
def hosts(settings: Any) -> None:
    settings.DEBUG = False
    settings.ALLOWED_HOSTS = ["agents.example.org", ".wild.example.org"]
    settings.AGENTS = {"SOCKET_ORIGINS": ["https://app.example.com:8443", "null"]}


@pytest.mark.usefixtures("hosts")
@pytest.mark.parametrize(
    "origin",
    [
        "https://agents.example.org",
        "http://agents.example.org:8000",
        "https://AGENTS.example.org",
        "https://a.wild.example.org",
        "https://wild.example.org",
        "https://app.example.com:8443",
        "null",
    ],
)
def test_the_sites_own_hosts_and_the_listed_origins_are_allowed(origin: str) -> None:
    assert admission.is_allowed(origin)


@pytest.mark.usefixtures("hosts")
@pytest.mark.parametrize(
    "origin",
    [
        "",
        "https://",
        "agents.example.org",
        "https://other.example",
        "https://agents.example.org.evil.example",
        "https://evilagents.example.org",
        "https://app.example.com",
        "http://app.example.com:8443",
        "https://app.example.com:8444",
        "https://agents.example.org:nonsense",
        "https://[::1",
        "file://",
    ],
)
def test_other_origins_are_not(origin: str) -> None:
    assert not admission.is_allowed(origin)


def test_null_is_an_origin_like_any_other(settings: Any) -> None:
    settings.ALLOWED_HOSTS = ["example.org"]
    assert not admission.is_allowed("null")


def test_a_development_site_without_hosts_takes_loopback(settings: Any) -> None:
    settings.ALLOWED_HOSTS = []
    settings.DEBUG = True
    assert admission.is_allowed("http://localhost:8000")
    assert admission.is_allowed("http://[::1]:8000")
    settings.DEBUG = False
    assert not admission.is_allowed("http://localhost:8000")


def test_agents_see_no_secrets_among_the_headers() -> None:
    scope = {
        "headers": [
            (b"cookie", b"sessionid=1"),
            (b"authorization", b"Token 1"),
            (b"sec-websocket-key", b"k"),
            (b"user-agent", b"A"),
            (b"x-forwarded-for", b"1"),
            (b"x-forwarded-for", b"2"),
            (b"x-long", b"l" * 2000),
        ]
    }
    headers = admission.headers_of(scope)
    assert headers["cookie"] == "sessionid=1"
    shown = admission.shown_headers(headers)
    assert shown == {"user-agent": "A", "x-forwarded-for": "1, 2", "x-long": "l" * 1024}
