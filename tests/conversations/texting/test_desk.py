"""What operators see of texts, and do with them."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client

from agents import display
from agents.models import Actor
from conversations import consent, media
from conversations.models import (
    Consent,
    ConsentSource,
    ConsentState,
    InboundStatus,
    TextEvent,
    TextStatus,
)
from tests.adminpages import page, signed_in
from tests.conversations.test_admin import INBOUND, OUTBOUND, a_text_in, a_text_out, talk, transcript
from tests.conversations.texting import agents  # noqa: F401 - declares the kinds

pytestmark = pytest.mark.django_db(transaction=True)

THEIRS, OURS = "+15550001111", "+15550009999"


@pytest.fixture
def client(alice: Any) -> Client:
    return signed_in(alice)


@pytest.mark.parametrize("status", TextStatus.values)
def test_every_status_of_a_text_out_has_its_pages(client, status):
    actor = talk()
    text = a_text_out(actor, status=status, error="why it is so")
    for url in (OUTBOUND, display.url_of(text), transcript(actor)):
        assert status in page(client, url).text


@pytest.mark.parametrize("status", InboundStatus.values)
def test_every_status_of_a_text_in_has_its_pages(client, status):
    actor = talk()
    text = a_text_in(actor, status=status, error="why it is so")
    for url in (INBOUND, display.url_of(text)):
        assert status in page(client, url).text
    assert "why it is so" in page(client, transcript(actor)).text


def test_what_a_provider_said_of_a_text_is_on_its_page_with_its_cost(client):
    text = a_text_out(talk(), status="delivered", cost=Decimal("0.0051"), currency="USD", segments=1)
    TextEvent.objects.create(
        text=text, provider="telnyx", event_id="1", provider_id="m", said="delivery_failed",
        status="undelivered", code="40006", detail="<b>carrier</b>", attempt=1,
    )  # fmt: skip
    seen = page(client, display.url_of(text)).text
    for words in ("delivery_failed", "40006", "<b>carrier</b>", "try 1", "changed nothing", "0.0051"):
        assert words in seen


def test_a_text_that_failed_is_sent_again_by_who_may_and_the_log_says_who(client, bob, alice):
    text, arrived = a_text_out(talk(), status="failed"), a_text_out(talk(name="2"), status="delivered")
    chosen = {"action": "send_again", "_selected_action": [text.pk, arrived.pk]}
    signed_in(bob).post(OUTBOUND, chosen)
    text.refresh_from_db()
    assert text.status == "failed", "bob may only look"
    client.post(OUTBOUND, chosen)
    text.refresh_from_db()
    arrived.refresh_from_db()
    assert (text.status, arrived.status) == ("queued", "delivered")
    entry = LogEntry.objects.get()
    assert (entry.user, entry.object_id, entry.get_change_message()) == (alice, str(text.pk), "Sent again")


def test_a_text_that_is_held_is_given_to_its_agent(client):
    text = a_text_in(None, status="held", kind="texting", error="the same text came 4 times")
    client.post(INBOUND, {"action": "release", "_selected_action": [text.pk]})
    text.refresh_from_db()
    assert text.status == "accepted"
    assert Actor.objects.get(kind="texting").name == THEIRS
    assert LogEntry.objects.count() == 1


def test_consent_is_shown_with_its_history_also_when_the_numbers_are_erased(client):
    consent.record(THEIRS, OURS, ConsentState.OPTED_OUT, ConsentSource.KEYWORD, word="Stop.")
    consent.record(THEIRS, OURS, ConsentState.OPTED_IN, ConsentSource.OPERATOR, by="alice")
    seen = page(client, "/admin/conversations/consent/").text
    assert THEIRS in seen and "opted in" in seen
    seen = page(client, display.url_of(Consent.objects.get())).text
    assert "Stop." in seen and "alice" in seen and "opted_out" in seen
    consent.erase(THEIRS)
    assert "erased" in page(client, "/admin/conversations/consent/").text
    assert client.get("/admin/conversations/consent/add/").status_code == 403


def test_pictures_are_shown_in_the_transcript_and_other_files_are_links(client):
    def part(kind: str, mime: str, key: str) -> dict[str, Any]:
        url = media.url_of("texting", THEIRS, key)
        return {"type": kind, "mime_type": mime, "url": url, "extras": {"blob": key, "filename": key}}

    parts = [
        part("image", "image/png", "1.png"),
        part("file", "text/vcard", "2.vcf"),
        part("image", "image/svg+xml", "3.svg"),
    ]
    actor = talk(("user", "look", {"parts": parts}), kind="texting")
    body = client.get(transcript(actor)).content.decode()
    assert f'src="{parts[0]["url"]}"' in body
    for other in parts[1:]:
        assert f'href="{other["url"]}"' in body
        assert f'src="{other["url"]}"' not in body


@pytest.mark.parametrize(
    "url", ["//evil.example.org/x", "/\\evil.example.org", "javascript:alert(1)", "http://e.org/a"]
)
def test_an_address_that_is_not_ours_is_neither_shown_nor_a_link(client, url):
    parts = [{"type": "image", "mime_type": "image/png", "url": url}]
    body = client.get(transcript(talk(("user", "", {"parts": parts})))).content.decode()
    assert f'src="{url}"' not in body and f'href="{url}"' not in body
