"""Twilio: its webhooks, its reports, and its Messages resource through the official client (an extra)."""

from __future__ import annotations

import base64
import datetime as dt
import functools
import threading
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from django.core.exceptions import SuspiciousOperation
from django.http import QueryDict

from agents.codec import clean_text
from agents.exceptions import ConfigurationError
from conversations import conf
from conversations.exceptions import NotAFormError
from conversations.models import Keyword, TextStatus
from conversations.providers import reading
from conversations.providers.base import (
    Answer,
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
from conversations.signatures import DEVELOPMENT_TOKEN, verify_twilio

if TYPE_CHECKING:
    from twilio.base.exceptions import TwilioRestException
    from twilio.rest import Client

    from conversations.models import OutboundText

OWN_API = "https://api.twilio.com"
FORM = "application/x-www-form-urlencoded"

#: HTTP answers that say the request was not carried out and may be repeated.
_NOT_DONE = frozenset({408, 425, 429, 500, 503})
_LONGEST_PAUSE = 1800.0  # seconds
#: Codes that say so whatever the status is: too many requests, the rate and the queue of a number.
_CROWDED = frozenset({"14107", "20429", "21611"})
#: "Attempt to send to unsubscribed recipient."
_OPTED_OUT = "21610"
#: Reported codes whose reason passes: queue overflow, a phone that is off, the carrier's rate limit.
_PASSES = frozenset({"30001", "30003", "30022"})

#: Twilio's words for the status of an outbound message, and what they mean here.
STATUSES = {
    "accepted": TextStatus.SENT,
    "scheduled": TextStatus.SENT,
    "queued": TextStatus.SENT,
    "sending": TextStatus.SENT,
    "sent": TextStatus.SENT,
    "partially_delivered": TextStatus.SENT,
    "delivered": TextStatus.DELIVERED,
    "read": TextStatus.DELIVERED,
    "failed": TextStatus.FAILED,
    "canceled": TextStatus.FAILED,
    "undelivered": TextStatus.UNDELIVERED,
}

# Event Streams (JSON): the events that are about texts.
_RECEIVED = "com.twilio.messaging.inbound-message.received"
_REPORTED = "com.twilio.messaging.message."

#: Messages looked through for one whose answer was lost.
_PAGE = 50
#: How much the clocks of Twilio and of this machine may differ.
_SKEW = dt.timedelta(minutes=2)


class TwilioProvider(TextProvider):
    """``POST /2010-04-01/Accounts/<sid>/Messages.json``. It knows no idempotency key, but can be asked.

    Not sent, tried again by the outbox: no connection was made; 408, 425, 429, 500 and 503; 14107, 20429,
    21611. Never sent: every other 4xx. Unknown: the connection broke or no answer came after the request had
    left; 502 and 504; an answer without the message's sid. Then Twilio is asked for it.
    """

    name = "twilio"
    # Its default handling answers STOP, START and HELP and says so only with Advanced Opt-Out (OptOutType).
    answers_keywords = True
    finds = True
    asks_cost = True
    # TwiML without a verb: nothing is to be done.
    answer = Answer("text/xml", b'<?xml version="1.0" encoding="UTF-8"?><Response/>')

    # In

    def verify(self, request: WebhookRequest) -> None:
        tokens = [*conf.get("TWILIO_AUTH_TOKENS"), *([DEVELOPMENT_TOKEN] if request.local else [])]
        form = _form(request) if _is_form(request) else request.body
        verify_twilio(request.url, form, request.headers, tokens)

    def read(self, request: WebhookRequest) -> list[Event]:
        if not _is_form(request):
            return _events(reading.json_of(request.body), request.url)
        form = {name: values[-1] for name, values in _form(request).items()}
        status = form.get("MessageStatus", "")
        if status and status not in ("received", "receiving"):
            return [_report(form, request.url)]
        return [_received(form)]

    # Out

    def ready(self) -> None:
        for setting, variable in (
            ("TWILIO_ACCOUNT_SID", "TWILIO_ACCOUNT_SID"),
            ("TWILIO_AUTH_TOKENS", "TWILIO_AUTH_TOKEN"),
        ):
            if not conf.get(setting):
                raise ConfigurationError(f"sending through Twilio needs {variable}", setting=setting)

    def api_url(self) -> str:
        return str(conf.get("TWILIO_BASE_URL")).rstrip("/")

    def warm(self) -> None:
        self.client.messages  # noqa: B018 - imports it

    @functools.cached_property
    def client(self) -> Client:
        self.ready()
        try:
            from twilio.rest import Client  # takes a second: imported when the first text is sent
        except ImportError as error:
            raise ConfigurationError(
                "Twilio's client is not installed: pip install twilio", setting="SMS_PROVIDER"
            ) from error
        http = _http_client(self.api_url(), conf.get("SMS_TIMEOUT"))
        return Client(conf.get("TWILIO_ACCOUNT_SID"), conf.get("TWILIO_AUTH_TOKENS")[0], http_client=http)

    def send(self, outgoing: Outgoing) -> SendResult:
        client = self.client
        from twilio.base.exceptions import TwilioException, TwilioRestException

        text = outgoing.text
        fields: dict[str, Any] = {"to": text.to_number, "from_": text.from_number}
        if text.text:
            fields["body"] = text.text
        if outgoing.media_urls:
            fields["media_url"] = list(outgoing.media_urls)
        if outgoing.callback_url:
            fields["status_callback"] = outgoing.callback_url
        try:
            message = client.messages.create(**fields)
        except TwilioRestException as error:
            raise _refusal(error) from error
        except TwilioException as error:
            raise OutcomeUnknown(f"the answer cannot be read: {error}") from error
        except OSError as error:  # what the requests library raises
            raise _no_answer(error) from error
        if not message.sid:
            raise OutcomeUnknown("the answer names no message")
        cost = reading.money(message.price)
        return SendResult(
            message.sid,
            reading.whole(message.num_segments),
            cost,
            reading.currency(message.price_unit) if cost is not None else "",
        )

    def meaning_of(self, code: str, detail: str) -> tuple[bool, bool]:
        return code in _PASSES, code == _OPTED_OUT

    def look_up(self, text: OutboundText, taken: Collection[str] = ()) -> DeliveryReport | None:
        client = self.client
        from twilio.base.exceptions import TwilioException

        try:
            if text.provider_id:
                return _report_of(client.messages(text.provider_id).fetch())
            found = client.messages.list(
                to=text.to_number, from_=text.from_number, limit=_PAGE, page_size=_PAGE
            )
        except (TwilioException, OSError) as error:
            raise CannotAsk(str(error)) from error
        since = text.claimed_at - _SKEW if text.claimed_at else None
        for message in reversed(found):  # the oldest that it can be
            made = message.date_created
            if message.sid in taken or message.body != text.text:
                continue
            if since is not None and made is not None and made >= since:
                return _report_of(message)
        return None

    # Media

    def media_headers(self, url: str) -> dict[str, str]:
        if not conf.get("TWILIO_AUTH_TOKENS"):
            return {}
        try:
            own = origin_of(url) in (origin_of(OWN_API), origin_of(self.api_url()))
        except ValueError:
            return {}
        if not own:
            return {}
        account = f"{conf.get('TWILIO_ACCOUNT_SID')}:{conf.get('TWILIO_AUTH_TOKENS')[0]}"
        return {"Authorization": f"Basic {base64.b64encode(account.encode()).decode()}"}


def _http_client(base_url: str, timeout: float) -> Any:
    """Twilio's HTTP client, at another address where the settings name one. It repeats nothing by itself."""
    from twilio.http.http_client import TwilioHttpClient

    class HttpClient(TwilioHttpClient):
        def request(self, method: str, url: str, *args: Any, **kwargs: Any) -> Any:
            if url.startswith(f"{OWN_API}/"):
                url = base_url + url[len(OWN_API) :]
            response = super().request(method, url, *args, **kwargs)
            _last.headers = response.headers
            return response

    return HttpClient(timeout=timeout)


#: The headers of this thread's last answer: the client's exception doesn't carry them.
_last = threading.local()


# Reading webhooks


def _is_form(request: WebhookRequest) -> bool:
    return request.content_type.split(";")[0].strip().lower() == FORM


def _form(request: WebhookRequest) -> Mapping[str, list[str]]:
    """All fields, empty and unknown ones too. Raises NotAFormError."""
    try:
        return dict(QueryDict(request.body, encoding="utf-8").lists())
    except (SuspiciousOperation, UnicodeError) as error:
        raise NotAFormError(f"the form cannot be read: {error}") from error


def _received(form: Mapping[str, str]) -> ReceivedText:
    sid = reading.text_at(form, "MessageSid", "MessageSid", reading.ID_MAX_LENGTH)
    count = min(reading.whole(form.get("NumMedia", "0")) or 0, reading.MAX_MEDIA)
    media = [
        reading.media_item(form.get(f"MediaUrl{place}"), form.get(f"MediaContentType{place}"))
        for place in range(count)
    ]
    return ReceivedText(
        event_id=sid,  # Twilio names the message alone
        message_id=sid,
        from_number=reading.number_at(form, "From", "From"),
        to_number=reading.number_at(form, "To", "To"),
        text=clean_text(form.get("Body", "")),
        media=[item for item in media if item],
        keyword=_keyword(form.get("OptOutType")),
    )


def _report(form: Mapping[str, str], url: str) -> DeliveryReport:
    sid = reading.text_at(form, "MessageSid", "MessageSid", reading.ID_MAX_LENGTH)
    said, code = reading.word(form["MessageStatus"], 64), reading.word(form.get("ErrorCode"), 32)
    done = reading.word(form.get("RawDlrDoneDate"), 32)
    return _reported(
        # A report has no name of its own: each status, with its reason, is reported once.
        f"{sid}:{said}:{code}:{done}", sid, said, code,
        reading.word(form.get("ErrorMessage") or form.get("ChannelStatusMessage"), 1000), url,
    )  # fmt: skip


def _reported(event_id: str, sid: str, said: str, code: str, detail: str, url: str) -> DeliveryReport:
    uid, attempt = reading.correlation(url)
    code = "" if code == "0" else code
    return DeliveryReport(
        event_id=event_id,
        provider_id=sid,
        said=said,
        status=STATUSES.get(said),
        code=code,
        detail=detail,
        passes=code in _PASSES,
        opted_out=code == _OPTED_OUT,
        uid=uid,
        attempt=attempt,
    )


def _events(body: Any, url: str) -> list[Event]:
    """Event Streams: a list of CloudEvents. Those that are about something else are left out."""
    events: list[Event] = []
    for place, event in enumerate(body if isinstance(body, list) else [body]):
        kind = event.get("type") if isinstance(event, dict) else None
        if not isinstance(kind, str):
            raise reading.bad(f"[{place}].type", "must be a text")
        if kind != _RECEIVED and not kind.startswith(_REPORTED):
            continue
        data = reading.object_at(event, "data", f"[{place}].data")
        id = reading.text_at(event, "id", f"[{place}].id", reading.ID_MAX_LENGTH)
        sid = reading.text_at(data, "messageSid", f"[{place}].data.messageSid", reading.ID_MAX_LENGTH)
        if kind != _RECEIVED:
            said, code = kind.removeprefix(_REPORTED), reading.word(data.get("errorCode"), 32)
            detail = reading.word(data.get("errorMessage"), 1000)
            events.append(_reported(id, sid, said, code, detail, url))
            continue
        events.append(
            ReceivedText(
                event_id=id,
                message_id=sid,
                from_number=reading.number_at(data, "from", f"[{place}].data.from"),
                to_number=reading.number_at(data, "to", f"[{place}].data.to"),
                text=clean_text(data["body"]) if isinstance(data.get("body"), str) else "",
                media=[],  # Event Streams only count them
                sent_at=reading.moment(data.get("timestamp")),
                keyword=_keyword(data.get("optOutType")),
            )
        )
    return events


def _keyword(value: Any) -> Keyword | None:
    """``OptOutType``: Twilio took it for a keyword, and has answered."""
    word = value.lower() if isinstance(value, str) else ""
    return Keyword(word) if word in Keyword.values else None


# Reading answers


def _report_of(message: Any) -> DeliveryReport:
    """What Twilio says of a message when it is asked."""
    said = reading.word(getattr(message.status, "value", message.status), 64)
    report = _reported(
        "", message.sid, said, reading.word(message.error_code, 32),
        reading.word(message.error_message, 1000), "",
    )  # fmt: skip
    cost = reading.money(message.price)
    return DeliveryReport(
        **{
            **report.__dict__,
            "at": message.date_updated,
            "parts": reading.whole(message.num_segments),
            "cost": cost,
            "currency": reading.currency(message.price_unit) if cost is not None else "",
        }
    )


def _refusal(error: TwilioRestException) -> TemporaryFailure | PermanentFailure | OutcomeUnknown:
    code = "" if error.code is None else str(error.code)
    message = f"HTTP {error.status}{f' {code}' if code else ''}: {error.msg}"
    if error.status < 400:
        return OutcomeUnknown(message, reason=code)
    if error.status in _NOT_DONE or code in _CROWDED:
        crowded = error.status == 429 or code in _CROWDED
        return TemporaryFailure(message, reason=code, retry_after=_retry_after(), crowded=crowded)
    if error.status >= 500:
        return OutcomeUnknown(message, reason=code)
    return PermanentFailure(message, reason=code, opted_out=code == _OPTED_OUT)


def _no_answer(error: OSError) -> TemporaryFailure | OutcomeUnknown:
    from requests import exceptions
    from urllib3.exceptions import (
        ConnectTimeoutError,
        MaxRetryError,
        NewConnectionError,
        ProxyError,
        SSLError,
    )

    text = f"{type(error).__name__}: {error}"
    # These come before a single byte of the request has left.
    if isinstance(error, exceptions.ConnectTimeout | exceptions.SSLError | exceptions.ProxyError):
        return TemporaryFailure(text)
    cause = error.args[0] if error.args else None
    reason = cause.reason if isinstance(cause, MaxRetryError) else cause
    if isinstance(reason, NewConnectionError | ConnectTimeoutError | SSLError | ProxyError):
        return TemporaryFailure(text)
    return OutcomeUnknown(text)


def _retry_after() -> float | None:
    try:
        return min(max(float(getattr(_last, "headers", {}).get("Retry-After", "")), 0.0), _LONGEST_PAUSE)
    except ValueError:
        return None
