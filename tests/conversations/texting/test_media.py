"""Pictures and files of texts: fetched after the acknowledgement, kept, served, given to models, sent."""

from __future__ import annotations

import base64
import datetime as dt
import gzip
import socket
import ssl
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from django.test import Client
from django.urls import reverse

from agents import clock
from agents.models import Actor, Blob
from agents.testing import advance, drain
from conversations import fetch as fetching
from conversations import media, outbox
from conversations.exceptions import BadMediaError, MediaRefusedError, MediaUnavailableError
from conversations.fetch import fetch
from conversations.filetypes import MAX_PICTURE
from conversations.models import InboundText, Message, OutboundText
from conversations.providers import memory
from conversations.sandbox import Sandbox
from scheduler.models import Attempt
from tests.conversations.providers import check_anthropic, check_langchain, check_openai
from tests.conversations.texting.agents import TextedAgent

pytestmark = pytest.mark.django_db(transaction=True)

THEIRS, OURS = "+15550001111", "+15550009999"


def png(side: int = 2) -> bytes:
    """A real picture."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + b"\xff\0\0" * side for _ in range(side))
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


PNG = png()
JPEG = b"\xff\xd8\xff\xe0" + b"\0" * 20


# Fetching


class Place:
    """A server that answers what it is told, and writes down what it was asked."""

    def __init__(self, port: int, scheme: str) -> None:
        self.port, self.scheme = port, scheme
        self.origin = (scheme, "127.0.0.1", port)
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.answer: Callable[[Any], None] = lambda handler: respond(handler, PNG)

    def url(self, path: str = "/a", host: str = "127.0.0.1") -> str:
        return f"{self.scheme}://{host}:{self.port}{path}"


def respond(handler: Any, body: bytes, status: int = 200, **headers: str) -> None:
    handler.send_response(status)
    sent = {"Content-Type": "image/png", "Content-Length": str(len(body))}
    sent |= {name.replace("_", "-"): value for name, value in headers.items()}
    for name, value in sent.items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(body)


@contextmanager
def serve(context: ssl.SSLContext | None = None, port: int = 0) -> Iterator[Place]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            told.asked.append((self.path, dict(self.headers.items())))
            told.answer(self)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            pass  # a client that has read enough

    server = Server(("127.0.0.1", port), Handler)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    told = Place(server.server_port, "https" if context else "http")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield told
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def place() -> Iterator[Place]:
    with serve() as place:
        yield place


def get(place: Place, path: str = "/a", *, maximum: int = 1000, timeout: float = 3.0, **more: Any) -> Any:
    return fetch(place.url(path), maximum=maximum, timeout=timeout, exempt=[place.origin], **more)


def test_a_file_is_fetched_with_the_credentials_that_were_given(place):
    found = get(place, headers={"Authorization": "Bearer secret"})
    assert (found.body, found.content_type) == (PNG, "image/png")
    ((path, headers),) = place.asked
    assert (path, headers["Authorization"], headers["Accept-Encoding"]) == ("/a", "Bearer secret", "identity")


def test_credentials_are_dropped_on_a_redirect_also_to_the_same_host(place):
    def answer(handler: Any) -> None:
        if handler.path == "/a":
            respond(handler, b"", 307, Location="/b")
        else:
            respond(handler, PNG)

    place.answer = answer
    assert get(place, headers={"Authorization": "Bearer secret"}).body == PNG
    assert ["Authorization" in headers for _, headers in place.asked] == [True, False]


@pytest.mark.parametrize("redirects", [5, 6])
def test_five_redirects_are_followed_and_no_sixth(place, redirects):
    def answer(handler: Any) -> None:
        number = int(handler.path[1:])
        if number < redirects:
            respond(handler, b"", 302, Location=f"/{number + 1}")
        else:
            respond(handler, PNG)

    place.answer = answer
    if redirects == 5:
        assert get(place, "/0").body == PNG
    else:
        with pytest.raises(MediaRefusedError, match="redirects"):
            get(place, "/0")


def test_a_redirect_to_a_forbidden_place_is_not_followed(place):
    with serve() as inside:
        for location in (
            inside.url(),
            "http://169.254.169.254/latest/",
            "file:///etc/passwd",
            "https://10.0.0.1/",
        ):
            place.answer = lambda handler, to=location: respond(handler, b"", 302, Location=to)
            with pytest.raises((MediaRefusedError, MediaUnavailableError)):
                get(place)
        assert inside.asked == []


@pytest.mark.parametrize(
    "url",
    [
        "http://93.184.216.34/a.jpg",
        "ftp://example.org/a.jpg",
        "file:///etc/passwd",
        "gopher://example.org/",
        "https://example.org:8443/a.jpg",
        "https:///a",
        "//example.org/a",
        "nonsense",
        "",
        "https://[::1/",
    ],
)
def test_only_https_on_its_own_port_is_fetched(url):
    with pytest.raises(MediaRefusedError):
        fetch(url, maximum=10, timeout=30)


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "localhost",
        "0x7f.1",
        "2130706433",
        "127.1",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "10.0.0.1",
        "169.254.169.254",
    ],
)
def test_no_spelling_of_a_private_address_is_fetched(host):
    with pytest.raises((MediaRefusedError, MediaUnavailableError)) as caught:
        fetch(f"https://{host}/", maximum=10, timeout=30)
    if isinstance(caught.value, MediaUnavailableError):
        assert "looked up" in str(caught.value), "this resolver knows no such spelling"


def certificate(folder: Path, host: str) -> tuple[ssl.SSLContext, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    chain, secret = folder / "chain.pem", folder / "key.pem"
    chain.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    secret.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain, secret)
    return context, chain


def test_the_address_that_was_checked_is_the_one_that_is_asked_and_tls_is_for_the_name(tmp_path, monkeypatch):
    context, chain = certificate(tmp_path, "pictures.example.org")
    monkeypatch.setenv("SSL_CERT_FILE", str(chain))
    answers = iter([["127.0.0.1"], ["127.0.0.1"], ["127.0.0.1"]])
    looked_up = []

    def resolve(host: str, port: int) -> list[str]:
        looked_up.append(host)
        return next(answers)

    monkeypatch.setattr(fetching, "resolve", resolve)  # a name server of ours
    with serve(context) as place:
        named = place.url(host="pictures.example.org")
        origin = ("https", "pictures.example.org", place.port)
        assert fetch(named, maximum=1000, timeout=30, exempt=[origin]).body == PNG
        assert looked_up == ["pictures.example.org"], "once: nothing can change in between"
        assert place.asked[0][1]["Host"] == f"pictures.example.org:{place.port}"
        # Another name has no certificate here.
        other = place.url(host="other.example.org")
        with pytest.raises(MediaUnavailableError, match=r"CERTIFICATE|certificate"):
            fetch(other, maximum=1000, timeout=30, exempt=[("https", "other.example.org", place.port)])


def test_a_name_that_means_a_private_address_among_public_ones_is_refused(monkeypatch):
    monkeypatch.setattr(fetching, "resolve", lambda host, port: ["93.184.216.34", "10.0.0.7"])
    with pytest.raises(MediaRefusedError, match="not a public address"):
        fetch("https://rebinding.example.org/", maximum=10, timeout=30)


@pytest.mark.parametrize("announced", [True, False])
def test_one_byte_too_many_is_refused_and_the_last_that_fits_is_not(place, announced):
    def answer(handler: Any) -> None:
        size = int(handler.path[1:])
        if announced:
            respond(handler, b"x" * size)
        else:
            handler.send_response(200)
            handler.end_headers()
            handler.wfile.write(b"x" * size)

    place.answer = answer
    assert len(get(place, "/1000").body) == 1000
    with pytest.raises(MediaRefusedError, match="bytes"):
        get(place, "/1001")


def test_what_is_compressed_is_refused(place):
    place.answer = lambda handler: respond(handler, gzip.compress(b"0" * 100_000), Content_Encoding="gzip")
    with pytest.raises(MediaRefusedError, match="compressed"):
        get(place)


def test_a_server_that_dribbles_is_given_up(place):
    def answer(handler: Any) -> None:
        handler.send_response(200)
        handler.end_headers()
        for _ in range(1200):
            handler.wfile.write(b"x")
            handler.wfile.flush()
            time.sleep(0.05)

    place.answer = answer
    began = time.monotonic()
    with pytest.raises(MediaUnavailableError):
        get(place, timeout=0.4)
    assert time.monotonic() - began < 30  # of 60


@pytest.mark.parametrize(("status", "error"), [
    (401, MediaRefusedError), (403, MediaRefusedError), (410, MediaRefusedError),
    (404, MediaUnavailableError), (429, MediaUnavailableError), (500, MediaUnavailableError),
    (204, MediaUnavailableError),
])  # fmt: skip
def test_other_answers_are_refusals_or_may_be_better_later(place, status, error):
    place.answer = lambda handler: respond(handler, b"", status)
    with pytest.raises(error, match=str(status)):
        get(place)


def test_where_nobody_listens_or_somebody_hangs_up_it_may_be_better_later(place):
    def hang_up(handler: Any) -> None:
        handler.connection.shutdown(socket.SHUT_RDWR)

    place.answer = hang_up
    with pytest.raises(MediaUnavailableError):
        get(place)
    with serve() as gone:
        pass
    with pytest.raises(MediaUnavailableError):
        get(gone)


# In a turn


@pytest.fixture
def sandbox(settings, live_server) -> Iterator[Sandbox]:
    webhook = f"{live_server.url}/webhooks/{{provider}}/texting/"
    with Sandbox(webhook=webhook, delay=0.02) as sandbox:
        settings.AGENTS = {**sandbox.settings, "SITE_URL": live_server.url, "SMS_PROVIDER": "memory"}
        memory.outbox.clear()
        yield sandbox
        clock.reset()


def text(sandbox: Sandbox, provider: str, words: str, *urls: str) -> None:
    sandbox.text(provider, THEIRS, OURS, words, media=urls)
    sandbox.settle()
    drain()


def parts() -> list[dict[str, Any]]:
    message = Message.objects.get(role="user")
    return message.parts or []


@pytest.mark.parametrize("provider", ["telnyx", "twilio"])
@pytest.mark.parametrize("redirect", [False, True])
@pytest.mark.parametrize("words", ["", "look"])
def test_a_picture_is_fetched_with_the_providers_key_and_kept_with_the_conversation(
    sandbox, provider, redirect, words
):
    text(sandbox, provider, words, sandbox.picture(PNG, "image/png", redirect=redirect))
    assert InboundText.objects.get().status == "accepted"
    blob = Blob.objects.get()
    assert (blob.content_type, blob.size, media.read(blob)) == ("image/png", len(PNG), PNG)
    assert blob.key == f"sms/{InboundText.objects.get().message_id}/1.png"
    *said, picture = parts()
    assert [part["text"] for part in said] == ([words] if words else [])
    assert (picture["type"], picture["mime_type"], picture["extras"]["blob"]) == (
        "image",
        "image/png",
        blob.key,
    )
    assert Message.objects.get().content == words


def test_a_picture_that_no_model_takes_for_its_size_is_kept_shown_and_named_to_models(sandbox, settings):
    limits = {"MAX_MEDIA_BYTES": MAX_PICTURE, "MAX_RESULT_BYTES": 8 * MAX_PICTURE}
    settings.AGENTS = {**settings.AGENTS, **limits}
    largest = PNG + bytes(MAX_PICTURE * 3 // 4 - len(PNG))
    text(
        sandbox,
        "telnyx",
        "",
        sandbox.picture(largest, "image/png"),
        sandbox.picture(largest + b"1", "image/png"),
    )
    (turn,) = TextedAgent.named(THEIRS).sync.for_models()["openai"]
    assert [block["type"] for block in turn["content"]] == ["image_url", "text"]
    assert [blob.size for blob in Blob.objects.order_by("size")] == [len(largest), len(largest) + 1]


def test_models_get_the_picture_itself_and_every_format_has_something_to_say(sandbox):
    text(sandbox, "telnyx", "", sandbox.picture(PNG, "image/png"), sandbox.picture(b"MThd", "audio/midi"))
    made = TextedAgent.named(THEIRS).sync.for_models()
    data = base64.b64encode(PNG).decode()
    (turn,) = made["openai"]
    assert turn["content"][0] == {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
    assert turn["content"][1]["type"] == "text", "what it cannot take is said in words"
    (turn,) = made["anthropic"]
    assert turn["content"][0]["source"] == {"type": "base64", "media_type": "image/png", "data": data}
    assert made["langchain"][0]["content"].strip()
    block = made["langchain_messages"][0]["content"][0]
    assert (block["type"], block["base64"], "url" in block) == ("image", data, False)
    check_openai(made["openai"])
    check_anthropic(made["anthropic"])
    check_langchain(made["langchain"])
    assert made == TextedAgent.named(THEIRS).sync.for_models(), "the same each time"


def test_what_is_gone_or_too_much_is_named(sandbox, settings):
    text(sandbox, "telnyx", "one", sandbox.picture(PNG))
    Message.objects.all().update(role="user")
    settings.AGENTS = {**settings.AGENTS, "MAX_WINDOW_MEDIA_BYTES": len(PNG) - 1}
    stub = TextedAgent.named(THEIRS).sync
    for _ in range(2):
        (turn,) = stub.for_models()["openai"]
        assert turn["content"] == "one\n[image: 1.png]"
        settings.AGENTS = {**settings.AGENTS, "MAX_WINDOW_MEDIA_BYTES": len(PNG)}
        Blob.objects.all().delete()


@pytest.mark.parametrize(
    ("body", "named", "kept"),
    [
        (PNG, "image/png", "image/png"),
        (JPEG, "image/png", "image/jpeg"),  # named wrongly: models refuse that
        (b"<svg onload=alert(1)>", "image/png", "application/octet-stream"),
        (b"<svg onload=alert(1)>", "image/svg+xml", "image/svg+xml"),
        (b"BEGIN:VCARD", "text/vcard; charset=utf-8", "text/vcard"),
        (b"\0\0\0 ftyp3gp4", "video/3gpp", "video/3gpp"),
    ],
)
def test_a_picture_is_what_its_bytes_say(sandbox, body, named, kept):
    text(sandbox, "telnyx", "", sandbox.picture(body, named))
    assert Blob.objects.get().content_type == kept


@pytest.mark.parametrize(
    ("body", "named", "why"),
    [
        (b"<html>", "text/html", "not kept"),
        (b"MZ", "application/x-msdownload", "not kept"),
        (b"", "image/png", "empty"),
        (PNG + b"x" * 1000, "image/png", "bytes"),
    ],
)
def test_what_is_not_taken_is_said_and_the_words_are_not_lost(sandbox, settings, body, named, why):
    settings.AGENTS = {**settings.AGENTS, "MAX_MEDIA_BYTES": 1000}
    text(sandbox, "telnyx", "look", sandbox.picture(body, named))
    assert not Blob.objects.exists()
    message = Message.objects.get()
    assert message.content.startswith("look\n[")
    assert "could not be loaded" in message.content
    assert Attempt.objects.get(method="receive").outcome == "done"


def test_a_picture_that_cannot_be_had_now_is_tried_twice_more_and_then_the_text_goes_on(sandbox):
    url = sandbox.picture(PNG)
    kept = sandbox.messages.media.pop(url.rsplit("/", 1)[-1])
    text(sandbox, "telnyx", "look", url)
    assert not Message.objects.exists()
    assert "cannot be had" in Attempt.objects.get().error
    sandbox.messages.media[url.rsplit("/", 1)[-1]] = kept
    advance(6)
    drain()
    assert Blob.objects.count() == 1

    sandbox.messages.media.clear()
    text(sandbox, "telnyx", "and this", sandbox.picture(PNG).replace("media/", "media/0"))
    for pause in media.PAUSES:
        assert Message.objects.count() == 1, "texts stay in order"
        advance(pause + 1)
        drain()
    newest = Message.objects.last()
    assert newest is not None
    assert newest.content.startswith("and this\n[")


def test_an_address_inside_our_network_is_not_asked(sandbox):
    with serve() as inside:
        text(sandbox, "telnyx", "look", inside.url(), "https://127.0.0.1/x")
        assert inside.asked == []
    assert "could not be loaded" in Message.objects.get().content


def test_credentials_go_to_the_providers_own_hosts_alone(settings):
    settings.AGENTS = {
        "TELNYX_API_KEY": "KEY",
        "TWILIO_ACCOUNT_SID": "AC1",
        "TWILIO_AUTH_TOKENS": ["token"],
    }
    basic = f"Basic {base64.b64encode(b'AC1:token').decode()}"
    for url, expected in [
        ("https://media.telnyx.com/a", "Bearer KEY"),
        ("https://api.telnyx.com/v2/a", "Bearer KEY"),
        ("https://api.twilio.com/2010-04-01/Accounts/AC1/Messages/MM1/Media/ME1", basic),
        ("http://media.telnyx.com/a", None),
        ("https://media.telnyx.com:8443/a", None),
        ("https://media.telnyx.com.example.org/a", None),
        ("https://evil.example.org/media.telnyx.com", None),
        ("https://api.twilio.com@evil.example.org/", None),
        ("https://mms.twiliocdn.com/a", None),
        ("nonsense", None),
    ]:
        assert media._credentials(url).get("Authorization") == expected, url


def test_the_acknowledgement_does_not_wait_for_a_picture(sandbox):
    sandbox.messages.media["slow"] = ("image/png", PNG)
    began = time.monotonic()
    sandbox.text("telnyx", THEIRS, OURS, "", media=["https://192.0.2.1/never"])
    sandbox.settle()
    assert time.monotonic() - began < 30
    assert sandbox.delivered[-1].status == 200


# Served


@pytest.fixture
def kept(transactional_db) -> Callable[..., str]:
    def keep(body: bytes = PNG, content_type: str = "image/png", key: str = "sms/m/1.png") -> str:
        TextedAgent.named(THEIRS).sync.keep(key, body, content_type)
        return media.url_of("texting", THEIRS, key)

    return keep


def test_a_file_is_shown_to_whoever_may_see_the_conversation(kept, alice, bob, charlie, client):
    url = kept()
    assert client.get(url).status_code == 403
    for user, status in ((charlie, 403), (alice, 200), (bob, 200)):
        client.force_login(user)
        assert client.get(url).status_code == status
    client.force_login(charlie)
    # Nobody learns what there is.
    for other in (url + "x", media.url_of("texting", "+15550002222", "a")):
        assert client.get(other).status_code == 403
    client.force_login(alice)
    assert client.get(url + "x").status_code == 404
    assert client.get(media.url_of("texting", "+15550002222", "a")).status_code == 404
    assert client.get("/media/nobody/x/a").status_code == 404
    assert client.get("/media/texting/~~~/a").status_code == 404


@pytest.mark.parametrize(
    ("content_type", "key", "disposition"),
    [
        ("image/png", "a.png", "inline; filename=\"a.png\"; filename*=UTF-8''a.png"),
        ("video/mp4", "a.mp4", "inline; filename=\"a.mp4\"; filename*=UTF-8''a.mp4"),
        ("image/svg+xml", "a.svg", "attachment; filename=\"a.svg\"; filename*=UTF-8''a.svg"),
        ("text/html", "a.html", "attachment; filename=\"a.html\"; filename*=UTF-8''a.html"),
        ("text/plain", "a", "attachment; filename=\"a\"; filename*=UTF-8''a"),
        ("application/pdf", "a.pdf", "attachment; filename=\"a.pdf\"; filename*=UTF-8''a.pdf"),
        (
            "image/png",
            'x/q"\r\n\u65e5.png',
            "inline; filename=\"q____.png\"; filename*=UTF-8''q%22%0D%0A%E6%97%A5.png",
        ),
    ],
)
def test_what_could_run_in_a_browser_is_for_saving(kept, alice, client, content_type, key, disposition):
    client.force_login(alice)
    answer = client.get(kept(b"<script>alert(1)</script>", content_type, key))
    assert answer.status_code == 200
    assert answer.headers["Content-Type"] == content_type
    assert answer.headers["Content-Disposition"] == disposition
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert "sandbox" in answer.headers["Content-Security-Policy"]
    assert answer.headers["Cache-Control"] == "private, no-cache"
    again = client.get(answer.request["PATH_INFO"], headers={"If-None-Match": answer.headers["ETag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_a_file_whose_bytes_are_gone_is_404(kept, alice, client):
    from django.core.files.storage import default_storage

    url = kept()
    default_storage.delete(Blob.objects.get().path)
    client.force_login(alice)
    assert client.get(url).status_code == 404


# Sent


def test_a_text_carries_addresses_and_files_of_the_actor(sandbox, kept, settings, live_server):
    kept(PNG, "image/png", "chart.png")
    settings.AGENTS = {**settings.AGENTS, "SMS_PROVIDER": "telnyx"}
    stub = TextedAgent.named(THEIRS).sync
    stub.say("look", media=["https://example.org/a.png", "chart.png"], to=THEIRS, sender=OURS)
    stub.say("", media=["chart.png"], to=THEIRS, sender=OURS)
    assert outbox.send_due() == 2
    first, second = sandbox.sent
    assert first.media[0] == "https://example.org/a.png"
    url = first.media[1]
    assert url.startswith(f"{live_server.url}/media/sent/")
    # The provider fetches it without being anybody.
    answer = httpx.get(url)
    assert (answer.status_code, answer.content) == (200, PNG)
    assert httpx.get(url[:-1]).status_code == 404
    assert second.text == ""
    assert set(OutboundText.objects.values_list("segments", flat=True)) == {1}
    sandbox.settle()
    assert set(OutboundText.objects.values_list("status", flat=True)) == {"delivered"}


def test_an_address_for_a_provider_is_good_for_a_time_only(kept, settings):
    import time_machine

    kept(PNG, "image/png", "chart.png")
    actor = Actor.objects.get()
    row = OutboundText(actor=actor, media=[{"blob": "chart.png"}])
    settings.AGENTS = {"SITE_URL": "https://agents.example.org", "TELNYX_API_KEY": "KEY"}
    from conversations.providers import get_provider

    (url,) = media.sendable_urls(row, get_provider())
    assert url.startswith("https://agents.example.org/media/sent/")
    path = url.removeprefix("https://agents.example.org")
    assert Client().get(path).status_code == 200
    with time_machine.travel(dt.datetime.now(dt.UTC) + dt.timedelta(days=2, seconds=5)):
        assert Client().get(path).status_code == 404
    assert Client().get(reverse("sent-media", kwargs={"token": "x"})).status_code == 404


@pytest.mark.parametrize(
    "given",
    [
        "https://example.org/a.png",
        ["http://example.org/a"],
        ["no such key"],
        [3],
        [""],
        ["https://e.org/a"] * 11,
    ],
)
def test_media_that_no_text_can_carry_are_refused(kept, given):
    kept()
    with pytest.raises(BadMediaError):
        TextedAgent.named(THEIRS).sync.say("look", media=given, to=THEIRS, sender=OURS)
    assert not OutboundText.objects.exists()


def test_a_file_that_the_provider_cannot_reach_fails_and_says_so(kept, settings):
    kept(PNG, "image/png", "chart.png")
    settings.AGENTS = {"TELNYX_API_KEY": "KEY", "SITE_URL": "http://127.0.0.1:8000"}
    TextedAgent.named(THEIRS).sync.say("look", media=["chart.png"], to=THEIRS, sender=OURS)
    assert outbox.send_due() == 1
    row = OutboundText.objects.get()
    assert (row.status, row.reason) == ("failed", "bad_media")
    assert "SITE_URL" in row.error
