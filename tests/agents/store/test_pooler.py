"""The store behind PgBouncer in transaction mode: every transaction may be another session.

STATE-09: locks and settings that belong to a session would be taken on one server connection and missed on
another. Needs the program ``pgbouncer``.
"""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, transaction

from agents.store.requests import Committed
from scheduler.models import Task
from tests.agents.store.lines import routed_over
from tests.agents.store.stage import Stage, in_threads
from tests.servers import free_port
from tests.waiting import wait_until

PGBOUNCER = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.processes,
    pytest.mark.skipif(PGBOUNCER is None, reason="needs pgbouncer"),
]

CONFIG = """
[databases]
{name} = host={host} port={port} dbname={name} user={user}{password}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 2
ignore_startup_parameters = extra_float_digits
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """Not pytest's own: those are closed to others, and every run of pytest closes them again."""
    with tempfile.TemporaryDirectory(prefix="pgbouncer-") as folder:
        yield Path(folder)


@pytest.fixture
def pooler(stage: Stage, folder: Path, settings: Any) -> Iterator[None]:
    """Two sessions of the server for everybody."""
    assert PGBOUNCER is not None
    listen = free_port()
    server = connection.settings_dict
    config = folder / "pgbouncer.ini"
    config.write_text(
        CONFIG.format(
            name=server["NAME"],
            host=server["HOST"] or "127.0.0.1",
            port=server["PORT"] or 5432,
            user=server["USER"],
            password=f" password={server['PASSWORD']}" if server["PASSWORD"] else "",
            listen=listen,
        )
    )
    # It refuses to run as root.
    somebody: dict[str, Any] = {}
    if os.geteuid() == 0:
        somebody = {"user": pwd.getpwnam("nobody").pw_uid}
        for path in (folder, config):
            os.chown(path, somebody["user"], -1)
    process = subprocess.Popen([PGBOUNCER, str(config)], stderr=subprocess.PIPE, text=True, **somebody)
    try:
        wait_until(lambda: answers(listen) or process.poll() is not None)
        assert process.poll() is None, process.communicate()[1]
        settings.AGENTS = {**settings.AGENTS, "PREPARE_STATEMENTS": False}
        with routed_over(listen):
            yield
    finally:
        process.terminate()
        process.communicate(timeout=60)


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def test_turns_tells_and_drains_go_through_a_pooler(stage: Stage, pooler: None) -> None:
    actors = [stage.actor() for _ in range(3)]
    addresses = [stage.address(actor) for actor in actors]

    def play() -> list[Any]:
        done: list[Any] = []
        for _ in range(8):
            stage.store.tell([stage.tell_to(*address) for address in addresses])
            for actor in actors:
                claimed = stage.try_claim(actor)
                if claimed is not None:
                    done.append(stage.commit(stage.dirty(claimed, messages=1)))
            with transaction.atomic():
                stage.store.tell_here([stage.tell_to(*addresses[0])])
        return done

    for done in in_threads(*[play] * 4):
        assert all(isinstance(committed, Committed) for committed in done)
    assert Task.objects.count() == 4 * 8 * 4
    for actor in actors:
        stage.run_all(actor)
    assert not Task.objects.exists()
    stage.audit(quiet=True)
    with connection.cursor() as cursor:
        # Of this database alone: others are being tested on the same server.
        cursor.execute(
            "SELECT count(*) FILTER (WHERE locktype = 'advisory'), count(*) FILTER (WHERE NOT granted)"
            " FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE datname = current_database()"
        )
        assert cursor.fetchone() == (0, 0)
        cursor.execute("SELECT current_setting('lock_timeout'), current_setting('enable_seqscan')")
        assert cursor.fetchone() == ("0", "on")
