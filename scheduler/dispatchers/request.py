"""Celery's request for one of the project's tasks, which tells no broker what it does not want to know."""

from __future__ import annotations

from celery.worker.request import Request as CeleryRequest


class Request(CeleryRequest):
    """Celery acknowledges each message that a thread takes. For one of a queue without acknowledgements Redis
    would be asked, and waited for, to forget what it has not kept."""

    def acknowledge(self) -> None:
        queue = self._app.amqp.queues.get(self.delivery_info.get("routing_key"))
        if queue is not None and queue.no_ack:
            self.acknowledged = True
        super().acknowledge()
