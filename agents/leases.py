"""The heartbeat: a thread that renews the leases of this process's turns and looks for stops.

A thread of its own, because it must go on while a turn's body blocks the event loop; but only until the
turn's budget and grace are over. Then it voids the token, whatever the body does.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from django.db import connections

from agents import conf
from agents.store.base import Store

logger = logging.getLogger("agents.leases")


@dataclass(eq=False, slots=True)
class Lease:
    """A lease that this process holds for a running turn."""

    actor_id: int
    token: uuid.UUID
    turn_id: uuid.UUID
    deadline: float  # time.monotonic() after which the token is void
    # Called in the heartbeat's thread, with why: "lost", "overdue" or "stopped".
    ended: Callable[[str], None]
    renewed: float = field(default_factory=time.monotonic)
    began: float = field(default_factory=time.monotonic)
    void: bool = False
    #: The body has ended: its commit frees the lease, or the next turn of a drain takes it over.
    over: bool = False


class Heartbeat:
    """Renews leases every LEASE_RENEWAL, looks for stops every STOP_POLL seconds."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._leases: dict[uuid.UUID, Lease] = {}
        self._awake = threading.Event()
        self._stopping = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._loop, name="agents-heartbeat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping = True
        self._awake.set()
        if self._thread is not None:
            self._thread.join(timeout=5)

    def hold(self, lease: Lease) -> None:
        self._leases[lease.token] = lease
        if not self._awake.is_set():
            self._awake.set()

    def drop(self, token: uuid.UUID) -> None:
        self._leases.pop(token, None)

    def _loop(self) -> None:
        try:
            while not self._stopping:
                if not self._leases:
                    self._awake.clear()
                    if not self._leases:  # one may have come between the look and the clearing
                        self._awake.wait()
                time.sleep(conf.get("STOP_POLL"))
                try:
                    self._beat()
                except Exception:
                    logger.exception("a heartbeat failed; the next one follows")
        finally:
            connections.close_all()

    def _beat(self) -> None:
        now = time.monotonic()
        leases = [lease for lease in list(self._leases.values()) if not lease.void]
        for lease in leases:
            if now > lease.deadline:
                self._void(lease)
            elif now - lease.renewed >= conf.get("LEASE"):
                # The database was out of reach for so long that somebody else may hold the actor by now.
                self._lost(lease)
        alive = [lease for lease in leases if not lease.void]
        self._renew([lease for lease in alive if now - lease.renewed >= conf.get("LEASE_RENEWAL")])
        self._look_for_stops([lease for lease in alive if now - lease.began >= conf.get("STOP_POLL") / 2])

    def _void(self, lease: Lease) -> None:
        lease.void = True
        logger.error("turn %s ran past its budget and grace: its lease is void", lease.turn_id)
        lease.ended("overdue")
        self._store.free(lease.actor_id, lease.token)

    def _lost(self, lease: Lease) -> None:
        lease.void = True
        if not lease.over:
            logger.warning("turn %s lost its lease", lease.turn_id)
        lease.ended("lost")

    def _renew(self, leases: list[Lease]) -> None:
        if not leases:
            return
        began = time.monotonic()
        ours = self._store.renew([(lease.actor_id, lease.token) for lease in leases])
        for lease in leases:
            if ours.get(lease.token):
                lease.renewed = began
            elif lease.token in ours:
                pass  # somebody has locked its row: the next beat tries again
            elif lease.token in self._leases:  # not just released
                self._lost(lease)

    def _look_for_stops(self, leases: list[Lease]) -> None:
        if not leases:
            return
        stops = self._store.stops([lease.actor_id for lease in leases])
        for lease in leases:
            if stops.get(lease.actor_id) == lease.turn_id:
                lease.ended("stopped")
