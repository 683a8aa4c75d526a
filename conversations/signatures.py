"""Who sent a delivery: the signatures of webhooks. Each accepts exactly what its official client accepts.

**Telnyx** (developers.telnyx.com, "Receiving webhooks") signs with Ed25519 over ``{timestamp}|{raw body}``;
``telnyx-signature-ed25519`` holds the signature as base64, ``telnyx-timestamp`` the moment in Unix seconds,
no more than 300 seconds from now. The account's public key is base64 of 32 bytes. The bytes must be those
that arrived: a body that was parsed and written again does not verify.

**Twilio** (twilio.com/docs, "Webhooks Security") signs with HMAC under the account's auth token over the
address that it called, as it called it (https, host, query), followed by each field of the form, sorted by
name, name and value without anything between; every field counts, empty and unknown ones too. A body that is
no form counts by its SHA-256, which the address then carries as ``bodySHA256``. Nothing in it is a moment:
what was signed once stays signed, so only duplicates by message id keep an old request out.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ipaddress
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from urllib.parse import ParseResult, parse_qs, urlparse

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from django.conf import settings
from django.http import HttpRequest

from agents.exceptions import ConfigurationError
from conversations import conf
from conversations.exceptions import (
    MalformedSignatureError,
    MissingSignatureError,
    NoPublicKeyError,
    StaleTimestampError,
    WrongSignatureError,
)

logger = logging.getLogger(__name__)

SIGNATURE_HEADER = "Telnyx-Signature-Ed25519"
TIMESTAMP_HEADER = "Telnyx-Timestamp"
TWILIO_HEADER = "X-Twilio-Signature"
#: Says how, where it is not HMAC with SHA-1: ``key=...,algorithm=HMAC_SHA256``.
TWILIO_ALGORITHM_HEADER = "X-Twilio-Webhooks-Signature-Settings"
#: Seconds that a timestamp may lie before or after now.
TOLERANCE = 300

#: The development signing key. Everybody knows it: it counts only with DEBUG, and only from this machine.
DEVELOPMENT_SIGNING_KEY = Ed25519PrivateKey.from_private_bytes(b"development key, known by anyone")
#: The same for Twilio's signatures.
DEVELOPMENT_TOKEN = "development token, known by anyone"

# What proxies and tunnels (ngrok and its like) add: the peer is then not who sent the request.
_FORWARDED = ("HTTP_FORWARDED", "HTTP_X_FORWARDED_FOR", "HTTP_X_REAL_IP")


@lru_cache(maxsize=16)
def public_key(text: str) -> Ed25519PublicKey:
    """A public key from base64 of its 32 bytes. Raises ConfigurationError."""
    try:
        return Ed25519PublicKey.from_public_bytes(base64.b64decode(text.strip(), validate=True))
    except (binascii.Error, ValueError) as error:
        raise ConfigurationError(
            f"{text!r} is not a Telnyx public key: base64 of 32 bytes is expected",
            setting="TELNYX_PUBLIC_KEYS",
        ) from error


def configured_keys() -> list[Ed25519PublicKey]:
    """The keys of the Telnyx account. One that cannot be read is left out; a system check names it."""
    keys = []
    for text in conf.get("TELNYX_PUBLIC_KEYS"):
        try:
            keys.append(public_key(text))
        except ConfigurationError:
            logger.exception("a Telnyx public key is ignored")
    return keys


def is_local_development(request: HttpRequest) -> bool:
    """Whether this is a development site (DEBUG), asked directly from its own machine.

    A request that a proxy or a tunnel passed on is not: the peer is then this machine for everybody.
    """
    if not settings.DEBUG or any(request.META.get(name) for name in _FORWARDED):
        return False
    try:
        peer = ipaddress.ip_address(request.META.get("REMOTE_ADDR", ""))
    except ValueError:
        return False
    if isinstance(peer, ipaddress.IPv6Address) and peer.ipv4_mapped is not None:
        return peer.ipv4_mapped.is_loopback
    return peer.is_loopback


def verify(
    body: bytes, headers: Mapping[str, str], keys: Iterable[Ed25519PublicKey], *, now: float | None = None
) -> None:
    """Returns when one of ``keys`` signed these bytes within the last (or next) 300 seconds.

    ``headers`` are looked up by the names above (Django's ``request.headers`` knows them in any case);
    ``now`` is Unix seconds. Raises a SignatureError otherwise.
    """
    signature, timestamp = headers.get(SIGNATURE_HEADER), headers.get(TIMESTAMP_HEADER)
    if not signature or not timestamp:
        raise MissingSignatureError()
    raw = _decode(signature)
    try:
        moment = int(timestamp)
    except ValueError as error:
        raise MalformedSignatureError() from error
    keys = list(keys)
    if not keys:
        raise NoPublicKeyError()
    if abs((time.time() if now is None else now) - moment) > TOLERANCE:
        raise StaleTimestampError()
    signed = timestamp.encode() + b"|" + body
    for key in keys:
        try:
            key.verify(raw, signed)
        except InvalidSignature:
            continue
        return
    raise WrongSignatureError()


def sign(body: bytes, key: Ed25519PrivateKey, *, now: float | None = None) -> dict[str, str]:
    """The two headers that the provider would send with ``body`` (for ``manage.py text`` and for tests)."""
    timestamp = str(int(time.time() if now is None else now))
    signature = key.sign(timestamp.encode("ascii") + b"|" + body)
    return {SIGNATURE_HEADER: base64.b64encode(signature).decode("ascii"), TIMESTAMP_HEADER: timestamp}


def _decode(signature: str) -> bytes:
    try:
        raw = base64.b64decode(signature, validate=True)
    except (binascii.Error, ValueError) as error:
        raise MalformedSignatureError() from error
    if len(raw) != 64:
        raise MalformedSignatureError()
    return raw


Fields = Mapping[str, Sequence[str]]


def verify_twilio(url: str, form: Fields | bytes, headers: Mapping[str, str], tokens: Iterable[str]) -> None:
    """Returns when one of ``tokens`` signed this request.

    ``url`` is the address as Twilio called it. ``form`` holds the fields of a form, each with all of its
    values; or it is the body that is none. Raises a SignatureError otherwise.
    """
    signature = headers.get(TWILIO_HEADER)
    if not signature:
        raise MissingSignatureError()
    digest = _DIGESTS.get(_algorithm(headers.get(TWILIO_ALGORITHM_HEADER) or "").upper())
    if digest is None:
        raise MalformedSignatureError("the signature is made by an algorithm that is not known here")
    tokens = list(tokens)
    if not tokens:
        raise NoPublicKeyError()
    address = urlparse(url)
    if isinstance(form, bytes):
        # Without its hash in the address nothing vouches for a body.
        announced = parse_qs(address.query).get("bodySHA256")
        computed = hashlib.sha256(form).hexdigest().encode()
        if (announced or form) and not hmac.compare_digest(computed, (announced or [""])[0].encode()):
            raise WrongSignatureError()
        form = {}
    for token in tokens:
        for spelling in (_without_port(address), _with_port(address)):
            expected = _hmac(token, spelling, form, digest)
            if hmac.compare_digest(expected.encode(), signature.encode()):
                return
    raise WrongSignatureError()


def sign_twilio(url: str, form: Fields, token: str) -> dict[str, str]:
    """The header that Twilio would send with this form (for the sandbox, ``manage.py text`` and tests)."""
    return {TWILIO_HEADER: _hmac(token, url, form, "sha1")}


_DIGESTS = {"HMAC_SHA1": "sha1", "HMAC_SHA256": "sha256"}


def _algorithm(header: str) -> str:
    for part in header.split(","):
        name, _, value = part.partition("=")
        if name.strip() == "algorithm" and value.strip():
            return value.strip()
    return "HMAC_SHA1"


def _hmac(token: str, url: str, form: Fields, digest: str) -> str:
    # A value that comes twice counts once; the order of values is theirs, not that of the form.
    fields = "".join(name + value for name in sorted(form) for value in sorted(set(form[name])))
    made = hmac.new(token.encode(), (url + fields).encode("utf-8", "surrogatepass"), digest)
    return base64.b64encode(made.digest()).decode("ascii")


# Twilio itself signs now with the port and now without it.


def _without_port(address: ParseResult) -> str:
    return (
        address._replace(netloc=address.netloc.split(":")[0]).geturl() if _port(address) else address.geturl()
    )


def _with_port(address: ParseResult) -> str:
    if _port(address):
        return address.geturl()
    port = 443 if address.scheme == "https" else 80
    return address._replace(netloc=f"{address.netloc}:{port}").geturl()


def _port(address: ParseResult) -> int | None:
    try:
        return address.port
    except ValueError:  # no number
        return None
