"""Which row an address means: ids of actors, looked up once and remembered."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Sequence

from agents.store.base import Address

# Ids of actors that the process remembers by address.
KEPT = 10_000

Ensure = Callable[[Sequence[Address]], Awaitable[dict[Address, int]]]


class Addresses:
    """``ensure`` makes rows that aren't there and gives their ids. Belongs to one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ensure: Ensure) -> None:
        self._loop = loop
        self._ensure = ensure
        self._ids: OrderedDict[Address, int] = OrderedDict()
        self._asking: dict[Address, deque[asyncio.Future[int]]] = {}
        self._look_ups: set[asyncio.Task[None]] = set()

    def forget(self, address: Address) -> None:
        self._ids.pop(address, None)

    async def id_of(self, kind: str, name: str) -> int:
        """The id of an actor; its row is made if it isn't there."""
        address = (kind, name)
        asking = self._asking.get(address)
        if asking is None:
            if (id := self._ids.get(address)) is not None:
                self._ids.move_to_end(address)
                return id
            asking = self._asking[address] = deque()
            self._look_ups.add(look_up := self._loop.create_task(self._look_up(address, asking)))
            look_up.add_done_callback(self._look_ups.discard)
        answer: asyncio.Future[int] = self._loop.create_future()
        asking.append(answer)
        return await answer

    async def _look_up(self, address: Address, asking: deque[asyncio.Future[int]]) -> None:
        """One look for all who ask meanwhile; they go on one by one, so that nobody overtakes another."""
        id, failure = 0, None
        try:
            id = (await self._ensure([address]))[address]
            self._ids[address] = id
            if len(self._ids) > KEPT:
                self._ids.popitem(last=False)
        except Exception as error:
            failure = error
        while asking:
            answer = asking.popleft()
            if answer.done():
                continue
            if failure is None:
                answer.set_result(id)
            else:
                answer.set_exception(failure)
            await asyncio.sleep(0)
        del self._asking[address]
