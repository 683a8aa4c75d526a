"""What ``manage.py check`` says, and that the documented production settings satisfy it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.core.checks import CheckMessage

from agents import checks, conf

ROOT = Path(__file__).resolve().parents[2]
Use = Callable[..., None]

SQLITE = {
    "ENGINE": checks.SQLITE,
    "NAME": "/tmp/x.sqlite3",
    "CONN_MAX_AGE": 0,
    "OPTIONS": {"transaction_mode": "IMMEDIATE"},
}
POSTGRESQL = {
    "ENGINE": checks.POSTGRESQL,
    "NAME": "x",
    "CONN_MAX_AGE": 0,
    "OPTIONS": {"pool": {"min_size": 0, "max_size": 16}},
}


@pytest.fixture
def agents(settings: Any) -> Use:
    """Sets ``settings.AGENTS``, empty at first; assigned anew, so that what was read before is forgotten."""

    def use(**values: Any) -> None:
        settings.AGENTS = values

    use()
    return use


@pytest.fixture
def default(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts other settings of the default database in place of the real ones, for the checks alone."""
    from django.conf import settings

    def use(database: dict[str, Any]) -> list[str]:
        monkeypatch.setitem(settings.DATABASES, "default", database)
        return ids(checks.check_database(None))

    return use


def ids(messages: list[CheckMessage]) -> list[str]:
    for message in messages:
        assert message.hint
    return [str(message.id) for message in messages]


def test_the_defaults_are_in_order(agents: Use, default: Any) -> None:
    assert checks.check_settings(None) == []
    assert default(SQLITE) == []
    assert default(POSTGRESQL) == []
    assert checks.check_dispatcher(None) == []


def test_every_setting_of_the_runtime_that_has_a_range_is_checked() -> None:
    texts = {name for name, value in conf.DEFAULTS.items() if isinstance(value, str)}
    unchecked = {name for name in conf.DEFAULTS if checks.rule_for(name) is None}
    assert unchecked == texts - checks.RULES.keys()


def test_a_key_that_nobody_reads_is_an_error_with_the_likely_name(agents: Use) -> None:
    agents(LEASE_RENEWALS=5.0, zzz=1)
    messages = checks.check_settings(None)
    assert ids(messages) == ["agents.E001", "agents.E001"]
    assert messages[0].hint == "Did you mean LEASE_RENEWAL?"


def test_the_settings_of_every_app_are_known() -> None:
    assert {"LEASE", "SMS_PROVIDER"} <= checks.known_settings().keys()


@pytest.mark.parametrize(
    ("name", "bad", "edge"),
    [
        ("DISPATCHER", "cron", "celery"),
        ("LEASE", 0, 10),
        ("LEASE", float("inf"), 10.5),
        ("LEASE", True, 10),
        ("LEASE", "15", 15),
        ("BUDGET_GRACE", -0.1, 0),
        ("TURNS", 0, 1),
        ("TURNS", 1.5, 1),
        ("MAX_INBOX", 0, 1),
        ("API_RATE", "0/min", "1/s"),
        ("API_ANON_RATE", 60, "60/min"),
        ("MAX_STATE_BYTES", "1MB", 1),
        ("ENV", ["TELNYX"], {}),
        ("ENV", {"TELNYX": 1}, {"TELNYX": "a.b"}),
    ],
)
def test_a_value_out_of_range_is_an_error(agents: Use, name: str, bad: Any, edge: Any) -> None:
    agents(**{name: bad})
    messages = checks.check_settings(None)
    assert ids(messages) == ["agents.E002"]
    assert name in messages[0].msg
    agents(**{name: edge})
    assert checks.check_settings(None) == []


def test_a_lease_must_be_renewed_twice_at_least(agents: Use) -> None:
    agents(LEASE=10, LEASE_RENEWAL=5)
    assert checks.check_settings(None) == []
    agents(LEASE=10, LEASE_RENEWAL=5.1)
    assert ids(checks.check_settings(None)) == ["agents.E003"]


def test_inbox_keys_are_kept_for_thirty_days_at_least(agents: Use) -> None:
    agents(KEEP_INBOX_KEYS=30 * 86_400)
    assert checks.check_settings(None) == []
    agents(KEEP_INBOX_KEYS=30 * 86_400 - 1)
    assert ids(checks.check_settings(None)) == ["agents.E004"]


def test_connections_expire_after_two_refreshes_at_least(agents: Use) -> None:
    agents(CONNECTION_EXPIRY=10, CONNECTION_REFRESH=5)
    assert checks.check_settings(None) == []
    agents(CONNECTION_EXPIRY=10, CONNECTION_REFRESH=5.1)
    assert ids(checks.check_settings(None)) == ["agents.E011"]


@pytest.mark.parametrize("age", [60, None])
def test_persistent_connections_under_asgi_are_an_error(default: Any, age: int | None) -> None:
    """OPS-04"""
    assert default({**POSTGRESQL, "CONN_MAX_AGE": age}) == ["agents.E005"]


def test_a_database_of_another_kind_is_an_error(default: Any) -> None:
    assert default({"ENGINE": "django.db.backends.mysql", "NAME": "x"}) == ["agents.E006"]


def test_moments_without_a_zone_are_an_error(default: Any, settings: Any) -> None:
    settings.USE_TZ = False
    assert default(SQLITE) == ["agents.E007"]


@pytest.mark.parametrize("name", [":memory:", "file:x?mode=memory&cache=shared"])
def test_a_database_in_memory_is_an_error(default: Any, name: str) -> None:
    assert default({**SQLITE, "NAME": name}) == ["agents.E008"]


def test_deferred_transactions_on_sqlite_are_an_error(default: Any) -> None:
    assert default({**SQLITE, "OPTIONS": {}}) == ["agents.E009"]


def test_a_transaction_around_each_request_is_a_warning(default: Any) -> None:
    assert default({**SQLITE, "ATOMIC_REQUESTS": True}) == ["agents.W001"]


def test_celery_on_sqlite_is_a_warning(default: Any, agents: Use) -> None:
    agents(DISPATCHER="celery")
    assert default(SQLITE) == ["agents.W002"]


def test_postgresql_without_a_pool_is_worth_a_note(default: Any) -> None:
    assert default({**POSTGRESQL, "OPTIONS": {}}) == ["agents.I001"]


def test_a_pool_that_the_runtime_alone_would_empty_is_a_warning(default: Any, agents: Use) -> None:
    agents(ORM_THREADS=3, STORE_THREADS=2, SOCKET_THREADS=2, API_THREADS=1)
    assert default({**POSTGRESQL, "OPTIONS": {"pool": {"max_size": 13}}}) == []
    assert default({**POSTGRESQL, "OPTIONS": {"pool": {"max_size": 12}}}) == ["agents.W003"]
    assert default({**POSTGRESQL, "OPTIONS": {"pool": True}}) == ["agents.W003"]


def test_celery_with_a_channel_layer_in_memory_is_an_error(agents: Use, settings: Any) -> None:
    agents(DISPATCHER="celery")
    settings.CHANNEL_LAYERS = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}
    assert ids(checks.check_dispatcher(None)) == ["agents.E010"]
    settings.CHANNEL_LAYERS = {"default": {"BACKEND": "channels_redis.core.RedisChannelLayer"}}
    assert checks.check_dispatcher(None) == []


@pytest.mark.parametrize(
    "backend", ["agents.sockets.layer.RedisLayer", "channels_redis.core.RedisChannelLayer"]
)
def test_a_layer_that_takes_silence_for_an_outage_is_a_warning(settings: Any, backend: str) -> None:
    """channels_redis has Redis wait for 5 s; its client gives up after as many, unless told otherwise."""

    def found(**host: Any) -> list[str]:
        config = {"hosts": [{"address": "redis://127.0.0.1:6379/0", **host}]}
        settings.CHANNEL_LAYERS = {"default": {"BACKEND": backend, "CONFIG": config}}
        return ids(checks.check_channel_layer(None))

    assert found() == found(socket_timeout=5) == ["agents.W004"]
    assert found(socket_timeout=5.1) == found(socket_timeout=None) == []
    settings.CHANNEL_LAYERS = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}
    assert ids(checks.check_channel_layer(None)) == []


PRODUCTION = {
    "SECRET_KEY": "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ",
    "ALLOWED_HOSTS": "agents.example.org",
    "DATABASE_URL": "postgres://agents@127.0.0.1:5432/agents",
    "REDIS_URL": "redis://127.0.0.1:6379/0",
    "AGENTS_DISPATCHER": "celery",
    "SITE_URL": "https://agents.example.org",
    "TELNYX_API_KEY": "KEY-of-the-account",
    "TELNYX_PUBLIC_KEY": "11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=",  # RFC 8032, section 7.1, test 1
}


def deploy_check(tmp_path: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    own = {
        name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LANG", "PYTHONPATH")
    }
    return subprocess.run(
        [sys.executable, "manage.py", "check", "--deploy", "--fail-level", "WARNING"],
        cwd=ROOT,
        env={**own, "ENV_FILE": "", "VAR_DIR": str(tmp_path), **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.processes
def test_the_documented_production_settings_are_clean(tmp_path: Path) -> None:
    done = deploy_check(tmp_path, PRODUCTION)
    assert done.returncode == 0, done.stderr
    assert "no issues" in done.stdout


@pytest.mark.processes
def test_the_documented_production_settings_are_those_that_the_page_names() -> None:
    page = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    section = page.split("## In production", 1)[1].split("\n## ", 1)[0]
    for name in PRODUCTION:
        assert f"`{name}`" in section or f"\n{name}=" in section, name


@pytest.mark.processes
@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"REDIS_URL": ""}, "agents.E010"),
        ({"SECRET_KEY": "short"}, "security.W009"),
        ({"TELNYX_PUBLIC_KEY": ""}, "conversations.W001"),
    ],
)
def test_what_is_missing_in_production_is_said(tmp_path: Path, change: dict[str, str], word: str) -> None:
    done = deploy_check(tmp_path, {**PRODUCTION, **change})
    assert done.returncode == 1
    assert word in done.stderr
