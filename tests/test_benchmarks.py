"""The benchmarks run: what they measure is looked at by people, never here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def run(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT, env=env, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
    return done


@pytest.mark.processes
@pytest.mark.timeout(300)
def test_jobs_bring_every_frame_back_in_order_and_find_every_answer(tmp_path):
    figures = tmp_path / "figures.json"
    run(
        "benchmarks.jobs", "frames", "latency", "--of", "embedded", "--runs", "1", "--seconds", "1",
        "--actors", "5", "--sockets", "3", "--rate", "10", "--json", str(figures),
    )  # fmt: skip
    (of,) = json.loads(figures.read_text())["runs"]
    assert set(of["figures"]["embedded"]) == {"frames", "latency"}


@pytest.mark.postgres
@pytest.mark.processes
@pytest.mark.timeout(300)
def test_growth_fills_measures_and_leaves_a_clean_audit_with_split_tables():
    done = run("benchmarks.growth", "--most", "70", "--times", "3", "--minutes", "0.02", "--split", "3")
    assert "The audit is clean." in done.stdout, done.stdout
    for title in ("Messages in the log", "Leases taken", "A sweep", "Size of what is only updated"):
        assert title in done.stdout
