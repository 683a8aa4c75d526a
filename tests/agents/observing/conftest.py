"""What tests of what is seen share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.dispatch import Signal
from prometheus_client import REGISTRY

Counted = Callable[..., float]


@pytest.fixture
def counted() -> Counted:
    """By how much a metric has grown in this test: ``counted("agents_turns_total", kind="support")``."""
    before = {(s.name, *sorted(s.labels.items())): s.value for m in REGISTRY.collect() for s in m.samples}

    def growth(name: str, **labels: str) -> float:
        now = REGISTRY.get_sample_value(name, labels) or 0.0
        return now - before.get((name, *sorted(labels.items())), 0.0)

    return growth


@pytest.fixture
def heard() -> Iterator[Callable[[Signal], list[dict[str, Any]]]]:
    """Listens to a signal for this test; the list of what came grows."""
    listening: list[tuple[Signal, Any]] = []

    def listen(signal: Signal) -> list[dict[str, Any]]:
        came: list[dict[str, Any]] = []

        def receiver(sender: Any, **facts: Any) -> None:
            came.append({"sender": sender, **facts})

        signal.connect(receiver)
        listening.append((signal, receiver))
        return came

    yield listen
    for signal, receiver in listening:
        signal.disconnect(receiver)
