"""A real site, and a real browser that looks at it. Skipped where there is no Chromium.

The site is ``manage.py serve`` in a process of its own, with a database of its own and the embedded
scheduler. On PostgreSQL and Redis (``DATABASE_URL``, ``REDIS_URL``) its tasks run in a Celery worker, as in
production: what they show goes through Redis.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
import shutil
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, Page, async_playwright, expect

from agents.names import escape_name
from tests.servers import Redis, free_port, missing, running
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
# A client that found no connection a few times waits for up to half a minute before it tries again.
PATIENCE = 40_000  # milliseconds
expect.set_options(timeout=PATIENCE)
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    skip = pytest.mark.skip(reason="needs Chromium: install it, or name it in CHROMIUM")
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.processes)
            if not CHROMIUM:
                item.add_marker(skip)


class Process:
    """A command of Python's that runs, and what it prints."""

    def __init__(self, environment: dict[str, str], *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout
        self.lines.extend(iter(self._process.stdout.readline, ""))

    def wait_for(self, pattern: str) -> str:
        def found() -> str:
            assert self._process.poll() is None, "".join(self.lines)
            match = re.search(pattern, "".join(self.lines))
            return match[0] if match else ""

        return wait_until(found, timeout=90)

    def end(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(30)
        assert self._process.stdout
        self._process.stdout.close()


class Site:
    """A running site: where it is, who may sign in, and its commands."""

    def __init__(self, folder: Path, database: str, redis_url: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._folder = folder
        self.environment = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "agentsite.settings",
            "ENV_FILE": "",
            "DEBUG": "true",
            "SECRET_KEY": secrets.token_hex(),
            "VAR_DIR": str(folder),
            "DATABASE_URL": database,
            "AGENT_APPS": "examples,tests.browser.talkers",
            "SITE_URL": self.url,
            "LOG_LEVEL": "WARNING",
            "PYTHONUNBUFFERED": "1",
        }
        if redis_url:
            self.environment |= {
                "REDIS_URL": redis_url,
                "CELERY_BROKER_URL": redis_url,
                "AGENTS_DISPATCHER": "celery",
            }
        for name in ("TELNYX_API_KEY", "OPENAI_API_KEY", "OPENAI_BASE_URL", "MODEL"):
            self.environment.pop(name, None)
        self.user = "operator"
        self.password = ""
        self._processes: list[Process] = []

    def start(self) -> None:
        self.run("migrate", "--verbosity", "0")
        self.password = self.run("ensure_operator").split("Password: ")[1].strip()
        self._start("manage.py", "serve", "--port", str(self.port)).wait_for("Serving ")
        if "CELERY_BROKER_URL" in self.environment:
            worker = ["worker", "--beat", "--schedule", str(self._folder / "beat"), "--without-mingle"]
            self._start("-m", "celery", "--app", "agentsite", *worker).wait_for("queues")

    def _start(self, *arguments: str) -> Process:
        process = Process(self.environment, *arguments)
        self._processes.append(process)
        return process

    def stop(self) -> None:
        for process in self._processes:
            process.end()

    def restart(self) -> None:
        """Stops the processes and starts them anew, on the same database and port."""
        self.stop()
        self._processes.clear()
        self.start()

    def run(self, *arguments: str, input: str | None = None) -> str:
        """A command's output; AssertionError if it fails."""
        done = subprocess.run(
            [sys.executable, "manage.py", *arguments],
            cwd=ROOT,
            env=self.environment,
            input=input,
            capture_output=True,
            text=True,
            timeout=90,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    @property
    def output(self) -> str:
        return "".join(line for process in self._processes for line in process.lines)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with a_database(tmp_path_factory.mktemp("site")) as (folder, url), a_redis(folder) as redis_url:
        site = Site(folder, url, redis_url)
        try:
            site.start()
            yield site
        finally:
            site.stop()


@contextlib.contextmanager
def a_database(folder: Path) -> Iterator[tuple[Path, str]]:
    """A folder and a new, empty database: on PostgreSQL's server if the suite runs there."""
    server = os.environ.get("DATABASE_URL", "")
    if not server.startswith("postgres"):
        yield folder, f"sqlite:///{folder / 'db.sqlite3'}"
        return
    import psycopg

    base, name = server.rsplit("/", 1)[0], f"browser_{os.getpid()}"
    with psycopg.connect(f"{base}/postgres", autocommit=True) as admin:
        admin.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
        admin.execute(f'CREATE DATABASE "{name}"')
        try:
            yield folder, f"{base}/{name}"
        finally:
            admin.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


@contextlib.contextmanager
def a_redis(folder: Path) -> Iterator[str]:
    """A Redis of this site's own, if the suite runs with one: workers take what they find in a queue."""
    url = os.environ.get("REDIS_URL", "")
    if not url or missing("redis-server"):
        yield url
        return
    with running(server := Redis(folder)):
        yield server.url


class Network:
    """What lies between the browser and the site: a relay on loopback that can be cut."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._up = True
        self._writers: set[asyncio.StreamWriter] = set()
        self.url = ""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Network]:
        server = await asyncio.start_server(self._relay, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield self
        server.close()
        self.cut()
        await asyncio.sleep(0)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._up:
            writer.transport.abort()
            return
        try:
            there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:  # the site is down: the browser is to see just that
            writer.transport.abort()
            return
        self._writers |= {writer, there_writer}
        try:
            await asyncio.gather(self._pump(reader, there_writer), self._pump(there_reader, writer))
        finally:
            for one in (writer, there_writer):
                self._writers.discard(one)
                one.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
            writer.write_eof()

    def cut(self) -> None:
        self._up = False
        for writer in self._writers:
            writer.transport.abort()

    def mend(self) -> None:
        self._up = True


@pytest_asyncio.fixture(loop_scope="session")
async def network(site: Site) -> AsyncIterator[Network]:
    async with Network(site.port).running() as network:
        yield network


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        await browser.close()


class Desk:
    """Somebody at a browser, signed in as the operator; every page's complaints are collected."""

    def __init__(self, context: BrowserContext, url: str) -> None:
        self.context = context
        self.url = url
        self.complaints: list[str] = []

    async def sign_in(self, user: str, password: str) -> None:
        page = await self.context.new_page()
        await page.goto(f"{self.url}/admin/login/?next=/chat/")
        await page.fill("#id_username", user)
        await page.fill("#id_password", password)
        await page.click("input[type=submit]")
        await page.wait_for_url("**/chat/")
        await page.close()

    async def open(self, kind: str, name: str, query: str = "") -> Page:
        """A tab with a conversation, connected."""
        page = await self.page()
        await page.goto(f"{self.url}/chat/{kind}/{escape_name(name)}/{query}")
        await page.wait_for_selector("#connection[data-state=open]", state="attached")
        return page

    async def page(self) -> Page:
        page = await self.context.new_page()
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", self._note)
        return page

    def _note(self, message: Any) -> None:
        # What a browser says of a network that is down is not the page's mistake.
        network = "net::ERR_" in message.text or message.text.startswith("WebSocket connection to")
        icon = message.location.get("url", "").endswith("/favicon.ico")  # the admin has none
        if message.type == "error" and not network and not icon:
            self.complaints.append(message.text)


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def operators_cookies(site: Site, browser: Browser) -> Any:
    """Those of the operator, who signed in once for all tests."""
    context = await browser.new_context()
    await Desk(context, site.url).sign_in(site.user, site.password)
    state = await context.storage_state()
    await context.close()
    return state


@pytest_asyncio.fixture(loop_scope="session")
async def desk(site: Site, network: Network, browser: Browser, operators_cookies: Any) -> AsyncIterator[Desk]:
    # Cookies know no ports: those of the site are good for the relay, too.
    context = await browser.new_context(locale="en-GB", timezone_id="UTC", storage_state=operators_cookies)
    context.set_default_timeout(PATIENCE)
    desk = Desk(context, network.url)
    yield desk
    await context.close()
    print(site.output[-8000:])  # shown where a test fails
    assert desk.complaints == []
