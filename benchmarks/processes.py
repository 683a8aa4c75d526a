"""The processes of a benchmark: started, watched, measured and stopped with all their children."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TICK = 1000 / os.sysconf("SC_CLK_TCK")  # milliseconds
PRIVATE = ("TELNYX_", "TWILIO_", "SMS_", "OPENAI_")


def environment(**more: str) -> dict[str, str]:
    """This process's variables without what would reach a provider or a model, and ``more``."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(PRIVATE)}
    return {**kept, "PYTHONPATH": str(ROOT), "ENV_FILE": "", **more}


def site_environment(settings: str, folder: Path, **more: str) -> dict[str, str]:
    """What a site of ours needs: its settings' module, its folder."""
    given = {
        "DJANGO_SETTINGS_MODULE": settings,
        "SECRET_KEY": "only-for-benchmarks-and-long-enough-for-the-check-of-it",
        "DEBUG": "false",
        "ALLOWED_HOSTS": "127.0.0.1",
        "SECURE_SSL_REDIRECT": "false",
        "LOG_LEVEL": "WARNING",
        "VAR_DIR": str(folder),
    }
    return environment(**given | more)


@contextmanager
def running(
    command: list[str], env: dict[str, str], log: Path, cwd: Path = ROOT
) -> Iterator[subprocess.Popen[bytes]]:
    """A process and its children until the block ends: SIGTERM, and after 30 s SIGKILL for all of them.

    A benchmark that is ended by SIGTERM itself ends as by an exception: it leaves nothing running.
    """
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with log.open("ab") as out:
        started = subprocess.Popen(
            command, cwd=cwd, env=env, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        yield started
        started.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            started.wait(30)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(url: str, log: Path, timeout: float = 60.0, status: int | None = None) -> None:
    """Until the address answers, with ``status`` if one is given."""
    import httpx

    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        with suppress(httpx.HTTPError):
            if httpx.get(url, timeout=5).status_code == status or status is None:
                return
        time.sleep(0.2)
    raise SystemExit(f"{url} does not answer:\n{log.read_text()[-3000:]}")


# What they take


def family(heads: list[int]) -> list[int]:
    """The processes and all their children."""
    pids = list(heads)
    for pid in pids:
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            with suppress(OSError):
                pids += map(int, children.read_text().split())
    return pids


def memory(heads: list[int]) -> float:
    """MB of the processes and their children: what each shares with others is divided among them (PSS)."""
    total = 0
    for pid in family(heads):
        with suppress(OSError):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


def processor(heads: list[int]) -> float:
    """Milliseconds of processor that they have used so far."""
    used = 0
    for pid in family(heads):
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            used += int(fields[11]) + int(fields[12])
    return used * TICK
