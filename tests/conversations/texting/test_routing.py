"""Whose a text is: the webhook's address, our number, how actors are named; Twilio's webhook among them."""

from __future__ import annotations

import json
import logging
from typing import Any
from urllib.parse import urlencode

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import Client
from twilio.request_validator import RequestValidator

from agents import codec
from agents.models import Actor
from conversations.management.commands.text import event as telnyx_event
from conversations.management.commands.text import twilio_form
from conversations.models import InboundText
from conversations.signatures import DEVELOPMENT_TOKEN, sign, sign_twilio
from scheduler.models import Task
from tests.conversations.texting import agents  # noqa: F401 - declares the kinds
from tests.conversations.texting.test_cross_checks import KEY

pytestmark = pytest.mark.django_db(transaction=True)

THEIRS, OURS, OTHER = "+15550001111", "+15550009999", "+15550008888"
TOKEN = "test_auth_token_000000000000000000"
FORM = "application/x-www-form-urlencoded"


@pytest.fixture(autouse=True)
def site(settings):
    import base64

    settings.ALLOWED_HOSTS = ["*"]
    settings.AGENTS = {
        "TELNYX_PUBLIC_KEYS": [base64.b64encode(KEY.public_key().public_bytes_raw()).decode()],
        "TWILIO_AUTH_TOKENS": [TOKEN],
        "SMS_NUMBERS": {
            OURS: {"kind": "texting"},
            "1 (555) 000-8888": {"kind": "texting-elsewhere"},
        },
    }


def configure(settings: Any, **changes: Any) -> None:
    settings.AGENTS = {**settings.AGENTS, **changes}


def post(
    form: dict[str, str] | bytes,
    path: str = "/webhooks/twilio/texting/",
    *,
    url: str = "http://testserver",
    token: str = TOKEN,
    content_type: str = FORM,
    signature: str | None = None,
    **extra: Any,
) -> Any:
    body = form if isinstance(form, bytes) else urlencode(form).encode()
    fields = {} if isinstance(form, bytes) else {name: [value] for name, value in form.items()}
    headers = (
        sign_twilio(url + path, fields, token) if signature is None else {"X-Twilio-Signature": signature}
    )
    return Client().generic("POST", path, body, content_type, headers=headers, **extra)


def post_telnyx(event: dict[str, Any], path: str = "/webhooks/telnyx/") -> Any:
    body = json.dumps(event).encode()
    return Client().generic("POST", path, body, "application/json", headers=sign(body, KEY))


def payload() -> dict[str, Any]:
    message: dict[str, Any] = codec.decode(Task.objects.get().payload)
    return message


# Twilio


def test_a_text_from_twilio_is_in_its_inbox_and_answered_in_twilios_own_words():
    form = twilio_form(THEIRS, OURS, "café 😋")
    answer = post(form)
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, "text/xml")
    assert answer.content == b'<?xml version="1.0" encoding="UTF-8"?><Response/>'
    text = InboundText.objects.get()
    assert (text.provider, text.message_id, text.text) == ("twilio", form["MessageSid"], "café 😋")
    assert str(text.actor) == f"texting/{THEIRS}"
    message = payload()
    assert message.pop("received_at")
    assert message == {
        "text": "café 😋",
        "from": THEIRS,
        "to": OURS,
        "id": form["MessageSid"],
        "event_id": form["MessageSid"],
        "media": [],
        "channel": "sms",
    }


def test_the_same_request_again_is_one_text_and_is_answered_well():
    form = twilio_form(THEIRS, OURS, "hello")
    for _ in range(3):
        assert post(form).status_code == 200
    assert (InboundText.objects.count(), Task.objects.count()) == (1, 1)


def test_a_picture_without_words_from_twilio_is_a_text():
    post(twilio_form(THEIRS, OURS, "", ["https://api.twilio.com/a", "https://api.twilio.com/b"]))
    message = payload()
    assert message["text"] == ""
    assert [item["url"][-1] for item in message["media"]] == ["a", "b"]
    assert message["media"][0]["content_type"] == "image/jpeg"


def test_fields_that_nobody_knows_and_blank_ones_are_part_of_what_was_signed():
    form = {**twilio_form(THEIRS, OURS, ""), "AddOns": '{"status": "successful"}', "Blank": ""}
    assert post(form).status_code == 200
    refused = post({**form, "MessageSid": "SM2", "One": "more"}, signature="nonsense")
    assert refused.status_code == 403
    assert InboundText.objects.count() == 1


def test_a_nul_in_a_body_is_stored_with_a_replacement_character():
    assert post(twilio_form(THEIRS, OURS, "a\0b")).status_code == 200
    assert InboundText.objects.get().text == "a\ufffdb"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"MessageSid": ""}, "MessageSid"),
        ({"From": ""}, "From"),
        ({"To": " "}, "To"),
        ({"From": "x" * 65}, "From"),
    ],
)
def test_a_form_without_what_a_text_needs_is_400_and_says_which(change, field):
    answer = post({**twilio_form(THEIRS, OURS, "hello"), **change})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_field")
    assert field in answer.json()["error"]["message"]


def test_a_form_with_thousands_of_fields_is_400():
    answer = post({f"field{n}": "x" for n in range(1100)})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "not_a_form")


@pytest.mark.parametrize("content_type", ["multipart/form-data; boundary=b", "text/plain", ""])
def test_a_body_that_is_no_form_counts_by_its_hash_alone(content_type):
    form = twilio_form(THEIRS, OURS, "hello")
    assert post(form, content_type=content_type).status_code == 403
    assert not InboundText.objects.exists()


def reads_the_form(get_response: Any) -> Any:
    def middleware(request: HttpRequest) -> HttpResponse:
        request.POST.get("anything")
        return get_response(request)

    return middleware


def test_a_middleware_that_has_read_the_form_does_not_disturb_a_text(settings):
    settings.MIDDLEWARE = [f"{__name__}.reads_the_form", *settings.MIDDLEWARE]
    assert post(twilio_form(THEIRS, OURS, "hello")).status_code == 200
    assert InboundText.objects.count() == 1
    broken = post(b"--b\r\n", content_type="multipart/form-data; boundary=b")
    assert 400 <= broken.status_code < 500


# TLS ends at the proxy

SIGNED = "https://agents.example.com"


def through_a_proxy(*, forwarded: bool, url: str = SIGNED) -> int:
    """A request as it arrives inside: by http, with what the proxy says of it."""
    more = {"HTTP_X_FORWARDED_PROTO": "https"} if forwarded else {}
    form = twilio_form(THEIRS, OURS, "hello")
    status: int = post(form, url=url, HTTP_HOST="agents.example.com", **more).status_code
    return status


def test_what_twilio_signed_over_https_counts_behind_a_proxy_that_is_trusted(settings):
    settings.SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    assert through_a_proxy(forwarded=True) == 200
    assert through_a_proxy(forwarded=True, url="http://agents.example.com") == 403
    assert through_a_proxy(forwarded=False) == 403


@pytest.mark.parametrize("name", ["SITE_URL", "WEBHOOK_BASE_URL"])
def test_and_where_the_public_address_is_configured_whatever_arrives(settings, name):
    configure(settings, **{name: f"{SIGNED}/"})
    assert through_a_proxy(forwarded=False) == 200
    assert through_a_proxy(forwarded=True) == 200
    assert through_a_proxy(forwarded=False, url="http://agents.example.com") == 403


def test_without_that_trust_a_forged_header_changes_nothing():
    assert through_a_proxy(forwarded=True) == 403
    assert through_a_proxy(forwarded=True, url="http://agents.example.com") == 200


def test_a_site_behind_a_prefix_is_verified_by_its_whole_address(settings):
    configure(settings, WEBHOOK_BASE_URL="https://example.com/agents")
    assert post(twilio_form(THEIRS, OURS, "hello"), url="https://example.com/agents").status_code == 200


# Event Streams


def events(*items: dict[str, Any], path: str = "/webhooks/twilio/texting/") -> Any:
    body = json.dumps(list(items)).encode()
    path += f"?bodySHA256={RequestValidator(TOKEN).compute_hash(body.decode())}"
    return post(body, path, content_type="application/json")


def test_event_streams_deliver_several_texts_at_once():
    def received(number: int, **more: Any) -> dict[str, Any]:
        data = {"messageSid": f"SM{number}", "from": THEIRS, "to": OURS, "body": f"text {number}", **more}
        return {
            "specversion": "1.0",
            "type": "com.twilio.messaging.inbound-message.received",
            "id": f"EZ{number}",
            "data": {**data, "timestamp": "2026-01-01T00:00:00.000Z", "numMedia": 0},
        }

    other = {"type": "com.twilio.voice.status-callback.call.completed", "id": "EZ9", "data": {}}
    assert events(received(1), other, received(2)).status_code == 200
    assert [text.text for text in InboundText.objects.order_by("pk")] == ["text 1", "text 2"]
    assert events(received(1)).status_code == 200
    assert events(received(3, optOutType="STOP")).status_code == 200
    assert [text.status for text in InboundText.objects.order_by("pk")] == ["accepted", "accepted", "keyword"]


def test_an_event_without_what_it_needs_is_400():
    broken = {"type": "com.twilio.messaging.inbound-message.received", "id": "EZ1", "data": {}}
    answer = events(broken)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_field")
    assert post(b"{", content_type="application/json").status_code == 403


# Our numbers


@pytest.mark.parametrize(
    ("to", "kind", "name"),
    [(OURS, "texting", THEIRS), (OTHER, "texting-elsewhere", "customer 1111")],
)
def test_our_number_says_whose_a_text_is_where_the_address_names_no_kind(to, kind, name):
    assert post_telnyx(telnyx_event(THEIRS, to, "hello")).json() == {"status": "accepted"}
    assert post(twilio_form(THEIRS, to, "again"), "/webhooks/twilio/").status_code == 200
    actor = Actor.objects.get()
    assert (actor.kind, actor.name) == (kind, name)
    assert Task.objects.count() == 2


def test_the_address_wins_over_the_number():
    assert post_telnyx(telnyx_event(THEIRS, OTHER, "hello"), "/webhooks/telnyx/texting/").status_code == 200
    assert Actor.objects.get().kind == "texting"


def test_a_number_that_nobody_has_named_waits_until_somebody_does(settings, caplog):
    event = telnyx_event(THEIRS, "+15550007777", "hello")
    assert post_telnyx(event).json() == {"status": "waiting"}
    assert "SMS_NUMBERS" in InboundText.objects.get().error
    assert "+15550007777" in caplog.text
    configure(settings, SMS_KIND="texting")
    from agents import clock
    from conversations.inbox import retry_waiting

    clock.shift(_seconds(16))
    assert retry_waiting() == 1
    assert Actor.objects.get().name == THEIRS


def test_the_audit_names_a_text_that_waits():
    from scheduler.audit import audit

    post_telnyx(telnyx_event(THEIRS, "+15550007777", "hello"))
    InboundText.objects.update(received_at="2026-01-01T00:00:00Z")
    (finding,) = [f for f in audit(settled=0) if f.check == "waiting"]
    assert "SMS_NUMBERS" in finding.problem


def test_one_person_who_writes_to_two_numbers_has_one_conversation_or_two_as_set(settings):
    configure(settings, SMS_NUMBERS={OURS: {"kind": "texting"}, OTHER: {"kind": "texting"}})
    for to in (OURS, OTHER):
        post_telnyx(telnyx_event(THEIRS, to, "hello"))
    assert [actor.name for actor in Actor.objects.all()] == [THEIRS]
    configure(settings, SMS_ADDRESS="pair")
    for to in (OURS, OTHER):
        post_telnyx(telnyx_event(THEIRS, to, "hello"))
    names = {actor.name for actor in Actor.objects.all()}
    assert names == {THEIRS, f"{THEIRS}:{OURS}", f"{THEIRS}:{OTHER}"}


def test_a_number_may_have_an_address_of_its_own(settings):
    configure(settings, SMS_NUMBERS={OURS: {"kind": "texting", "address": "pair"}})
    post_telnyx(telnyx_event(THEIRS, OURS, "hello"))
    assert Actor.objects.get().name == f"{THEIRS}:{OURS}"


def test_a_hook_that_fails_lets_the_text_wait_and_loses_nothing(caplog):
    caplog.set_level(logging.CRITICAL, logger="conversations.inbox")
    assert post_telnyx(telnyx_event("+15550006666", OTHER, "hello")).json() == {"status": "waiting"}
    assert "nobody knows them" in InboundText.objects.get().error


def test_a_provider_that_settings_add_has_a_webhook_of_its_name(settings):
    configure(settings, SMS_PROVIDERS={"carrier": "conversations.providers.twilio.TwilioProvider"})
    assert post(twilio_form(THEIRS, OURS, "hello"), "/webhooks/carrier/").status_code == 200
    assert InboundText.objects.count() == 1


def test_the_development_token_counts_with_debug_and_straight_from_this_machine_only(settings):
    form = twilio_form(THEIRS, OURS, "hello")
    assert post(form, token=DEVELOPMENT_TOKEN).status_code == 403
    settings.DEBUG = True
    assert post(form, token=DEVELOPMENT_TOKEN, REMOTE_ADDR="192.0.2.1").status_code == 403
    assert post(form, token=DEVELOPMENT_TOKEN).status_code == 200


def test_without_any_token_everything_is_refused(settings):
    configure(settings, TWILIO_AUTH_TOKENS=[])
    answer = post(twilio_form(THEIRS, OURS, "hello"))
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "no_public_key")


def _seconds(count: float) -> Any:
    import datetime as dt

    return dt.timedelta(seconds=count)
