"""Processes that tests start, on the test's own database."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.processes import database_url

ROOT = Path(__file__).resolve().parents[2]


class Worker:
    """``tests/faults/worker.py`` as a process."""

    def __init__(self, *args: Any, memory: int = 0, **agents: Any) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.worker", *map(str, args)],
            cwd=ROOT,
            env={
                **os.environ,
                "DJANGO_SETTINGS_MODULE": "tests.settings",
                "DATABASE_URL": database_url(),
                "TEST_AGENTS": json.dumps(agents),
                "TEST_MEMORY": str(memory or ""),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def ready(self) -> Worker:
        assert self.hear() == "ready"
        return self

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def hear(self) -> Any:
        """The next thing that it says."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the worker ended with {self.process.wait(10)}"
        return json.loads(line)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> int:
        """Ends its input, and so itself; its exit status."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(30)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    pass


@contextmanager
def workers(*commands: tuple[Any, ...], memory: int = 0, **agents: Any) -> Iterator[list[Worker]]:
    """Starts them at once; all are ready, and have been told to go, when the block begins.

    ``agents`` are settings of AGENTS, ``memory`` the most that each may have (bytes of address space).
    """
    started = [Worker(*command, memory=memory, **agents) for command in commands]
    try:
        for worker in started:
            worker.ready()
        for worker in started:
            worker.go()
        yield started
    finally:
        for worker in started:
            worker.kill()
