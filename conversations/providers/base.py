"""What a text provider is: one class that verifies and reads what comes in, and sends what goes out.

A new provider is one file beside this one, copied from its nearest sibling, and its name in
``conversations/providers/__init__.py`` (or in the setting ``SMS_PROVIDERS``). Everything that all of them
have in common (duplicates, consent, retries, statuses, costs) is not theirs.
"""

from __future__ import annotations

import datetime as dt
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import UUID

from conversations.exceptions import (
    CannotAsk,
    OutcomeUnknown,
    PermanentFailure,
    TemporaryFailure,
    UnknownProviderError,
)
from conversations.models import Keyword, TextStatus

if TYPE_CHECKING:
    from conversations.models import OutboundText

__all__ = [
    "Answer",
    "CannotAsk",
    "DeliveryReport",
    "Event",
    "OutcomeUnknown",
    "Outgoing",
    "PermanentFailure",
    "ReceivedText",
    "SendResult",
    "TemporaryFailure",
    "TextProvider",
    "WebhookRequest",
]


@dataclass(frozen=True)
class WebhookRequest:
    """One request of a provider, exactly as it came."""

    url: str  # as the provider called it, whatever proxy was between; "" unless ``reads_url``
    headers: Mapping[str, str]  # looked up in any case
    body: bytes
    content_type: str = ""
    local: bool = False  # straight from this machine, to a development site: development keys count


@dataclass(frozen=True)
class ReceivedText:
    """One inbound text: numbers in E.164 where they are numbers, text without U+0000 and lone surrogates."""

    event_id: str
    message_id: str
    from_number: str
    to_number: str
    text: str  # empty when only media came
    media: list[dict[str, Any]]  # {"url", "content_type", "size", "sha256"}; the last two may be None
    sent_at: dt.datetime | None = None  # UTC; by the provider's clock
    keyword: Keyword | None = None  # what the provider took it for, and has answered itself


@dataclass(frozen=True)
class DeliveryReport:
    """What a provider says of a text that it sent: in a webhook, or when it is asked."""

    event_id: str  # the same for each delivery of one report
    provider_id: str
    said: str  # its own word for the status
    status: TextStatus | None  # what that means; None: nothing
    code: str = ""  # its own code for what went wrong
    detail: str = ""
    # Whether what went wrong may pass: the text may be sent again.
    passes: bool = False
    opted_out: bool = False  # what went wrong is that they want no texts
    at: dt.datetime | None = None
    parts: int | None = None
    cost: Decimal | None = None
    currency: str = ""
    uid: UUID | None = None  # ours: which text, and which of its tries
    attempt: int | None = None


Event = ReceivedText | DeliveryReport


@dataclass(frozen=True)
class Answer:
    """What a webhook answers when the provider wants something other than our JSON."""

    content_type: str
    body: bytes


@dataclass(frozen=True)
class SendResult:
    """The provider has the text. ``provider_id`` is its name for it: delivery reports carry it."""

    provider_id: str
    parts: int | None = None
    cost: Decimal | None = None
    currency: str = ""


@dataclass(frozen=True)
class Outgoing:
    """A text for a provider: the row of the outbox, and what only the moment of sending knows."""

    text: OutboundText
    media_urls: Sequence[str] = field(default_factory=tuple)
    callback_url: str = ""  # where reports of this try are wanted; "": wherever the account says


class TextProvider(ABC):
    """One instance a process, called from several threads at once, outside any transaction."""

    #: Stored with each text; what the webhook's address calls it.
    name: ClassVar[str]
    #: Whether it answers STOP, START and HELP without telling us.
    answers_keywords: ClassVar[bool] = False
    #: Whether ``look_up`` can find a text whose answer was lost, and tell that there is none.
    finds: ClassVar[bool] = False
    #: Whether reports leave out the cost, so that it must be asked for.
    asks_cost: ClassVar[bool] = False
    #: Whether ``verify`` or ``read`` want ``WebhookRequest.url``.
    reads_url: ClassVar[bool] = True
    #: What the webhook answers; None: ``{"status": ...}`` as JSON.
    answer: ClassVar[Answer | None] = None

    @abstractmethod
    def send(self, outgoing: Outgoing) -> SendResult:
        """Hands one text to the provider, within SMS_TIMEOUT seconds, trying once.

        Raises TemporaryFailure or PermanentFailure when the text was certainly not sent, OutcomeUnknown
        when it may have been. Any other exception counts as OutcomeUnknown: better a text that an operator
        looks at than the same text twice.
        """

    def ready(self) -> None:  # noqa: B027 - most need nothing
        """Raises ConfigurationError when it cannot send: texts then wait."""

    def warm(self) -> None:  # noqa: B027 - most need nothing
        """Loads what ``send`` needs. Called before texts are claimed: those of a worker that dies while it
        still imports a client would be "unknown", though nobody had them."""

    def verify(self, request: WebhookRequest) -> None:
        """Returns when the provider signed this request. Raises a SignatureError, or UnknownProviderError."""
        raise UnknownProviderError(f"{self.name} delivers nothing")

    def read(self, request: WebhookRequest) -> list[Event]:
        """What a verified request says; empty for events that are not ours to know. Raises a WebhookError."""
        return []

    def meaning_of(self, code: str, detail: str) -> tuple[bool, bool]:
        """Of a code in a report: whether its reason passes; whether it says that they want no texts."""
        return False, False

    def look_up(self, text: OutboundText, taken: Collection[str] = ()) -> DeliveryReport | None:
        """What the provider knows of a text now; None when it has certainly never had it.

        By ``provider_id`` where the text has one; else, where ``finds`` is true, by its numbers, words and
        time, among the messages that are no other text's (``taken`` are the ids of those). Raises CannotAsk
        where it cannot say, or not this time.
        """
        raise CannotAsk(f"{self.name} cannot be asked")

    def api_url(self) -> str:
        """Where its API is; empty for one that has none."""
        return ""

    def media_headers(self, url: str) -> dict[str, str]:
        """The credentials for fetching media, for the provider's own addresses alone; else nothing."""
        return {}
