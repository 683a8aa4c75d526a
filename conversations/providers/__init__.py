"""Who delivers and sends texts: backends, chosen by the settings for all numbers or for one."""

from __future__ import annotations

import functools
import os

from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from agents import conf as agents_conf
from agents.exceptions import ConfigurationError
from conversations import conf
from conversations.lines import line_of
from conversations.providers.base import SendResult, TextProvider

__all__ = ["SendResult", "TextProvider", "get_provider", "path_of", "provider_for", "provider_path"]

SHORT_NAMES = {
    "console": "conversations.providers.console.ConsoleProvider",
    "memory": "conversations.providers.memory.MemoryProvider",
    "telnyx": "conversations.providers.telnyx.TelnyxProvider",
    "twilio": "conversations.providers.twilio.TwilioProvider",
}


def chosen() -> str:
    """Who sends for numbers that name nobody: the setting, or whoever has a key, or the console."""
    if given := conf.get("SMS_PROVIDER"):
        return str(given)
    if agents_conf.get("TELNYX_API_KEY"):
        return "telnyx"
    return "twilio" if conf.get("TWILIO_AUTH_TOKENS") else "console"


def path_of(name: str) -> str:
    """The dotted path of a provider's class, by its name or by that path."""
    names = {**SHORT_NAMES, **conf.get("SMS_PROVIDERS")}
    return str(names.get(name, name))


def provider_path() -> str:
    """The dotted path of the default provider's class."""
    return path_of(chosen())


def get_provider(name: str = "") -> TextProvider:
    """This process's instance of a provider, by its name or dotted path; the default one without either.

    Raises ConfigurationError for one that cannot be had.
    """
    return _instance(path_of(name or chosen()), os.getpid())


def provider_for(number: str) -> TextProvider:
    """Who sends from a number of ours. Raises ConfigurationError, also where it lacks its keys."""
    provider = get_provider(line_of(number).provider)
    provider.ready()
    return provider


def webhook_provider(name: str) -> TextProvider | None:
    """The provider whose webhook this name stands for; None where there is none of that name.

    Only names count, since the name comes from outside: a dotted path would import whatever it says. A
    provider that the setting SMS_PROVIDER gives by its path is found by the name of its class.
    """
    if name in SHORT_NAMES or name in conf.get("SMS_PROVIDERS"):
        return get_provider(name)
    try:
        default = get_provider()
    except ConfigurationError:
        return None
    return default if default.name == name else None


@functools.lru_cache(maxsize=16)
def _instance(path: str, pid: int) -> TextProvider:
    """One a process: a client's connections must not be shared with a fork."""
    try:
        provider = import_string(path)
    except ImportError as error:
        raise ConfigurationError(f"SMS_PROVIDER: {error}", setting="SMS_PROVIDER") from error
    instance = provider()
    if not isinstance(instance, TextProvider):
        raise ConfigurationError(f"SMS_PROVIDER: {path} is not a TextProvider", setting="SMS_PROVIDER")
    return instance


def _forget(*, setting: str, **kwargs: object) -> None:
    if setting == "AGENTS":
        _instance.cache_clear()


setting_changed.connect(_forget)
