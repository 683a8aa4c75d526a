"""What the tests of actors' databases share."""

from __future__ import annotations

from typing import Any

import pytest

from agents.sql import cache as caches


@pytest.fixture(autouse=True)
def _no_hurry(settings: Any) -> None:
    """On a busy machine a statement may take long. Tests of the limit set it themselves."""
    settings.AGENTS = {**settings.AGENTS, "SQL_BUDGET": 100.0}


@pytest.fixture(autouse=True)
def _nothing_remembered() -> None:
    caches.cache.clear()
