"""What actors are called: kinds, names, and the one escape that carries a name through URLs and files.

A **kind** is what a developer calls an Agent class: ``support``, ``http-support``; lower case, safe anywhere.
A **name** comes from outside, a phone number, an address, a session's id: any text of 1 to 255 characters,
compared character by character (no case folding, no Unicode normalisation, blanks count). Only what no
database or protocol can carry is refused: U+0000 and surrogates.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

from agents import conf
from agents.exceptions import InvalidKindError, InvalidNameError

_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
_KIND = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")
# Where a new word begins: support|Agent, HTTP|Support, My_Agent.
_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|_+")

ESCAPE = "~"
# A leading dot too: so no name is "." or "..", which browsers and file systems take for themselves.
_TO_ESCAPE = re.compile(r"^\.|[^A-Za-z0-9_.-]")
_ESCAPED = re.compile(r"~([0-9A-F]{2})")


def check_name(name: Any) -> str:
    """The name as plain text. Raises InvalidNameError unless it is text of 1 to 255 storable characters."""
    if not isinstance(name, str):
        raise InvalidNameError(f"a name is text, got {type(name).__name__}")
    if not name:
        raise InvalidNameError("a name must not be empty")
    if len(name) > conf.NAME_MAX_LENGTH:
        raise InvalidNameError(f"a name has at most {conf.NAME_MAX_LENGTH} characters, got {len(name)}")
    if _UNSTORABLE.search(name):
        raise InvalidNameError("a name must not contain U+0000 or surrogates")
    # An enumeration's member may print as something else than its value.
    return name if type(name) is str else str.__str__(name)


def escape_name(name: str) -> str:
    """The name in ``A-Z a-z 0-9 _ . - ~`` alone, all unreserved in URLs (RFC 3986, section 2.3).

    Each other character becomes its UTF-8 bytes as ``~XX`` (upper-case hexadecimal), and so does a dot at
    the start. Different names stay different; no result is empty, ``.`` or ``..``; quoting it for a URL
    changes nothing. Up to 3,060 characters for a name of 255. Raises InvalidNameError.
    """
    return _TO_ESCAPE.sub(_escape, check_name(name))


def _escape(match: re.Match[str]) -> str:
    return "".join(f"{ESCAPE}{byte:02X}" for byte in match[0].encode())


def unescape_name(text: str) -> str:
    """The name that ``escape_name`` made this of. Raises InvalidNameError for what it cannot have made."""
    if not isinstance(text, str) or not text.isascii():
        raise InvalidNameError("not an escaped name: it has other than ASCII characters")
    try:
        name = _ESCAPED.sub(lambda match: chr(int(match[1], 16)), text).encode("latin-1").decode()
        # One spelling a name: "~61" and a stray "~" decode to something, but not to what gives them back.
        if escape_name(name) == text:
            return name
    except (UnicodeDecodeError, InvalidNameError):
        pass
    raise InvalidNameError(f"not an escaped name: {text[:80]!r}")


def group_name(kind: str, name: str) -> str:
    """The Channels group of one actor: 70 of the under 100 ASCII characters that Channels allows.

    Hashed, since no escape fits 255 characters into 100. Raises InvalidKindError, InvalidNameError.
    """
    address = f"{check_kind(kind)}/{check_name(name)}"
    return f"actor.{hashlib.sha256(address.encode()).hexdigest()}"


def check_kind(kind: Any) -> str:
    """The kind as plain text. Raises InvalidKindError.

    Words of lower-case ASCII letters and digits, joined by single ``-`` or ``_``, a letter first, at most
    64 characters together.
    """
    if not isinstance(kind, str):
        raise InvalidKindError(f"a kind is text, got {type(kind).__name__}")
    if len(kind) > conf.KIND_MAX_LENGTH:
        raise InvalidKindError(f"a kind has at most {conf.KIND_MAX_LENGTH} characters, got {len(kind)}")
    if not _KIND.fullmatch(kind):
        raise InvalidKindError(f"a kind is lower-case letters and digits with - or _ between, got {kind!r}")
    return kind if type(kind) is str else str.__str__(kind)


def kind_from_class_name(class_name: str) -> str:
    """The kind of a class that names none: of ``HTTPSupportAgent`` it is ``http-support``.

    Raises InvalidKindError for a class name that makes no kind, such as one in other than ASCII letters.
    """
    stem = class_name.removesuffix("Agent").strip("_") or class_name
    return check_kind(_WORD.sub("-", stem.strip("_")).lower())
