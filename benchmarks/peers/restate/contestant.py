"""Restate: its server, a service written with its Python SDK, and a gateway for sockets."""

from __future__ import annotations

import json
import time
from pathlib import Path
from urllib.parse import quote

from benchmarks.contestants import Peer
from benchmarks.drivers import Socket, request
from benchmarks.processes import environment, free_port, wait_for

HERE = Path(__file__).resolve().parent


class Restate(Peer):
    label = "Restate, Python SDK"
    about = (
        "restate-server 1.7.12, one node, its log and state on disk; virtual objects with restate-sdk 1.3.0"
        " under Hypercorn (one process, uvloop); sockets by an aiohttp gateway"
    )
    packages = {
        "npm": ["@restatedev/restate-server@1.7.12"],
        "pypi": ["restate-sdk[serde]==1.3.0", "hypercorn==0.18.0", "uvloop==0.23.0", "aiohttp==3.14.5"],
    }

    def start(self) -> None:
        import httpx

        home = self.install(self.var)
        self.port, admin, node, self.service, self.gateway = (free_port() for _ in range(5))
        ingress = f"http://127.0.0.1:{self.port}"
        python = str(home / "venv/bin/python")
        env = environment(
            RESTATE_BASE_DIR=str(self.folder / "restate"),
            RESTATE_LISTEN_MODE="tcp",
            RESTATE_BIND_IP="127.0.0.1",
            RESTATE_BIND_PORT=str(node),
            RESTATE_ADVERTISED_ADDRESS=f"http://127.0.0.1:{node}",
            RESTATE_ADVERTISED_HOST="127.0.0.1",
            RESTATE_INGRESS__BIND_ADDRESS=f"127.0.0.1:{self.port}",
            RESTATE_ADMIN__BIND_ADDRESS=f"127.0.0.1:{admin}",
            RESTATE_DISABLE_TELEMETRY="true",
            RESTATE_LOG_FILTER="warn",
            RESTATE_LOG_DISABLE_ANSI_CODES="true",
            DO_NOT_TRACK="1",
            INGRESS=ingress,
            PORT=str(self.gateway),
        )
        server = home / "node_modules/@restatedev/restate-server-linux-x64/bin/restate-server"
        self.run("server", [str(server), "--no-logo"], env, cwd=self.folder)
        self.run(
            "service",
            [python, "-m", "hypercorn", "-k", "uvloop", "-b", f"127.0.0.1:{self.service}", "service:app"],
            env,
            cwd=HERE,
        )
        self.run("gateway", [python, "gateway.py"], env, cwd=HERE)
        wait_for(f"http://127.0.0.1:{admin}/health", self.log, status=200)
        wait_for(f"http://127.0.0.1:{self.service}/facts", self.log, status=200)
        wait_for(f"http://127.0.0.1:{self.gateway}/", self.log)
        answer = httpx.post(
            f"http://127.0.0.1:{admin}/deployments",
            json={"uri": f"http://127.0.0.1:{self.service}"},
            timeout=60,
        )
        if answer.is_error:
            raise SystemExit(f"{answer.text}\n{self.log.read_text()[-3000:]}")
        wait_for(f"{ingress}/restate/health", self.log, status=200)
        time.sleep(1)

    @property
    def facts_port(self) -> int:
        return self.service

    def text(self, kind: str, sender: str, text: str) -> bytes:
        handler = "set_timers" if kind == "timed" else "receive"
        body = json.dumps({"from": sender, "text": text}).encode()
        return request(self.port, f"/{kind}/{quote(sender)}/{handler}", body)

    def socket(self, name: str) -> Socket:
        return Socket(self.gateway, f"/{name}", greets=False)
