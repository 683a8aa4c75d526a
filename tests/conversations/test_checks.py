"""What ``manage.py check`` says about texts."""

from __future__ import annotations

import base64

import pytest

from conversations.checks import check_numbers, check_provider, check_public_keys, check_values

KEY = base64.b64encode(b"1" * 32).decode()


@pytest.mark.parametrize(
    ("chosen", "debug", "ids"),
    [
        ({}, False, ["conversations.W001"]),
        ({}, True, []),  # there the development key counts
        ({"TELNYX_PUBLIC_KEYS": [KEY]}, False, []),
        ({"TWILIO_AUTH_TOKENS": ["token"]}, False, []),
        ({"TELNYX_PUBLIC_KEYS": [KEY, "nonsense"]}, False, ["conversations.E001"]),
        ({"TELNYX_PUBLIC_KEYS": [KEY[:-4]]}, True, ["conversations.E001"]),
    ],
)
def test_keys_that_are_missing_or_cannot_be_read_are_named(settings, chosen, debug, ids):
    settings.DEBUG, settings.AGENTS = debug, chosen
    messages = check_public_keys(None)
    assert [message.id for message in messages] == ids
    assert all(message.hint for message in messages)


@pytest.mark.parametrize(
    ("chosen", "ids"),
    [
        ({}, []),
        ({"TELNYX_API_KEY": "KEY"}, []),
        ({"SMS_PROVIDER": "console"}, []),
        ({"SMS_PROVIDER": "telnyx"}, ["conversations.E003"]),
        ({"SMS_PROVIDER": "twilio"}, ["conversations.E003"]),
        ({"TWILIO_AUTH_TOKENS": ["token"]}, ["conversations.E003"]),  # without its account
        ({"TWILIO_AUTH_TOKENS": ["token"], "TWILIO_ACCOUNT_SID": "AC1"}, []),
        ({"SMS_PROVIDER": "nowhere.Provider"}, ["conversations.E002"]),
        ({"SMS_TIMEOUT": 30.0}, []),
        ({"SMS_TIMEOUT": 30.1}, ["conversations.E004"]),
        ({"SMS_TIMEOUT": 0}, ["conversations.E004"]),
        ({"SMS_STALE_AFTER": 39.0}, ["conversations.E004"]),
    ],
)
def test_a_provider_that_cannot_send_is_named(settings, chosen, ids):
    settings.AGENTS = chosen
    messages = check_provider(None)
    assert [message.id for message in messages] == ids
    assert all(message.hint for message in messages)


@pytest.mark.parametrize(
    ("chosen", "ids"),
    [
        ({}, []),
        ({"SMS_NUMBERS": {"+15550009999": {"kind": "support", "rate": 1, "address": "pair"}}}, []),
        ({"SMS_NUMBERS": ["+15550009999"]}, ["conversations.E005"]),
        ({"SMS_NUMBERS": {"+15550009999": "support"}}, ["conversations.E005"]),
        ({"SMS_NUMBERS": {"+15550009999": {"sort": "support"}}}, ["conversations.E005"]),
        ({"SMS_NUMBERS": {"+15550009999": {"kind": "Not a kind"}}}, ["conversations.E005"]),
        ({"SMS_NUMBERS": {"+15550009999": {"provider": "nobody"}}}, ["conversations.E005"]),
        ({"SMS_NUMBERS": {"+15550009999": {"kind": "nobody"}}}, ["conversations.W002"]),
        ({"SMS_KIND": "nobody"}, ["conversations.W002"]),
        ({"SMS_ADDRESS": "both"}, ["conversations.E005"]),
        ({"SMS_RATE": -1}, ["conversations.E005"]),
        ({"SMS_RATE": "fast"}, ["conversations.E005"]),
        ({"SMS_QUIET_HOURS": {"start": "21:00", "end": "08:00"}}, []),
        ({"SMS_QUIET_HOURS": {"start": "21:00"}}, ["conversations.E006"]),
        ({"SMS_QUIET_HOURS": {"start": "21:00", "end": "21:00"}}, ["conversations.E006"]),
        ({"SMS_QUIET_HOURS": {"start": "25:00", "end": "08:00"}}, ["conversations.E006"]),
        (
            {"SMS_QUIET_HOURS": {"start": "21:00", "end": "08:00", "zone": "Mars/Base"}},
            ["conversations.E006"],
        ),
        ({"SMS_QUIET_HOURS": "night"}, ["conversations.E006"]),
    ],
)
def test_what_is_said_wrongly_of_numbers_and_hours_is_named(settings, chosen, ids):
    settings.AGENTS = chosen
    messages = check_numbers(None)
    assert [message.id for message in messages] == ids
    assert all(message.hint for message in messages)


@pytest.mark.parametrize(
    "chosen",
    [
        {"SMS_UNKNOWN": "maybe"},
        {"SMS_SMART": "yes"},
        {"SMS_MAX_PARTS": 0},
        {"SMS_STOP_WORDS": "stop"},
        {"SMS_LOOP_WINDOW": 0},
        {"MAX_MEDIA_BYTES": 0.5},
        {"TWILIO_AUTH_TOKENS": "token"},
        {"SMS_PROVIDERS": {"carrier": None}},
    ],
)
def test_a_value_out_of_range_is_named_with_its_default(settings, chosen):
    assert check_values(None) == []
    settings.AGENTS = chosen
    (message,) = check_values(None)
    assert message.id == "conversations.E007"
    assert next(iter(chosen)) in message.msg
    assert "default" in (message.hint or "")
