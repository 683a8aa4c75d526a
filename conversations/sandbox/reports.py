"""Delivers the sandbox's events, as providers do: signed, each at its moment, again after a failure."""

from __future__ import annotations

import heapq
import itertools
import json
import logging
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from urllib.parse import urlencode

import httpx

from conversations.sandbox.messages import Message, Messages
from conversations.signatures import sign, sign_twilio

logger = logging.getLogger(__name__)

#: Deliveries of one event, and the pauses between them in seconds.
TRIES = 4
PAUSE = 0.5
#: How long a provider waits for an acknowledgement: Telnyx's 2 s.
PATIENCE = 2.0
WORKERS = 16


@dataclass(frozen=True, slots=True)
class Delivered:
    """One request to a webhook: what it was about, its answer (0: none in time), how long that took."""

    provider: str
    said: str
    event_id: str
    status: int
    seconds: float


@dataclass(order=True)
class _Due:
    at: float
    number: int
    post: Callable[[], None] = field(compare=False)


class Reports:
    """Events that wait for their moment. One thread keeps the time, several deliver."""

    def __init__(self, messages: Messages) -> None:
        self.messages = messages
        self.options = messages.options
        self.delivered: list[Delivered] = []
        self._heap: list[_Due] = []
        self._numbers = itertools.count()
        self._some = threading.Condition()
        self._busy = 0
        self._stopped = False
        self._pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="sandbox-reports")
        self._client = httpx.Client(
            timeout=PATIENCE, limits=httpx.Limits(max_connections=WORKERS), trust_env=False
        )
        self._thread = threading.Thread(target=self._loop, name="sandbox-clock", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        with self._some:
            self._stopped = True
            self._some.notify_all()
        self._thread.join()
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._client.close()

    @property
    def idle(self) -> bool:
        """Whether every event was delivered."""
        with self._some:
            return not self._heap and not self._busy

    def plan(self, message: Message, statuses: list[tuple[str, str]]) -> None:
        """Reports each of these (status, code), in this order unless it is shuffled."""
        options, chance = self.options, self.messages.chance
        # Apart from each other, so that their order is what was asked for and not chance's.
        with self.messages.lock:
            jitter = [0.5 * self.messages.random.random() for _ in statuses]
        moments = [
            options.delay * (place - less) / len(statuses) for place, less in enumerate(jitter, start=1)
        ]
        if chance(options.shuffled):
            moments.reverse()
        for (status, code), moment in zip(statuses, moments, strict=True):
            if chance(options.late):
                moment += options.delay * 10
            event_id = str(uuid.uuid4())
            report = partial(self._report, message, status, code, event_id)
            self._at(moment, report)
            if chance(options.doubled):
                again = moment + options.delay * 0.5
                self._at(again, report)

    def inbound(self, message: Message, url: str, again: int = 0) -> None:
        """Delivers a text that came in, and the same once more ``again`` times."""
        event_id = str(uuid.uuid4())
        for number in range(again + 1):
            self._at(number * 0.01, partial(self._inbound, message, url, event_id))

    # The clock

    def _at(self, seconds: float, post: Callable[[], None]) -> None:
        with self._some:
            heapq.heappush(self._heap, _Due(time.monotonic() + seconds, next(self._numbers), post))
            self._some.notify_all()

    def _loop(self) -> None:
        while True:
            with self._some:
                while not self._stopped and not (self._heap and self._heap[0].at <= time.monotonic()):
                    left = self._heap[0].at - time.monotonic() if self._heap else None
                    self._some.wait(left)
                if self._stopped:
                    return
                due = heapq.heappop(self._heap)
                self._busy += 1
            self._pool.submit(self._run, due.post)

    def _run(self, post: Callable[[], None]) -> None:
        try:
            post()
        except Exception:
            logger.exception("an event was not delivered")
        finally:
            with self._some:
                self._busy -= 1
                self._some.notify_all()

    # Posting

    def _report(self, message: Message, status: str, code: str, event_id: str) -> None:
        # What it says of itself when it is asked is never behind what it has reported.
        with self.messages.lock:
            if _RANK.get(status, 0) >= _RANK.get(message.status, 0):
                message.set(status, code)
        url = message.callback or self.options.webhook_of(message.provider)
        if not url:
            return
        if message.provider == "telnyx":
            from conversations.sandbox import telnyx

            body = json.dumps(telnyx.report(message, status, code, event_id)).encode()
            self._post(message, status, event_id, url, body, None)
        else:
            from conversations.sandbox import twilio

            form = twilio.report(message, status, code, self.options.twilio_account)
            self._post(message, status, event_id, url, None, form)

    def _inbound(self, message: Message, url: str, event_id: str) -> None:
        if message.provider == "telnyx":
            from conversations.sandbox import telnyx

            keyword = self.messages.heed(message)
            body = json.dumps(telnyx.received(message, event_id, keyword, self.messages)).encode()
            self._post(message, "received", event_id, url, body, None)
        else:
            from conversations.sandbox import twilio

            self.messages.heed(message)
            form = twilio.received(message, self.options.twilio_account, self.messages)
            self._post(message, "received", event_id, url, None, form)

    def _post(
        self,
        message: Message,
        said: str,
        event_id: str,
        url: str,
        body: bytes | None,
        form: dict[str, str] | None,
    ) -> None:
        for attempt in range(1, TRIES + 1):
            if form is not None:
                content = urlencode(form).encode()
                fields = {name: [value] for name, value in form.items()}
                headers = {
                    "Content-Type": "application/x-www-form-urlencoded",
                    **sign_twilio(url, fields, self.options.twilio_token),
                }
            else:
                content = body or b""
                headers = {"Content-Type": "application/json", **sign(content, self.options.signing_key)}
            began = time.monotonic()
            try:
                status = self._client.post(url, content=content, headers=headers).status_code
            except httpx.HTTPError as error:
                logger.info("%s: %r", url, error)
                status = 0
            took = time.monotonic() - began
            with self._some:
                self.delivered.append(Delivered(message.provider, said, event_id, status, took))
            if 200 <= status < 300:
                if said != "received":
                    message.reports.append(said)
                return
            if attempt < TRIES and not self._stopped:
                time.sleep(PAUSE * 2 ** (attempt - 1))


_RANK = {
    "queued": 0, "accepted": 0, "sending": 1, "sent": 2, "delivery_unconfirmed": 3,
    "sending_failed": 4, "failed": 4, "delivery_failed": 4, "undelivered": 4, "delivered": 5,
}  # fmt: skip
