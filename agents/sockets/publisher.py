"""The publisher: tells sockets what a turn has just done, after its commit and never in its way.

To the sockets of this process directly, to those of others through the channel layer. What gathers while one
send is on its way goes together. A layer that fails or hangs is given up after PUBLISH_TIMEOUT: every hub
asks the database too, so what is lost here comes a little later.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from agents import conf, names
from agents.sockets import events, signals
from agents.sockets.backlog import Address
from agents.sockets.complaints import Complaints
from agents.sockets.events import Event
from agents.sockets.hub import Hub, hubs_for, news, reaching_layer
from agents.sockets.signals import Signal
from agents.turn import ActorRow, Shown

# Events that go along with the news that there are some; beyond this hubs read them from the database.
MAX_EVENTS_BYTES = 32 * 1024
# Signals of one actor that wait for the layer; beyond this they are lost.
MAX_SIGNALS, MAX_SIGNALS_CHARACTERS = 256, 256 * 1024
# Actors whose news waits for the layer; beyond this it is left to the database.
BACKLOG = 10_000
# Groups that are sent to at once.
SENDS = 32
UNPUBLISHED = "news was not published; clients get it within seconds, from the database"

complain = Complaints()


@dataclass(slots=True)
class News:
    """What there is to tell about one actor."""

    id: int
    head: int = 0
    events: list[Event] = field(default_factory=list)
    signals: list[Signal] = field(default_factory=list)
    asks: bool = False

    def add_events(self, id: int, more: Sequence[Event], head: int) -> None:
        if id != self.id or (self.events and self.events[-1].cursor + 1 != more[0].cursor):
            self.events = []
        self.id, self.head = id, head
        self.events.extend(more)
        if sum(event.size for event in self.events) > MAX_EVENTS_BYTES:
            self.events = []

    def add_signal(self, signal: Signal) -> None:
        self.signals.append(signal)
        while (
            len(self.signals) > MAX_SIGNALS or sum(map(signals.size, self.signals)) > MAX_SIGNALS_CHARACTERS
        ) and len(self.signals) > 1:
            del self.signals[0]

    def message(self, address: Address) -> dict[str, Any]:
        """For the channel layer."""
        return news(address, self.id, self.head, self.events, self.signals, asks=self.asks)


class Publisher:
    """Belongs to the loop where turns run."""

    def __init__(self) -> None:
        self._waiting: dict[Address, News] = {}
        self._sending: asyncio.Task[None] | None = None

    def committed(self, actor: ActorRow, shown: Sequence[Shown]) -> None:
        """A commit wrote these events."""
        address = (actor.kind, actor.name)
        hubs, layer = hubs_for(address), reaching_layer()
        if not hubs and layer is None:
            return  # nobody whom we could reach: other processes find out from the database
        told = events.of_commit(shown)
        head = shown[-1].cursor
        for hub in hubs:
            hub.take(address, actor.id, head, told, ())
        if layer is not None and (waiting := self._news(address, actor.id, hubs)) is not None:
            waiting.add_events(actor.id, told, head)

    def signal(self, actor: ActorRow, signal: Signal) -> None:
        """Something for the actor's clients at once, whatever becomes of the turn."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:  # a synchronous helper that a turn runs in a thread
            from agents.runtime import get_runtime

            get_runtime().loop.call_soon_threadsafe(self.signal, actor, signal)
            return
        address = (actor.kind, actor.name)
        hubs = hubs_for(address)
        for hub in hubs:
            hub.take(address, actor.id, 0, (), (signal,))
        if reaching_layer() is not None and (waiting := self._news(address, actor.id, hubs)) is not None:
            waiting.add_signal(signal)

    # The channel layer

    def _news(self, address: Address, id: int, hubs: Sequence[Hub]) -> News | None:
        """What waits for an actor's group; None where nobody else is there, or there is too much already."""
        now = time.monotonic()
        company = [known for hub in hubs if (known := hub.company(address)) is not None]
        if company and all(known.is_alone(now) for known in company):
            return None
        if (waiting := self._waiting.get(address)) is None:
            if len(self._waiting) >= BACKLOG:
                complain("news waits for the channel layer in heaps; some is left to the database")
                return None
            waiting = self._waiting[address] = News(id)
        waiting.asks |= any(known.ask(now) for known in company)
        loop = asyncio.get_running_loop()
        if self._sending is None or self._sending.done() or self._sending.get_loop() is not loop:
            self._sending = loop.create_task(self._send(), name="agents-publisher")
        return waiting

    async def _send(self) -> None:
        while self._waiting:
            await asyncio.sleep(0)  # whatever is ready in this round of the loop goes together
            layer = reaching_layer()
            several = [(a, self._waiting.pop(a)) for a in list(islice(self._waiting, SENDS))]
            if layer is None:
                continue
            messages = {names.group_name(*address): (address, news) for address, news in several}
            sends = [
                self._send_one(layer, group, *messages[group]) for group in await inhabited(layer, messages)
            ]
            await asyncio.gather(*sends)

    async def _send_one(self, layer: Any, group: str, address: Address, waiting: News) -> None:
        try:
            async with asyncio.timeout(conf.get("PUBLISH_TIMEOUT")):
                await layer.group_send(group, waiting.message(address))
        except Exception as error:
            complain(UNPUBLISHED, error)


async def inhabited(layer: Any, groups: Iterable[str]) -> Iterable[str]:
    """Those of the groups that anybody may be in: all where the layer can't tell, none where it fails."""
    if (asked := getattr(layer, "inhabited", None)) is None:
        return groups
    try:
        async with asyncio.timeout(conf.get("PUBLISH_TIMEOUT")):
            found: Iterable[str] = await asked(groups)
    except Exception as error:
        complain(UNPUBLISHED, error)
        return ()
    return found


publisher = Publisher()
