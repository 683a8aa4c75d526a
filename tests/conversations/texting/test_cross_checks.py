"""Our checks of signatures beside the official ones: over thousands of requests, the same answer to each.

Pure but for the clock, which stands.
"""

from __future__ import annotations

import base64
import json
import random
import string
from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import urlencode

import pytest
import telnyx
import time_machine
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from django.http import QueryDict
from nacl.signing import SigningKey
from twilio.request_validator import RequestValidator, get_signature_algorithm

from conversations.exceptions import SignatureError
from conversations.providers.base import WebhookRequest
from conversations.providers.twilio import TwilioProvider
from conversations.signatures import (
    SIGNATURE_HEADER,
    TIMESTAMP_HEADER,
    TWILIO_ALGORITHM_HEADER,
    TWILIO_HEADER,
    sign,
    verify,
    verify_twilio,
)

REQUESTS = 4000
NOW = 1_764_500_000.25
KEY = Ed25519PrivateKey.from_private_bytes(b"1" * 32)
OTHER = Ed25519PrivateKey.from_private_bytes(b"2" * 32)
LETTERS = string.ascii_letters + string.digits + " +/=&?%'\"<>éß漢😋\n\t"


def accepts(check: Callable[[], Any]) -> bool:
    try:
        check()
    except SignatureError:
        return False
    return True


def words(rng: random.Random, most: int = 12) -> str:
    return "".join(rng.choice(LETTERS) for _ in range(rng.randint(0, most)))


# Telnyx


def telnyx_request(rng: random.Random) -> tuple[str, dict[str, str], str]:
    """A body, its headers, and the name of what was done to it."""
    body = json.dumps(
        {"data": {"id": words(rng), "event_type": "message.received", "payload": {"text": words(rng, 40)}}},
        ensure_ascii=rng.random() < 0.5,
        indent=rng.choice([None, 2]),
    ) + rng.choice(["", "\n"])
    skew = rng.choice([0, 0, 0, -299, 299, -300, 300, -301, 301, 10_000, -10_000])
    headers = sign(body.encode(), rng.choice([KEY, KEY, KEY, OTHER]), now=NOW + skew)
    signature, timestamp = headers[SIGNATURE_HEADER], headers[TIMESTAMP_HEADER]
    change = rng.choice(
        ["nothing"] * 4 + ["body", "signature", "timestamp", "header", "spelling", "odd time"]
    )
    match change:
        case "body":
            place = rng.randrange(len(body))
            body = body[:place] + rng.choice(["", "x", body[place] * 2]) + body[place + 1 :]
        case "signature":
            raw = bytearray(base64.b64decode(signature))
            raw[rng.randrange(64)] ^= 1 << rng.randrange(8)
            wrong = rng.choice([bytes(raw), bytes(raw[:63]), bytes(raw) + b"1", b""])
            signature = rng.choice([base64.b64encode(wrong).decode(), "not base64", signature[:-2]])
        case "timestamp":
            timestamp = str(int(timestamp) + rng.choice([-1, 1, 60]))
        case "spelling":
            alphabet = string.ascii_uppercase + string.ascii_lowercase + string.digits + "+/"
            last = alphabet[alphabet.index(signature[85]) ^ rng.choice([1, 2, 3, 4, 8])]
            signature = signature[:85] + last + "=="
        case "odd time":
            # Signed as it stands: what the client's int() makes of it decides.
            timestamp = rng.choice(
                [f" {timestamp}", f"+{timestamp}", f"{timestamp}.0", "soon", "-5", "1_764_500_000"]
            )
            raw_signature = KEY.sign(f"{timestamp}|{body}".encode())
            signature = base64.b64encode(raw_signature).decode()
    headers = {SIGNATURE_HEADER: signature, TIMESTAMP_HEADER: timestamp}
    if change == "header":
        del headers[rng.choice(list(headers))]
    spelled = {rng.choice([name, name.lower(), name.upper()]): value for name, value in headers.items()}
    return body, spelled, change


class AnyCase(dict[str, str]):
    """Headers as Django gives them."""

    def get(self, name: str, default: Any = None) -> Any:
        return next((value for key, value in self.items() if key.lower() == name.lower()), default)


def test_telnyx_accepts_what_we_accept_and_refuses_what_we_refuse():
    rng = random.Random(20261130)
    public = base64.b64encode(KEY.public_key().public_bytes_raw()).decode()
    seen: dict[tuple[str, bool], int] = {}
    with telnyx.Telnyx(api_key="KEY", public_key=public) as client, time_machine.travel(NOW, tick=False):
        for _ in range(REQUESTS):
            body, headers, change = telnyx_request(rng)
            ours = accepts(partial(verify, body.encode(), AnyCase(headers), [KEY.public_key()]))
            try:
                client.webhooks.unwrap(body, headers=headers)
                theirs = True
            except ValueError:
                theirs = False
            assert ours == theirs, (change, headers, body)
            seen[change, ours] = seen.get((change, ours), 0) + 1
    # The generator is worth something: each change was refused, and each harmless one accepted, often.
    assert sum(seen.values()) == REQUESTS
    for change in ("body", "signature", "timestamp", "header"):
        assert seen[change, False] > 100
    assert seen["nothing", True] > 300 and seen["nothing", False] > 100
    assert seen["odd time", True] > 20 and seen["odd time", False] > 20
    assert seen["spelling", True] > 20


def test_a_signature_made_as_telnyx_own_tests_make_them_passes():
    # NaCl is what the client's own suite signs with.
    key = SigningKey(b"3" * 32)
    body = b'{"data":{"event_type":"message.received"}}'
    signed = key.sign(f"{int(NOW)}|{body.decode()}".encode()).signature
    headers = {SIGNATURE_HEADER: base64.b64encode(signed).decode(), TIMESTAMP_HEADER: str(int(NOW))}
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    public = Ed25519PublicKey.from_public_bytes(bytes(key.verify_key))
    verify(body, headers, [public], now=NOW)


# Twilio

TOKEN = "test_auth_token_000000000000000000"


def twilio_url(rng: random.Random) -> str:
    scheme = rng.choice(["https", "https", "http"])
    host = rng.choice(["agents.example.com", "example.org", "127.0.0.1"])
    port = rng.choice(["", "", "", ":443", ":80", ":8000"])
    path = rng.choice(["/", "", "/sms/twilio/", "/a%20b/c", "/käse"])
    query = {words(rng, 5): words(rng, 8) for _ in range(rng.choice([0, 0, 1, 2]))}
    return f"{scheme}://{host}{port}{path}" + (f"?{urlencode(query)}" if query else rng.choice(["", "", "?"]))


def twilio_request(rng: random.Random) -> tuple[str, dict[str, list[str]] | str, dict[str, str], str]:
    """An address, a form or a body, headers, and the name of what was done."""
    url = twilio_url(rng)
    signer = RequestValidator(rng.choice([TOKEN, TOKEN, TOKEN, "another"]))
    algorithm = rng.choice([None, None, None, "HMAC_SHA256", "hmac_sha256"])
    form: dict[str, list[str]] | str
    if rng.random() < 0.25:
        form = json.dumps({"text": words(rng, 40)}, ensure_ascii=rng.random() < 0.5)
        digest = signer.compute_hash(form)
        url += f"{'&' if '?' in url else '?'}bodySHA256={digest}"
        signature = signer.compute_signature(url, {}, algorithm)
    else:
        form = {
            rng.choice(["Body", "From", "To", "NumMedia", "AddOns", words(rng, 6) or "x"]): [
                words(rng, 20) for _ in range(rng.choice([1, 1, 1, 2, 3]))
            ]
            for _ in range(rng.randint(0, 6))
        }
        signature = signer.compute_signature(url, querydict(form), algorithm)
    change = rng.choice(["nothing"] * 4 + ["form", "url", "signature", "algorithm", "port", "case"])
    match change:
        case "form" if isinstance(form, str):
            form = form + rng.choice([" ", "x"])
        case "form":
            assert not isinstance(form, str)
            how = rng.choice(["add", "drop blank", "value"])
            if how == "add":
                form["Extra"] = ["1"]
            elif how == "drop blank":
                form = {name: values for name, values in form.items() if values != [""]}
            elif form:
                form[rng.choice(sorted(form))] = [words(rng, 5)]
        case "url":
            url = rng.choice([url.replace("https", "http"), url + "/x", url.replace("example", "exampel")])
        case "signature":
            signature = rng.choice([signature[:-1], signature.swapcase(), "", "ñ" * 28, signature + "="])
        case "algorithm":
            algorithm = rng.choice(["HMAC_SHA1", "HMAC_SHA256", "HMAC_MD5", ""])
        case "port":
            url = url.replace(".com/", ".com:443/").replace(".org/", ".org:80/")
        case "case":
            url = url.replace("agents", "Agents")
    headers = {TWILIO_HEADER: signature}
    if algorithm is not None:
        headers[TWILIO_ALGORITHM_HEADER] = f"key=webhooks_key_1, algorithm={algorithm}"
    return url, form, headers, change


def querydict(form: dict[str, list[str]]) -> QueryDict:
    made = QueryDict(mutable=True)
    for name, values in form.items():
        made.setlist(name, values)
    return made


def test_twilio_accepts_what_we_accept_and_refuses_what_we_refuse(caplog):
    caplog.set_level("ERROR", logger="twilio.request_validator")
    rng = random.Random(20261130)
    validator = RequestValidator(TOKEN)
    seen: dict[tuple[str, bool], int] = {}
    for _ in range(REQUESTS):
        url, form, headers, change = twilio_request(rng)
        given = form.encode() if isinstance(form, str) else form
        ours = accepts(partial(verify_twilio, url, given, headers, [TOKEN]))
        theirs = validator.validate(
            url,
            form if isinstance(form, str) else querydict(form),
            headers[TWILIO_HEADER],
            get_signature_algorithm(headers.get(TWILIO_ALGORITHM_HEADER)),
        )
        assert ours == theirs, (change, url, form, headers)
        seen[change, ours] = seen.get((change, ours), 0) + 1
    assert sum(seen.values()) == REQUESTS
    for change in ("form", "url", "signature", "algorithm"):
        assert seen[change, False] > 100, change
    assert seen["nothing", True] > 300 and seen["nothing", False] > 100
    assert seen["port", True] > 50


URL = "https://agents.example.com/sms/twilio/"
PARAMS = {
    "MessageSid": "SM00000000000000000000000000000001",
    "AccountSid": "AC00000000000000000000000000000000",
    "From": "+15005550006",
    "To": "+15005550001",
    "Body": "hi",
    "NumMedia": "0",
}
PICTURE = {
    **PARAMS,
    "Body": "",
    "NumMedia": "1",
    "MediaUrl0": "https://api.twilio.com/media/ME0",
    "MediaContentType0": "image/jpeg",
}
# From the test suite of Twilio's client, and its documentation.
EXAMPLE = "https://mycompany.com/myapp.php?foo=1&bar=2"
EXAMPLE_PARAMS = {
    "CallSid": "CA1234567890ABCDE",
    "Digits": "1234",
    "From": "+14158675309",
    "To": "+18005551212",
    "Caller": "+14158675309",
}


@pytest.mark.parametrize(
    ("token", "url", "params", "signature", "counts"),
    [
        (TOKEN, URL, PARAMS, "BNYXqdlON+JMLSbmnOJc/t9Wb/Y=", True),
        (TOKEN, URL, PARAMS, "l7+xzKpHnrXhEWnxjxC8gGJhMFI=", False),  # the same over http
        (TOKEN, URL.replace("https", "http"), PARAMS, "l7+xzKpHnrXhEWnxjxC8gGJhMFI=", True),
        (TOKEN, URL, PICTURE, "BJI9YkGAjJ0M4SwF1ydk8GTw9Tw=", True),
        (TOKEN, URL, {k: v for k, v in PICTURE.items() if v}, "BJI9YkGAjJ0M4SwF1ydk8GTw9Tw=", False),
        (TOKEN, URL, {**PICTURE, "Extra": "1"}, "BJI9YkGAjJ0M4SwF1ydk8GTw9Tw=", False),
        ("12345", EXAMPLE, EXAMPLE_PARAMS, "RSOYDt4T1cUTdK1PDd93/VVr8B8=", True),
        ("12345", EXAMPLE.replace(".com", ".com:443"), EXAMPLE_PARAMS, "RSOYDt4T1cUTdK1PDd93/VVr8B8=", True),
    ],
)
def test_published_signatures_count_and_blank_and_unknown_fields_with_them(
    token, url, params, signature, counts
):
    form = {name: [value] for name, value in params.items()}
    assert accepts(lambda: verify_twilio(url, form, {TWILIO_HEADER: signature}, [token])) is counts
    assert RequestValidator(token).validate(url, params, signature) is counts


def test_a_field_that_nobody_has_seen_yet_counts_when_it_was_signed():
    params = {**PICTURE, "AddOns": '{"status":"successful","results":{}}', "Blank": ""}
    signature = RequestValidator(TOKEN).compute_signature(URL, params)
    form = {name: [value] for name, value in params.items()}
    verify_twilio(URL, form, {TWILIO_HEADER: signature}, [TOKEN])
    assert not accepts(
        lambda: verify_twilio(URL, {**form, "One": ["more"]}, {TWILIO_HEADER: signature}, [TOKEN])
    )


def test_a_json_body_counts_by_its_hash_in_the_address():
    body = b'{"property": "value", "boolean": true}'
    digest = "0a1ff7634d9ab3b95db5c9a2dfe9416e41502b283a80c7cf19632632f96e6620"
    url = f"{EXAMPLE}&bodySHA256={digest}"
    headers = {TWILIO_HEADER: RequestValidator("12345").compute_signature(url, {})}
    verify_twilio(url, body, headers, ["12345"])
    assert RequestValidator("12345").validate(url, body.decode(), headers[TWILIO_HEADER])
    assert not accepts(lambda: verify_twilio(url, body + b" ", headers, ["12345"]))
    bare = {TWILIO_HEADER: RequestValidator("12345").compute_signature(EXAMPLE, {})}
    assert not accepts(lambda: verify_twilio(EXAMPLE, body, bare, ["12345"])), "nothing vouches for the body"


def test_each_of_several_tokens_counts_while_they_are_rotated(settings):
    settings.AGENTS = {"TWILIO_AUTH_TOKENS": ["new", "old"]}
    provider = TwilioProvider()
    for token, counts in (("new", True), ("old", True), ("older", False)):
        signature = RequestValidator(token).compute_signature(URL, PARAMS)
        request = WebhookRequest(
            URL, {TWILIO_HEADER: signature}, urlencode(PARAMS).encode(), "application/x-www-form-urlencoded"
        )
        assert accepts(partial(provider.verify, request)) is counts
