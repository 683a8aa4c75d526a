"""People who text at random, through the real signed webhook.

Each has one text on its way at a time and sends it again until it is acknowledged, as providers do; so the
texts of one person have an order. Some are delivered twice at once.
"""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable

import httpx
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from conversations.management.commands.text import event
from conversations.signatures import sign

OURS = "+15550009999"
PATIENCE = 5.0  # seconds until an acknowledgement; Telnyx waits for 2
PAUSE = 0.25  # seconds until a text that was not acknowledged is sent again
TWICE = 0.15  # the share of texts that are delivered twice at once


class Load:
    """Runs in a thread of its own. ``people`` text each every ``every`` seconds, about."""

    def __init__(
        self, url: Callable[[], str], key: Ed25519PrivateKey, *, people: int, every: float, seed: int
    ) -> None:
        self._url = url
        self._key = key
        self._every = every
        self._random = random.Random(seed)
        self.numbers = [f"+1555{n:07}" for n in range(1, people + 1)]
        #: What was acknowledged, by number, in the order in which it was sent.
        self.acknowledged: dict[str, list[str]] = {number: [] for number in self.numbers}
        #: Answers other than an acknowledgement, by what they were.
        self.refused: Counter[str] = Counter()
        self.slowest = 0.0
        self._going = asyncio.Event()
        self._resting: set[str] = set(self.numbers)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)

    @property
    def count(self) -> int:
        return sum(len(texts) for texts in list(self.acknowledged.values()))

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._all.cancel)
            self._thread.join(20)

    def go(self) -> None:
        self._loop.call_soon_threadsafe(self._going.set)

    def rest(self, timeout: float) -> None:
        """Returns when every text that was begun is acknowledged."""
        self._loop.call_soon_threadsafe(self._going.clear)
        deadline = time.monotonic() + timeout
        time.sleep(0.05)
        while len(self._resting) < len(self.numbers):
            if time.monotonic() > deadline:
                waiting = sorted(set(self.numbers) - self._resting)
                raise AssertionError(
                    f"texts of {len(waiting)} people are not acknowledged after {timeout:g} s: {waiting[:5]},"
                    f" answers so far: {dict(self.refused)}"
                )
            time.sleep(0.02)

    # In the thread

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._all = self._loop.create_task(self._everybody())
        try:
            self._loop.run_until_complete(self._all)
        except asyncio.CancelledError:
            pass
        finally:
            self._loop.close()

    async def _everybody(self) -> None:
        limits = httpx.Limits(max_connections=100, max_keepalive_connections=100)
        async with (
            httpx.AsyncClient(timeout=PATIENCE, limits=limits, trust_env=False) as client,
            asyncio.TaskGroup() as people,
        ):
            for number in self.numbers:
                people.create_task(self._person(client, number))

    async def _person(self, client: httpx.AsyncClient, number: str) -> None:
        count = 0
        while True:
            await self._going.wait()
            await asyncio.sleep(self._random.expovariate(1 / self._every))
            if not self._going.is_set():
                continue
            self._resting.discard(number)
            count += 1
            text = f"{number[-4:]}-{count}"
            await self._until_acknowledged(client, event(number, OURS, text))
            self.acknowledged[number].append(text)
            self._resting.add(number)

    async def _until_acknowledged(self, client: httpx.AsyncClient, what: object) -> None:
        body = json.dumps(what).encode()
        began = time.monotonic()
        while True:
            copies = 2 if self._random.random() < TWICE else 1
            said = await asyncio.gather(*(self._post(client, body) for _ in range(copies)))
            if any(said):
                self.slowest = max(self.slowest, time.monotonic() - began)
                return
            await asyncio.sleep(PAUSE)

    async def _post(self, client: httpx.AsyncClient, body: bytes) -> bool:
        headers = {"Content-Type": "application/json", **sign(body, self._key)}
        try:
            answer = await client.post(
                f"{self._url()}/webhooks/telnyx/test-talker/", content=body, headers=headers
            )
        except httpx.HTTPError as error:
            self.refused[type(error).__name__] += 1
            return False
        if not answer.is_success:
            self.refused[str(answer.status_code)] += 1
            return False
        return answer.json()["status"] in ("accepted", "duplicate")
