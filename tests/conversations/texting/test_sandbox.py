"""The sandbox, through the official clients: what it takes, refuses and reports."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import httpx
import pytest
import telnyx
from twilio.base.exceptions import TwilioRestException
from twilio.request_validator import RequestValidator

from conversations.providers.telnyx import TelnyxProvider
from conversations.providers.twilio import TwilioProvider, _http_client
from conversations.sandbox import Sandbox

THEIRS, OURS = "+15550001111", "+15550009999"


class Hook:
    """A webhook that writes down what it gets, and answers what it is told."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.statuses: list[int] = []  # for the next ones; then 200


@contextmanager
def hook() -> Iterator[Hook]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            it.requests.append((it.url + self.path, dict(self.headers.items()), body))
            self.send_response(it.statuses.pop(0) if it.statuses else 200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    it = Hook(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield it
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def webhook() -> Iterator[Hook]:
    with hook() as it:
        yield it


@pytest.fixture
def sandbox(webhook: Hook) -> Iterator[Sandbox]:
    with Sandbox(webhook=webhook.url + "/{provider}", delay=0.2, hang=0.3, seed=7) as it:
        yield it


@pytest.fixture
def telnyx_client(sandbox: Sandbox) -> Iterator[telnyx.Telnyx]:
    public = sandbox.settings["TELNYX_PUBLIC_KEYS"][0]
    with telnyx.Telnyx(
        api_key="sandbox", base_url=sandbox.telnyx_url, public_key=public, max_retries=0, timeout=30
    ) as it:
        yield it


@pytest.fixture
def twilio_client(sandbox: Sandbox) -> Iterator[Any]:
    from twilio.rest import Client

    http = _http_client(sandbox.url, 2.0)
    yield Client(sandbox.options.twilio_account, "sandbox", http_client=http)
    http.session.close()


def said(webhook: Hook) -> list[str]:
    statuses = []
    for _, headers, body in webhook.requests:
        if headers["Content-Type"] == "application/json":
            statuses.append(json.loads(body)["data"]["payload"]["to"][0]["status"])
        else:
            statuses.append(dict(parse_qsl(body.decode()))["MessageStatus"])
    return statuses


# Telnyx


def test_telnyx_client_sends_and_reads_what_it_sent(sandbox, webhook, telnyx_client):
    answer = telnyx_client.messages.send(to=THEIRS, from_=OURS, text="hello")
    assert answer.data.to[0].status == "queued"
    assert answer.data.parts == 1
    assert float(answer.data.cost.amount) == 0.0051
    sandbox.settle()
    assert said(webhook) == ["sent", "delivered"]
    assert telnyx_client.messages.retrieve(answer.data.id).data.to[0].status == "delivered"


def test_telnyx_clients_own_check_accepts_the_events(sandbox, webhook, telnyx_client):
    telnyx_client.messages.send(to=THEIRS, from_=OURS, text="café 😋")
    sandbox.text("telnyx", THEIRS, OURS, "hello")
    sandbox.settle()
    kinds = set()
    for _, headers, body in webhook.requests:
        kinds.add(telnyx_client.webhooks.unwrap(body.decode(), headers=headers).data.event_type)
    assert kinds == {"message.sent", "message.finalized", "message.received"}
    public = telnyx_client.get("/public_key", cast_to=object)
    assert public["data"]["public"] == sandbox.settings["TELNYX_PUBLIC_KEYS"][0]


@pytest.mark.parametrize(
    ("to", "fields", "error", "code"),
    [
        ("+15005540300", {}, telnyx.BadRequestError, "40300"),
        ("+15005540001", {}, telnyx.BadRequestError, "40001"),
        ("+15005500429", {}, telnyx.RateLimitError, "10011"),
        ("+15005500500", {}, telnyx.InternalServerError, "10007"),
        ("+15005500503", {}, telnyx.InternalServerError, "10007"),
        ("nobody", {}, telnyx.BadRequestError, "40310"),
        (THEIRS, {"from_": "?"}, telnyx.BadRequestError, "40305"),
        (THEIRS, {"text": ""}, telnyx.BadRequestError, "40316"),
        (THEIRS, {"text": "a" * 1531}, telnyx.BadRequestError, "40302"),
    ],
)
def test_telnyx_client_gets_the_errors_that_numbers_stand_for(telnyx_client, to, fields, error, code):
    with pytest.raises(error) as caught:
        telnyx_client.messages.send(**{"to": to, "from_": OURS, "text": "hello", **fields})
    assert caught.value.body["errors"][0]["code"] == code


def test_telnyx_wants_its_key(sandbox):
    client = telnyx.Telnyx(api_key="wrong", base_url=sandbox.telnyx_url, max_retries=0)
    with pytest.raises(telnyx.AuthenticationError):
        client.messages.send(to=THEIRS, from_=OURS, text="hello")
    client.close()
    assert sandbox.sent == []


def test_a_number_may_send_so_many_a_second(sandbox, telnyx_client):
    sandbox.options.rate = 1 / 600
    telnyx_client.messages.send(to=THEIRS, from_=OURS, text="one")
    with pytest.raises(telnyx.RateLimitError) as caught:
        telnyx_client.messages.send(to=THEIRS, from_=OURS, text="two")
    assert caught.value.response.headers["x-ratelimit-remaining"] == "0"
    telnyx_client.messages.send(to=THEIRS, from_="+15550008888", text="another number's")
    sandbox.messages._next.clear()  # as if that time had passed
    telnyx_client.messages.send(to=THEIRS, from_=OURS, text="two")


@pytest.mark.parametrize(
    ("to", "statuses"),
    [
        ("+15005640006", ["sent", "delivery_failed"]),
        ("+15005700005", ["sent", "delivery_unconfirmed"]),
        ("+15005700006", []),
    ],
)
def test_reports_say_what_a_number_stands_for(sandbox, webhook, telnyx_client, to, statuses):
    telnyx_client.messages.send(to=to, from_=OURS, text="hello")
    sandbox.settle()
    assert said(webhook) == statuses


def test_a_text_whose_answer_is_lost_was_sent(sandbox, telnyx_client):
    with pytest.raises(telnyx.APIConnectionError):
        telnyx_client.messages.send(to="+15005700001", from_=OURS, text="no answer")
    with pytest.raises(telnyx.APIConnectionError):
        telnyx_client.messages.send(to="+15005700002", from_=OURS, text="breaks")
    with pytest.raises(telnyx.InternalServerError):
        telnyx_client.messages.send(to="+15005700004", from_=OURS, text="gateway")
    with pytest.raises(telnyx.APIConnectionError):
        telnyx_client.messages.send(to="+15005700003", from_=OURS, text="breaks, and was not sent")
    assert [message.text for message in sandbox.sent] == ["no answer", "breaks", "gateway"]


# Twilio


def test_twilio_client_sends_reads_and_finds(sandbox, webhook, twilio_client):
    message = twilio_client.messages.create(
        to=THEIRS, from_=OURS, body="hello", status_callback=webhook.url + "/report?text=1"
    )
    assert (message.status, message.num_segments, message.price) == ("queued", "1", None)
    sandbox.settle()
    assert said(webhook) == ["queued", "sent", "delivered"]
    assert {url for url, _, _ in webhook.requests} == {webhook.url + "/report?text=1"}
    fetched = twilio_client.messages(message.sid).fetch()
    assert (fetched.status, fetched.price) == ("delivered", "-0.00790")
    assert [m.sid for m in twilio_client.messages.list(to=THEIRS, from_=OURS, limit=5)] == [message.sid]
    assert twilio_client.messages.list(to="+15550002222", limit=5) == []


def test_twilios_own_check_accepts_the_requests(sandbox, webhook, twilio_client):
    twilio_client.messages.create(to=THEIRS, from_=OURS, body="hello")
    sandbox.text("twilio", THEIRS, OURS, "café 😋", media=[sandbox.picture(b"x")])
    sandbox.settle()
    assert len(webhook.requests) == 4
    for url, headers, body in webhook.requests:
        form = dict(parse_qsl(body.decode(), keep_blank_values=True))
        assert RequestValidator("sandbox").validate(url, form, headers["X-Twilio-Signature"])
        assert not RequestValidator("other").validate(url, form, headers["X-Twilio-Signature"])


@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({"to": "+15005550001"}, 400, 21211),
        ({"to": "+15005550002"}, 400, 21612),
        ({"to": "+15005550003"}, 400, 21408),
        ({"to": "+15005550004"}, 400, 21610),
        ({"to": "+15005550009"}, 400, 21614),
        ({"from_": "+15005550001"}, 400, 21212),
        ({"from_": "+15005550007"}, 400, 21606),
        ({"from_": "+15005550008"}, 400, 21611),
        ({"to": "+15005521617"}, 400, 21617),
        ({"to": "+15005500429"}, 429, 20429),
        ({"body": "a" * 1601}, 400, 21617),
    ],
)
def test_twilio_client_gets_the_errors_of_its_test_numbers(twilio_client, fields, status, code):
    with pytest.raises(TwilioRestException) as caught:
        twilio_client.messages.create(**{"to": THEIRS, "from_": OURS, "body": "hello", **fields})
    assert (caught.value.status, caught.value.code) == (status, code)


def test_twilios_good_test_number_sends(sandbox, twilio_client):
    twilio_client.messages.create(to=THEIRS, from_="+15005550006", body="hello")
    assert len(sandbox.sent) == 1


# Both


@pytest.mark.parametrize("provider", ["telnyx", "twilio"])
def test_somebody_who_writes_stop_gets_nothing_until_they_write_start(
    sandbox, telnyx_client, twilio_client, provider
):
    def send() -> None:
        if provider == "telnyx":
            telnyx_client.messages.send(to=THEIRS, from_=OURS, text="hello")
        else:
            twilio_client.messages.create(to=THEIRS, from_=OURS, body="hello")

    sandbox.text(provider, THEIRS, OURS, "Stop")
    sandbox.settle()
    with pytest.raises((telnyx.BadRequestError, TwilioRestException), match=r"40300|unsubscribed"):
        send()
    sandbox.text(provider, THEIRS, OURS, "START")
    sandbox.settle()
    send()


def test_telnyx_says_that_it_took_a_text_for_a_keyword(sandbox, webhook):
    sandbox.text("telnyx", THEIRS, OURS, "stop")
    sandbox.text("telnyx", THEIRS, OURS, "hello")
    sandbox.settle()
    payloads = [json.loads(body)["data"]["payload"] for _, _, body in webhook.requests]
    assert sorted(str(payload.get("autoresponse_type")) for payload in payloads) == ["None", "STOP"]


def test_reports_come_twice_and_in_the_wrong_order_when_asked(sandbox, webhook, telnyx_client):
    sandbox.options.doubled = sandbox.options.shuffled = 1.0
    telnyx_client.messages.send(to=THEIRS, from_=OURS, text="hello")
    sandbox.settle()
    assert said(webhook)[0] == "delivered"
    assert sorted(said(webhook)) == ["delivered", "delivered", "sent", "sent"]
    ids = [json.loads(body)["data"]["id"] for _, _, body in webhook.requests]
    assert len(set(ids)) == 2
    # What it says when it is asked is not moved back by the late one.
    assert telnyx_client.messages.retrieve(sandbox.sent[0].id).data.to[0].status == "delivered"


def test_an_event_is_delivered_again_until_it_is_acknowledged(sandbox, webhook):
    webhook.statuses = [500, 302]
    sandbox.text("telnyx", THEIRS, OURS, "hello")
    sandbox.settle()
    assert [one.status for one in sandbox.delivered] == [500, 302, 200]
    assert len({headers["Telnyx-Timestamp"] for _, headers, _ in webhook.requests}) >= 1


def test_pictures_want_the_credentials_and_lead_to_a_place_that_refuses_them(sandbox):
    basic = base64.b64encode(f"{sandbox.options.twilio_account}:sandbox".encode()).decode()
    for redirect, status in ((False, 200), (True, 307)):
        url = sandbox.picture(b"bytes", "image/png", redirect=redirect)
        assert httpx.get(url).status_code == 401
        for authorization in ("Bearer sandbox", f"Basic {basic}"):
            answer = httpx.get(url, headers={"Authorization": authorization})
            assert answer.status_code == status
    place = httpx.URL(url).join(answer.headers["Location"])
    assert httpx.get(place, headers={"Authorization": "Bearer sandbox"}).status_code == 400
    assert httpx.get(place).content == b"bytes"


def test_the_settings_that_it_gives_lead_both_providers_to_it(sandbox, settings):
    settings.AGENTS = sandbox.settings
    for provider in (TelnyxProvider(), TwilioProvider()):
        provider.ready()
        assert provider.api_url().startswith(sandbox.url)


def test_the_command_serves_until_it_is_told_to_stop(tmp_path: Path):
    process = subprocess.Popen(
        [sys.executable, "manage.py", "sms_sandbox", "--port", "0", "--webhook", "http://127.0.0.1:9/"],
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().split()[4].rstrip(".")
        given = {"provider": "twilio", "from": THEIRS, "to": OURS, "text": "hello"}
        assert httpx.post(f"{url}/sandbox/texts", json=given).status_code == 202
        assert httpx.post(f"{url}/sandbox/texts", json={"to": OURS}).status_code == 400
        shown = httpx.get(f"{url}/sandbox/texts").json()["texts"]
        assert [(text["direction"], text["text"]) for text in shown] == [("inbound", "hello")]
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert process.stdout.read().splitlines()[-1] == "Stopped. 0 texts were sent."
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_a_share_that_is_none_is_refused():
    done = subprocess.run(
        [sys.executable, "manage.py", "sms_sandbox", "--lost", "2"],
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "--lost is a share" in done.stderr
