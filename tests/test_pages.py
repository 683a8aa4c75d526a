"""The code on the pages runs as it is written."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

pytestmark = pytest.mark.processes


def blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(encoding="utf-8"), flags=re.M | re.S)


class Shop:
    """An installed app ``shop`` in a folder of its own, with a database of its own."""

    def __init__(self, folder: Path, agents: str) -> None:
        (folder / "shop").mkdir()
        (folder / "shop" / "__init__.py").touch()
        (folder / "shop" / "agents.py").write_text(agents, encoding="utf-8")
        self.folder = folder
        self.environment = {
            # A pytest that a test starts is not the worker that the test runs in.
            **{name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
            "PYTHONPATH": str(folder),
            "AGENT_APPS": "shop",
            "VAR_DIR": str(folder),
            "DATABASE_URL": f"sqlite:///{folder}/db.sqlite3",
            "DJANGO_SETTINGS_MODULE": "tests.settings",
        }

    def run(self, *command: str) -> str:
        done = subprocess.run(
            [sys.executable, *command],
            cwd=ROOT,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout


def test_the_quickstart_s_agent_its_calls_and_its_test_work(tmp_path: Path) -> None:
    agent, calls, test = blocks("docs/quickstart.md")
    shop = Shop(tmp_path, agent)
    shop.run("manage.py", "migrate", "--verbosity", "0")
    check = "assert stub.sync.count() == 2; assert not stub.sync.tell('increment', 5, key='order-17')"
    shop.run("manage.py", "shell", "-c", f"{calls}\n{check}")
    shop.run("manage.py", "call_agent", "counter", "anna", "increment", '{"by": 2}')
    (tmp_path / "test_shop.py").write_text(test, encoding="utf-8")
    said = shop.run("-m", "pytest", "-c", "pyproject.toml", str(tmp_path / "test_shop.py"), "-q", "-n", "0")
    assert "1 passed" in said


def test_the_first_agent_of_the_readme_loads(tmp_path: Path) -> None:
    (agent,) = blocks("README.md")
    shop = Shop(tmp_path, agent)
    shop.run("manage.py", "migrate", "--verbosity", "0")
    said = shop.run("manage.py", "call_agent", "support", "+15550001111", "progress")
    assert "idle" in said
