"""What can go wrong with texts, as types. Each class has a stable ``code``; its docstring says what to do.

AgentsError (agents/exceptions.py)
├── TextError                 a text that cannot be sent; raised by ``self.sms.send``
│   ├── NobodyToTextError     nobody has written yet, and no number was given
│   ├── BadNumberError        a number that no text can go to or come from
│   ├── EmptyTextError        a text without a word
│   ├── TextTooLongError      also a LimitError: more than ten segments
│   ├── BadMediaError         a picture or file that no text can carry
│   └── OptedOutError         also a GiveUp: this person wants no texts from this number
├── WebhookError              a delivery that the webhook refuses; ``status`` is the HTTP status
│   ├── SignatureError        403
│   │   ├── MissingSignatureError    401
│   │   ├── MalformedSignatureError  401
│   │   ├── StaleTimestampError      403, also for moments in the future
│   │   ├── WrongSignatureError      403
│   │   └── NoPublicKeyError         403
│   ├── UnknownProviderError  404
│   ├── BodyTooLargeError     413
│   ├── UnreadableBodyError   400
│   ├── NotJSONError          400
│   ├── NotAFormError         400
│   └── BadFieldError         400, ``field`` says which
├── MediaError                a picture or file that came with a text cannot be had
│   ├── MediaRefusedError     and never will be: too large, of a wrong type, at a forbidden place, gone
│   └── MediaUnavailableError not now
└── ProviderError             a text that its provider did not take; raised by providers
    ├── TemporaryFailure      certainly not sent: worth another try
    ├── PermanentFailure      certainly not sent, and never will be
    ├── OutcomeUnknown        nobody can say whether it was sent
    └── CannotAsk             the provider does not say what became of a text
"""

from __future__ import annotations

from typing import ClassVar

from agents.exceptions import AgentsError, GiveUp, LimitError


class TextError(AgentsError):
    """This text cannot be sent."""

    code = "text_error"


class NobodyToTextError(TextError):
    """Nobody has texted this actor yet: give ``to`` and ``sender``."""

    code = "nobody_to_text"


class BadNumberError(TextError, ValueError):
    """Texts go to numbers such as "+15550001111" and to short codes."""

    code = "bad_number"


class EmptyTextError(TextError, ValueError):
    """A text needs at least one character that is not blank."""

    code = "empty_text"


class TextTooLongError(TextError, LimitError):
    """A text may have ten segments. ``conversations.segments.fit`` cuts one to that length."""

    code = "text_too_long"


class BadMediaError(TextError, ValueError):
    """Media are addresses that begin with https:// or keys of ``self.blobs``, ten at most."""

    code = "bad_media"


class OptedOutError(TextError, GiveUp):
    """This person wants no texts from this number. ``self.sms.opted_out()`` tells it beforehand.

    A task that it ends is parked at once: to try again cannot help. ``to`` and ``sender`` are the numbers.
    """

    code = "opted_out"
    to: str = ""
    sender: str = ""


class WebhookError(AgentsError):
    """The webhook refuses this delivery."""

    code = "webhook_error"
    status: ClassVar[int] = 400


class SignatureError(WebhookError):
    """Nobody who holds the provider's key sent this."""

    code = "bad_signature"
    status = 403


class MissingSignatureError(SignatureError):
    """The delivery is not signed: it has no signature or no timestamp header."""

    code = "signature_missing"
    status = 401


class MalformedSignatureError(SignatureError):
    """The signature is not base64 of its length, or the timestamp is not a number of seconds."""

    code = "signature_malformed"
    status = 401


class StaleTimestampError(SignatureError):
    """The timestamp is more than 300 seconds from now: an old delivery played again, or a wrong clock."""

    code = "timestamp_out_of_range"


class WrongSignatureError(SignatureError):
    """No public key of ours matches the signature of these bytes."""

    code = "signature_wrong"


class NoPublicKeyError(SignatureError):
    """No key is configured (TELNYX_PUBLIC_KEY, TWILIO_AUTH_TOKEN): the webhook refuses everything."""

    code = "no_public_key"


class UnknownProviderError(WebhookError):
    """No provider of this name takes webhooks here: see SMS_PROVIDERS."""

    code = "unknown_provider"
    status = 404


class BodyTooLargeError(WebhookError):
    """The body is larger than 1 MiB."""

    code = "body_too_large"
    status = 413


class UnreadableBodyError(WebhookError):
    """The body could not be read as sent: it ended early, or it is a form that a middleware has read."""

    code = "body_unreadable"


class NotJSONError(WebhookError):
    """The body is not strict JSON in UTF-8."""

    code = "not_json"


class NotAFormError(WebhookError):
    """The body is not a form (application/x-www-form-urlencoded) in UTF-8, or has too many fields."""

    code = "not_a_form"


class BadFieldError(WebhookError):
    """A field is missing, or is not what it should be. ``field`` is its path."""

    code = "bad_field"
    field: str = ""


class MediaError(AgentsError):
    """A picture or file that came with a text cannot be had."""

    code = "media_error"


class MediaRefusedError(MediaError):
    """It will never be had: it is too large, of another type, gone, or at a place where nobody may look."""

    code = "media_refused"


class MediaUnavailableError(MediaError):
    """It cannot be had now; the next try may succeed."""

    code = "media_unavailable"


class ProviderError(AgentsError):
    """The provider did not take a text. ``reason`` is the provider's own code, or empty."""

    code = "provider_error"
    reason: str = ""


class TemporaryFailure(ProviderError):  # noqa: N818 - named for what the outbox does next
    """Certainly not sent; the next try may succeed. ``retry_after`` (seconds) is the provider's wish.

    ``crowded``: because too much was sent; other texts of the same number should wait as long.
    """

    code = "temporary_failure"
    retry_after: float | None = None
    crowded: bool = False


class PermanentFailure(ProviderError):  # noqa: N818
    """Certainly not sent, and the next try would end the same way. ``opted_out``: they want no texts."""

    code = "permanent_failure"
    opted_out: bool = False


class OutcomeUnknown(ProviderError):  # noqa: N818
    """The request left and no clear answer came: it may have been sent, so nobody sends it again."""

    code = "text_outcome_unknown"


class CannotAsk(ProviderError):  # noqa: N818
    """The provider does not say what became of a text, or not this time."""

    code = "cannot_ask"
