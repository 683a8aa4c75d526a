"""What a file is, by its first bytes: pictures that models and browsers know, and PDF. Pure.

Models' providers look at the bytes, too: a picture that is of another type than it is said to be, or none,
makes them refuse the whole request, and with it every later one of that conversation.
"""

from __future__ import annotations

import binascii

#: Pictures that models take and browsers show; none of them can hold a script.
PICTURES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
PDF = "application/pdf"

#: Characters of base64 that one picture may have for a model. The strictest of what providers document:
#: Anthropic, on Bedrock and Vertex AI, and "image exceeds 5 MB maximum: ... bytes > 5242880 bytes" in its
#: answers, which counts the base64 (platform.claude.com/docs/en/build-with-claude/vision).
MAX_PICTURE = 5 * 1024 * 1024

_PICTURES: tuple[tuple[bytes, int, str], ...] = (
    (b"\x89PNG\r\n\x1a\n", 0, "image/png"),
    (b"\xff\xd8\xff", 0, "image/jpeg"),
    (b"GIF87a", 0, "image/gif"),
    (b"GIF89a", 0, "image/gif"),
    (b"WEBP", 8, "image/webp"),
)
#: Bytes within which a PDF begins (Adobe's implementation notes to ISO 32000, 7.5.2).
_PDF_WITHIN = 1024


def picture_type(body: bytes) -> str | None:
    """The type of a picture that models and browsers know; None for anything else."""
    for mark, place, content_type in _PICTURES:
        if body[place : place + len(mark)] == mark and (place == 0 or body.startswith(b"RIFF")):
            return content_type
    return None


def is_pdf(body: bytes) -> bool:
    return b"%PDF-" in body[:_PDF_WITHIN]


def beginning(data: str) -> bytes:
    """As much of valid base64 as the two above look at."""
    return binascii.a2b_base64(data[: (_PDF_WITHIN // 3 + 1) * 4])


def fits(size: int) -> bool:
    """Whether a picture of so many bytes is no larger than models take."""
    return -(-size // 3) * 4 <= MAX_PICTURE
