"""Pure: quiet hours, cheaper texts, long texts in parts, keywords, addresses that nobody may be led to."""

from __future__ import annotations

import datetime as dt
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conversations.fetch import is_public
from conversations.keywords import keyword_of
from conversations.lines import line_of
from conversations.quiet import QuietHours, first_moment, moment_for, read, zones_of
from conversations.segments import segments, smart, split

NIGHT = QuietHours(dt.time(21), dt.time(8), "America/New_York")
SIESTA = QuietHours(dt.time(12), dt.time(14, 30), "UTC")


def local(zone: str, *when: int) -> dt.datetime:
    return dt.datetime(*when, tzinfo=ZoneInfo(zone))  # type: ignore[arg-type, misc]


# Quiet hours


@pytest.mark.parametrize(
    ("at", "goes"),
    [
        ((2026, 1, 15, 20, 59), (2026, 1, 15, 20, 59)),
        ((2026, 1, 15, 21, 0), (2026, 1, 16, 8, 0)),
        ((2026, 1, 15, 23, 59), (2026, 1, 16, 8, 0)),
        ((2026, 1, 16, 0, 0), (2026, 1, 16, 8, 0)),
        ((2026, 1, 16, 7, 59), (2026, 1, 16, 8, 0)),
        ((2026, 1, 16, 8, 0), (2026, 1, 16, 8, 0)),
        # The nights in which the clock is moved.
        ((2026, 3, 7, 22, 0), (2026, 3, 8, 8, 0)),
        ((2026, 10, 31, 22, 0), (2026, 11, 1, 8, 0)),
    ],
)
def test_a_text_in_the_night_goes_in_the_morning_where_its_reader_lives(at, goes):
    berlin = "+4915112345678"
    assert zones_of(berlin) == ("Europe/Berlin",)
    assert moment_for(berlin, local("Europe/Berlin", *at), NIGHT) == local("Europe/Berlin", *goes)


def test_hours_within_one_day_are_quiet_too():
    assert first_moment(local("UTC", 2026, 1, 1, 11, 59), ["UTC"], SIESTA) == local("UTC", 2026, 1, 1, 11, 59)
    assert first_moment(local("UTC", 2026, 1, 1, 12, 0), ["UTC"], SIESTA) == local("UTC", 2026, 1, 1, 14, 30)


def test_where_a_number_may_be_in_several_zones_it_must_be_no_quiet_hour_in_any():
    zones = ["America/New_York", "America/Los_Angeles"]
    at = local("America/New_York", 2026, 1, 15, 7, 0)
    # Eight in New York is five in Los Angeles.
    assert first_moment(at, zones, NIGHT) == local("America/Los_Angeles", 2026, 1, 15, 8, 0)
    at = local("America/New_York", 2026, 1, 15, 21, 30)
    assert first_moment(at, zones, NIGHT) == local("America/Los_Angeles", 2026, 1, 16, 8, 0)


def test_where_there_is_no_such_moment_the_settings_zone_counts():
    everywhere = [f"Etc/GMT{hours:+d}" for hours in range(-14, 13)]
    assert first_moment(local("UTC", 2026, 1, 1, 0), everywhere, NIGHT) is None
    toll_free, invented = "+18005551234", "+15550001111"
    assert len(zones_of(toll_free)) > 6
    assert zones_of(invented) == ()
    at = local("America/New_York", 2026, 1, 15, 3, 0)
    for number in (toll_free, invented, "22395", "nobody"):
        assert moment_for(number, at, NIGHT) == local("America/New_York", 2026, 1, 15, 8, 0)


def test_the_setting_is_read_as_it_is_written():
    assert read({"start": "21:00", "end": "08:00", "zone": "America/New_York"}) == NIGHT
    assert read({"start": "12:00", "end": "14:30"}) == SIESTA


# Cheaper


@pytest.mark.parametrize(
    ("text", "cheaper"),
    [
        ("It’s “here” – now…", 'It\'s "here" - now...'),
        ("a\u00a0b\u202fc", "a b c"),
        ("cafe\u0301", "café"),
        ("• one\u2028• two", "* one\n* two"),
        ("zero\u200bwidth", "zerowidth"),
        ("plain", "plain"),
        ("€5 [ok]", "€5 [ok]"),
        # It would cost as much: nothing is changed for nothing.
        ("It’s 😋", "It’s 😋"),
        ("It’s ążę", "It’s ążę"),
        ("", ""),
    ],
)
def test_typographic_characters_that_double_the_price_are_replaced(text, cheaper):
    assert smart(text) == cheaper


@given(st.text(max_size=200))
def test_a_text_never_gets_dearer(text):
    assert segments(smart(text)).count <= segments(text).count


# Longer


def test_long_texts_are_parted_between_paragraphs_lines_sentences_and_words():
    paragraphs = "a" * 100 + ".\n\n" + "b" * 100 + "."
    assert split(paragraphs, 1) == ["a" * 100 + ".", "b" * 100 + "."]
    sentences = "One sentence of some length that ends here. " * 6
    parts = split(sentences, 1)
    assert all(part.endswith("here.") for part in parts)
    assert " ".join(parts) == sentences.strip()
    words = "word " * 100
    assert all(part.startswith("word") and part.endswith("word") for part in split(words, 1))
    assert split("x" * 400, 1) == ["x" * 160, "x" * 160, "x" * 80]
    assert split("", 1) == split(" \n ", 1) == []
    assert split("short") == ["short"]


@given(st.text(alphabet="ab 😋é.\n]", max_size=600), st.integers(1, 3))
def test_nothing_but_blanks_is_lost_and_every_part_fits(text, maximum):
    parts = split(text, maximum)
    assert all(1 <= segments(part).count <= maximum for part in parts)
    assert "".join("".join(parts).split()) == "".join(text.split())


def test_a_text_of_eleven_segments_is_two():
    parts = split("word " * 400)
    assert len(parts) == 2
    assert segments(parts[0]).count == 10


# Keywords


@pytest.mark.parametrize(
    ("words", "keyword"),
    [
        ("STOP", "stop"), (" stop ", "stop"), ("Stop.", "stop"), ("stop!!!", "stop"),
        ('"STOP"', "stop"),
        ("UNSUBSCRIBE", "stop"), ("CANCEL", "stop"), ("END", "stop"), ("QUIT", "stop"), ("STOPALL", "stop"),
        ("stop  all", "stop"), ("Revoke", "stop"), ("OPT OUT", "stop"),
        ("start", "start"), ("UNSTOP", "start"), ("Help", "help"), ("INFO", "help"),
        ("STOP 12345", None), ("please don't stop", None), ("stop by tomorrow?", None), ("stop?", None),
        ("yes", None), ("", None), ("...", None), ("x" * 5000, None), ("s t o p", None),
    ],
)  # fmt: skip
def test_a_keyword_is_the_whole_text_or_it_is_none(words, keyword):
    assert keyword_of(words) == keyword


# Numbers


def test_a_line_is_found_however_its_number_was_written(settings):
    settings.AGENTS = {"SMS_NUMBERS": {"1 (555) 000-9999": {"rate": 2, "kind": "support"}}, "SMS_RATE": 1}
    assert (line_of("+15550009999").rate, line_of("+15550009999").kind) == (2, "support")
    assert (line_of("+15550008888").rate, line_of("+15550008888").kind) == (1, "")


# Addresses


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.255.255.254", "0.0.0.0", "10.0.0.1", "172.16.0.1", "172.31.255.255",
        "192.168.1.1", "169.254.169.254", "100.64.0.1", "192.0.2.1", "198.18.0.1", "198.51.100.1",
        "203.0.113.1", "224.0.0.1", "240.0.0.1", "255.255.255.255", "::", "::1", "fe80::1",
        "fe80::1%eth0", "fc00::1", "fd12::1", "fec0::1", "ff02::1", "2001:db8::1", "::ffff:127.0.0.1",
        "::ffff:10.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a00:1", "64:ff9b:1::a00:1", "2002:7f00:1::",
        "2002:a00:1::1", "2001:0:4136:e378:8000:63bf:3fff:fdd2", "::127.0.0.1", "not an address", "",
    ],
)  # fmt: skip
def test_no_private_address_is_public_whatever_it_is_wrapped_in(address):
    assert not is_public(address)


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "1.1.1.1", "2606:4700:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]
)
def test_public_ones_are(address):
    assert is_public(address)
