"""What the runtime's tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.agents.cast import outside, said


@pytest.fixture(autouse=True)
def _the_outside_world_is_empty() -> Iterator[None]:
    outside.clear()
    said.clear()
    yield
    outside.clear()
    said.clear()


@pytest.fixture
def agents_settings(settings: Any) -> Callable[..., None]:
    """Changes settings of ``AGENTS`` for this test: ``agents_settings(LEASE=1.0)``."""

    def change(**values: Any) -> None:
        settings.AGENTS = {**settings.AGENTS, **values}

    return change
