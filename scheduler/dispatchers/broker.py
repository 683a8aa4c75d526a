"""The broker as wake-ups are published to it: a connection that gives up soon, and no heap behind it.

Celery's own connections wait for a broker, as workers should. A wake-up is worth little a second later.
"""

from __future__ import annotations

import time
from typing import Any

from celery import Task, current_app

from agents import conf

# Messages that wait in the queue. With more there is nobody to take them, or the workers are behind and have
# enough to do; they find the rest by sweeping.
CROWDED = 1000
# How often the queue is looked at.
LOOK_INTERVAL = 1.0  # seconds


class Broker:
    """Belongs to one thread. Raises what kombu raises; waits for no answer longer than PUBLISH_TIMEOUT."""

    def __init__(self) -> None:
        self._producer: Any = None
        self._looked_at = -LOOK_INTERVAL
        self._crowded = False

    def send(self, task: Task, *args: Any, **options: Any) -> None:
        """Publishes a call of a task once, or gives up. Dropped where nobody takes what is there already."""
        try:
            producer = self._connected()
            queue = current_app.amqp.router.route({}, task.name)["queue"]
            if self._is_crowded(producer, queue.name):
                return
            task.apply_async(args=args, producer=producer, retry=False, ignore_result=True, **options)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            try:
                producer.connection.collect()  # drops the sockets; close() would still talk to them
            except Exception:
                pass  # it was broken, which is why it is closed

    def _connected(self) -> Any:
        if self._producer is None:
            timeout = conf.get("PUBLISH_TIMEOUT")
            connection = current_app.connection_for_write(
                connect_timeout=timeout,
                transport_options={
                    **(current_app.conf.broker_transport_options or {}),
                    "max_retries": 0,  # of connecting; kombu would go on for a connect_timeout and more
                    "socket_timeout": timeout,
                    "socket_connect_timeout": timeout,
                    "health_check_interval": 0,  # one more round trip before the first message
                },
            )
            self._producer = current_app.amqp.Producer(connection)
        return self._producer

    def _is_crowded(self, producer: Any, queue: str) -> bool:
        now = time.monotonic()
        if now - self._looked_at >= LOOK_INTERVAL:
            size = getattr(producer.channel, "_size", None)  # of kombu's virtual transports, as Redis's is
            self._crowded = size is not None and size(queue) >= CROWDED
            self._looked_at = now
        return self._crowded
