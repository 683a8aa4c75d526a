"""Telnyx's Messages API and events, in the shapes of its documentation. Nothing here touches a socket."""

from __future__ import annotations

import base64
import datetime as dt
import uuid
from typing import Any

from conversations.models import Keyword
from conversations.phone import is_alphanumeric_sender, is_e164, is_short_code
from conversations.providers.telnyx import FAULTS
from conversations.sandbox.magic import Fate, Oddity, fate_of
from conversations.sandbox.messages import Message, Messages
from conversations.segments import MAX_SEGMENTS, segments

Reply = tuple[int, dict[str, Any], dict[str, str]]  # status, body, headers

PRICE = "0.0051"  # of one part


def error(status: int, code: str, title: str, detail: str = "", **headers: str) -> Reply:
    body = {
        "code": code,
        "title": title,
        "detail": detail or title,
        "meta": {"url": "https://developers.telnyx.com"},
    }
    return status, {"errors": [body]}, headers


def send(messages: Messages, fields: Any) -> tuple[Reply, Message | None, Fate]:
    """``POST /v2/messages``: the answer, and what was sent."""
    if not isinstance(fields, dict):
        return error(400, "10015", "Bad Request"), None, Fate()
    to, sender, text = fields.get("to"), fields.get("from"), fields.get("text") or ""
    media = fields.get("media_urls") or []
    if not to:
        return (
            error(422, "10004", "Missing required parameter", "The 'to' parameter is required."),
            None,
            Fate(),
        )
    if not isinstance(to, str) or not (is_e164(to) or is_short_code(to)):
        return error(400, "40310", "Invalid 'to' address"), None, Fate()
    if not isinstance(sender, str) or not (
        is_e164(sender) or is_short_code(sender) or is_alphanumeric_sender(sender)
    ):
        return error(400, "40305", "Invalid 'from' address"), None, Fate()
    if not text and not media:
        return error(400, "40316", "No content provided"), None, Fate()
    if len(media) > 10:
        return error(400, "40317", "Invalid MMS content"), None, Fate()
    parts = 1 if media else segments(text).count
    if parts > MAX_SEGMENTS:
        return error(400, "40302", "Message too large"), None, Fate()
    if wait := messages.is_too_fast(sender):
        return _too_many(wait, messages), None, Fate()
    if messages.is_blocked("telnyx", to, sender):
        return error(400, "40300", "Blocked due to STOP message"), None, Fate()
    fate = fate_of("telnyx", to, sender)
    if fate.status == 429:
        return _too_many(1.0, messages), None, fate
    if fate.status is not None and fate.status != 504:
        return error(fate.status, "10007", "Unexpected error"), None, fate
    if fate.refused:
        fault = FAULTS.get(fate.refused)
        title = (
            "Blocked due to STOP message" if fate.refused == "40300" else fault.means if fault else "Refused"
        )
        return error(429 if fate.refused == "10011" else 400, fate.refused, title), None, fate
    if fate.oddity is Oddity.BREAKS_UNSENT:
        return (0, {}, {}), None, fate
    message = messages.add(
        Message(
            "telnyx", "outbound", sender, to, text, list(media),
            callback=str(fields.get("webhook_url") or ""), parts=parts,
        )
    )  # fmt: skip
    return (200, {"data": _payload(message, "queued", "")}, {}), message, fate


def statuses(fate: Fate, nth: int) -> list[tuple[str, str]]:
    """What is reported of a text: (status, code), in order."""
    if fate.oddity is Oddity.SILENT:
        return []
    if fate.oddity is Oddity.UNCONFIRMED:
        return [("sent", ""), ("delivery_unconfirmed", "")]
    if fate.oddity is Oddity.PASSES and nth == 1:
        return [("sent", ""), ("delivery_failed", "40006")]
    if fate.undelivered:
        return [("sent", ""), ("delivery_failed", fate.undelivered)]
    return [("sent", ""), ("delivered", "")]


def show(messages: Messages, id: str) -> Reply:
    """``GET /v2/messages/<id>``."""
    message = messages.get(id)
    if message is None or message.provider != "telnyx":
        return error(404, "10005", "Resource not found")
    return 200, {"data": _payload(message, message.status, message.code)}, {}


def public_key(messages: Messages) -> Reply:
    """``GET /v2/public_key``."""
    raw = messages.options.signing_key.public_key().public_bytes_raw()
    return 200, {"data": {"public": base64.b64encode(raw).decode()}}, {}


def report(message: Message, status: str, code: str, event_id: str) -> dict[str, Any]:
    """A ``message.sent`` or ``message.finalized`` event."""
    kind = "message.sent" if status == "sent" else "message.finalized"
    return _event(kind, event_id, _payload(message, status, code))


def received(message: Message, event_id: str, keyword: Keyword | None, messages: Messages) -> dict[str, Any]:
    """A ``message.received`` event."""
    now = _now()
    payload: dict[str, Any] = {
        "id": message.id,
        "record_type": "message",
        "direction": "inbound",
        "type": "MMS" if message.media else "SMS",
        "from": {"phone_number": message.sender, "carrier": "Sandbox", "line_type": "Wireless"},
        "to": [
            {
                "phone_number": message.to,
                "carrier": "Telnyx",
                "line_type": "Wireless",
                "status": "webhook_delivered",
            }
        ],
        "cc": [],
        "text": message.text or (None if message.media else ""),
        "media": [
            {
                "url": url,
                "content_type": messages.media.get(url.rsplit("/", 1)[-1], ("", b""))[0] or "image/jpeg",
                "sha256": None,
                "size": len(messages.media.get(url.rsplit("/", 1)[-1], ("", b""))[1]) or None,
            }
            for url in message.media
        ],
        "encoding": segments(message.text).encoding,
        "parts": message.parts,
        "messaging_profile_id": str(uuid.UUID(int=1)),
        "received_at": now,
        "sent_at": None,
        "completed_at": None,
        "cost": {"amount": "0.0000", "currency": "USD"},
        "errors": [],
        "tags": [],
        "webhook_url": None,
    }
    if keyword is not None:
        payload["autoresponse_type"] = keyword.upper()
    return _event("message.received", event_id, payload)


def _too_many(wait: float, messages: Messages) -> Reply:
    rate = str(int(messages.options.rate or 1))
    headers = {"x-ratelimit-limit": rate, "x-ratelimit-remaining": "0", "x-ratelimit-reset": f"{wait:.0f}"}
    return error(429, "10011", "Too many requests", "You have exceeded the allowed rate.", **headers)


def _payload(message: Message, status: str, code: str) -> dict[str, Any]:
    final = status not in ("queued", "sending", "sent")
    fault = FAULTS.get(code)
    return {
        "record_type": "message",
        "direction": message.direction,
        "id": message.id,
        "type": "MMS" if message.media else "SMS",
        "from": {"phone_number": message.sender, "carrier": "Telnyx", "line_type": "Wireless"},
        "to": [
            {
                "phone_number": message.to,
                "status": status,
                "carrier": "Sandbox",
                "line_type": "Wireless",
            }
        ],
        "cc": [],
        "text": message.text,
        "subject": None,
        "media": [{"url": url, "content_type": None, "sha256": None, "size": None} for url in message.media],
        "encoding": segments(message.text).encoding,
        "parts": message.parts,
        "messaging_profile_id": str(uuid.UUID(int=1)),
        "webhook_url": message.callback or None,
        "webhook_failover_url": None,
        "received_at": message.made_at.isoformat(),
        "sent_at": _now() if status != "queued" else None,
        "completed_at": _now() if final else None,
        "valid_until": None,
        "cost": {"amount": f"{float(PRICE) * message.parts:.4f}", "currency": "USD"},
        "errors": [{"code": code, "title": fault.means if fault else "failed", "detail": ""}] if code else [],
        "tags": [],
    }


def _event(kind: str, event_id: str, payload: dict[str, Any]) -> dict[str, Any]:
    return {
        "data": {
            "event_type": kind,
            "id": event_id,
            "occurred_at": _now(),
            "payload": payload,
            "record_type": "event",
        },
        "meta": {"attempt": 1, "delivered_to": "http://127.0.0.1/"},
    }


def _now() -> str:
    return dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds")
