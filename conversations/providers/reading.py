"""Reading what providers say: unknown fields are no fault, known ones come in several shapes."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal, InvalidOperation
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

from agents.codec import clean_text, parse
from agents.exceptions import CodecError
from conversations.exceptions import BadFieldError, NotJSONError
from conversations.phone import normalise

ID_MAX_LENGTH = 200  # characters; providers' own are shorter than 50
NUMBER_MAX_LENGTH = 64  # characters, the width of the columns
#: Media that one text may bring.
MAX_MEDIA = 20


def json_of(body: bytes) -> Any:
    """The value of a body. Raises NotJSONError."""
    try:
        return parse(body)
    except CodecError as error:
        raise NotJSONError(f"the body is not strict JSON: {error}") from error


def bad(field: str, problem: str) -> BadFieldError:
    return BadFieldError(f"{field} {problem}", field=field)


def object_at(tree: Any, key: str, path: str = "") -> dict[str, Any]:
    """An object. Raises BadFieldError."""
    value = tree.get(key) if isinstance(tree, dict) else None
    if not isinstance(value, dict):
        raise bad(path or key, "must be an object")
    return value


def text_at(tree: Any, key: str, path: str, maximum: int | None = None) -> str:
    """A text that is not blank. Raises BadFieldError."""
    value = tree.get(key)
    if not isinstance(value, str) or not value.strip():
        raise bad(path, "must be a text that is not empty")
    if maximum is not None and len(value) > maximum:
        raise bad(path, f"must have {maximum} characters at most, got {len(value)}")
    return value


def number_at(tree: Any, key: str, path: str) -> str:
    """A phone number, normalised. Raises BadFieldError."""
    return normalise(text_at(tree, key, path, NUMBER_MAX_LENGTH))


def first(value: Any) -> Any:
    return (value[0] if value else None) if isinstance(value, list) else value


def text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def word(value: Any, maximum: int) -> str:
    """Whatever it is, as a short text that a column holds; "" for nothing."""
    return "" if value is None else clean_text(str(value))[:maximum]


def moment(value: Any) -> dt.datetime | None:
    """A moment in UTC, from ISO 8601 or RFC 2822; None for anything else."""
    if not isinstance(value, str) or not value:
        return None
    for read in (dt.datetime.fromisoformat, parsedate_to_datetime):
        try:
            at = read(value)
            return (at if at.tzinfo else at.replace(tzinfo=dt.UTC)).astimezone(dt.UTC)
        except (TypeError, ValueError, OverflowError):
            continue
    return None


def whole(value: Any) -> int | None:
    """A number of parts, from a number or its digits; None for anything else."""
    try:
        number = int(value) if isinstance(value, str | int) and not isinstance(value, bool) else None
    except ValueError:
        return None
    return number if number is not None and 0 <= number < 10_000 else None


def money(value: Any) -> Decimal | None:
    """An amount, from a number or a text; a charge that is written as a debit ("-0.0075") counts the same."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        amount = abs(Decimal(str(value)))
    except InvalidOperation:
        return None
    return amount.quantize(Decimal("0.000001")) if amount.is_finite() and amount < 100_000 else None


def currency(value: Any) -> str:
    return value.upper() if isinstance(value, str) and len(value) == 3 and value.isalpha() else ""


def correlation(url: Any) -> tuple[UUID | None, int | None]:
    """Which text, and which of its tries, an address of ours for reports names (``receipts.callback``)."""
    if not isinstance(url, str):
        return None, None
    try:
        query = parse_qs(urlsplit(url).query)
        uid = UUID(query["text"][0])
    except (KeyError, ValueError):
        return None, None
    return uid, whole(query.get("try", [""])[0])


def media_item(url: Any, content_type: Any, size: Any = None, sha256: Any = None) -> dict[str, Any] | None:
    """One picture or file of a text; None without an address: the words beside it must not be lost."""
    if not text_or_none(url):
        return None
    return {
        "url": url,
        "content_type": word(content_type, 255),
        "size": size if isinstance(size, int) and not isinstance(size, bool) else None,
        "sha256": text_or_none(sha256),
    }
