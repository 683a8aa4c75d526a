"""``self.env``: what the deployment binds by name, one instance a process, made when it is first asked for.

Bound out of the box (the setting ``ENV`` adds names, or gives these other factories):

``env.OPENAI``
    ``openai.AsyncOpenAI``. With ``OPENAI_API_KEY`` or ``OPENAI_BASE_URL``: OpenAI, or any compatible
    endpoint. Else with ``TELNYX_API_KEY``: Telnyx inference. Else, on a development site: the offline
    model that the site itself serves, which says of itself that it is one.
``env.MODEL``
    The name of the model to ask for there.
``env.TELNYX``
    ``telnyx.AsyncTelnyx``. Needs ``TELNYX_API_KEY``.

The clients' packages are imported by their factories, since that takes a second: ``warm`` does it at a
moment that suits, before a first turn asks on the event loop.
"""

from __future__ import annotations

import inspect
import logging
import os
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from django.conf import settings
from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from agents import conf
from agents.exceptions import ConfigurationError
from agents.observing import tracing

if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from telnyx import AsyncTelnyx

logger = logging.getLogger(__name__)

OFFLINE_PATH = "/dev/model/v1"
#: The client asks for a key; the offline model wants none.
OFFLINE_KEY = "offline"
MODEL_TIMEOUT = 120.0  # seconds without a byte from the model

OFFLINE_MODEL = "offline"
TELNYX_MODEL = "zai-org/GLM-5.2"
OPENAI_MODEL = "gpt-4o"


class Env:
    """Attributes are the names in the setting ``ENV``; each is made once a process. Safe in any thread.

    An unknown name raises AttributeError; a factory may raise ConfigurationError, and is asked again.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a factory may ask for another name
        self._made: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self._made[name]
        except KeyError:
            pass
        with self._lock:
            if name not in self._made:
                self._made[name] = self._factory(name)()
            return self._made[name]

    def __iter__(self) -> Iterator[str]:
        """The names that are bound."""
        return iter(_bindings())

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *_bindings()]

    def warm(self) -> None:
        """Makes everything that is configured, in this thread; what isn't configured is left out."""
        for name in self:
            try:
                getattr(self, name)
            except ConfigurationError as error:
                logger.info("env.%s is not available: %s", name, error)

    async def close(self) -> None:
        """Closes the clients that were made, on the loop that used them, and forgets them."""
        made, self._made = self._made, {}
        for name, thing in made.items():
            close = getattr(thing, "close", None)
            if inspect.iscoroutinefunction(close):
                try:
                    await close()
                except Exception:
                    logger.exception("closing env.%s failed", name)

    def reset(self) -> None:
        """Forgets what was made, without closing it: settings have changed, or this is a fork."""
        self._lock = threading.RLock()
        self._made = {}

    def _factory(self, name: str) -> Callable[[], Any]:
        bindings = _bindings()
        if name not in bindings:
            raise AttributeError(f"nothing is bound to env.{name}; bound are {', '.join(sorted(bindings))}")
        try:
            factory: Callable[[], Any] = import_string(bindings[name])
        except ImportError as error:
            raise ConfigurationError(f"AGENTS['ENV'][{name!r}]: {error}", setting="ENV") from error
        return factory


def _bindings() -> dict[str, str]:
    return {**conf.DEFAULTS["ENV"], **conf.get("ENV")}


#: The one instance of this process.
env = Env()

# Connections must not be shared with a fork, and a lock that another thread held would stay locked in it.
os.register_at_fork(after_in_child=env.reset)


def _forget(*, setting: str, **kwargs: object) -> None:
    if setting in ("AGENTS", "DEBUG"):
        env.reset()


setting_changed.connect(_forget)


class Endpoint(NamedTuple):
    """Where models are asked."""

    label: str  # "OpenAI", "Telnyx", "offline"
    base_url: str | None  # None: the client's own default
    api_key: str
    model: str


def endpoint() -> Endpoint:
    """The model endpoint that the settings choose. Raises ConfigurationError."""
    model, key, base_url = conf.get("MODEL"), conf.get("OPENAI_API_KEY"), conf.get("OPENAI_BASE_URL")
    if key or base_url:
        if base_url and not model:
            raise ConfigurationError(
                f"set MODEL: only {base_url} knows the names of its models", setting="MODEL"
            )
        # Servers without keys want none, but the client insists on one.
        return Endpoint("OpenAI", base_url or None, key or "none", model or OPENAI_MODEL)
    if telnyx_key := conf.get("TELNYX_API_KEY"):
        url = conf.get("TELNYX_BASE_URL").rstrip("/") + "/ai/openai"
        return Endpoint("Telnyx", url, telnyx_key, model or TELNYX_MODEL)
    if settings.DEBUG:
        url = conf.get("SITE_URL").rstrip("/") + OFFLINE_PATH
        return Endpoint("offline", url, OFFLINE_KEY, model or OFFLINE_MODEL)
    raise ConfigurationError(
        "no model is configured: set OPENAI_API_KEY, OPENAI_BASE_URL or TELNYX_API_KEY"
        " (the offline model answers on development sites only)",
        setting="OPENAI_API_KEY",
    )


def openai() -> AsyncOpenAI:
    """The client of the model endpoint. Raises ConfigurationError."""
    chosen = endpoint()
    from openai import AsyncOpenAI

    tracing.instrument_models()
    if chosen.label == "offline":
        logger.warning(
            "no model key is set: agents talk to the OFFLINE model of this development site at %s",
            chosen.base_url,
        )
    return AsyncOpenAI(api_key=chosen.api_key, base_url=chosen.base_url, timeout=MODEL_TIMEOUT)


def model() -> str:
    """The name of the model to ask for. Raises ConfigurationError."""
    return endpoint().model


def telnyx() -> AsyncTelnyx:
    """Telnyx's client. Raises ConfigurationError without a key."""
    key = conf.get("TELNYX_API_KEY")
    if not key:
        raise ConfigurationError("env.TELNYX needs TELNYX_API_KEY", setting="TELNYX_API_KEY")
    from telnyx import AsyncTelnyx

    return AsyncTelnyx(api_key=key, base_url=conf.get("TELNYX_BASE_URL"))
