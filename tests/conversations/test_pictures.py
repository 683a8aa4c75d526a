"""Pictures and documents in renderings: one that its provider refuses would fail every later request."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest

from conversations import adapters
from conversations.filetypes import MAX_PICTURE, PICTURES, is_pdf, picture_type
from conversations.repairs import findings
from tests.conversations.files import GIF, JPEG, PDF, PNG, SVG, TIFF, WEBP, b64
from tests.conversations.logs import call, log_of, result
from tests.conversations.providers import (
    check_ai_sdk,
    check_anthropic,
    check_langchain_messages,
    check_openai,
    check_responses,
)

Check = Callable[[list[dict[str, Any]]], None]

RENDERINGS: list[tuple[Callable[..., list[dict[str, Any]]], Check]] = [
    (adapters.to_openai, check_openai),
    (adapters.to_openai_responses, check_responses),
    (adapters.to_anthropic, check_anthropic),
    (adapters.to_langchain_messages, check_langchain_messages),
    (adapters.to_ai_sdk, check_ai_sdk),
]


def rendered(*parts: dict[str, Any]) -> dict[str, str]:
    """What each API would get of a user's parts and of a tool's, by the adapter's name, as text."""
    log = log_of(
        [
            {"role": "user", "content": "look", "parts": list(parts)},
            call("t1"),
            result("t1", "a chart", parts=list(parts)),
        ]
    )
    made = {}
    for render, check in RENDERINGS:
        messages = render(log)
        check(messages)
        made[render.__name__] = str(messages)
    return made


def kinds(part: dict[str, Any]) -> list[str]:
    return [found.kind for found in findings(log_of([{"role": "user", "content": "look", "parts": [part]}]))]


def forms(data: str, mime: str) -> list[dict[str, Any]]:
    """A picture in each form in which a log may hold one."""
    return [
        {"type": "image", "base64": data, "mime_type": mime},
        {"type": "image", "base64": base64.b64decode(data), "mime_type": mime},
        {"type": "image", "source_type": "base64", "data": data, "mime_type": mime},
        {"type": "image", "source": {"type": "base64", "media_type": mime, "data": data}},
        {"type": "image_url", "image_url": {"url": f"data:{mime};base64,{data}"}},
        {"type": "input_image", "image_url": f"data:{mime};base64,{data}"},
        {"type": "image", "url": f"data:{mime};base64,{data}"},
    ]


FORMS = ["langchain", "bytes", "langchain's old", "anthropic", "openai", "responses", "an address"]


@pytest.mark.parametrize("form", range(len(FORMS)), ids=FORMS)
@pytest.mark.parametrize(
    ("data", "said", "is_really"),
    [
        (JPEG, "image/png", "image/jpeg"),
        (PNG, "image/jpeg", "image/png"),
        (GIF, "image/webp", "image/gif"),
        (WEBP, "image/png", "image/webp"),
        (JPEG, "image/jpg", "image/jpeg"),
        (PNG, "image/tiff", "image/png"),
    ],
)
def test_a_picture_is_sent_as_the_type_that_its_bytes_are(form, data, said, is_really):
    part = forms(data, said)[form]
    for name, text in rendered(part).items():
        assert data in text and is_really in text and said not in text.replace(is_really, ""), name
    assert kinds(part) == ["mistyped_media"]


@pytest.mark.parametrize("form", range(len(FORMS)), ids=FORMS)
@pytest.mark.parametrize("data", [TIFF, SVG, b64(b"hi"), b64(b"\x89PNG"), b64(b"GIF89"), b64(b"RIFF1234")])
def test_data_that_is_no_picture_is_named_and_not_sent(form, data):
    part = forms(data, "image/png")[form]
    for name, text in rendered(part).items():
        assert data not in text and "[image]" in text, name
    assert kinds(part) == ["unusable_media"]


def test_a_picture_whose_type_nobody_told_is_sent():
    for text in rendered({"type": "image", "base64": PNG}).values():
        assert PNG in text and "image/png" in text
    assert kinds({"type": "image", "base64": PNG}) == []


def test_a_picture_that_is_as_it_was_said_to_be_is_sent_as_it_stands():
    for form in forms(PNG, "image/png"):
        assert all(PNG in text and "image/png" in text for text in rendered(form).values())
        assert kinds(form) == []


def test_a_picture_that_is_larger_than_providers_take_is_named_and_not_sent(settings):
    settings.AGENTS = {"MAX_MESSAGE_BYTES": 32 * 1024 * 1024}
    size = MAX_PICTURE * 3 // 4
    fits = b64(base64.b64decode(PNG) + bytes(size - 16))
    assert len(fits) == MAX_PICTURE
    beyond = fits + b64(b"abc")
    parts = [{"type": "image", "base64": data, "mime_type": "image/png"} for data in (fits, beyond)]
    assert all(fits in text for text in rendered(parts[0]).values())
    for name, text in rendered(parts[1]).items():
        assert len(text) < 10_000 and "[image]" in text, name
    assert [kinds(part) for part in parts] == [[], ["unusable_media"]]


@pytest.mark.parametrize("name", ["to_openai", "to_openai_responses"])
@pytest.mark.parametrize("mime", ["image/png", "image/heic", "application/octet-stream"])
def test_a_picture_by_address_is_sent_whatever_type_it_is_said_to_be(name, mime):
    part = {"type": "image", "url": "https://example.org/a.png", "mime_type": mime}
    assert "'https://example.org/a.png'" in rendered(part)[name]


@pytest.mark.parametrize(
    "address", ["data:image/svg+xml,<svg/>", "data:,", "ftp://example.org/a", "/media/a"]
)
def test_an_address_that_no_provider_can_fetch_is_named(address):
    part = {"type": "image", "url": address}
    made = rendered(part)
    for name in ("to_openai", "to_openai_responses", "to_anthropic"):
        assert "[image]" in made[name], name


# Documents


@pytest.mark.parametrize(
    "body",
    [b"hi", b"PK\x03\x04", b"%PDF", b" " * 1020 + b"%PDF-1.4", b"{\\rtf1 PDF-"],
    ids=["words", "zip", "cut off", "too far inside", "rich text"],
)
@pytest.mark.parametrize("form", range(3), ids=["langchain", "anthropic", "responses"])
def test_a_document_that_is_no_pdf_is_named_and_not_sent(form, body):
    data = b64(body)
    part = pdfs(data)[form]
    for name, text in rendered(part).items():
        assert data not in text and "[file" in text, name
    assert kinds(part) == ["unusable_media"]


def pdfs(data: str) -> list[dict[str, Any]]:
    return [
        {"type": "file", "base64": data, "mime_type": "application/pdf", "filename": "a.pdf"},
        {
            "type": "document",
            "source": {"type": "base64", "media_type": "application/pdf", "data": data},
            "title": "a.pdf",
        },
        {
            "type": "input_file",
            "file_data": f"data:application/pdf;base64,{data}",
            "filename": "a.pdf",
        },
    ]


def test_a_pdf_is_sent_also_with_something_before_its_beginning():
    for data in (PDF, b64(b"junk\n" * 100 + b"%PDF-1.4")):
        for form in pdfs(data):
            assert all(data in text for text in rendered(form).values())
            assert kinds(form) == []


def test_chat_completions_gets_no_file_but_pdfs_and_the_words_of_what_is_text():
    csv = b64(b"a,b\n1,2\n")
    part = {"type": "file", "base64": csv, "mime_type": "text/csv", "filename": "a.csv"}
    made = rendered(part)
    assert csv not in made["to_openai"] and "[file: a.csv]" in made["to_openai"]
    assert csv in made["to_openai_responses"], "that API takes more"
    words = {"type": "text-plain", "text": "the words", "mime_type": "text/plain", "title": "a.txt"}
    assert "the words" in rendered(words)["to_openai"]


# The rule


@pytest.mark.parametrize(
    ("data", "mime"),
    [(PNG, "image/png"), (JPEG, "image/jpeg"), (GIF, "image/gif"), (WEBP, "image/webp"), (TIFF, None)],
)
def test_a_picture_is_known_by_its_first_bytes(data, mime):
    assert picture_type(base64.b64decode(data)) == mime
    assert mime is None or mime in PICTURES


def test_riff_is_no_picture_unless_it_says_so_and_nothing_is_none():
    assert picture_type(b"RIFF\x04\0\0\0WAVEfmt ") is None
    assert picture_type(b"12345678WEBP") is None
    assert picture_type(b"") is None
    assert not is_pdf(b"")
