"""One fault after another under load, nothing lost and nothing doubled: ``tests/faults/soak.py`` in short.

On PostgreSQL alone, but not on the suite's: the site under test has servers of its own, which it breaks.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.servers import ROOT, missing

NEEDED = "postgres", "initdb", "pgbouncer", "redis-server"

pytestmark = [
    pytest.mark.minutes,
    pytest.mark.processes,
    pytest.mark.postgres,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(missing(*NEEDED)), reason=f"needs {missing(*NEEDED)}"),
]


def test_whatever_fails_every_text_is_kept_answered_once_and_in_order():
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.soak", "--short", "--json"],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"},
        capture_output=True,
        text=True,
        timeout=880,
        check=False,
    )
    print(done.stdout)
    assert done.stdout.rstrip().endswith("]"), done.stderr[-5000:]
    rows = json.loads(done.stdout.splitlines()[-1])
    assert len(rows) >= 15
    played = [row for row in rows if not row["left_out"]]
    assert {row["fault"] for row in rows if row["left_out"]} <= {
        "worker: clock 30 s ahead",
        "database: full disk",
    }
    for row in played:
        assert (row["problems"], row["lost"], row["doubled"]) == ([], 0, 0), (row, done.stderr[-5000:])
        assert row["texts"] > 0
        assert row["first_turn"] is not None
