"""Phone numbers in one form, E.164, so that one person is one actor however a number was written."""

from __future__ import annotations

import re
from functools import lru_cache

import phonenumbers

from agents.codec import clean_text

#: Digits and what people put between them.
_DIGITS = re.compile(r"[0-9 ().\-/]+")
#: Fewer digits than this without a plus are a short code, whatever country they could begin with.
_SHORT_CODE_DIGITS = 8
#: As many digits as this cannot be a number without its country code.
_INTERNATIONAL_DIGITS = 11


@lru_cache(maxsize=4096)
def normalise(number: str) -> str:
    """``number`` in E.164 ("+15550001111"), with or without its plus; as given when it is no number.

    Short codes ("22395") and alphanumeric senders ("TELNYX") stay as they are. Digits without a plus are
    read as international; ten or fewer of them only when such a number is really assigned, since they
    could be somebody's national number.
    """
    number = clean_text(number).strip()
    if number.startswith("+"):
        parsed = _parse(number)
        return _e164(parsed) if parsed is not None else number
    if not _DIGITS.fullmatch(number):
        return number
    digits = re.sub(r"[^0-9]", "", number)
    if len(digits) < _SHORT_CODE_DIGITS:
        return number
    parsed = _parse("+" + digits)
    if parsed is None:
        return number
    if len(digits) >= _INTERNATIONAL_DIGITS or phonenumbers.is_valid_number(parsed):
        return _e164(parsed)
    return number


def is_e164(number: str) -> bool:
    """Whether ``number`` is a normalised phone number."""
    return re.fullmatch(r"\+[1-9][0-9]{6,14}", number) is not None


def is_short_code(number: str) -> bool:
    return re.fullmatch(r"[0-9]{3,8}", number) is not None


def can_receive(number: str) -> bool:
    """Whether a text can go to ``number`` (normalised)."""
    return is_e164(number) or is_short_code(number)


def can_send(number: str) -> bool:
    """Whether a text can come from ``number`` (normalised), which may be a name."""
    return can_receive(number) or is_alphanumeric_sender(number)


def is_alphanumeric_sender(number: str) -> bool:
    """Letters, digits and blanks, eleven at most, at least one letter (3GPP TS 23.040, 9.1.2.5)."""
    return re.fullmatch(r"(?=.*[A-Za-z])[A-Za-z0-9 ]{1,11}", number) is not None


def _parse(number: str) -> phonenumbers.PhoneNumber | None:
    """Only what could be dialled: invented numbers of the right length count, for tests and documents."""
    try:
        parsed = phonenumbers.parse(number, None)
    except phonenumbers.NumberParseException:
        return None
    possible = phonenumbers.is_possible_number_with_reason(parsed)
    return parsed if possible == phonenumbers.ValidationResult.IS_POSSIBLE else None


def _e164(parsed: phonenumbers.PhoneNumber) -> str:
    return str(phonenumbers.format_number(parsed, phonenumbers.PhoneNumberFormat.E164))
