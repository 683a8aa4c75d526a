"""Telnyx: its webhooks, its reports, and its Messages API through the official client."""

from __future__ import annotations

import functools
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from agents import conf as agents_conf
from agents.exceptions import ConfigurationError
from conversations import conf
from conversations.models import Keyword, TextStatus
from conversations.providers import reading
from conversations.providers.base import (
    CannotAsk,
    DeliveryReport,
    Event,
    OutcomeUnknown,
    Outgoing,
    PermanentFailure,
    ReceivedText,
    SendResult,
    TemporaryFailure,
    TextProvider,
    WebhookRequest,
)
from conversations.public import origin_of
from conversations.signatures import DEVELOPMENT_SIGNING_KEY, configured_keys, verify

if TYPE_CHECKING:
    from telnyx import APIConnectionError, APIStatusError, Telnyx

    from conversations.models import OutboundText

CONNECT_TIMEOUT = 5.0  # seconds
DAY = 86_400.0  # seconds

#: HTTP answers that say the request was not carried out and may be repeated.
_NOT_DONE = frozenset({408, 425, 429, 500, 503})
_LONGEST_PAUSE = 1800.0  # seconds
#: Where Telnyx keeps pictures that came in; they want its key.
_MEDIA_HOSTS = frozenset({"media.telnyx.com", "api.telnyx.com"})


class Advice(StrEnum):
    """What Telnyx advises for an error (developers.telnyx.com, "Messaging Error Code Reference")."""

    RETRY = "retry"  # it passes by itself
    WAIT = "wait"  # a limit was reached: to wait is the fix
    FIX = "fix"  # sent again as it is, it would fail again
    HOLD = "hold"  # not before a certain time
    NEVER = "never"
    CONFIGURE = "configure"  # the account or the number must be set up first


@dataclass(frozen=True, slots=True)
class Fault:
    advice: Advice
    means: str
    pause: float | None = None  # seconds, for HOLD


FAULTS = {
    "10011": Fault(Advice.WAIT, "too many requests"),
    "40001": Fault(Advice.NEVER, "a landline, or a number that cannot be reached"),
    "40002": Fault(Advice.FIX, "taken for spam this time"),
    "40003": Fault(Advice.NEVER, "the sending number is blocked as spam"),
    "40005": Fault(Advice.FIX, "expired on its way"),
    "40006": Fault(Advice.RETRY, "the recipient's carrier does not answer"),
    "40008": Fault(Advice.RETRY, "the carrier did not accept it"),
    "40010": Fault(Advice.NEVER, "the sending number is not registered for 10DLC"),
    "40011": Fault(Advice.WAIT, "the carrier's rate limit"),
    "40014": Fault(Advice.FIX, "expired in the queue"),
    "40015": Fault(Advice.CONFIGURE, "Telnyx's own spam filter"),
    "40016": Fault(Advice.WAIT, "the 10DLC limit of T-Mobile"),
    "40017": Fault(Advice.FIX, "taken for spam by AT&T"),
    "40018": Fault(Advice.WAIT, "the 10DLC limit of AT&T"),
    "40019": Fault(Advice.CONFIGURE, "the number may not be used so"),
    "40020": Fault(Advice.HOLD, "the limit of the day", DAY),
    "40300": Fault(Advice.NEVER, "blocked: the recipient wrote STOP, or cannot be reached"),
    "40305": Fault(Advice.CONFIGURE, "the sending number is not valid for this account"),
    "40314": Fault(Advice.NEVER, "messaging is disabled on the account"),
    "40315": Fault(Advice.CONFIGURE, "the sending number is unhealthy"),
    "40318": Fault(Advice.WAIT, "the queue of the number is full"),
    "40320": Fault(Advice.HOLD, "the sending number cannot be used for a while", 3600.0),
    "40322": Fault(Advice.NEVER, "blocked for its content"),
    "40329": Fault(Advice.CONFIGURE, "the toll-free number is not verified"),
    "40333": Fault(Advice.CONFIGURE, "the account has reached its limit"),
}

#: Telnyx's words for a status (webhooks, and those that only its detail records use) and what they mean here.
STATUSES = {
    "scheduled": TextStatus.SENT,
    "queued": TextStatus.SENT,
    "sending": TextStatus.SENT,
    "sent": TextStatus.SENT,
    "delivered": TextStatus.DELIVERED,
    "delivery_unconfirmed": TextStatus.UNCONFIRMED,
    "dlr_timeout": TextStatus.UNCONFIRMED,
    "gw_timeout": TextStatus.UNCONFIRMED,
    "sending_failed": TextStatus.FAILED,
    "failed": TextStatus.FAILED,
    "gw_reject": TextStatus.FAILED,
    "delivery_failed": TextStatus.UNDELIVERED,
    "expired": TextStatus.UNDELIVERED,
    "unknown": None,
}


_KEYWORDS = {str(keyword): keyword for keyword in Keyword}


class TelnyxProvider(TextProvider):
    """``POST /v2/messages``. The API knows no idempotency key, so nothing is repeated that may have arrived.

    Not sent, tried again by the outbox: no connection was made; 408, 425, 429, 500 and 503; the error codes
    that say so (``FAULTS``). Never sent: every other 4xx. Unknown: the connection broke or no answer came
    after the request had left; 502 and 504, where a gateway speaks and cannot know what became of the
    request; an answer without the message's id. A report (its address names the text) resolves it.
    """

    name = "telnyx"
    reads_url = False

    # In

    def verify(self, request: WebhookRequest) -> None:
        keys = configured_keys()
        if request.local:
            keys.append(DEVELOPMENT_SIGNING_KEY.public_key())
        verify(request.body, request.headers, keys)

    def read(self, request: WebhookRequest) -> list[Event]:
        data = reading.object_at(reading.json_of(request.body), "data")
        kind = reading.text_at(data, "event_type", "data.event_type")
        if kind == "message.received":
            return [_received(data)]
        if kind in ("message.sent", "message.finalized"):
            report = _report(data, kind.removeprefix("message."))
            return [report] if report else []
        return []

    # Out

    def ready(self) -> None:
        if not agents_conf.get("TELNYX_API_KEY"):
            raise ConfigurationError("sending through Telnyx needs TELNYX_API_KEY", setting="TELNYX_API_KEY")

    def api_url(self) -> str:
        return str(agents_conf.get("TELNYX_BASE_URL"))

    def warm(self) -> None:
        self.client.messages  # noqa: B018 - imports it

    @functools.cached_property
    def client(self) -> Telnyx:
        self.ready()
        import httpx
        from telnyx import Telnyx  # takes a second: imported when the first text is sent

        return Telnyx(
            api_key=agents_conf.get("TELNYX_API_KEY"),
            base_url=self.api_url(),
            timeout=httpx.Timeout(conf.get("SMS_TIMEOUT"), connect=CONNECT_TIMEOUT),
            max_retries=0,  # the client would repeat a request that timed out
        )

    def send(self, outgoing: Outgoing) -> SendResult:
        client = self.client
        from telnyx import APIConnectionError, APIError, APIStatusError

        text = outgoing.text
        fields: dict[str, Any] = {"to": text.to_number, "from_": text.from_number}
        if text.text:
            fields["text"] = text.text
        if outgoing.media_urls:
            fields["media_urls"] = list(outgoing.media_urls)
        if outgoing.callback_url:
            fields["webhook_url"] = outgoing.callback_url
        try:
            answer = client.messages.send(**fields)
        except APIStatusError as error:
            raise _refusal(error) from error
        except APIConnectionError as error:
            raise _no_answer(error) from error
        except APIError as error:
            raise OutcomeUnknown(f"the answer cannot be read: {error}") from error
        message = getattr(answer, "data", None)
        if not getattr(message, "id", None):
            raise OutcomeUnknown("the answer names no message")
        data = message.to_dict() if message is not None else {}
        return SendResult(str(data["id"]), reading.whole(data.get("parts")), *_cost(data))

    def meaning_of(self, code: str, detail: str) -> tuple[bool, bool]:
        return _meaning(code, detail)

    def look_up(self, text: OutboundText, taken: Collection[str] = ()) -> DeliveryReport | None:
        if not text.provider_id:
            raise CannotAsk("Telnyx finds a text by its id alone")
        from telnyx import APIError

        try:
            answer = self.client.messages.retrieve(text.provider_id)
        except APIError as error:
            raise CannotAsk(str(error)) from error
        data = getattr(answer, "data", None)
        payload = data.to_dict() if data is not None else {}
        return _report({"payload": {**payload, "id": text.provider_id}, "id": ""}, "")

    # Media

    def media_headers(self, url: str) -> dict[str, str]:
        key = agents_conf.get("TELNYX_API_KEY")
        return {"Authorization": f"Bearer {key}"} if key and self._is_own(url) else {}

    def _is_own(self, url: str) -> bool:
        try:
            origin = origin_of(url)
            return (
                origin[0] == "https" and origin[1] in _MEDIA_HOSTS and origin[2] == 443
            ) or origin == origin_of(self.api_url())
        except ValueError:
            return False


# Reading events


def _received(data: dict[str, Any]) -> ReceivedText:
    payload = reading.object_at(data, "payload", "data.payload")
    media = _media(payload.get("media"))
    text = payload.get("text")
    if text is None and media:
        text = ""
    if not isinstance(text, str):
        raise reading.bad("data.payload.text", "must be text, unless there is media")
    return ReceivedText(
        event_id=reading.text_at(data, "id", "data.id", reading.ID_MAX_LENGTH),
        message_id=reading.text_at(payload, "id", "data.payload.id", reading.ID_MAX_LENGTH),
        from_number=_number(payload.get("from"), "data.payload.from"),
        to_number=_number(reading.first(payload.get("to")), "data.payload.to[0]"),
        text=text,
        media=media,
        sent_at=reading.moment(payload.get("received_at")),
        keyword=_keyword(payload.get("autoresponse_type")),
    )


def _report(data: dict[str, Any], said: str) -> DeliveryReport | None:
    """What an event, or a message that was asked for, says of a text of ours. None: it is none of ours."""
    payload = reading.object_at(data, "payload", "data.payload")
    if payload.get("direction") == "inbound":
        return None
    party = reading.first(payload.get("to"))
    status = party.get("status") if isinstance(party, dict) else None
    said = reading.word(status or said, 64)
    code, detail = _first_error(payload)
    uid, attempt = reading.correlation(payload.get("webhook_url"))
    cost, currency = _cost(payload)
    passes, opted_out = _meaning(code, detail)
    return DeliveryReport(
        event_id=reading.word(data.get("id"), reading.ID_MAX_LENGTH),
        provider_id=reading.text_at(payload, "id", "data.payload.id", reading.ID_MAX_LENGTH),
        said=said,
        status=STATUSES.get(said),
        code=code,
        detail=detail,
        passes=passes,
        opted_out=opted_out,
        at=reading.moment(data.get("occurred_at")) or reading.moment(payload.get("completed_at")),
        parts=reading.whole(payload.get("parts")),
        cost=cost,
        currency=currency,
        uid=uid,
        attempt=attempt,
    )


def _number(party: Any, path: str) -> str:
    """From {"phone_number": ...}, or from the bare number that some events have."""
    if isinstance(party, dict):
        return reading.number_at(party, "phone_number", f"{path}.phone_number")
    if isinstance(party, str):
        return reading.number_at({"": party}, "", path)
    raise reading.bad(f"{path}.phone_number", "must be a text that is not empty")


def _media(value: Any) -> list[dict[str, Any]]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise reading.bad("data.payload.media", "must be a list")
    items = (
        reading.media_item(
            item.get("url"), item.get("content_type"), item.get("size"),
            reading.text_or_none(item.get("sha256")) or item.get("hash_sha256"),
        )
        for item in value
        if isinstance(item, dict)
    )  # fmt: skip
    return [item for item in items if item][: reading.MAX_MEDIA]


def _keyword(value: Any) -> Keyword | None:
    """``autoresponse_type``: Telnyx took it for a keyword, and has answered."""
    word = value.lower() if isinstance(value, str) else ""
    return _KEYWORDS.get(word)


def _cost(payload: dict[str, Any]) -> tuple[Any, str]:
    cost = payload.get("cost")
    if not isinstance(cost, dict):
        return reading.money(cost), ""
    return reading.money(cost.get("amount")), reading.currency(cost.get("currency"))


def _first_error(body: Any) -> tuple[str, str]:
    """Code and words of ``{"errors": [{"code", "title", "detail"}]}``; empty where there are none."""
    errors = body.get("errors") if isinstance(body, dict) else None
    first = errors[0] if isinstance(errors, list) and errors and isinstance(errors[0], dict) else {}
    words = [reading.word(first[key], 500) for key in ("title", "detail") if first.get(key)]
    return reading.word(first.get("code"), 32), ": ".join(words)


def _meaning(code: str, words: str) -> tuple[bool, bool]:
    fault = FAULTS.get(code)
    return fault is not None and fault.advice is Advice.RETRY, _is_opt_out(code, words)


def _is_opt_out(code: str, words: str) -> bool:
    """Telnyx uses 40300 for more than that; its words tell."""
    return code == "40300" and ("stop" in words.lower() or "opt" in words.lower())


# Reading answers


def _refusal(error: APIStatusError) -> TemporaryFailure | PermanentFailure | OutcomeUnknown:
    status = error.status_code
    code, words = _first_error(error.body)
    message = f"HTTP {status}{f' {code}' if code else ''}: {words or error.message}"
    fault = FAULTS.get(code)
    if status in _NOT_DONE or (
        fault is not None and fault.advice in (Advice.RETRY, Advice.WAIT, Advice.HOLD)
    ):
        pauses = [_retry_after(error), fault.pause if fault else None]
        return TemporaryFailure(
            message,
            reason=code,
            retry_after=max((pause for pause in pauses if pause is not None), default=None),
            crowded=status == 429 or (fault is not None and fault.advice is Advice.WAIT),
        )
    if status >= 500:
        return OutcomeUnknown(message, reason=code)
    return PermanentFailure(message, reason=code, opted_out=_is_opt_out(code, words))


def _no_answer(error: APIConnectionError) -> TemporaryFailure | OutcomeUnknown:
    import httpx

    cause = error.__cause__
    text = f"{type(cause).__name__}: {cause}" if cause is not None else str(error)
    # These come before a single byte of the request has left.
    if isinstance(cause, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout | httpx.ProxyError):
        return TemporaryFailure(text)
    return OutcomeUnknown(text)


def _retry_after(error: APIStatusError) -> float | None:
    try:
        return min(max(float(error.response.headers.get("retry-after", "")), 0.0), _LONGEST_PAUSE)
    except ValueError:
        return None
