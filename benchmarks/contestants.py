"""What takes part in the jobs: something that has actors, takes texts for them over HTTP, and runs timers.

Each contestant has the same three kinds of actor, addressed by the sender's number:

``ingest``  a text goes to the log, two keys into the state, and ``process`` is queued, which does nothing;
``answer``  the same, and ``process`` answers, sets a key and a timer in 24 h that replaces the last one;
``timed``   the text "timers COUNT MOMENT" sets so many timers, due at that moment; each sets a key.

And a socket of an actor: each frame is appended to the log, and its number is broadcast to all its sockets.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.drivers import Refused, Socket, request
from benchmarks.processes import ROOT, memory, processor, running


class Contestant(ABC):
    """Runs from its construction until the stack is left."""

    label: ClassVar[str]
    #: What it is made of and how it is set up, for the page of results.
    about: ClassVar[str]

    def __init__(self, stack: ExitStack, folder: Path, var: Path, **options: Any) -> None:
        self.stack, self.folder, self.var = stack, folder, var
        self.log = folder / "log"
        self.options = options
        self.actors: int = options.get("actors", 1000)
        #: Kinds whose actors have been touched.
        self.touched: set[str] = set()
        self.heads: dict[str, int] = {}
        self.start()

    @abstractmethod
    def start(self) -> None:
        """Brings everything up, and returns when it answers."""

    #: Where texts are sent to.
    port: int

    def run(self, name: str, command: list[str], env: dict[str, str], cwd: Path = ROOT) -> None:
        self.heads[name] = self.stack.enter_context(running(command, env, self.log, cwd)).pid

    def text(self, kind: str, sender: str, text: str) -> bytes:
        """The request that delivers it."""
        return request(self.port, f"/texts/{kind}/", json.dumps({"from": sender, "text": text}).encode())

    def texts(self, kind: str, run: str, count: int) -> Iterable[bytes]:
        """Texts of as many people as there are actors, none like another."""
        for number in range(count):
            yield self.text(kind, self.sender(number), f"text {number} {run}")

    def sender(self, number: int) -> str:
        return f"+1555{number % self.actors:07}"

    @abstractmethod
    def socket(self, name: str) -> Socket:
        """A socket of the actor of that name."""

    @abstractmethod
    def unfinished(self) -> int:
        """Runs of ``process`` and of timers that are due and have not ended."""

    @abstractmethod
    def answered(self) -> dict[str, float]:
        """When the answer to each text was in the log (seconds since 1970)."""

    def stages(self) -> dict[str, dict[str, float]]:
        """Of each text, when what became of it (seconds since 1970), in order; where that can be known."""
        return {}

    @abstractmethod
    def fired(self) -> list[tuple[float, float]]:
        """Of each timer that ran: when it was due, and when it ran (seconds since 1970)."""

    def counters(self) -> dict[str, float]:
        """What was used so far, for figures a text: milliseconds of processor of each part, and more."""
        return {f"{name}_cpu_ms": processor([head]) for name, head in self.heads.items()}

    def memory(self) -> float:
        return memory(list(self.heads.values()))

    def finish(self, patience: float = 300) -> None:
        """Until nothing is left to do."""
        deadline = time.monotonic() + patience
        while left := self.unfinished():
            if time.monotonic() > deadline:
                raise Refused(f"{self.label}: {left} still to do:\n{self.log.read_text()[-3000:]}")
            time.sleep(0.05)


class Peer(Contestant):
    """Not of Django: it tells by itself what it did, at ``/facts``, since nobody else can look.

    A class method installs what it needs into a folder outside the tree, once.
    """

    packages: ClassVar[dict[str, list[str]]] = {}

    @classmethod
    def home(cls, var: Path) -> Path:
        return var / "benchmarks" / cls.__module__.split(".")[2]

    @classmethod
    def install(cls, var: Path) -> Path:
        """Its packages, from the registries, with no program of theirs run; where they are."""
        home = cls.home(var)
        wanted = json.dumps(cls.packages, sort_keys=True)
        done = home / "installed.json"
        if done.exists() and done.read_text() == wanted:
            return home
        home.mkdir(parents=True, exist_ok=True)
        if names := cls.packages.get("npm"):
            versions = dict(name.rsplit("@", 1) for name in names)
            (home / "package.json").write_text(json.dumps({"private": True, "dependencies": versions}))
            subprocess.run(
                ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"],
                cwd=home, check=True,
            )  # fmt: skip
        if names := cls.packages.get("pypi"):
            subprocess.run([sys.executable, "-m", "venv", str(home / "venv")], check=True)
            subprocess.run([str(home / "venv/bin/pip"), "install", "-q", *names], check=True)
        done.write_text(wanted)
        return home

    def facts(self) -> dict[str, Any]:
        import httpx

        return httpx.get(f"http://127.0.0.1:{self.facts_port}/facts", timeout=60).raise_for_status().json()

    @property
    def facts_port(self) -> int:
        return self.port

    def unfinished(self) -> int:
        return int(self.facts()["unfinished"])

    def answered(self) -> dict[str, float]:
        return dict(self.facts()["answered"])

    def fired(self) -> list[tuple[float, float]]:
        return [(due, at) for due, at in self.facts()["fired"]]


NAMES = {
    "agents": "benchmarks.product:Product",
    "embedded": "benchmarks.product:Embedded",
    "baseline": "benchmarks.baseline.contestant:Baseline",
    "restate": "benchmarks.peers.restate.contestant:Restate",
    "cloudflare": "benchmarks.peers.cloudflare.contestant:CloudflareAgents",
    "workerd": "benchmarks.peers.cloudflare.contestant:BareObject",
}


def contestant(name: str) -> type[Contestant]:
    module, _, attribute = NAMES[name].partition(":")
    return getattr(import_module(module), attribute)
