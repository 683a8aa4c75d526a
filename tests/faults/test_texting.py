"""Texts under load, with real processes and a provider that loses answers, doubles, delays and reorders.

The load is the benchmark's (benchmarks/texting.py), in short: it starts the site, a worker and the sandbox on
a database of its own, and compares at the end what was written with what the sandbox did.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.timeout(400)]

ROOT = Path(__file__).resolve().parents[2]


def test_none_is_answered_twice_every_status_is_right_and_the_audit_is_clean():
    done = subprocess.run(
        [
            sys.executable, "-m", "benchmarks.texting", "load", "--rate", "10", "--seconds", "4",
            "--lost", "0.1", "--patience", "240", "--json",
        ],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"},
        capture_output=True,
        text=True,
        timeout=380,
    )  # fmt: skip
    assert done.stdout, done.stderr[-3000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["ok"], json.dumps(result, indent=1)
    assert result["texts"] == result["inbound_rows"] == result["answered"] == 40
    assert result["answered_twice"] == result["wrong_statuses"] == result["findings"] == []
    assert set(result["statuses"]) == {"delivered"}
    assert result["events"] >= 80, "each text was reported as sent and as delivered"
