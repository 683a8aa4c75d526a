"""Providers: the official Telnyx client against a real HTTP server, and the console."""

from __future__ import annotations

import subprocess
import sys
import uuid

import pytest

from agents.exceptions import ConfigurationError
from conversations.exceptions import OutcomeUnknown, PermanentFailure, TemporaryFailure
from conversations.models import OutboundText
from conversations.providers import get_provider, provider_for
from conversations.providers.base import Outgoing
from conversations.providers.console import ConsoleProvider
from conversations.providers.telnyx import TelnyxProvider
from tests.conversations.telnyx_api import serve


def text(words: str = "hello") -> Outgoing:
    row = OutboundText(
        uid=uuid.uuid4(), from_number="+15550009999", to_number="+15550001111", text=words, attempts=1
    )
    return Outgoing(row)


@pytest.fixture
def api(settings):
    with serve() as api:
        settings.AGENTS = {
            "TELNYX_API_KEY": "KEY-test",
            "TELNYX_BASE_URL": api.url,
            "SMS_TIMEOUT": 30.0,
        }
        yield api


@pytest.fixture
def telnyx(api):
    provider = TelnyxProvider()
    yield provider
    provider.client.close()


def test_a_text_is_one_request_with_the_key_and_its_numbers(api, telnyx):
    assert telnyx.send(text("café 😋")).provider_id == "message-1"
    (path, authorization, body), *more = api.requests
    assert (path, authorization, more) == ("/v2/messages", "Bearer KEY-test", [])
    assert body == {"from": "+15550009999", "to": "+15550001111", "text": "café 😋"}


@pytest.mark.parametrize(
    ("status", "code"),
    [(400, "40300"), (401, "10009"), (403, "10010"), (404, ""), (409, ""), (422, "40310"), (418, "")],
)
def test_what_telnyx_refuses_is_never_sent(api, telnyx, status, code):
    api.refuse(status, code, "Blocked due to STOP message")
    with pytest.raises(PermanentFailure) as caught:
        telnyx.send(text())
    assert caught.value.reason == code
    assert str(status) in str(caught.value)
    assert ("STOP message: in detail" in str(caught.value)) is bool(code)
    assert len(api.requests) == 1


@pytest.mark.parametrize(
    ("status", "code"), [(408, ""), (429, "10011"), (500, "10007"), (503, ""), (400, "40318"), (422, "40008")]
)
def test_what_was_not_carried_out_may_be_tried_again(api, telnyx, status, code):
    api.refuse(status, code)
    with pytest.raises(TemporaryFailure) as caught:
        telnyx.send(text())
    assert caught.value.retry_after is None
    assert len(api.requests) == 1, "the client must not try again by itself"


def test_the_pause_that_telnyx_asks_for_is_passed_on_within_reason(api, telnyx):
    for asked, passed_on in (("90", 90.0), ("99999", 1800.0), ("-1", 0.0), ("soon", None)):
        api.refuse(429, "10011", Retry_After=asked)
        with pytest.raises(TemporaryFailure) as caught:
            telnyx.send(text())
        assert caught.value.retry_after == passed_on


@pytest.mark.parametrize("status", [502, 504, 520])
def test_a_gateway_cannot_know_whether_the_text_was_sent(api, telnyx, status):
    api.refuse(status)
    with pytest.raises(OutcomeUnknown):
        telnyx.send(text())


@pytest.mark.parametrize("body", [{}, {"data": None}, {"data": {}}, [], b"<html>welcome</html>", b""])
def test_an_answer_that_names_no_message_leaves_the_outcome_unknown(api, telnyx, body):
    api.body = body
    with pytest.raises(OutcomeUnknown):
        telnyx.send(text())
    assert len(api.requests) == 1


def test_an_answer_that_breaks_off_leaves_the_outcome_unknown(api, telnyx):
    api.hangs_up = True
    with pytest.raises(OutcomeUnknown):
        telnyx.send(text())
    assert len(api.requests) == 1


def test_no_answer_in_time_leaves_the_outcome_unknown(api, settings):
    settings.AGENTS = {**settings.AGENTS, "SMS_TIMEOUT": 2.0}
    api.released.clear()
    provider = TelnyxProvider()
    with pytest.raises(OutcomeUnknown) as caught:
        provider.send(text())
    provider.client.close()
    assert "Timeout" in str(caught.value)
    assert len(api.requests) == 1


def test_where_nobody_listens_nothing_was_sent(settings):
    with serve() as api:
        pass  # its port is free again
    settings.AGENTS = {"TELNYX_API_KEY": "KEY-test", "TELNYX_BASE_URL": api.url}
    provider = TelnyxProvider()
    with pytest.raises(TemporaryFailure):
        provider.send(text())
    provider.client.close()


def test_the_console_prints_one_line_a_text(capsys):
    sent = text("two\nlines")
    assert ConsoleProvider().send(sent).provider_id == f"console-{sent.text.uid}"
    assert capsys.readouterr().out == "[text] +15550009999 -> +15550001111: two / lines\n"


@pytest.mark.parametrize(
    ("chosen", "name"),
    [
        ({}, "console"),
        ({"TELNYX_API_KEY": "KEY"}, "telnyx"),
        ({"TELNYX_API_KEY": "KEY", "SMS_PROVIDER": "console"}, "console"),
        ({"SMS_PROVIDER": "conversations.providers.console.ConsoleProvider"}, "console"),
    ],
)
def test_the_settings_choose_the_provider(settings, chosen, name):
    settings.AGENTS = chosen
    assert get_provider().name == name
    assert get_provider() is get_provider()


@pytest.mark.parametrize("chosen", ["nowhere.Provider", "console2", "pathlib.Path"])
def test_a_provider_that_cannot_be_had_is_a_configuration_error(settings, chosen):
    settings.AGENTS = {"SMS_PROVIDER": chosen}
    with pytest.raises(ConfigurationError):
        get_provider()


@pytest.mark.parametrize(
    ("chosen", "missing"), [("telnyx", "TELNYX_API_KEY"), ("twilio", "TWILIO_ACCOUNT_SID")]
)
def test_a_provider_without_its_key_sends_nothing_and_still_takes_texts(settings, chosen, missing):
    settings.AGENTS = {"SMS_PROVIDER": chosen}
    assert get_provider().name == chosen
    with pytest.raises(ConfigurationError, match=missing):
        provider_for("+15550009999")


def test_the_sdks_are_not_imported_before_they_are_used():
    code = (
        "import django, sys; django.setup()\n"
        "from django.core.management import call_command\n"
        "call_command('check')\n"
        "import agents, conversations.providers.telnyx\n"
        "from conversations.providers import get_provider; get_provider()\n"
        "print(sorted({'telnyx', 'openai', 'httpx'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={
            "PATH": "",
            "DJANGO_SETTINGS_MODULE": "tests.settings",
            "TELNYX_API_KEY": "KEY",
            "PYTHONPATH": ".",
        },
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "[]"
