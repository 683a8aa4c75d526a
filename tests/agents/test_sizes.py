"""What is too large says so in one way, whoever measured it."""

from __future__ import annotations

from typing import Any

import pytest

from agents.exceptions import LimitError
from agents.sizes import check_size
from agents.sockets.connections import data_tree
from scheduler.replays import Change


def test_what_is_as_large_as_it_may_be_passes_and_a_byte_more_says_what_and_how_much(settings: Any) -> None:
    settings.AGENTS = {**settings.AGENTS, "MAX_STATE_BYTES": 1024}
    check_size(1024, "MAX_STATE_BYTES", "the state")
    with pytest.raises(LimitError, match=r"the state has 1025 bytes .* 1024 \(MAX_STATE_BYTES\)") as caught:
        check_size(1025, "MAX_STATE_BYTES", "the state")
    error = caught.value
    assert (error.limit, error.maximum, error.actual) == ("MAX_STATE_BYTES", 1024, 1025)


def test_events_and_payloads_are_measured_alike(settings: Any) -> None:
    settings.AGENTS = {**settings.AGENTS, "MAX_EVENT_BYTES": 1024, "MAX_PAYLOAD_BYTES": 1024}
    for limit, measured in (
        ("MAX_EVENT_BYTES", lambda: data_tree("x" * 1023)),
        ("MAX_PAYLOAD_BYTES", lambda: Change("replace", "x" * 1023).check()),
    ):
        with pytest.raises(LimitError) as caught:
            measured()
        assert (caught.value.limit, caught.value.actual) == (limit, 1025)
