"""Settings of the runtime: ``settings.AGENTS``, each with its default and unit, read when used.

Durations are seconds, sizes are bytes. The names ending in ``_MAX_LENGTH`` are column widths: they are
part of the schema and not settings.
"""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.signals import setting_changed
from django.dispatch import receiver

KIND_MAX_LENGTH = 64  # characters
NAME_MAX_LENGTH = 255  # characters
METHOD_MAX_LENGTH = 128  # characters
TASK_ID_MAX_LENGTH = 255  # characters
KEY_MAX_LENGTH = 255  # characters
STORAGE_KEY_MAX_LENGTH = 512  # characters

DEFAULTS: dict[str, Any] = {
    # Who fires due tasks: "local" (this site's own process) or "celery".
    "DISPATCHER": "local",
    # The lease of a turn, how often it is renewed, how often a stop is looked for.
    "LEASE": 15.0,
    "LEASE_RENEWAL": 5.0,
    "STOP_POLL": 0.5,
    # Wall-clock budgets of a turn: calls, frames and requests; tasks; and the grace after either, in which
    # the body may end after it was cancelled. Then the token is void.
    "CALL_BUDGET": 30.0,
    "TASK_BUDGET": 900.0,
    "BUDGET_GRACE": 5.0,
    # Whether a process that runs turns pauses everything as it starts (agents/pauses.py).
    "START_PAUSED": False,
    # How long a caller waits for a busy actor before ActorBusyError.
    "PATIENCE": 30.0,
    # How long running turns may go on after SIGTERM.
    "SHUTDOWN_GRACE": 10.0,
    # Turns one process runs at once.
    "TURNS": 200,
    # Threads (and so database connections) for the agents' own ORM work, and for the store.
    "ORM_THREADS": 4,
    "STORE_THREADS": 2,
    # Turns in one batch of the store.
    "STORE_BATCH": 64,
    # Whether the store prepares its statements on PostgreSQL. False behind a pooler in transaction mode that
    # doesn't follow prepared statements (PgBouncer before 1.21, or with max_prepared_statements = 0).
    "PREPARE_STATEMENTS": True,
    # Seconds between two sweeps for due actors.
    "SWEEP_INTERVAL": 1.0,
    # Publishing a wake-up or a broadcast is given up after this.
    "PUBLISH_TIMEOUT": 0.2,
    # Whether turns are counted for Prometheus (docs/observability.md); ports of which each process takes the
    # first that is free to show them, "9101" or "9101-9120", none by default; the address it listens on; and
    # the token that GET /metrics asks for.
    "METRICS": True,
    "METRICS_PORTS": "",
    "METRICS_HOST": "127.0.0.1",
    "METRICS_TOKEN": "",
    # Whether logs hold what errors say, which may quote somebody, and whole phone numbers.
    "LOG_CONTENT": False,
    # Limits; one past each raises a LimitError. See docs/limits.md.
    "MAX_MESSAGE_BYTES": 1024 * 1024,
    "MAX_STATE_BYTES": 1024 * 1024,
    "MAX_PAYLOAD_BYTES": 256 * 1024,
    "MAX_ARGUMENT_BYTES": 1024 * 1024,
    "MAX_RESULT_BYTES": 4 * 1024 * 1024,
    "MAX_TURN_WRITES": 10_000,
    "MAX_PENDING_TASKS": 10_000,
    "MAX_INBOX": 10_000,
    "MAX_EVENT_BYTES": 256 * 1024,
    "MAX_BLOB_BYTES": 50 * 1024 * 1024,
    # An actor's SQL database: its size, one bound value, what one turn changes between two commits, what a
    # statement may put aside (sorting, temporary tables, VACUUM), and its result.
    "MAX_SQL_BYTES": 1024**3,
    "MAX_SQL_VALUE_BYTES": 2 * 1024 * 1024,
    "MAX_SQL_COMMIT_BYTES": 64 * 1024 * 1024,
    "MAX_SQL_TEMP_BYTES": 64 * 1024 * 1024,
    "MAX_SQL_ROWS": 100_000,
    "MAX_SQL_RESULT_BYTES": 16 * 1024 * 1024,
    "MAX_STORAGE_VALUE_BYTES": 128 * 1024,
    # How long one call of ``self.sql`` may run.
    "SQL_BUDGET": 5.0,
    # Of a process: pages of actors' databases that it remembers, and SQLite's own memory.
    "SQL_CACHE_BYTES": 64 * 1024 * 1024,
    "SQL_HEAP_BYTES": 512 * 1024 * 1024,
    # Events kept an actor.
    "EVENTS_KEPT": 1000,
    # Sockets (docs/protocol.md). Origins that may connect besides those of ALLOWED_HOSTS.
    "SOCKET_ORIGINS": [],
    # Threads (and so database connections) for what sockets read and write themselves.
    "SOCKET_THREADS": 2,
    # How long a socket may take to attach with a token, or to say anything; how often sessions and tokens
    # are looked at again; how long a client whose window is full may see nothing.
    "SOCKET_ATTACH_TIMEOUT": 10.0,
    "SOCKET_CHECK_INTERVAL": 10.0,
    "SOCKET_SEEN_TIMEOUT": 60.0,
    # How often a process asks for the newest cursors of the actors that it has sockets for.
    "SOCKET_HEADS_INTERVAL": 2.0,
    # channels_redis forgets after a day (its group_expiry) who is in a group.
    "SOCKET_RENEWAL": 3600.0,
    # How often a process says that its sockets live; a socket that nobody spoke of for that long is gone.
    "CONNECTION_REFRESH": 20.0,
    "CONNECTION_EXPIRY": 60.0,
    # How long a token of connect_token admits, unless it says otherwise.
    "TOKEN_MAX_AGE": 3600.0,
    # What a socket may send: one frame; and those that wait for their turn, together.
    "MAX_FRAME_BYTES": 1024 * 1024,
    "MAX_WAITING_FRAMES": 256,
    "MAX_WAITING_BYTES": 1024 * 1024,
    # How far a socket's events may run ahead of what its client has seen.
    "MAX_UNSEEN_EVENTS": 256,
    "MAX_UNSEEN_BYTES": 1024 * 1024,
    # Messages in the snapshot for a client that is too far behind.
    "SNAPSHOT_MESSAGES": 50,
    # The REST API (docs/api.md). Threads (and so database connections) for what its views read and write.
    "API_THREADS": 2,
    # Requests of one client: a number, and per "s", "min", "hour" or "day". For those signed in, and for an
    # address of those who are not.
    "API_RATE": "1200/min",
    "API_ANON_RATE": "60/min",
    # How long a request may wait for new messages, or for a reply.
    "API_WAIT": 60.0,
    # The body of a request, and of what ``on_request`` answers.
    "MAX_REQUEST_BYTES": 1024 * 1024,
    "MAX_RESPONSE_BYTES": 4 * 1024 * 1024,
    # How long a stream gathers text before it is saved and shown.
    "STREAM_INTERVAL": 0.05,
    # How long the records of turns and attempts, and the keys of the inbox, are kept.
    "KEEP_TURNS": 30 * 86_400.0,
    "KEEP_ATTEMPTS": 30 * 86_400.0,
    "KEEP_INBOX_KEYS": 35 * 86_400.0,
    # Texts, in and finished ones out. Inbound texts are also what duplicates are told by.
    "KEEP_TEXTS": 365 * 86_400.0,
    # Other times for a kind: {"support": {"KEEP_TEXTS": 90 * 86_400.0}}. KEEP_ACTORS besides: after so long
    # without a sign of life an actor of the kind is erased.
    "KEEP_BY_KIND": {},
    # What the deployment binds by name for ``self.env``: name -> dotted path of a factory without arguments.
    "ENV": {
        "TELNYX": "agents.env.telnyx",
        "OPENAI": "agents.env.openai",
        "MODEL": "agents.env.model",
    },
    # Where those clients go (agents/env.py). With no key at all: the offline model of this site at SITE_URL.
    "OPENAI_API_KEY": "",
    "OPENAI_BASE_URL": "",
    "TELNYX_API_KEY": "",
    "TELNYX_BASE_URL": "https://api.telnyx.com/v2",
    "MODEL": "",
    "SITE_URL": "http://127.0.0.1:8000",
}


_read: dict[str, Any] = {}


def get(name: str) -> Any:
    """The value of one setting: the project's ``AGENTS[name]`` or the default above.

    Read once: several of these are asked for in every turn. Django's ``setting_changed`` (tests) forgets.
    """
    try:
        return _read[name]
    except KeyError:
        value = _read[name] = getattr(settings, "AGENTS", {}).get(name, DEFAULTS[name])
        return value


@receiver(setting_changed)
def _forget(*, setting: str, **kwargs: Any) -> None:
    if setting == "AGENTS":
        _read.clear()
