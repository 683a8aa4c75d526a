"""What every test may ask for: the cast, and databases that parallel runs and reruns don't share.

The cast, one for all: Alice owns the site (superuser), Bob is on the team (staff who may look), Charlie is a
stranger (signed in, may see nothing).
"""

from __future__ import annotations

import contextlib
import gc
import os
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import hypothesis
import pytest
from django.core.management.color import no_style

# Neither an example nor its making is measured: the machine may stall in the middle of it. The same examples
# each time, so that a change is judged by what it changes; "--hypothesis-profile search" looks for others.
hypothesis.settings.register_profile(
    "same", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow], derandomize=True
)
hypothesis.settings.register_profile(
    "search", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow], max_examples=1000
)
hypothesis.settings.load_profile("same")

OUR_APPS = ("agents", "conversations", "scheduler")


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, Any, Any]:
    """What is imported and collected stays: no garbage is looked for in it, now or later.

    700,000 objects. Saves a quarter of the collection's processor time, and an eighth of the tests' own.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips what needs a server that this run was not given; what takes minutes begins first, so that no
    worker is left alone with it at the end."""
    items.sort(key=lambda item: item.get_closest_marker("minutes") is None)
    from django.conf import settings

    missing = {}
    if settings.DATABASES["default"]["ENGINE"] != "django.db.backends.postgresql":
        missing["postgres"] = pytest.mark.skip(reason="needs PostgreSQL: set DATABASE_URL")
    if not settings.REDIS_URL:
        missing["redis"] = pytest.mark.skip(reason="needs Redis: set REDIS_URL")
    for item in items:
        for name, skip in missing.items():
            if item.get_closest_marker(name):
                item.add_marker(skip)


@pytest.fixture(scope="session")
def django_db_modify_db_settings(request: pytest.FixtureRequest) -> None:
    """Gives this process a test database of its own.

    PostgreSQL: pytest-xdist's worker is a suffix of the name. SQLite: a file named after the process, so
    that two runs in one folder don't meet; files of runs that were killed go.
    """
    from django.conf import settings

    database = settings.DATABASES["default"]
    if database["ENGINE"] == "django.db.backends.sqlite3":
        folder = Path(database["TEST"]["NAME"]).parent
        for old in folder.glob("test-*.sqlite3"):
            if not Path(f"/proc/{old.stem.removeprefix('test-')}").exists():
                _remove_sqlite(old)
        database["TEST"]["NAME"] = str(folder / f"test-{os.getpid()}.sqlite3")
    elif worker := os.environ.get("PYTEST_XDIST_WORKER"):
        name = database.get("TEST", {}).get("NAME") or f"test_{database['NAME']}"
        database.setdefault("TEST", {})["NAME"] = f"{name}_{worker}"


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """Makes tests quick; ends what still holds the test database before it is dropped."""
    from django.db import connection

    with django_db_blocker.unblock():
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                # No test pulls the plug of the server.
                name = connection.ops.quote_name(connection.settings_dict["NAME"])
                cursor.execute(f"ALTER DATABASE {name} SET synchronous_commit TO off")
        statements = _delete_all(connection)
        connection.close()
    with _flushed_by(statements):
        yield
    with django_db_blocker.unblock():
        from agents import runtime

        runtime.shutdown(0)
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
        connection.close()
        if connection.vendor == "sqlite":
            # Django deletes the database alone.
            for suffix in ("-wal", "-shm"):
                Path(f"{connection.settings_dict['NAME']}{suffix}").unlink(missing_ok=True)


@contextlib.contextmanager
def _flushed_by(statements: list[str]) -> Iterator[None]:
    """What tests with transactions of their own left in the tables goes by these statements.

    Django would look which tables there are, empty all of them, and make content types and permissions anew:
    sixteen times the work, after each of those tests.
    """
    from django.core.management.commands import flush

    with (
        mock.patch.object(flush, "sql_flush", lambda *args, **options: statements),
        mock.patch.object(flush, "emit_post_migrate_signal", lambda *args, **options: None),
    ):
        yield


def _delete_all(connection: Any) -> list[str]:
    """Empties every table but those that ``migrate`` fills and nobody else writes."""
    tables = connection.introspection.django_table_names(only_existing=True, include_views=False)
    tables = sorted({*tables} - {"django_content_type", "auth_permission"})
    if connection.vendor != "postgresql":
        return list(connection.ops.sql_flush(no_style(), tables))
    # To truncate makes new files for each table, also for the empty ones. Foreign keys are not looked at, and
    # all of it is one round trip.
    deletes = [f"DELETE FROM {connection.ops.quote_name(table)}" for table in tables]
    return ["; ".join(["SET LOCAL session_replication_role = replica", *deletes])]


def _remove_sqlite(path: Path) -> None:
    for name in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
        with contextlib.suppress(OSError):
            name.unlink()


@pytest.fixture(autouse=True)
def _nothing_is_left_running() -> Iterator[None]:
    """After each test no turn of it may run on, nor its dispatcher: the next test empties the tables."""
    yield
    from agents import clock, runtime

    clock.reset()
    current = runtime._runtime
    if current is None or current.pid != os.getpid():
        return
    from scheduler.dispatchers import local

    local.stop()
    engine = current.engine
    deadline = time.monotonic() + 30
    while engine.turnstile.busy and time.monotonic() < deadline:
        time.sleep(0.01)
    if engine.turnstile.busy:
        left = [run.turn.method for run in list(engine.runs)]
        runtime.shutdown(0)
        pytest.fail(f"this test still holds actors; turns that run: {left}")


@pytest.fixture
def alice(db: None, django_user_model: Any) -> Any:
    """Owns the site: a superuser."""
    return django_user_model.objects.create_superuser("alice", "alice@example.org", "alice")


@pytest.fixture
def bob(db: None, django_user_model: Any) -> Any:
    """On the team: staff with every view permission of our apps, and no other."""
    from django.contrib.auth.models import Permission

    user = django_user_model.objects.create_user("bob", "bob@example.org", "bob", is_staff=True)
    user.user_permissions.set(
        Permission.objects.filter(content_type__app_label__in=OUR_APPS, codename__startswith="view_")
    )
    return user


@pytest.fixture
def charlie(db: None, django_user_model: Any) -> Any:
    """A stranger: may sign in, may see nothing."""
    return django_user_model.objects.create_user("charlie", "charlie@example.org", "charlie")
