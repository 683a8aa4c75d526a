"""Pure: no database, no server."""

from __future__ import annotations

import base64
import json

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from django.http.request import HttpHeaders
from django.test import RequestFactory

from agents.exceptions import ConfigurationError
from conversations import signatures
from conversations.exceptions import (
    MalformedSignatureError,
    MissingSignatureError,
    NoPublicKeyError,
    StaleTimestampError,
    WrongSignatureError,
)
from conversations.providers.telnyx import TelnyxProvider
from conversations.views import webhook_request

KEY = Ed25519PrivateKey.from_private_bytes(b"1" * 32)
OTHER = Ed25519PrivateKey.from_private_bytes(b"2" * 32)
KEYS = [KEY.public_key()]
NOW = 1_764_500_000

EVENT = {"zeta": 1, "alpha": {"text": "café 😋"}}
BODIES = {
    "compact": json.dumps(EVENT, separators=(",", ":")).encode(),
    "indented": json.dumps(EVENT, indent=2).encode(),
    "with a trailing newline": json.dumps(EVENT).encode() + b"\n",
    "raw UTF-8 beyond ASCII": json.dumps(EVENT, ensure_ascii=False).encode(),
    "empty": b"",
    "not text at all": bytes(range(256)),
}


def encoded(key: Ed25519PrivateKey) -> str:
    return base64.b64encode(key.public_key().public_bytes_raw()).decode()


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_the_bytes_as_they_arrived_are_what_was_signed(body):
    signatures.verify(body, signatures.sign(body, KEY, now=NOW), KEYS, now=NOW)


@pytest.mark.parametrize("body", [BODIES["indented"], BODIES["raw UTF-8 beyond ASCII"]])
def test_one_byte_another_timestamp_or_another_key_is_refused(body):
    headers = signatures.sign(body, KEY, now=NOW)
    changes = (body[:-1], body + b"\n", b" " + body, body.replace(b"1", b"2"), json.dumps(EVENT).encode())
    for changed in changes:
        with pytest.raises(WrongSignatureError):
            signatures.verify(changed, headers, KEYS, now=NOW)
    with pytest.raises(WrongSignatureError):
        signatures.verify(body, {**headers, signatures.TIMESTAMP_HEADER: str(NOW - 1)}, KEYS, now=NOW)
    with pytest.raises(WrongSignatureError):
        signatures.verify(body, headers, [OTHER.public_key()], now=NOW)


def test_header_names_count_in_any_case():
    headers = signatures.sign(b"{}", KEY, now=NOW)
    for change in (str.lower, str.upper, str.title):
        environ = {"HTTP_" + change(name).upper().replace("-", "_"): value for name, value in headers.items()}
        signatures.verify(b"{}", HttpHeaders(environ), KEYS, now=NOW)


@pytest.mark.parametrize("skew", [-300, -299, 0, 299, 300])
def test_up_to_300_seconds_from_now_are_accepted(skew):
    signatures.verify(b"{}", signatures.sign(b"{}", KEY, now=NOW + skew), KEYS, now=NOW)


@pytest.mark.parametrize("skew", [-301, 301, -86_400, 86_400])
def test_one_second_more_is_refused_before_and_after(skew):
    with pytest.raises(StaleTimestampError):
        signatures.verify(b"{}", signatures.sign(b"{}", KEY, now=NOW + skew), KEYS, now=NOW)


def test_each_of_several_keys_counts_while_the_account_rotates_them():
    keys = [OTHER.public_key(), KEY.public_key()]
    for key in (KEY, OTHER):
        signatures.verify(b"{}", signatures.sign(b"{}", key, now=NOW), keys, now=NOW)


def test_a_delivery_without_either_header_is_not_signed():
    headers = signatures.sign(b"{}", KEY, now=NOW)
    for name in headers:
        for value in ({}, {name: ""}):
            with pytest.raises(MissingSignatureError) as caught:
                signatures.verify(b"{}", {**{k: v for k, v in headers.items() if k != name}, **value}, KEYS)
            assert caught.value.status == 401


@pytest.mark.parametrize(
    "signature",
    [
        "x",
        "not base64!",
        "ñ" * 88,
        base64.b64encode(b"1" * 63).decode(),
        base64.b64encode(b"1" * 65).decode(),
    ],
)
def test_a_signature_that_is_not_64_bytes_of_base64_is_malformed(signature):
    headers = {**signatures.sign(b"{}", KEY, now=NOW), signatures.SIGNATURE_HEADER: signature}
    with pytest.raises(MalformedSignatureError):
        signatures.verify(b"{}", headers, KEYS, now=NOW)


def test_another_spelling_of_the_same_signature_counts_as_the_official_client_has_it():
    headers = signatures.sign(b"{}", KEY, now=NOW)
    signature = headers[signatures.SIGNATURE_HEADER]
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    last = alphabet[alphabet.index(signature[85]) ^ 1]  # 86 characters hold 516 bits, four too many
    headers[signatures.SIGNATURE_HEADER] = signature[:85] + last + "=="
    signatures.verify(b"{}", headers, KEYS, now=NOW)


@pytest.mark.parametrize("timestamp", ["now", "1e9", "1764500000.0", "0x1", "1" * 5000])
def test_a_timestamp_that_is_not_a_number_of_seconds_is_malformed(timestamp):
    headers = {**signatures.sign(b"{}", KEY, now=NOW), signatures.TIMESTAMP_HEADER: timestamp}
    with pytest.raises(MalformedSignatureError):
        signatures.verify(b"{}", headers, KEYS, now=NOW)


def test_without_any_key_everything_is_refused():
    with pytest.raises(NoPublicKeyError):
        signatures.verify(b"{}", signatures.sign(b"{}", KEY, now=NOW), [], now=NOW)


def test_a_configured_key_that_cannot_be_read_is_named_and_left_out(settings, caplog):
    settings.AGENTS = {"TELNYX_PUBLIC_KEYS": ["nonsense", f" {encoded(KEY)} "]}
    assert [key.public_bytes_raw() for key in signatures.configured_keys()] == [
        KEY.public_key().public_bytes_raw()
    ]
    assert "nonsense" in caplog.text
    with pytest.raises(ConfigurationError):
        signatures.public_key(base64.b64encode(b"1" * 31).decode())


@pytest.mark.parametrize(
    ("debug", "peer", "forwarded", "counts"),
    [
        (True, "127.0.0.1", {}, True),
        (True, "127.8.9.10", {}, True),
        (True, "::1", {}, True),
        (True, "::ffff:127.0.0.1", {}, True),
        (False, "127.0.0.1", {}, False),
        (True, "192.0.2.1", {}, False),
        (True, "::ffff:192.0.2.1", {}, False),
        (True, "", {}, False),
        (True, "localhost", {}, False),
        (True, "127.0.0.1", {"HTTP_X_FORWARDED_FOR": "192.0.2.1"}, False),
        (True, "127.0.0.1", {"HTTP_FORWARDED": "for=192.0.2.1"}, False),
        (True, "127.0.0.1", {"HTTP_X_REAL_IP": "192.0.2.1"}, False),
    ],
)
def test_the_development_key_counts_only_with_debug_and_straight_from_this_machine(
    settings, debug, peer, forwarded, counts
):
    settings.DEBUG = debug
    settings.AGENTS = {"TELNYX_PUBLIC_KEYS": [encoded(KEY)]}

    def verify(key: Ed25519PrivateKey) -> None:
        """As the webhook has it."""
        body, headers = b"{}", signatures.sign(b"{}", key)
        asked = RequestFactory(REMOTE_ADDR=peer, **forwarded).post(
            "/", body, content_type="application/json", headers=headers
        )
        TelnyxProvider().verify(webhook_request(asked))

    verify(KEY)
    if counts:
        verify(signatures.DEVELOPMENT_SIGNING_KEY)
    else:
        with pytest.raises(WrongSignatureError):
            verify(signatures.DEVELOPMENT_SIGNING_KEY)
