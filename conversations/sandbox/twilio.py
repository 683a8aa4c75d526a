"""Twilio's Messages resource and webhooks, in the shapes of its documentation. Touches no socket."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from email.utils import format_datetime
from typing import Any

from conversations.phone import is_alphanumeric_sender, is_e164, is_short_code
from conversations.sandbox.magic import Fate, Oddity, fate_of
from conversations.sandbox.messages import Message, Messages
from conversations.segments import segments

Reply = tuple[int, dict[str, Any], dict[str, str]]  # status, body, headers

PRICE = 0.0079  # of one segment
MAX_BODY = 1600  # characters
WORDS = {
    "21211": "Invalid 'To' Phone Number",
    "21212": "Invalid 'From' Phone Number",
    "21408": "Permission to send an SMS has not been enabled for the region",
    "21602": "Message body is required",
    "21604": "'To' phone number is required",
    "21606": "The 'From' phone number is not a valid, message-capable Twilio phone number",
    "21610": "Attempt to send to unsubscribed recipient",
    "21611": "This 'From' number has exceeded the maximum number of queued messages",
    "21612": "The 'To' phone number is not currently reachable",
    "21614": "'To' number is not a valid mobile number",
    "21617": "The concatenated message body exceeds the 1600 character limit",
    "20003": "Authenticate",
    "20404": "The requested resource was not found",
    "20429": "Too Many Requests",
}


def error(status: int, code: str, **headers: str) -> Reply:
    body = {
        "code": int(code),
        "message": WORDS.get(code, "Refused"),
        "more_info": f"https://www.twilio.com/docs/errors/{code}",
        "status": status,
    }
    return status, body, headers


def send(messages: Messages, form: Mapping[str, list[str]]) -> tuple[Reply, Message | None, Fate]:
    """``POST .../Messages.json``: the answer, and what was sent."""

    def one(name: str) -> str:
        return form.get(name, [""])[-1]

    to, sender, text, media = one("To"), one("From"), one("Body"), form.get("MediaUrl", [])
    if not to:
        return error(400, "21604"), None, Fate()
    if not (is_e164(to) or is_short_code(to)):
        return error(400, "21211"), None, Fate()
    if not (is_e164(sender) or is_short_code(sender) or is_alphanumeric_sender(sender)):
        return error(400, "21212"), None, Fate()
    if not text and not media:
        return error(400, "21602"), None, Fate()
    if len(text) > MAX_BODY:
        return error(400, "21617"), None, Fate()
    if wait := messages.is_too_fast(sender):
        return error(429, "20429", **{"Retry-After": f"{wait:.0f}"}), None, Fate()
    if messages.is_blocked("twilio", to, sender):
        return error(400, "21610"), None, Fate()
    fate = fate_of("twilio", to, sender)
    if fate.status == 429:
        return error(429, "20429"), None, fate
    if fate.status is not None and fate.status != 504:
        return error(fate.status, "20500"), None, fate
    if fate.refused:
        return error(429 if fate.refused == "20429" else 400, fate.refused), None, fate
    if fate.oddity is Oddity.BREAKS_UNSENT:
        return (0, {}, {}), None, fate
    message = messages.add(
        Message(
            "twilio", "outbound", sender, to, text, list(media), callback=one("StatusCallback"),
            parts=1 if media else max(segments(text).count, 1),
        )
    )  # fmt: skip
    return (201, shown(message, messages), {}), message, fate


def statuses(fate: Fate, nth: int) -> list[tuple[str, str]]:
    """What is reported of a text: (status, code), in order."""
    if fate.oddity is Oddity.SILENT:
        return []
    if fate.oddity is Oddity.UNCONFIRMED:
        return [("queued", ""), ("sent", "")]
    if fate.oddity is Oddity.PASSES and nth == 1:
        return [("queued", ""), ("sent", ""), ("undelivered", "30003")]
    if fate.undelivered:
        return [("queued", ""), ("sent", ""), ("undelivered", fate.undelivered)]
    return [("queued", ""), ("sent", ""), ("delivered", "")]


def show(messages: Messages, sid: str) -> Reply:
    """``GET .../Messages/<sid>.json``."""
    message = messages.get(sid)
    if message is None or message.provider != "twilio":
        return error(404, "20404")
    return 200, shown(message, messages), {}


def find(messages: Messages, query: Mapping[str, list[str]]) -> Reply:
    """``GET .../Messages.json?To=...&From=...``: the newest first."""
    to, sender = query.get("To", [""])[-1], query.get("From", [""])[-1]
    size = int(query.get("PageSize", ["50"])[-1])
    found = [
        message
        for message in messages
        if message.provider == "twilio"
        and (not to or message.to == to)
        and (not sender or message.sender == sender)
    ]
    page = [shown(message, messages) for message in reversed(found)][:size]
    body = {
        "messages": page,
        "page": 0,
        "page_size": size,
        "start": 0,
        "end": max(len(page) - 1, 0),
        "uri": "/2010-04-01/",
        "first_page_uri": "/2010-04-01/",
        "next_page_uri": None,
        "previous_page_uri": None,
    }
    return 200, body, {}


def shown(message: Message, messages: Messages) -> dict[str, Any]:
    """The resource, as its client reads it."""
    account = messages.options.twilio_account
    is_final = message.status in ("delivered", "undelivered", "failed")
    return {
        "account_sid": account,
        "api_version": "2010-04-01",
        "body": message.text,
        "date_created": format_datetime(message.made_at),
        "date_sent": format_datetime(message.changed_at) if message.status != "queued" else None,
        "date_updated": format_datetime(message.changed_at),
        "direction": "inbound" if message.direction == "inbound" else "outbound-api",
        "error_code": int(message.code) if message.code else None,
        "error_message": None,
        "from": message.sender,
        "messaging_service_sid": None,
        "num_media": str(len(message.media)),
        "num_segments": str(message.parts),
        # It is not known before the carrier has taken the message.
        "price": f"-{PRICE * message.parts:.5f}" if is_final else None,
        "price_unit": "USD",
        "sid": message.id,
        "status": message.status,
        "subresource_uris": {"media": f"/2010-04-01/Accounts/{account}/Messages/{message.id}/Media.json"},
        "to": message.to,
        "uri": f"/2010-04-01/Accounts/{account}/Messages/{message.id}.json",
    }


def report(message: Message, status: str, code: str, account: str) -> dict[str, str]:
    """A status callback."""
    form = {
        "SmsSid": message.id,
        "SmsStatus": status,
        "MessageStatus": status,
        "To": message.to,
        "MessageSid": message.id,
        "AccountSid": account,
        "From": message.sender,
        "ApiVersion": "2010-04-01",
    }
    if code:
        form["ErrorCode"] = code
    if status in ("delivered", "undelivered"):
        form["RawDlrDoneDate"] = dt.datetime.now(dt.UTC).strftime("%y%m%d%H%M")
    return form


def received(message: Message, account: str, messages: Messages) -> dict[str, str]:
    """An inbound message."""
    form = {
        "ToCountry": "US",
        "ToState": "",
        "SmsMessageSid": message.id,
        "NumMedia": str(len(message.media)),
        "ToCity": "",
        "FromZip": "",
        "SmsSid": message.id,
        "FromState": "",
        "SmsStatus": "received",
        "FromCity": "",
        "Body": message.text,
        "FromCountry": "US",
        "To": message.to,
        "ToZip": "",
        "NumSegments": str(message.parts),
        "MessageSid": message.id,
        "AccountSid": account,
        "From": message.sender,
        "ApiVersion": "2010-04-01",
    }
    for place, url in enumerate(message.media):
        known = messages.media.get(url.rsplit("/", 1)[-1])
        form[f"MediaUrl{place}"] = url
        form[f"MediaContentType{place}"] = known[0] if known else "image/jpeg"
    return form
