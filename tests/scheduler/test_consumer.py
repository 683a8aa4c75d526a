"""A worker and its connection to the broker, where that is broken."""

from __future__ import annotations

from typing import Any

import pytest
from celery.utils.imports import symbol_by_name
from celery.worker.consumer import Consumer as CeleryConsumer

from agentsite.celery import app


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The consumer of a worker of ours, with a connection that cannot be closed, as kombu's where a channel
    has to give messages back, and has no address any more."""
    cls = symbol_by_name(app.conf.worker_consumer)
    consumer = cls.__new__(cls)
    consumer.app = app
    consumer.connection = app.connection_for_read("memory://")

    def close() -> None:
        raise AttributeError("'NoneType' object has no attribute 'hostname'")

    monkeypatch.setattr(consumer.connection, "close", close)
    return consumer


@pytest.mark.filterwarnings("ignore::celery.exceptions.CPendingDeprecationWarning")
def test_a_worker_goes_on_where_its_broken_connection_cannot_be_closed(
    connected: Any, caplog: pytest.LogCaptureFixture
) -> None:
    connected.on_connection_error_after_connected(ConnectionError("gone"))
    assert connected.connection is None  # the next one is made
    assert "could not be closed" in caplog.text


def test_celerys_own_ends_there(connected: Any) -> None:
    """When this fails, scheduler/dispatchers/consumer.py is not needed any more."""
    with pytest.raises(AttributeError):
        CeleryConsumer.on_connection_error_after_connected(connected, ConnectionError("gone"))
