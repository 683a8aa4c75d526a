"""Plays the text provider for a development site: a text goes in, the agent's reply comes out."""

from __future__ import annotations

import datetime as dt
import json
import time
import uuid
from argparse import ArgumentParser
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from django.core.management.base import BaseCommand, CommandError

from conversations.models import TextStatus
from conversations.phone import is_e164, normalise
from conversations.signatures import DEVELOPMENT_SIGNING_KEY, DEVELOPMENT_TOKEN, sign, sign_twilio

if TYPE_CHECKING:
    import httpx

POLL_INTERVAL = 0.25  # seconds
REQUEST_TIMEOUT = 10.0  # seconds
WAITING = {TextStatus.QUEUED, TextStatus.SENDING}
FAULTY = {TextStatus.FAILED, TextStatus.UNKNOWN, TextStatus.UNDELIVERED}


class Command(BaseCommand):
    """Signs a real event with the development key, posts it to the site, and waits for the reply."""

    help = "Send a text to an agent of a running development site, as a provider would, and print its reply."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("number", help='the number that the text comes from, such as "+15550001111"')
        parser.add_argument("text", help="what it says", nargs="?", default="")
        parser.add_argument(
            "--media", action="append", default=[], help="the address of a picture that comes with it"
        )
        parser.add_argument(
            "--provider",
            choices=["telnyx", "twilio"],
            default="telnyx",
            help="whose webhook (default %(default)s)",
        )
        parser.add_argument("--url", default="http://127.0.0.1:8000", help="the site (default %(default)s)")
        parser.add_argument("--kind", default="support", help="the kind of agent (default %(default)s)")
        parser.add_argument("--to", default="+15550009999", help="the site's number (default %(default)s)")
        parser.add_argument(
            "--timeout",
            type=float,
            default=60.0,
            help="seconds to wait for the reply; 0 does not wait (default %(default)s)",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        import httpx

        theirs, ours = _number(options["number"]), _number(options["to"])
        site = options["url"].rstrip("/")
        with httpx.Client(base_url=site, timeout=REQUEST_TIMEOUT) as client:
            try:
                last = self._texts(client, {"to": theirs})["last"] if options["timeout"] > 0 else 0
                taken = self._deliver(client, options["provider"], options["kind"], theirs, ours, options)
                if options["timeout"] > 0 and taken:
                    self._wait(client, theirs, last, options["timeout"])
            except httpx.TransportError as error:
                raise CommandError(f"no site answers at {site} ({error}): start it with bin/dev") from error

    def _deliver(
        self,
        client: httpx.Client,
        provider: str,
        kind: str,
        theirs: str,
        ours: str,
        options: dict[str, Any],
    ) -> bool:
        """Posts the text; whether a reply may come. Raises CommandError."""
        path = f"/webhooks/{provider}/{quote(kind, safe='')}/"
        url = str(client.base_url).rstrip("/") + path
        body, headers = signed(provider, url, theirs, ours, options["text"], options["media"])
        started = time.monotonic()
        answer = client.post(path, content=body, headers=headers)
        took = (time.monotonic() - started) * 1000
        if not answer.is_success:
            raise CommandError(f"the site refused the text: {_reason(answer)}")
        # Twilio is answered in its own language, which has no word for this.
        status = answer.json()["status"] if provider == "telnyx" else "taken"
        self.stdout.write(f"{status} in {took:.0f} ms")
        if status == "waiting":
            raise CommandError(
                f"no agent of kind {kind!r} can take it now; the site keeps the text and tries again."
                " Why is among the inbound texts in the admin."
            )
        return status != "held"

    def _wait(self, client: httpx.Client, theirs: str, last: int, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            replies = self._texts(client, {"to": theirs, "after": last})["texts"]
            done = [reply for reply in replies if reply["status"] not in WAITING]
            for reply in done:
                self.stdout.write(f"{reply['from']}: {reply['text']}")
                if reply["status"] in FAULTY:
                    self.stderr.write(f"(the provider: {reply['status']}: {reply['error']})")
            if done:
                return
            time.sleep(POLL_INTERVAL)
        raise CommandError(
            f"no reply within {timeout:g} s; the text was taken and the agent may still answer."
            " Its parked tasks are in the admin."
        )

    def _texts(self, client: httpx.Client, query: dict[str, Any]) -> dict[str, Any]:
        answer = client.get("/dev/texts/", params=query)
        if answer.status_code == 404:
            raise CommandError("this site shows its texts to nobody: it must run with DEBUG, on this machine")
        if not answer.is_success:
            raise CommandError(f"the site does not show its texts: {_reason(answer)}")
        found: dict[str, Any] = answer.json()
        return found


def signed(
    provider: str, url: str, theirs: str, ours: str, text: str, media: Sequence[str] = ()
) -> tuple[bytes, dict[str, str]]:
    """A text as a provider delivers it to ``url``, signed with the development key: body and headers."""
    if provider == "telnyx":
        body = json.dumps(event(theirs, ours, text, media), ensure_ascii=False).encode()
        return body, {"Content-Type": "application/json", **sign(body, DEVELOPMENT_SIGNING_KEY)}
    form = twilio_form(theirs, ours, text, media)
    fields = {name: [value] for name, value in form.items()}
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    return urlencode(form).encode(), {**headers, **sign_twilio(url, fields, DEVELOPMENT_TOKEN)}


def twilio_form(from_number: str, to_number: str, text: str, media: Sequence[str] = ()) -> dict[str, str]:
    """The fields of an inbound message as Twilio sends them."""
    sid = f"{'MM' if media else 'SM'}{uuid.uuid4().hex}"
    form = {
        "ToCountry": "US",
        "MessageSid": sid,
        "SmsSid": sid,
        "SmsMessageSid": sid,
        "SmsStatus": "received",
        "AccountSid": "AC" + "0" * 32,
        "From": from_number,
        "To": to_number,
        "Body": text,
        "FromCity": "",
        "NumSegments": "1",
        "NumMedia": str(len(media)),
        "ApiVersion": "2010-04-01",
    }
    for place, url in enumerate(media):
        form |= {f"MediaUrl{place}": url, f"MediaContentType{place}": "image/jpeg"}
    return form


def event(from_number: str, to_number: str, text: str, media: Sequence[str] = ()) -> dict[str, Any]:
    """A ``message.received`` event as Telnyx sends it."""
    now = dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds")
    return {
        "data": {
            "event_type": "message.received",
            "id": str(uuid.uuid4()),
            "occurred_at": now,
            "payload": {
                "id": str(uuid.uuid4()),
                "record_type": "message",
                "direction": "inbound",
                "type": "MMS" if media else "SMS",
                "from": {"phone_number": from_number, "carrier": "Development", "line_type": "Wireless"},
                "to": [
                    {
                        "phone_number": to_number,
                        "carrier": "Telnyx",
                        "line_type": "Wireless",
                        "status": "webhook_delivered",
                    }
                ],
                "cc": [],
                "text": text,
                "media": [
                    {"url": url, "content_type": "image/jpeg", "sha256": None, "size": None} for url in media
                ],
                "encoding": "GSM-7" if text.isascii() else "UCS-2",
                "parts": 1,
                "received_at": now,
                "sent_at": None,
                "completed_at": None,
                "errors": [],
                "tags": [],
            },
            "record_type": "event",
        },
        "meta": {"attempt": 1, "delivered_to": "http://127.0.0.1/"},
    }


def _number(given: str) -> str:
    number = normalise(given)
    if not is_e164(number):
        raise CommandError(f'{given!r} is not a phone number: write it as in "+15550001111"')
    return number


def _reason(answer: httpx.Response) -> str:
    try:
        error = answer.json()["error"]
        return f"{answer.status_code} {error['code']}: {error['message']}"
    except (ValueError, KeyError, TypeError):
        return f"{answer.status_code}: {answer.text[:200]}"
