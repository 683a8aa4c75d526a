"""``agent-client.js`` under Node, with a socket that the tests play the server of."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from agents.names import escape_name

HERE = Path(__file__).resolve().parent
NAMES = [
    "+15550001111",
    "José",
    "a b",
    "user@example.org",
    "日本 +1",
    ".",
    "..",
    "a.b",
    "~41",
    "😀",
    "a/b?c#d%e",
]


def _node() -> str:
    """Node 20 or newer: its test runner has a clock that can be stopped."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs Node 20 or newer: there is no node on PATH")
    version = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=60).stdout.strip()
    if int(version.removeprefix("v").split(".")[0]) < 20:
        pytest.skip(f"needs Node 20 or newer: {node} is {version}")
    return node


def test_the_client_for_the_browser_keeps_its_promises() -> None:
    node = _node()
    names = json.dumps([[name, escape_name(name)] for name in NAMES])
    run = subprocess.run(
        [node, "--no-warnings", "--test", "--test-reporter=spec", str(HERE / "agent-client.test.mjs")],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "NAMES": names},
    )
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr
    assert "ℹ pass 0" not in run.stdout
