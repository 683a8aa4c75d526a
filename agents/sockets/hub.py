"""The hub: the sockets of one process, the actors they belong to, and how news of those comes in.

News comes three ways: from this process's own commits, through the channel layer from others, and from the
database, which is asked every two seconds how far each actor has come. The first two are quick and may lose
everything; the third heals whatever they lost, and works alone.

One a process, on the event loop that serves its sockets. It has one channel of the layer, in the group of
each actor that it has sockets for, and a loop of its own that receives: one that outlives Redis. (Consumers
have no channel: Channels would end them with the layer.)
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from channels.layers import InMemoryChannelLayer, get_channel_layer

from agents import conf, names
from agents.batcher import Batcher
from agents.handover import hand_over
from agents.observing import metrics
from agents.sockets import backlog, connections, events, signals
from agents.sockets.backlog import Address, Head, Start, Wanted
from agents.sockets.company import Company
from agents.sockets.complaints import Complaints
from agents.sockets.connections import Facts
from agents.sockets.events import Event
from agents.sockets.identity import Identity, still_valid
from agents.sockets.signals import Signal
from agents.sockets.topic import Topic
from agents.threads import OrmExecutor

if TYPE_CHECKING:
    from agents.sockets.socket import Socket

logger = logging.getLogger("agents.sockets")
T = TypeVar("T")

# How long joining a group may take, how many join at once, and the pause after a failure.
JOIN_TIMEOUT = 2.0  # seconds
JOINS = 16
OUTAGE_PAUSE = 1.0  # seconds
# How often it is doubted whether the layer still knows that we are in one group.
DOUBTS = 20.0  # seconds
# What a socket asks for is gathered for this long before the database is asked.
GATHERING = 0.05  # seconds
BATCH = 256
# How long the end may take.
CLOSING = 5.0  # seconds

complain = Complaints()


class Hub:
    """Everything here runs on one event loop; ``take`` may be called from any thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.pid = os.getpid()
        self.topics: dict[Address, Topic] = {}
        self.sockets: set[Socket] = set()
        threads = conf.get("SOCKET_THREADS")
        self._threads = OrmExecutor(threads, thread_name_prefix="agents-sockets")
        self._opens: Batcher[Facts, Head] = Batcher(connections.opened, self._threads, size=BATCH)
        self._closes: Batcher[Facts, None] = Batcher(connections.closed, self._threads, size=BATCH)
        self._checks: Batcher[Identity, bool] = Batcher(still_valid, self._threads, size=BATCH)
        self._channel: str | None = None
        self._to_join = asyncio.Event()
        self._to_look: set[Address] = set()
        self._look_now = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()
        for work in (self._receive, self._join_groups, self._look, self._keep, self._check):
            self._start(work(), f"agents-sockets-{work.__name__.strip('_')}")

    def _start(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        task = self.loop.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Ends what the hub runs. Its sockets are closed by then, or left to whoever finds them dead."""
        _hubs.pop(self.loop, None)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSING)
        await asyncio.to_thread(self._threads.close)

    # The database

    async def run(self, fn: Callable[..., T], *args: Any) -> T:
        """Runs synchronous code that uses the ORM in one of the hub's threads."""
        return await self.loop.run_in_executor(self._threads, fn, *args)

    async def is_valid(self, identity: Identity) -> bool:
        """Whether a client may still be who it was."""
        if identity.expired:
            return False
        return await self._checks.submit(identity) if identity.is_checked else True

    async def start(self, address: Address, wanted: Wanted) -> Start:
        """Where a client's replay begins."""
        return await self.run(backlog.start, address, wanted)

    # Sockets

    async def join(self, socket: Socket, facts: Facts) -> tuple[Topic, int]:
        """Writes the connection's row; its topic, and the head of its actor."""
        address = (facts.kind, facts.name)
        head = await self._opens.submit(facts)
        self.sockets.add(socket)
        metrics.sockets.labels(facts.kind).inc()
        metrics.sockets_opened.labels(facts.kind).inc()
        topic = self.follow(address)
        if head.id is not None:
            topic.offer(head.id, (), head.cursor)
        return topic, head.cursor

    async def renew(self, facts: Facts) -> None:
        """Writes what a fresh token says of the client."""
        await self.run(connections.claim, facts)

    async def leave(self, socket: Socket, facts: Facts) -> None:
        """Deletes the connection's row. One that stays, the database being away, expires."""
        self.sockets.discard(socket)
        metrics.sockets.labels(facts.kind).dec()
        self.unfollow((facts.kind, facts.name))
        try:
            await self._closes.submit(facts)
        except Exception as error:
            complain("connections that ended keep their rows for a while", error)

    def follow(self, address: Address) -> Topic:
        """The actor's topic, which is told of news until ``unfollow``, once for each ``follow``."""
        topic = self.topics.get(address)
        if topic is None:
            topic = self.topics[address] = Topic(address, self._page, self._streams)
            self._to_join.set()
        topic.followers += 1
        return topic

    def unfollow(self, address: Address) -> None:
        """One follower less; nobody tells of an actor that has none."""
        topic = self.topics[address]
        topic.followers -= 1
        if not topic.followers:
            del self.topics[address]
            topic.end()
            if topic.joined:
                self._start(self._leave_group(address), "agents-sockets-leave")

    async def _page(self, actor_id: int, after: int) -> list[Event]:
        return await self.run(backlog.page, actor_id, after)

    async def _streams(self, actor_id: int, uid: str) -> list[backlog.StreamText]:
        return await self.run(backlog.streams, actor_id, uid)

    # News

    def wants(self, address: Address) -> bool:
        """Whether there are sockets for an actor here."""
        return address in self.topics

    def company(self, address: Address) -> Company | None:
        """Who else has sockets for an actor; None where there are none here (any more)."""
        topic = self.topics.get(address)
        return None if topic is None else topic.company

    def take(
        self, address: Address, id: int, head: int, events: Sequence[Event], signals: Sequence[Signal]
    ) -> None:
        """What this process's own turns did, from whatever thread."""
        hand_over(self.loop, self._take, address, id, head, events, signals)

    def _take(
        self, address: Address, id: int, head: int, events: Sequence[Event], signals: Sequence[Signal]
    ) -> bool:
        """False where something before it has not come."""
        topic = self.topics.get(address)
        if topic is None:
            return True
        whole = topic.offer(id, events, head) if head else True
        for signal in signals:
            topic.signal(signal)
        return whole

    # The channel layer

    async def _receive(self) -> None:
        layer = reaching_layer()
        if layer is None:
            return
        self._channel = await layer.new_channel()
        self._to_join.set()
        while True:
            try:
                self._unpack(await layer.receive(self._channel))
            except Exception as error:
                complain("the channel layer does not answer; the database is asked instead", error)
                await asyncio.sleep(OUTAGE_PAUSE)
                # Redis may have lost everything.
                self._rejoin(self.topics.values())

    def _unpack(self, message: Mapping[str, Any]) -> None:
        if message.get("type") != MESSAGE:
            return
        address = (message["kind"], message["name"])
        company, asks = self.company(address), message.get("asks")
        if message.get("from") == process_id():
            if company is not None and asks:
                company.came_back(time.monotonic())
            return
        if company is not None:
            company.heard(time.monotonic())
            if asks:
                self._start(self._speak_up(address), "agents-sockets-answer")
        told = events.unpack(message["events"])
        if not self._take(address, message["id"], message["head"], told, signals.unpack(message["signals"])):
            self._doubt(self.topics[address])

    def _rejoin(self, topics: Iterable[Topic]) -> None:
        for topic in topics:
            topic.joined = False
        self._to_join.set()

    def _doubt(self, topic: Topic) -> None:
        """News did not come: perhaps the layer has lost that we are in the group. Or it was only late."""
        now = time.monotonic()
        if now - topic.doubted_at > DOUBTS:
            topic.doubted_at = now
            self._rejoin([topic])

    async def _join_groups(self) -> None:
        layer = reaching_layer()
        if layer is None:
            return
        renewed = time.monotonic()
        while True:
            try:
                async with asyncio.timeout(max(0.0, renewed + conf.get("SOCKET_RENEWAL") - time.monotonic())):
                    await self._to_join.wait()
            except TimeoutError:
                renewed = time.monotonic()
                self._rejoin(self.topics.values())
            self._to_join.clear()
            if self._channel is None:
                continue
            while missing := [t for t in self.topics.values() if not t.joined][:JOINS]:
                if not all(await asyncio.gather(*(self._join_group(layer, topic) for topic in missing))):
                    await asyncio.sleep(OUTAGE_PAUSE)

    async def _join_group(self, layer: Any, topic: Topic) -> bool:
        try:
            async with asyncio.timeout(JOIN_TIMEOUT):
                await layer.group_add(names.group_name(*topic.address), self._channel)
        except Exception as error:
            complain("groups of the channel layer cannot be joined; the database is asked instead", error)
            return False
        topic.joined = True
        await self._speak_up(topic.address, asks=True)
        # What was committed before it was in the group was told to nobody here.
        self._to_look.add(topic.address)
        self._look_now.set()
        return True

    async def _speak_up(self, address: Address, *, asks: bool = False) -> None:
        """Tells the others in an actor's group that we are there."""
        said = news(address, asks=asks)
        try:
            async with asyncio.timeout(conf.get("PUBLISH_TIMEOUT")):
                await reaching_layer().group_send(names.group_name(*address), said)
        except Exception as error:
            complain("groups of the channel layer cannot be told who is there", error)

    async def _leave_group(self, address: Address) -> None:
        try:
            async with asyncio.timeout(JOIN_TIMEOUT):
                await reaching_layer().group_discard(names.group_name(*address), self._channel)
        except Exception as error:
            complain("groups of the channel layer cannot be left", error)
        else:
            if address in self.topics:  # somebody came meanwhile
                self._rejoin([self.topics[address]])

    # The database, again and again

    async def _look(self) -> None:
        """Asks how far the actors have come: all of them every SOCKET_HEADS_INTERVAL, some at once."""
        last = time.monotonic()
        while True:
            interval = conf.get("SOCKET_HEADS_INTERVAL")
            try:
                async with asyncio.timeout(max(0.0, last + interval - time.monotonic())):
                    await self._look_now.wait()
                await asyncio.sleep(GATHERING)
                which = self._to_look & self.topics.keys()
            except TimeoutError:
                last = time.monotonic()
                which = set(self.topics)
            self._look_now.clear()
            self._to_look.clear()
            if which:
                try:
                    await self._look_at(which)
                except Exception as error:
                    complain("the newest events could not be asked for", error)

    async def _look_at(self, addresses: set[Address]) -> None:
        known = {address: self.topics[address].head for address in addresses}
        heads = await self.run(backlog.heads, addresses)
        for address, head in heads.items():
            topic = self.topics.get(address)
            if topic is not None and topic.checked(head, known[address]):
                self._doubt(topic)

    async def _keep(self) -> None:
        """Says that the sockets here live, and buries those of processes that are dead."""
        while True:
            await asyncio.sleep(conf.get("CONNECTION_REFRESH"))
            try:
                facts = [socket.facts for socket in self.sockets if socket.facts is not None]
                if facts:
                    await self.run(connections.refresh, facts)
                await self.run(connections.expire)
                await _mend_streams()
            except Exception as error:
                complain("connections could not be kept up", error)

    async def _check(self) -> None:
        """Closes sockets whose session, key or token has ended."""
        while True:
            await asyncio.sleep(conf.get("SOCKET_CHECK_INTERVAL"))
            try:
                sockets = list(self.sockets)
                valid = await asyncio.gather(*(self.is_valid(socket.identity) for socket in sockets))
            except Exception as error:
                complain("sessions of sockets could not be looked at", error)
                continue
            for socket, is_valid in zip(sockets, valid, strict=True):
                if not is_valid:
                    await socket.expel()


async def _mend_streams() -> None:
    """Ends what dead processes were writing: readers of an actor that nobody wants would see it for ever."""
    from agents.runtime import get_runtime
    from conversations import streams

    await get_runtime().run(streams.sweep)


def reaching_layer() -> Any:
    """The default channel layer, if it reaches other processes; None for one in memory, or none at all."""
    try:
        layer = get_channel_layer()
    except Exception as error:
        complain("the channel layer cannot be made", error)
        return None
    return None if layer is None or isinstance(layer, InMemoryChannelLayer) else layer


#: The type of our messages on the channel layer.
MESSAGE = "agents.news"


def news(
    address: Address,
    id: int = 0,
    head: int = 0,
    told: Sequence[Event] = (),
    shown: Sequence[Signal] = (),
    *,
    asks: bool = False,
) -> dict[str, Any]:
    """A message for an actor's group: how far it is, what goes along. ``asks``: who is there?"""
    return {
        "type": MESSAGE,
        "from": process_id(),
        "kind": address[0],
        "name": address[1],
        "id": id,
        "head": head,
        "events": events.pack(told),
        "signals": signals.pack(shown),
        "asks": asks,
    }


_ids: dict[int, str] = {}
_hubs: dict[asyncio.AbstractEventLoop, Hub] = {}


def process_id() -> str:
    """What this process is called on the channel layer; a forked one has a name of its own."""
    return _ids.setdefault(os.getpid(), os.urandom(8).hex())


def get_hub() -> Hub:
    """The hub of the running event loop, made if there is none."""
    loop = asyncio.get_running_loop()
    hub = _hubs.get(loop)
    if hub is None:
        hub = _hubs[loop] = Hub(loop)
    return hub


def hubs_for(address: Address) -> list[Hub]:
    """The hubs of this process that have sockets for an actor; from any thread."""
    return [hub for hub in list(_hubs.values()) if hub.wants(address)] if _hubs else []


def shutdown() -> None:
    """Ends this process's hubs; from another thread than theirs, once their sockets are closed."""
    for hub in list(_hubs.values()):
        try:
            asyncio.run_coroutine_threadsafe(hub.close(), hub.loop).result(2 * CLOSING)
        except Exception:
            logger.exception("the sockets' hub did not end")


os.register_at_fork(after_in_child=_hubs.clear)
