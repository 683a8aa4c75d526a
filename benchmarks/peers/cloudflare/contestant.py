"""Cloudflare's Durable Objects on workerd: with the Agents SDK, and bare."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from benchmarks.contestants import Peer
from benchmarks.drivers import Socket
from benchmarks.processes import environment, free_port, wait_for

HERE = Path(__file__).resolve().parent


class CloudflareAgents(Peer):
    label = "Cloudflare Agents SDK on workerd"
    about = "agents 0.32.0 on workerd 1.20261117.1, one process, an SQLite file an actor on disk"
    packages = {"npm": ["agents@0.32.0", "workerd@1.20261117.1", "esbuild@0.28.2"]}
    script = "agents.js"

    def start(self) -> None:
        home = self.install(self.var)
        self.port = free_port()
        objects = self.folder / "objects"
        objects.mkdir()
        built = self.folder / "worker"
        built.mkdir()
        # The worker imports from where the packages are, and is bundled there.
        source = home / "source"
        source.mkdir(exist_ok=True)
        for file in HERE.glob("*.js"):
            shutil.copy(file, source)
        subprocess.run(
            [str(home / "node_modules/@esbuild/linux-x64/bin/esbuild"), str(source / self.script), "--bundle",
             "--format=esm", "--target=es2022", "--conditions=workerd,worker,browser", "--log-level=error",
             "--external:cloudflare:workers", "--external:node:*", f"--alias:path={source / 'path.js'}",
             f"--alias:cloudflare:email={source / 'email.js'}", f"--outfile={built / 'worker.js'}"],
            cwd=home, check=True,
        )  # fmt: skip
        shutil.copy(HERE / "config.capnp", built)
        self.run(
            "workerd",
            [str(home / "node_modules/@cloudflare/workerd-linux-64/bin/workerd"), "serve", "--experimental",
             f"--socket-addr=http=127.0.0.1:{self.port}", f"--directory-path=objects={objects}",
             str(built / "config.capnp")],
            environment(),
            cwd=self.folder,
        )  # fmt: skip
        wait_for(f"http://127.0.0.1:{self.port}/facts", self.log, status=200)

    def socket(self, name: str) -> Socket:
        return Socket(self.port, f"/agents/echo/{name}")


class BareObject(CloudflareAgents):
    label = "Durable Object on workerd, no SDK"
    about = "workerd 1.20261117.1, one process, an SQLite file an actor on disk, one alarm an actor"
    script = "object.js"

    def socket(self, name: str) -> Socket:
        return Socket(self.port, f"/sockets/echo/{name}", greets=False)
