"""The webhook, with real transactions and threads: what is stored, what is told, what is refused."""

from __future__ import annotations

import base64
import copy
import datetime as dt
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from django.db import connection
from django.http import HttpRequest, HttpResponse
from django.test import Client

from agents import Agent, clock, codec
from agents.models import Actor
from conversations.conf import MAX_WEBHOOK_BYTES
from conversations.inbox import retry_waiting
from conversations.management.commands.text import event as telnyx_event
from conversations.models import InboundText
from conversations.signatures import DEVELOPMENT_SIGNING_KEY, sign
from scheduler.models import Lane, Task
from tests.agents.store.lines import AFTER, BEFORE, breakable_line

pytestmark = pytest.mark.django_db(transaction=True)

KEY = Ed25519PrivateKey.from_private_bytes(b"1" * 32)
OTHER = Ed25519PrivateKey.from_private_bytes(b"2" * 32)
PATH = "/webhooks/telnyx/texted/"
THEIRS, OURS = "+15550001111", "+15550009999"


class TextedAgent(Agent):
    async def receive(self, message):
        await self.messages.add("user", message["text"])


class DeafAgent(Agent):
    async def listen(self, message):
        pass


def reads_the_form(get_response: Any) -> Any:
    """A middleware as sites have them: it looks at request.POST before any view does."""

    def middleware(request: HttpRequest) -> HttpResponse:
        request.POST.get("anything")
        return get_response(request)

    return middleware


@pytest.fixture(autouse=True)
def public_key(settings):
    key = base64.b64encode(KEY.public_key().public_bytes_raw()).decode()
    settings.AGENTS = {"TELNYX_PUBLIC_KEYS": [key]}


@pytest.fixture
def event() -> dict[str, Any]:
    return telnyx_event(THEIRS, OURS, "café 😋")


def post(
    body: Any,
    key: Ed25519PrivateKey | None = KEY,
    *,
    path: str = PATH,
    now: float | None = None,
    content_type: str = "application/json",
    client: Client | None = None,
    headers: dict[str, str] | None = None,
) -> Any:
    raw = body if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False, indent=2).encode()
    signed = sign(raw, key, now=now) if key is not None else {}
    return (client or Client()).generic(
        "POST", path, raw, content_type, headers={**signed, **(headers or {})}
    )


def stored() -> tuple[int, int, int]:
    """Rows of texts, tasks and actors."""
    return InboundText.objects.count(), Task.objects.count(), Actor.objects.count()


def refused(answer: Any, status: int, code: str) -> str:
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), answer.content
    assert answer.headers["Content-Type"] == "application/json"
    assert stored() == (0, 0, 0)
    message: str = answer.json()["error"]["message"]
    return message


# What is taken in


def test_a_signed_text_is_one_row_and_one_task_of_its_senders_inbox(event):
    answer = post(event)
    assert (answer.status_code, answer.json()) == (200, {"status": "accepted"})
    data, payload = event["data"], event["data"]["payload"]
    text = InboundText.objects.get()
    assert (text.provider, text.event_id, text.message_id) == ("telnyx", data["id"], payload["id"])
    assert (text.from_number, text.to_number, text.text) == (THEIRS, OURS, "café 😋")
    assert text.actor is not None
    assert (text.actor.kind, text.actor.name) == ("texted", THEIRS)
    task = Task.objects.get()
    assert (task.actor, task.lane, task.method) == (text.actor, Lane.INBOX, "receive")
    message = codec.decode(task.payload)
    assert message.pop("received_at")[:19] == payload["received_at"][:19]
    assert message == {
        "text": "café 😋",
        "from": THEIRS,
        "to": OURS,
        "id": payload["id"],
        "event_id": data["id"],
        "media": [],
        "channel": "sms",
    }
    assert text.actor.alarm is not None, "somebody will run it"


def test_it_is_acknowledged_while_the_actor_is_busy_and_its_tasks_wait_in_order(event):
    assert post(event).status_code == 200
    Actor.objects.update(token="0" * 32, lease_expires_at="2999-01-01T00:00:00Z")
    started = time.monotonic()
    for number in range(5):
        assert post(telnyx_event(THEIRS, OURS, str(number))).json() == {"status": "accepted"}
    assert time.monotonic() - started < 25  # it is not waited for
    texts = [codec.decode(task.payload)["text"] for task in Task.objects.order_by("id")]
    assert texts == ["café 😋", "0", "1", "2", "3", "4"]


def test_the_path_may_leave_out_its_last_slash(event):
    assert post(event, path=PATH.rstrip("/")).status_code == 200


@pytest.mark.parametrize(
    ("given", "name"), [("919876543210", "+919876543210"), ("+919876543210", "+919876543210")]
)
def test_with_and_without_plus_is_one_actor(event, given, name):
    event["data"]["payload"]["from"]["phone_number"] = given
    assert post(event).status_code == 200
    assert Actor.objects.get().name == name
    assert InboundText.objects.get().from_number == name


@pytest.mark.parametrize("sender", ["22395", "MyBank"])
def test_senders_that_are_no_numbers_keep_their_name(event, sender):
    event["data"]["payload"]["from"]["phone_number"] = sender
    assert post(event).status_code == 200
    assert Actor.objects.get().name == sender


@pytest.mark.parametrize("text", [None, ""])
@pytest.mark.parametrize("digest", ["sha256", "hash_sha256"])
def test_a_picture_without_words_is_a_text(event, text, digest):
    picture = {"url": "https://media.telnyx.com/a", "content_type": "image/png", "size": 1024, digest: "ab"}
    event["data"]["payload"].update(text=text, media=[picture, {"content_type": "image/png"}, None])
    assert post(event).status_code == 200
    message = codec.decode(Task.objects.get().payload)
    assert message["text"] == ""
    assert message["media"] == [
        {"url": "https://media.telnyx.com/a", "content_type": "image/png", "size": 1024, "sha256": "ab"}
    ]


def test_unknown_fields_and_other_shapes_of_known_ones_are_no_fault(event):
    payload = event["data"]["payload"]
    event["new"] = event["data"]["new"] = payload["new"] = {"deep": [1, None]}
    del event["meta"], payload["media"], payload["received_at"], payload["cc"]
    payload.update({"from": THEIRS, "to": OURS, "cost": 0.004})
    assert post(event).json() == {"status": "accepted"}
    assert InboundText.objects.get().to_number == OURS


def test_text_that_no_database_takes_is_stored_with_replacement_characters(event):
    payload = event["data"]["payload"]
    payload["text"] = "a\0b"
    raw = json.dumps(event).replace("a\\u0000b", "a\\u0000b\\ud83d").encode()
    assert post(raw).status_code == 200
    assert InboundText.objects.get().text == "a\ufffdb\ufffd"
    assert codec.decode(Task.objects.get().payload)["text"] == "a\ufffdb\ufffd"


@pytest.mark.parametrize("kind", ["message.read", "call.initiated"])
def test_other_events_are_acknowledged_and_leave_nothing(event, kind):
    event["data"]["event_type"] = kind
    del event["data"]["payload"]
    answer = post(event)
    assert (answer.status_code, answer.json()) == (200, {"status": "ignored"})
    assert stored() == (0, 0, 0)


# Duplicates


def test_the_same_delivery_again_changes_nothing_also_much_later(event):
    assert post(event).json() == {"status": "accepted"}
    for _ in range(2):
        answer = post(event)
        assert (answer.status_code, answer.json()) == (200, {"status": "duplicate"})
    assert stored() == (1, 1, 1)
    # After the task has run, and after the process was started anew: the row alone decides.
    Task.objects.all().delete()
    assert post(event).json() == {"status": "duplicate"}
    assert stored() == (1, 0, 1)


def test_two_events_of_one_message_are_one_text(event):
    again = copy.deepcopy(event)
    again["data"]["id"] = "another-event"
    assert post(event).json() == {"status": "accepted"}
    assert post(again).json() == {"status": "duplicate"}
    assert stored() == (1, 1, 1)


def test_one_event_of_two_messages_is_one_text(event):
    again = copy.deepcopy(event)
    again["data"]["payload"]["id"] = "another-message"
    assert post(event).json() == {"status": "accepted"}
    assert post(again).json() == {"status": "duplicate"}
    assert stored() == (1, 1, 1)


def test_a_message_whose_row_was_pruned_stays_handled_once(event):
    assert post(event).json() == {"status": "accepted"}
    InboundText.objects.all().delete()
    assert post(event).json() == {"status": "duplicate"}
    assert stored() == (0, 1, 1)


def together(count: int, fn: Any) -> list[Any]:
    barrier = threading.Barrier(count)

    def run(number: int) -> Any:
        try:
            barrier.wait(60)
            return fn(number)
        finally:
            connection.close()

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


@pytest.mark.parametrize("differ", ["not at all", "by event"])
def test_overlapping_deliveries_of_one_message_are_one_text(event, differ):
    def deliver(number: int) -> str:
        mine = copy.deepcopy(event)
        if differ == "by event":
            mine["data"]["id"] = f"event-{number}"
        status: str = post(mine).json()["status"]
        return status

    assert sorted(together(8, deliver)) == ["accepted"] + ["duplicate"] * 7
    assert stored() == (1, 1, 1)


def test_two_first_texts_at_once_make_one_actor_with_both(event):
    statuses = together(4, lambda n: post(telnyx_event(THEIRS, OURS, str(n))).json()["status"])
    assert statuses == ["accepted"] * 4
    assert stored() == (4, 4, 1)


def test_a_delivery_that_fails_leaves_nothing_and_may_come_again(event, settings):
    event["data"]["payload"]["text"] = "x" * 300_000
    assert "MAX_PAYLOAD_BYTES" in refused(post(event), 413, "limit_exceeded")
    settings.AGENTS = {**settings.AGENTS, "MAX_PAYLOAD_BYTES": 1_000_000}
    assert post(event).json() == {"status": "accepted"}


def test_a_text_that_finds_the_inbox_full_waits_and_is_taken_in_its_turn(event, settings):
    settings.AGENTS = {**settings.AGENTS, "MAX_INBOX": 1}
    assert post(event).status_code == 200
    for words in ("one", "two"):
        answer = post(telnyx_event(THEIRS, OURS, words))
        assert (answer.status_code, answer.json()) == (200, {"status": "waiting"})
    assert stored() == (3, 1, 1)
    assert retry_waiting() == 0, "not before its moment"
    settings.AGENTS = {**settings.AGENTS, "MAX_INBOX": 10}
    # The inbox has room again, but those that wait go first.
    assert post(telnyx_event(THEIRS, OURS, "three")).json() == {"status": "waiting"}
    clock.shift(dt.timedelta(seconds=16))
    assert retry_waiting() == 3
    texts = [codec.decode(task.payload)["text"] for task in Task.objects.order_by("id")]
    assert texts == ["café 😋", "one", "two", "three"]
    assert set(InboundText.objects.values_list("status", flat=True)) == {"accepted"}


def test_a_site_with_a_transaction_around_each_request_keeps_the_same_promises(event, settings):
    connection.settings_dict["ATOMIC_REQUESTS"] = True
    try:
        assert post(event).json() == {"status": "accepted"}
        assert post(event).json() == {"status": "duplicate"}
        assert post(telnyx_event(THEIRS, OURS, "x" * 300_000)).status_code == 413
    finally:
        connection.settings_dict["ATOMIC_REQUESTS"] = False
    assert stored() == (1, 1, 1)


@pytest.mark.postgres
@pytest.mark.parametrize("how", [BEFORE, AFTER])
def test_a_delivery_whose_connection_dies_is_refused_with_503_and_taken_once_when_it_comes_again(event, how):
    """At each statement of it. Where the database is, is told to nobody."""
    post(telnyx_event(THEIRS, OURS, "what is made once is made"))
    with breakable_line() as line:
        for at in range(1, 30):
            event = telnyx_event(THEIRS, OURS, f"text {at}")
            line.cut(at, how)
            answer = post(event)
            if not line.was_cut:
                break
            if answer.status_code != 200:
                assert answer.status_code == 503
                assert answer.json()["error"]["code"] == "database_unavailable"
                assert "127.0.0.1" not in answer.content.decode()
            line.cut(0, how)
            assert post(event).json()["status"] in ("accepted", "duplicate")
    assert at > 3, "nothing was cut"
    assert stored() == (at + 1, at + 1, 1)


# Signatures


def test_an_unsigned_delivery_is_401(event):
    refused(post(event, None), 401, "signature_missing")


def test_a_signature_that_is_none_is_401(event):
    refused(post(event, headers={"Telnyx-Signature-Ed25519": "?"}), 401, "signature_malformed")


def test_another_key_or_other_bytes_are_403(event):
    refused(post(event, OTHER), 403, "signature_wrong")
    raw = json.dumps(event).encode()
    refused(post(raw + b" ", None, headers=sign(raw, KEY)), 403, "signature_wrong")


@pytest.mark.parametrize("skew", [-302, 302])
def test_stale_and_future_dated_deliveries_are_403(event, skew):
    refused(post(event, now=time.time() + skew), 403, "timestamp_out_of_range")


@pytest.mark.parametrize("skew", [-298, 298])
def test_clocks_may_differ_by_almost_300_seconds(event, skew):
    assert post(event, now=time.time() + skew).status_code == 200


def test_without_a_public_key_everything_is_refused(event, settings):
    settings.AGENTS = {}
    refused(post(event), 403, "no_public_key")
    refused(post(event, DEVELOPMENT_SIGNING_KEY), 403, "no_public_key")


def test_the_development_key_counts_with_debug_from_this_machine_only(event, settings):
    refused(post(event, DEVELOPMENT_SIGNING_KEY), 403, "signature_wrong")
    settings.DEBUG = True
    elsewhere = Client(REMOTE_ADDR="192.0.2.1")
    refused(post(event, DEVELOPMENT_SIGNING_KEY, client=elsewhere), 403, "signature_wrong")
    tunnelled = {"X-Forwarded-For": "192.0.2.1"}
    refused(post(event, DEVELOPMENT_SIGNING_KEY, headers=tunnelled), 403, "signature_wrong")
    assert post(event, DEVELOPMENT_SIGNING_KEY).json() == {"status": "accepted"}


# Bad input


def without(*path: Any) -> Any:
    def change(event: Any) -> None:
        at = event
        for key in path[:-1]:
            at = at[key]
        del at[path[-1]]

    return change


def with_(value: Any, *path: Any) -> Any:
    def change(event: Any) -> None:
        at = event
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = value

    return change


BAD_FIELDS = {
    "no data": (without("data"), "data"),
    "data is a list": (with_([], "data"), "data"),
    "no event type": (without("data", "event_type"), "data.event_type"),
    "event type is a number": (with_(1, "data", "event_type"), "data.event_type"),
    "no event id": (without("data", "id"), "data.id"),
    "event id is null": (with_(None, "data", "id"), "data.id"),
    "event id is blank": (with_(" ", "data", "id"), "data.id"),
    "event id is too long": (with_("e" * 201, "data", "id"), "data.id"),
    "no payload": (without("data", "payload"), "data.payload"),
    "no message id": (without("data", "payload", "id"), "data.payload.id"),
    "message id is too long": (with_("m" * 201, "data", "payload", "id"), "data.payload.id"),
    "no sender": (without("data", "payload", "from"), "data.payload.from.phone_number"),
    "sender without a number": (with_({}, "data", "payload", "from"), "data.payload.from.phone_number"),
    "sender is empty": (with_("", "data", "payload", "from"), "data.payload.from"),
    "sender is too long": (with_("x" * 65, "data", "payload", "from"), "data.payload.from"),
    "no receiver": (with_([], "data", "payload", "to"), "data.payload.to[0].phone_number"),
    "no text": (without("data", "payload", "text"), "data.payload.text"),
    "text is a number": (with_(5, "data", "payload", "text"), "data.payload.text"),
    "media is an object": (with_({}, "data", "payload", "media"), "data.payload.media"),
}


@pytest.mark.parametrize(("change", "field"), BAD_FIELDS.values(), ids=BAD_FIELDS)
def test_a_body_that_lacks_a_field_is_refused_by_the_fields_name(event, change, field):
    change(event)
    assert refused(post(event), 400, "bad_field").startswith(field + " ")


def test_ids_and_numbers_of_just_the_greatest_length_are_taken(event):
    event["data"]["id"], event["data"]["payload"]["id"] = "e" * 200, "m" * 200
    event["data"]["payload"]["from"] = "x" * 64
    assert post(event).status_code == 200


NOT_JSON = {
    "nothing": b"",
    "words": b"hello",
    "cut short": b'{"data": ',
    "two values": b"{} {}",
    "another encoding": '{"data": "é"}'.encode("latin-1"),
    "UTF-16": '{"data": {}}'.encode("utf-16"),
    "too deep": b"[" * 100_000,
    "deeper than is kept": b'{"data": ' + b"[" * 500 + b"]" * 500 + b"}",
    "a number too long": b'{"data": ' + b"1" * 5000 + b"}",
}


@pytest.mark.parametrize("body", NOT_JSON.values(), ids=NOT_JSON)
def test_a_body_that_is_not_json_is_refused(body):
    refused(post(body), 400, "not_json")


@pytest.mark.parametrize("body", [b"[]", b"null", b'"data"', b"5"])
def test_json_that_is_no_object_is_refused(body):
    refused(post(body), 400, "bad_field")


@pytest.mark.parametrize("value", [b"NaN", b"Infinity", b"-Infinity", b"1e999"])
def test_numbers_that_json_has_not_are_refused_by_the_name_of_their_field(event, value):
    event["data"]["payload"]["cost"] = "here"
    body = json.dumps(event).encode().replace(b'"here"', value)
    assert "$.data.payload.cost" in refused(post(body), 400, "not_json")


def padded(event: dict[str, Any], size: int) -> bytes:
    raw = json.dumps(event).encode()
    return raw + b" " * (size - len(raw))


def test_a_body_of_one_mebibyte_is_read_and_one_byte_more_is_not(event):
    refused(post(padded(event, MAX_WEBHOOK_BYTES + 1)), 413, "body_too_large")
    assert post(padded(event, MAX_WEBHOOK_BYTES)).status_code == 200


def test_a_body_beyond_the_sites_own_limit_is_413_too(event, settings):
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 1000
    refused(post(padded(event, 2000)), 413, "body_too_large")


@pytest.mark.parametrize("kind", ["nobody", "deaf"])
def test_a_text_for_a_kind_that_cannot_take_it_waits_and_is_shown(event, kind):
    assert post(event, path=f"/webhooks/telnyx/{kind}/").json() == {"status": "waiting"}
    text = InboundText.objects.get()
    assert (text.status, text.kind, text.actor) == ("waiting", kind, None)
    assert kind.removesuffix("y") in text.error.lower() or "receive" in text.error
    assert post(event, path=f"/webhooks/telnyx/{kind}/").json() == {"status": "duplicate"}
    # An operator, or a deploy, says whose it is.
    InboundText.objects.update(kind="texted")
    clock.shift(dt.timedelta(seconds=16))
    assert retry_waiting() == 1
    assert Task.objects.get().actor.name == THEIRS


def test_an_address_that_names_no_kind_is_404(event):
    refused(post(event, path="/webhooks/telnyx/a%00b%20+%C3%A9/"), 404, "invalid_kind")


def test_a_provider_that_there_is_not_is_404(event):
    refused(post(event, path="/webhooks/nobody/texted/"), 404, "unknown_provider")
    refused(post(event, path="/webhooks/pathlib.Path/texted/"), 404, "unknown_provider")
    refused(post(event, path="/webhooks/console/texted/"), 404, "unknown_provider")


def test_a_stranger_is_not_told_which_kinds_there_are(event):
    refused(post(event, OTHER, path="/webhooks/telnyx/nobody/"), 403, "signature_wrong")


def test_other_methods_are_405(event):
    answer = Client().get(PATH)
    assert (answer.status_code, answer.json()["error"]["code"]) == (405, "method_not_allowed")


FORMS = {
    "urlencoded": ("application/x-www-form-urlencoded", b"Body=hi&From=%2B15550001111"),
    "multipart": (
        "multipart/form-data; boundary=b",
        b'--b\r\nContent-Disposition: form-data; name="a"\r\n\r\n1',
    ),
    "multipart, broken": ("multipart/form-data; boundary=b", b"--b\r\n"),
    "multipart without a boundary": ("multipart/form-data", b"x"),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("read_before", [False, True])
def test_forms_are_refused_cleanly_also_when_a_middleware_has_read_them(settings, form, read_before):
    if read_before:
        settings.MIDDLEWARE = [f"{__name__}.reads_the_form", *settings.MIDDLEWARE]
    content_type, body = FORMS[form]
    answer = post(body, content_type=content_type)
    assert 400 <= answer.status_code < 500
    if form != "multipart without a boundary" or not read_before:  # then Django's own answer, before our view
        assert answer.json()["error"]["code"] in ("not_json", "body_unreadable")
    assert stored() == (0, 0, 0)


@pytest.mark.parametrize(
    "content_type", ["application/json", "application/x-www-form-urlencoded", "text/plain"]
)
def test_a_middleware_that_looks_at_the_form_does_not_disturb_a_text(event, settings, content_type):
    settings.MIDDLEWARE = [f"{__name__}.reads_the_form", *settings.MIDDLEWARE]
    assert post(event, content_type=content_type).json() == {"status": "accepted"}


@pytest.mark.parametrize("accept", ["text/html", "image/png", "*/*", "application/xml;q=0.9", "nonsense"])
def test_any_accept_header_is_answered_in_json(event, accept):
    answer = post(event, headers={"Accept": accept})
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, "application/json")


def test_neither_a_cookie_nor_a_form_token_matters(event):
    assert post(event, client=Client(enforce_csrf_checks=True)).status_code == 200


def test_a_body_that_ends_early_is_no_500(live_server, event):
    raw = json.dumps(event).encode()
    at = urlsplit(live_server.url)
    server = HTTPConnection(at.hostname, at.port, timeout=30)
    server.putrequest("POST", PATH)
    for name, value in {**sign(raw, KEY), "Content-Length": str(len(raw))}.items():
        server.putheader(name, value)
    server.endheaders(raw[:-5])
    assert server.sock is not None
    server.sock.shutdown(1)  # no more comes
    answer = server.getresponse()
    assert (answer.status, json.load(answer)["error"]["code"]) == (403, "signature_wrong")
    server.close()
    assert stored() == (0, 0, 0)
