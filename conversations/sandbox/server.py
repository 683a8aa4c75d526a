"""The sandbox's HTTP server: routes requests to the APIs, and does what their numbers ask for."""

from __future__ import annotations

import base64
import json
import logging
import re
import socket
import threading
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from conversations.sandbox import telnyx, twilio
from conversations.sandbox.magic import Fate, Oddity
from conversations.sandbox.messages import Message, Messages, Options
from conversations.sandbox.reports import Delivered, Reports

logger = logging.getLogger(__name__)

Reply = tuple[int, Any, dict[str, str]]

MAX_BODY = 1024 * 1024


class Sandbox:
    """A running sandbox, on loopback. ``options`` may be changed while it runs."""

    def __init__(self, options: Options | None = None, *, port: int = 0, **changes: Any) -> None:
        self.options = replace(options or Options(), **changes)
        self.messages = Messages(self.options)
        self.reports = Reports(self.messages)
        self._ended = threading.Event()
        self._server = _Server(("127.0.0.1", port), self)
        self.port: int = self._server.server_port
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, name="sandbox", daemon=True
        )
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        self._ended.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self.reports.stop()

    # Where it is

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def telnyx_url(self) -> str:
        """For TELNYX_BASE_URL."""
        return f"{self.url}/v2"

    @property
    def settings(self) -> dict[str, Any]:
        """The keys of ``AGENTS`` with which a site talks to this sandbox through either provider."""
        raw = self.options.signing_key.public_key().public_bytes_raw()
        return {
            "TELNYX_API_KEY": self.options.telnyx_key,
            "TELNYX_BASE_URL": self.telnyx_url,
            "TELNYX_PUBLIC_KEYS": [base64.b64encode(raw).decode()],
            "TWILIO_ACCOUNT_SID": self.options.twilio_account,
            "TWILIO_AUTH_TOKENS": [self.options.twilio_token],
            "TWILIO_BASE_URL": self.url,
        }

    # What it did

    @property
    def sent(self) -> list[Message]:
        """The texts that it took, in order."""
        return self.messages.outbound()

    @property
    def delivered(self) -> list[Delivered]:
        """Its requests to webhooks."""
        return list(self.reports.delivered)

    def settle(self, timeout: float = 30.0) -> None:
        """Waits until every event was delivered. Raises TimeoutError."""
        deadline = time.monotonic() + timeout
        while not self.reports.idle:
            if time.monotonic() > deadline:
                raise TimeoutError("there are events that were not delivered")
            time.sleep(0.02)

    # What somebody does on their phone

    def text(
        self,
        provider: str,
        sender: str,
        to: str,
        text: str = "",
        *,
        media: Sequence[str] = (),
        webhook: str = "",
        again: int = 0,
    ) -> Message:
        """A text comes in: it is delivered to the webhook, ``again`` times more. Returns it at once."""
        url = webhook or self.options.webhook_of(provider)
        if not url:
            raise ValueError("no webhook takes texts: give one")
        message = self.messages.add(
            Message(provider, "inbound", sender, to, text, list(media), status="received")
        )
        self.reports.inbound(message, url, again)
        return message

    def picture(self, body: bytes, content_type: str = "image/png", *, redirect: bool = False) -> str:
        """The address of a picture that came with a text: wants the provider's credentials.

        With ``redirect`` it leads to another address, which refuses credentials.
        """
        id = uuid.uuid4().hex
        self.messages.media[id] = (content_type, body)
        return f"{self.url}/sandbox/{'moved' if redirect else 'media'}/{id}"

    # Requests

    def answer(self, request: _Handler, method: str) -> Reply | None:
        """What a request is answered; None: nothing, the connection is cut."""
        parts = urlsplit(request.path)
        for pattern, verb, route in _ROUTES:
            if verb == method and (match := re.fullmatch(pattern, parts.path)):
                reply: Reply | None = getattr(self, route)(
                    request, parse_qs(parts.query), **match.groupdict()
                )
                return reply
        return 404, {"errors": [{"code": "10005", "title": "Resource not found"}]}, {}

    def _telnyx(self, request: _Handler) -> Reply | None:
        if request.headers.get("Authorization") != f"Bearer {self.options.telnyx_key}":
            return telnyx.error(401, "10009", "Authentication failed")
        return None

    def _twilio(self, request: _Handler) -> Reply | None:
        account = f"{self.options.twilio_account}:{self.options.twilio_token}"
        expected = f"Basic {base64.b64encode(account.encode()).decode()}"
        return None if request.headers.get("Authorization") == expected else twilio.error(401, "20003")

    def telnyx_send(self, request: _Handler, query: Any) -> Reply | None:
        if refusal := self._telnyx(request):
            return refusal
        try:
            fields = json.loads(request.body)
        except ValueError:
            return telnyx.error(400, "10015", "Bad Request")
        reply, message, fate = telnyx.send(self.messages, fields)
        return self._sent(reply, message, fate, telnyx.statuses)

    def telnyx_show(self, request: _Handler, query: Any, id: str) -> Reply | None:
        return self._telnyx(request) or telnyx.show(self.messages, id)

    def telnyx_key(self, request: _Handler, query: Any) -> Reply | None:
        return self._telnyx(request) or telnyx.public_key(self.messages)

    def twilio_send(self, request: _Handler, query: Any, account: str) -> Reply | None:
        if refusal := self._twilio(request):
            return refusal
        form = parse_qs(request.body.decode(), keep_blank_values=True)
        reply, message, fate = twilio.send(self.messages, form)
        return self._sent(reply, message, fate, twilio.statuses)

    def twilio_find(self, request: _Handler, query: Any, account: str) -> Reply | None:
        return self._twilio(request) or twilio.find(self.messages, query)

    def twilio_show(self, request: _Handler, query: Any, account: str, sid: str) -> Reply | None:
        return self._twilio(request) or twilio.show(self.messages, sid)

    def _sent(self, reply: Reply, message: Message | None, fate: Fate, statuses: Any) -> Reply | None:
        if self.options.answer:
            time.sleep(self.options.answer)
        if message is not None:
            nth = self.messages.nth_try(message.to, message.text)
            self.reports.plan(message, statuses(fate, nth))
        lost = message is not None and self.messages.chance(self.options.lost)
        if fate.oddity is Oddity.NO_ANSWER or lost:
            self._ended.wait(self.options.hang)
            return None
        if fate.oddity in (Oddity.BREAKS, Oddity.BREAKS_UNSENT):
            return None
        if fate.status == 504 or fate.oddity is Oddity.GATEWAY:
            return 504, b"<html>upstream</html>", {}
        return reply

    # Its own

    def media(self, request: _Handler, query: Any, id: str) -> Reply | None:
        if self._telnyx(request) and self._twilio(request):
            return 401, b"", {}
        content_type, body = self.messages.media.get(id, ("", None))
        return (200, body, {"Content-Type": content_type}) if body is not None else (404, b"", {})

    def moved(self, request: _Handler, query: Any, id: str) -> Reply | None:
        if self._telnyx(request) and self._twilio(request):
            return 401, b"", {}
        return 307, b"", {"Location": f"/sandbox/public/{id}"}

    def public(self, request: _Handler, query: Any, id: str) -> Reply | None:
        if request.headers.get("Authorization"):
            return 400, b"credentials", {}
        content_type, body = self.messages.media.get(id, ("", None))
        return (200, body, {"Content-Type": content_type}) if body is not None else (404, b"", {})

    def listing(self, request: _Handler, query: Any) -> Reply | None:
        return 200, {"texts": [message.as_dict() for message in self.messages]}, {}

    def incoming(self, request: _Handler, query: Any) -> Reply | None:
        try:
            given = json.loads(request.body)
            message = self.text(
                given.get("provider", "telnyx"), given["from"], given["to"], given.get("text", ""),
                media=given.get("media", []), webhook=given.get("webhook", ""), again=given.get("again", 0),
            )  # fmt: skip
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return 400, {"error": str(error)}, {}
        return 202, message.as_dict(), {}


_ACCOUNT = r"/2010-04-01/Accounts/(?P<account>AC[0-9A-Za-z]+)"
_ROUTES: list[tuple[str, str, str]] = [
    (r"/v2/messages", "POST", "telnyx_send"),
    (r"/v2/messages/(?P<id>[^/]+)", "GET", "telnyx_show"),
    (r"/v2/public_key", "GET", "telnyx_key"),
    (rf"{_ACCOUNT}/Messages\.json", "POST", "twilio_send"),
    (rf"{_ACCOUNT}/Messages\.json", "GET", "twilio_find"),
    (rf"{_ACCOUNT}/Messages/(?P<sid>[^/]+)\.json", "GET", "twilio_show"),
    (r"/sandbox/media/(?P<id>\w+)", "GET", "media"),
    (r"/sandbox/moved/(?P<id>\w+)", "GET", "moved"),
    (r"/sandbox/public/(?P<id>\w+)", "GET", "public"),
    (r"/sandbox/texts", "GET", "listing"),
    (r"/sandbox/texts", "POST", "incoming"),
]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        logger.debug("a client went away", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server
    body = b""

    def do_GET(self) -> None:
        self._answer("GET")

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        if length > MAX_BODY:
            self._send(413, b"", {})
            return
        self.body = self.rfile.read(length)
        self._answer("POST")

    def _answer(self, method: str) -> None:
        try:
            reply = self.server.sandbox.answer(self, method)
        except Exception:
            logger.exception("%s %s", method, self.path)
            reply = 500, b"", {}
        if reply is None:
            self.close_connection = True
            with suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)
            return
        self._send(*reply)

    def _send(self, status: int, body: Any, headers: dict[str, str]) -> None:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        sent = {
            "Content-Type": "text/html" if isinstance(body, bytes) else "application/json",
            "Content-Length": str(len(raw)),
            **headers,
        }
        for name, value in sent.items():
            self.send_header(name, value)
        self.end_headers()
        with suppress(OSError):
            self.wfile.write(raw)

    def log_message(self, format: str, *args: Any) -> None:
        logger.debug(format, *args)
