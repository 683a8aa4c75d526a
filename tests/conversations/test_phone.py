"""Pure: one person, one number, however it was written."""

from __future__ import annotations

import pytest

from conversations.phone import is_alphanumeric_sender, is_e164, is_short_code, normalise


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("+919876543210", "+919876543210"),
        ("919876543210", "+919876543210"),
        (" 919876543210 ", "+919876543210"),
        ("+1 (555) 000-1111", "+15550001111"),
        ("1 555 000 1111", "+15550001111"),
        ("15550001111", "+15550001111"),
        ("+13125550001", "+13125550001"),
    ],
)
def test_with_and_without_plus_and_punctuation_is_one_number(given, expected):
    assert normalise(given) == expected
    assert normalise(normalise(given)) == expected
    assert is_e164(expected)


@pytest.mark.parametrize(
    "given",
    [
        "22395",  # a short code
        "345678",  # one that begins like Spain's numbers
        "49123",  # one that begins like Germany's, where numbers may be this short
        "TELNYX",
        "My Shop 24",
        "3125550001",  # somebody's national number, not one of the Netherlands
        "+999123456789",
        "+4479",
        "+1",
        "",
        "anonymous@example.org",
    ],
)
def test_what_is_no_international_number_stays_as_it_is(given):
    assert normalise(given) == given


def test_text_that_no_database_takes_is_cleaned():
    assert normalise("AB\0C") == "AB\ufffdC"


def test_what_can_be_texted_and_what_can_text():
    assert is_e164("+15550001111")
    assert not is_e164("15550001111")
    assert not is_e164("+0123456789")
    assert not is_e164("+1" + "5" * 15)
    assert is_short_code("22395")
    assert not is_short_code("12")
    assert not is_short_code("123456789")
    assert is_alphanumeric_sender("My Shop 24")
    assert not is_alphanumeric_sender("12345")
    assert not is_alphanumeric_sender("A" * 12)
