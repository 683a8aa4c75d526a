"""What ``manage.py check`` says about settings that are unsafe or contradict each other.

Errors would lose something or fail at the first turn; warnings are for arrangements that work but not as one
would expect. Each names the setting and what to do.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Error, Info, Warning

from agents import conf
from agents.observing.port import ports

#: Where the keys of ``settings.AGENTS`` are declared: one conf.py an app.
CONFS = ("agents.conf", "conversations.conf", "scheduler.conf")
#: A key told to an inbox changes nothing when it comes again within this time.
INBOX_KEY_PROMISE = 30 * 86_400.0  # seconds

SQLITE = "django.db.backends.sqlite3"
POSTGRESQL = "django.db.backends.postgresql"


def known_settings() -> dict[str, Any]:
    """Every key that ``settings.AGENTS`` may have, with its default."""
    known: dict[str, Any] = {}
    for name in CONFS:
        if find_spec(name):
            known.update(getattr(import_module(name), "DEFAULTS", {}))
    return known


# Values

Rule = tuple[str, Callable[[Any], bool]]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _are_ports(value: Any) -> bool:
    try:
        ports(value)
    except (TypeError, ValueError):
        return False
    return True


POSITIVE: Rule = ("a positive number", lambda value: _is_number(value) and value > 0)
NOT_NEGATIVE: Rule = ("a number that is not negative", lambda value: _is_number(value) and value >= 0)
COUNT: Rule = ("a whole number, 1 or more", lambda value: _is_number(value) and value == int(value) >= 1)
RATE: Rule = (
    "a rate such as '1200/min'",
    lambda value: isinstance(value, str) and bool(re.fullmatch(r"[1-9]\d*/(s|sec|min|hour|day)", value)),
)
TEXT: Rule = ("a text", lambda value: isinstance(value, str))

RULES: dict[str, Rule] = {
    "DISPATCHER": ("'local' or 'celery'", lambda value: value in ("local", "celery")),
    "LEASE": POSITIVE,
    "LEASE_RENEWAL": POSITIVE,
    "STOP_POLL": POSITIVE,
    "CALL_BUDGET": POSITIVE,
    "TASK_BUDGET": POSITIVE,
    "BUDGET_GRACE": NOT_NEGATIVE,
    "PATIENCE": NOT_NEGATIVE,
    "SHUTDOWN_GRACE": NOT_NEGATIVE,
    "TURNS": COUNT,
    "ORM_THREADS": COUNT,
    "STORE_THREADS": COUNT,
    "STORE_BATCH": COUNT,
    "PREPARE_STATEMENTS": ("True or False", lambda value: isinstance(value, bool)),
    "METRICS": ("True or False", lambda value: isinstance(value, bool)),
    "LOG_CONTENT": ("True or False", lambda value: isinstance(value, bool)),
    "METRICS_PORTS": ("'', a port, or a range such as '9101-9120'", _are_ports),
    "METRICS_HOST": TEXT,
    "METRICS_TOKEN": TEXT,
    "KEEP_BY_KIND": (
        "a dictionary such as {'support': {'KEEP_TEXTS': 86400.0}}: KEEP_TURNS, KEEP_ATTEMPTS,"
        " KEEP_INBOX_KEYS, KEEP_TEXTS, KEEP_ACTORS, in seconds",
        lambda value: (
            isinstance(value, dict)
            and all(
                isinstance(keep, dict)
                and keep.keys()
                <= {"KEEP_TURNS", "KEEP_ATTEMPTS", "KEEP_INBOX_KEYS", "KEEP_TEXTS", "KEEP_ACTORS"}
                and all(_is_number(seconds) and seconds > 0 for seconds in keep.values())
                for keep in value.values()
            )
        ),
    ),
    "START_PAUSED": ("True or False", lambda value: isinstance(value, bool)),
    "SWEEP_INTERVAL": POSITIVE,
    "PUBLISH_TIMEOUT": POSITIVE,
    "SQL_BUDGET": POSITIVE,
    "SQL_CACHE_BYTES": NOT_NEGATIVE,
    "SQL_HEAP_BYTES": COUNT,
    "EVENTS_KEPT": COUNT,
    "SOCKET_ORIGINS": (
        "a list of origins such as 'https://app.example.org'",
        lambda value: isinstance(value, list | tuple) and all(isinstance(origin, str) for origin in value),
    ),
    "SOCKET_THREADS": COUNT,
    "SOCKET_ATTACH_TIMEOUT": POSITIVE,
    "SOCKET_CHECK_INTERVAL": POSITIVE,
    "SOCKET_SEEN_TIMEOUT": POSITIVE,
    "SOCKET_HEADS_INTERVAL": POSITIVE,
    "SOCKET_RENEWAL": POSITIVE,
    "CONNECTION_REFRESH": POSITIVE,
    "CONNECTION_EXPIRY": POSITIVE,
    "TOKEN_MAX_AGE": POSITIVE,
    "SNAPSHOT_MESSAGES": COUNT,
    "API_THREADS": COUNT,
    "API_RATE": RATE,
    "API_ANON_RATE": RATE,
    "API_WAIT": POSITIVE,
    "STREAM_INTERVAL": POSITIVE,
    "KEEP_TURNS": POSITIVE,
    "KEEP_ATTEMPTS": POSITIVE,
    "KEEP_INBOX_KEYS": POSITIVE,
    "KEEP_TEXTS": POSITIVE,
    "ENV": (
        "a mapping of names to dotted paths",
        lambda value: (
            isinstance(value, dict)
            and all(isinstance(name, str) and isinstance(path, str) for name, path in value.items())
        ),
    ),
}


def rule_for(name: str) -> Rule | None:
    """The rule of a setting of the runtime; limits (``MAX_...``) share one."""
    if name in RULES:
        return RULES[name]
    return COUNT if name.startswith("MAX_") else None


def check_settings(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Keys that nobody reads, and values out of range."""
    return [*_unknown(), *_out_of_range(), *_contradictions()]


def _unknown() -> Iterator[CheckMessage]:
    known = known_settings()
    for name in getattr(settings, "AGENTS", {}):
        if name not in known:
            close = difflib.get_close_matches(str(name).upper(), known, n=1)
            yield Error(
                f"AGENTS has a setting that does not exist: {name!r}.",
                hint=f"Did you mean {close[0]}?" if close else "docs/settings.md lists them all.",
                id="agents.E001",
            )


def _out_of_range() -> Iterator[CheckMessage]:
    for name in conf.DEFAULTS:
        rule = rule_for(name)
        if rule is not None and not rule[1](conf.get(name)):
            yield Error(
                f"AGENTS[{name!r}] must be {rule[0]}, got {conf.get(name)!r}.",
                hint=f"The default is {conf.DEFAULTS[name]!r}.",
                id="agents.E002",
            )


def _contradictions() -> Iterator[CheckMessage]:
    lease, renewal = conf.get("LEASE"), conf.get("LEASE_RENEWAL")
    if _is_number(lease) and _is_number(renewal) and 0 < lease < renewal * 2:
        yield Error(
            f"LEASE_RENEWAL is {renewal} s, LEASE {lease} s: one late renewal would lose a turn that runs.",
            hint="Renew at least twice a lease.",
            id="agents.E003",
        )
    keep = conf.get("KEEP_INBOX_KEYS")
    if _is_number(keep) and keep < INBOX_KEY_PROMISE:
        yield Error(
            f"KEEP_INBOX_KEYS is {keep} s: a provider that repeats an event after that starts it again.",
            hint="Keep the keys for 30 days (2,592,000 s) at least.",
            id="agents.E004",
        )
    refresh, expiry = conf.get("CONNECTION_REFRESH"), conf.get("CONNECTION_EXPIRY")
    if _is_number(refresh) and _is_number(expiry) and 0 < expiry < refresh * 2:
        yield Error(
            f"CONNECTION_EXPIRY is {expiry} s, CONNECTION_REFRESH {refresh} s: sockets that live would be"
            " taken for dead.",
            hint="Let a connection expire after two refreshes at least.",
            id="agents.E011",
        )


# The database


def check_database(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """What the turn's promises need of the default database, and connections that would leak."""
    messages: list[CheckMessage] = []
    for alias, database in settings.DATABASES.items():
        if database.get("CONN_MAX_AGE", 0) != 0:
            messages.append(
                Error(
                    f"DATABASES[{alias!r}] has CONN_MAX_AGE {database['CONN_MAX_AGE']!r}: under ASGI each"
                    " thread would keep a connection of its own.",
                    hint="Set CONN_MAX_AGE to 0; on PostgreSQL the pool keeps connections open.",
                    id="agents.E005",
                )
            )
    default = settings.DATABASES["default"]
    check = {SQLITE: _check_sqlite, POSTGRESQL: _check_postgresql}.get(default["ENGINE"])
    if check is None:
        messages.append(
            Error(
                f"The default database is {default['ENGINE']}: turns are committed by statements of"
                " PostgreSQL and SQLite alone.",
                hint="Point DATABASE_URL to PostgreSQL, or unset it for SQLite.",
                id="agents.E006",
            )
        )
    else:
        messages.extend(check(default))
    if default.get("ATOMIC_REQUESTS"):
        messages.append(
            Warning(
                "ATOMIC_REQUESTS is on: a view that calls an actor raises OpenTransactionError.",
                hint="Turn it off, or mark such views with transaction.non_atomic_requests.",
                id="agents.W001",
            )
        )
    if not settings.USE_TZ:
        messages.append(
            Error(
                "USE_TZ is off: due times would be compared with moments of another zone.",
                hint="Set USE_TZ to True.",
                id="agents.E007",
            )
        )
    return messages


def _check_sqlite(database: dict[str, Any]) -> Iterator[CheckMessage]:
    name = str(database["NAME"])
    if name == ":memory:" or "mode=memory" in name:
        yield Error(
            "The default database is in memory: turns run in threads, each of which would see its own.",
            hint="Use a file.",
            id="agents.E008",
        )
    if str(database.get("OPTIONS", {}).get("transaction_mode", "")).upper() != "IMMEDIATE":
        yield Error(
            "SQLite's transactions are deferred: one that reads before it writes fails at once with"
            " 'database is locked' when another writes, whatever the timeout.",
            hint="Set OPTIONS['transaction_mode'] to 'IMMEDIATE'.",
            id="agents.E009",
        )
    if conf.get("DISPATCHER") == "celery":
        yield Warning(
            "Celery's workers share a SQLite file with the site: they must run on this machine, and one"
            " process writes at a time.",
            hint="Point DATABASE_URL to PostgreSQL, or use the local dispatcher.",
            id="agents.W002",
        )


#: Threads with a connection that no setting counts: two of tells, the heartbeat, one read in a snapshot.
OTHER_THREADS = 4


def _check_postgresql(database: dict[str, Any]) -> Iterator[CheckMessage]:
    pool = database.get("OPTIONS", {}).get("pool")
    if not pool:
        yield Info(
            "PostgreSQL is used without a pool: each unit of work opens a connection.",
            hint="Set OPTIONS['pool'].",
            id="agents.I001",
        )
        return
    size = pool.get("max_size") or pool.get("min_size", 4) if isinstance(pool, dict) else 4
    threads = OTHER_THREADS + sum(conf.get(f"{whose}_THREADS") for whose in ("ORM", "STORE", "SOCKET", "API"))
    if size <= threads:
        yield Warning(
            f"The pool holds {size} connections and the runtime's threads may hold {threads}: requests would"
            " wait for one.",
            hint=f"Let DATABASE_POOL_SIZE be {threads + 2} or more.",
            id="agents.W003",
        )


# Between processes


def check_dispatcher(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Several processes need a channel layer that reaches them all."""
    layers = getattr(settings, "CHANNEL_LAYERS", {})
    backend = str(layers.get("default", {}).get("BACKEND", ""))
    if conf.get("DISPATCHER") == "celery" and backend.endswith("InMemoryChannelLayer"):
        return [
            Error(
                "Turns run in Celery's workers, but the channel layer is in memory: what they broadcast"
                " reaches nobody.",
                hint="Set REDIS_URL.",
                id="agents.E010",
            )
        ]
    return []


def check_channel_layer(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """A layer that takes silence for an outage is away for a second in every six."""
    layer = getattr(settings, "CHANNEL_LAYERS", {}).get("default", {})
    if layer.get("BACKEND") not in (
        "agents.sockets.layer.RedisLayer",
        "channels_redis.core.RedisChannelLayer",
    ):
        return []
    from channels_redis.core import RedisChannelLayer
    from channels_redis.utils import create_pool, decode_hosts
    from redis.asyncio.connection import AbstractConnection

    wait = RedisChannelLayer.brpop_timeout
    usual = signature(AbstractConnection.__init__).parameters.get("socket_timeout")
    for host in decode_hosts(layer.get("CONFIG", {}).get("hosts")):
        options = create_pool(host).connection_kwargs
        timeout = options.get("socket_timeout", usual.default if usual else None)
        if timeout is not None and timeout <= wait:
            return [
                Warning(
                    f"The channel layer has Redis wait {wait} s for news, and its connection"
                    f" gives up after {timeout:g} s: without news it breaks off again and again.",
                    hint='Say {"address": REDIS_URL, "socket_timeout": 15} in place of the host\'s address.',
                    id="agents.W004",
                )
            ]
    return []
