"""What ``manage.py check`` says about the settings of texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning
from django.utils.module_loading import import_string

from agents import kinds
from agents.checks import COUNT, NOT_NEGATIVE, POSITIVE, Rule
from agents.exceptions import ConfigurationError, InvalidKindError
from conversations import conf, quiet
from conversations.lines import line_of, lines
from conversations.providers import chosen, get_provider, provider_path
from conversations.signatures import public_key

YES_OR_NO: Rule = ("True or False", lambda value: isinstance(value, bool))


def check_public_keys(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Keys that cannot be read; and none at all, where even the development key does not count."""
    keys = conf.get("TELNYX_PUBLIC_KEYS")
    messages: list[CheckMessage] = []
    for key in keys:
        try:
            public_key(key)
        except ConfigurationError as error:
            messages.append(
                Error(str(error), hint="Copy it from the Telnyx portal.", id="conversations.E001")
            )
    if not keys and not conf.get("TWILIO_AUTH_TOKENS") and not settings.DEBUG:
        messages.append(
            Warning(
                "No provider's key is configured: the webhooks refuse every text.",
                hint="Set TELNYX_PUBLIC_KEY to the public key that the Telnyx portal shows, or"
                " TWILIO_AUTH_TOKEN.",
                id="conversations.W001",
            )
        )
    return messages


def check_provider(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """A provider that cannot be had, or that has no key, or that may take longer than it is waited for."""
    messages: list[CheckMessage] = []
    path = provider_path()
    try:
        import_string(path)
    except ImportError as error:
        hint = "SMS_PROVIDER is 'console', 'telnyx', 'twilio' or the dotted path of a TextProvider."
        messages.append(Error(f"SMS_PROVIDER: {error}", hint=hint, id="conversations.E002"))
    else:
        messages += _without_key()
    timeout, stale = conf.get("SMS_TIMEOUT"), conf.get("SMS_STALE_AFTER")
    if not 0 < timeout <= stale / 2:
        messages.append(
            Error(
                f"SMS_TIMEOUT is {timeout} s, SMS_STALE_AFTER {stale} s: a text would be given up while it"
                " is being sent.",
                hint="Let SMS_TIMEOUT be positive and half of SMS_STALE_AFTER at most.",
                id="conversations.E004",
            )
        )
    return messages


def _without_key() -> list[CheckMessage]:
    try:
        get_provider().ready()
    except ConfigurationError as error:
        hint = f"Set {error.setting}, or SMS_PROVIDER=console."
        return [Error(f"SMS_PROVIDER is {chosen()}: {error}.", hint=hint, id="conversations.E003")]
    return []


def check_numbers(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """What is said of our numbers, and the hours in which no text goes out."""
    messages: list[CheckMessage] = []
    try:
        known = [line_of(""), *lines()]
    except (ConfigurationError, InvalidKindError) as error:
        hint = 'SMS_NUMBERS is {"+15550009999": {"kind": "support", "provider": "telnyx", "rate": 1}}.'
        return [Error(f"{error}", hint=hint, id="conversations.E005")]
    for line in known:
        if line.kind and line.kind not in kinds.installed():
            messages.append(
                Warning(
                    f"Texts to {line.number or 'our numbers'} are for kind {line.kind!r}, which no installed"
                    " app declares: they would wait.",
                    hint=f"Installed kinds: {', '.join(sorted(kinds.installed())) or 'none'}.",
                    id="conversations.W002",
                )
            )
        try:
            if line.provider:
                get_provider(line.provider)
        except ConfigurationError as error:
            hint = "A number's provider is one of SMS_PROVIDER's names, or of SMS_PROVIDERS."
            messages.append(Error(f"{line.number}: {error}", hint=hint, id="conversations.E005"))
    try:
        quiet.configured()
    except ConfigurationError as error:
        hint = 'SMS_QUIET_HOURS is {"start": "21:00", "end": "08:00", "zone": "America/New_York"}.'
        messages.append(Error(str(error), hint=hint, id="conversations.E006"))
    return messages


def check_values(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Values out of range."""
    return [
        Error(
            f"AGENTS[{name!r}] must be {wanted}, got {conf.get(name)!r}.",
            hint=f"The default is {conf.DEFAULTS[name]!r}.",
            id="conversations.E007",
        )
        for name, (wanted, fits) in RULES.items()
        if not fits(conf.get(name))
    ]


def _is_texts(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)


TEXTS: Rule = ("a list of texts", _is_texts)
RULES: dict[str, Rule] = {
    "TWILIO_AUTH_TOKENS": TEXTS,
    "SMS_PROVIDERS": (
        "a mapping of names to dotted paths",
        lambda value: isinstance(value, dict) and _is_texts([*value, *value.values()]),
    ),
    "SMS_CONCURRENCY": COUNT,
    "SMS_UNKNOWN": ("'ask', 'keep' or 'resend'", lambda value: value in ("ask", "keep", "resend")),
    "SMS_RETRY_UNDELIVERED": YES_OR_NO,
    "SMS_SMART": YES_OR_NO,
    "SMS_MAX_PARTS": COUNT,
    "SMS_REPLY_WINDOW": NOT_NEGATIVE,
    "SMS_STOP_WORDS": TEXTS,
    "SMS_START_WORDS": TEXTS,
    "SMS_HELP_WORDS": TEXTS,
    "CONSENT_KEYS": TEXTS,
    "SMS_LOOP_SAME": NOT_NEGATIVE,
    "SMS_LOOP_TEXTS": NOT_NEGATIVE,
    "SMS_LOOP_WINDOW": POSITIVE,
    "MAX_MEDIA_BYTES": COUNT,
    "MAX_WINDOW_MEDIA_BYTES": COUNT,
    "SMS_MEDIA_TYPES": TEXTS,
    "SMS_MEDIA_TIMEOUT": POSITIVE,
    "SMS_MEDIA_HOSTS": TEXTS,
}
