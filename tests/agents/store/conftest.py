"""The store alone, on real transactions: no test here runs inside one of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from agents import clock
from agents.store import get_store
from tests.agents.store.stage import Stage


@pytest.fixture
def stage(transactional_db: Any) -> Iterator[Stage]:
    """Actors and turns; at the test's end everything that must always be true is audited."""
    stage = Stage(get_store())
    yield stage
    clock.reset()
    stage.audit()
