"""The AI SDK itself, from the npm registry, as a process that is asked about UIMessages."""

from __future__ import annotations

import fcntl
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

#: The version whose validator the suite asks.
PACKAGE = "ai@7.0.173"
INSTALL_TIMEOUT = 180  # seconds
SCRIPT = Path(__file__).resolve().parents[1] / "js" / "ai-sdk.mjs"


class AiSdk:
    def __init__(self, folder: Path) -> None:
        shutil.copy(SCRIPT, folder)  # modules are looked for beside the script
        self._process = subprocess.Popen(
            [_node(), str(folder / SCRIPT.name)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )

    def check(self, messages: list[dict[str, Any]]) -> None:
        """Raises AssertionError with the AI SDK's own words for what it refuses."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(messages) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        assert answer is None, f"{answer}\n{json.dumps(messages)}"

    def close(self) -> None:
        self._process.communicate(timeout=20)


def installed() -> Path:
    """The folder with the package; installed on first use. Skips the test where that cannot be."""
    npm = shutil.which("npm")
    _node()
    if npm is None:
        pytest.skip("needs npm, to install the AI SDK: there is none on PATH")
    folder = settings.VAR_DIR / "node" / PACKAGE.replace("@", "-")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:  # processes that share the suite install it once
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            _install(npm, folder)
            (folder / "done").touch()
    return folder


def _install(npm: str, folder: Path) -> None:
    command = [npm, "install", "--prefix", str(folder), "--no-save", "--no-audit", "--no-fund", PACKAGE]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT)
    except subprocess.TimeoutExpired:
        pytest.skip(f"npm did not install {PACKAGE} within {INSTALL_TIMEOUT} s")
    if done.returncode:
        pytest.skip(f"npm cannot install {PACKAGE}: {done.stderr.strip()[-500:]}")


def _node() -> str:
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs Node 20 or newer: there is no node on PATH")
    return node
