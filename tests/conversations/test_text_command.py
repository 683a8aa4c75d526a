"""``manage.py text`` against a running site: a text goes in over HTTP, the reply comes out."""

from __future__ import annotations

from collections.abc import Iterator
from io import StringIO
from typing import Any

import httpx
import pytest
from django.core.management import CommandError, call_command

from agents import Agent
from agents.env import env
from agents.testing import on_runtime
from conversations.models import InboundText, OutboundText
from scheduler.dispatchers import local
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


class MuteAgent(Agent):
    kind = "mute"

    async def receive(self, message):
        pass


@pytest.fixture
def site(live_server: Any, settings: Any) -> Iterator[str]:
    """A development site with its scheduler, in this process."""
    settings.DEBUG = True
    settings.AGENTS = {"SITE_URL": live_server.url}
    local.start()
    yield live_server.url
    local.stop()
    on_runtime(lambda engine: env.close())


def run(*args: str, site: str, **options: Any) -> tuple[str, str]:
    out, err = StringIO(), StringIO()
    call_command("text", *args, url=site, stdout=out, stderr=err, **options)
    return out.getvalue(), err.getvalue()


def test_the_reply_of_the_agent_is_printed(site):
    out, err = run("+15550001111", "Where is order 1042?", site=site)
    first, second = out.splitlines()
    assert first.startswith("accepted in ")
    assert second.startswith("+15550009999: [offline model] Order 1042")
    assert err == ""
    text = InboundText.objects.get()
    assert (text.from_number, text.to_number) == ("+15550001111", "+15550009999")
    assert wait_until(lambda: OutboundText.objects.get().status == "sent")


def test_an_old_reply_is_not_taken_for_the_new_one(site):
    run("+15550001111", "one", site=site)
    out, _ = run("15550001111", "two", site=site)
    assert out.splitlines()[1:] == ["+15550009999: [offline model] I read: two"]


def test_without_waiting_only_the_acknowledgement_is_printed(site):
    out, _ = run("+15550001111", "hello", site=site, timeout=0)
    assert len(out.splitlines()) == 1
    wait_until(lambda: OutboundText.objects.exists())


def test_an_agent_that_says_nothing_is_waited_for_in_vain(site):
    with pytest.raises(CommandError, match="no reply within"):
        run("+15550001111", "hello", site=site, kind="mute", timeout=0.5)


def test_a_site_that_is_not_running_is_named():
    with pytest.raises(CommandError, match=r"no site answers at http://127.0.0.1:9 .* bin/dev"):
        run("+15550001111", "hello", site="http://127.0.0.1:9")


def test_a_site_that_is_not_for_development_is_named(live_server):
    with pytest.raises(CommandError, match="DEBUG"):
        run("+15550001111", "hello", site=live_server.url)
    with pytest.raises(CommandError, match="403 no_public_key"):
        run("+15550001111", "hello", site=live_server.url, timeout=0)
    assert not InboundText.objects.exists()


def test_a_kind_that_is_not_installed_is_named(site):
    with pytest.raises(CommandError, match="no agent of kind 'nobody' can take it"):
        run("+15550001111", "hello", site=site, kind="nobody")


def test_twilios_webhook_is_played_too(site):
    out, _ = run("+15550001111", "hello", site=site, provider="twilio")
    first, *replies = out.splitlines()
    assert first.startswith("taken in ")
    assert replies == ["+15550009999: [offline model] I read: hello"]


def test_a_keyword_is_answered_by_the_site_where_no_provider_does_it(site):
    out, _ = run("+15550001111", "STOP", site=site)
    assert out.splitlines()[1:] == [
        "+15550009999: You get no more texts from this number. Reply START to get them again."
    ]


@pytest.mark.parametrize("number", ["hello", "12", ""])
def test_a_number_that_is_none_is_refused(number):
    with pytest.raises(CommandError, match="not a phone number"):
        run(number, "hello", site="http://127.0.0.1:9")


def test_the_texts_of_a_development_site_are_listed_in_order(site):
    for words in ("one", "two"):
        run("+15550001111", words, site=site)
    everything = httpx.get(f"{site}/dev/texts/").json()
    assert [row["text"] for row in everything["texts"]] == [
        "[offline model] I read: one",
        "[offline model] I read: two",
    ]
    first, second = (row["id"] for row in everything["texts"])
    assert everything["last"] == second
    query = {"to": "15550001111", "after": first}
    assert [row["id"] for row in httpx.get(f"{site}/dev/texts/", params=query).json()["texts"]] == [second]
    assert httpx.get(f"{site}/dev/texts/", params={"to": "+15550002222"}).json()["texts"] == []
    assert httpx.get(f"{site}/dev/texts/", params={"after": "x"}).status_code == 400
    assert httpx.post(f"{site}/dev/texts/").status_code in (403, 405)
