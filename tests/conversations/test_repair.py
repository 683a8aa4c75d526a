"""The repaired conversation, and every provider's rules on random logs."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings

from conversations import adapters
from conversations.adapters.repair import INTERRUPTED, NO_OUTPUT, NO_REASON, exchanges
from conversations.adapters.windows import messages_of
from conversations.messages import StoredMessage
from tests.conversations.logs import RANDOM_LOGS, call, log_of, result
from tests.conversations.providers import CHECKS, strict_json


def _results(messages: list[StoredMessage]) -> list[tuple[str, str, bool]]:
    """Every result that is rendered: its call's id, its text, whether it is an error."""
    return [(r.call.id, r.text, r.is_error) for exchange in exchanges(messages) for r in exchange.results]


def test_a_call_whose_process_died_gets_a_result_that_says_so():
    log = log_of([("user", "weather?"), call("c1"), ("user", "hello?")])
    assert _results(log) == [("c1", INTERRUPTED, True)]
    assert [exchange.role for exchange in exchanges(log)] == ["user", "assistant", "user"]


def test_a_result_that_came_after_the_next_message_stands_behind_its_call():
    log = log_of([("user", "weather?"), call("c1"), ("user", "hello?"), result("c1", "sunny")])
    assert [exchange.role for exchange in exchanges(log)] == ["user", "assistant", "user"]
    assert _results(log) == [("c1", "sunny", False)]


def test_results_stand_in_call_order_whatever_order_they_came_in():
    ids = ["r1", "r2", "r3", "r4", "r5"]
    finished = ["r3", "r1", "r5", "r2", "r4"]
    log = log_of([("user", "go"), call(*ids), *(result(id_, id_) for id_ in finished)])
    assert _results(log) == [(id_, id_, False) for id_ in ids]


def test_of_a_result_stored_twice_the_first_counts():
    log = log_of([("user", "go"), call("t1"), result("t1", "ok"), result("t1", "other"), ("user", "and?")])
    assert _results(log) == [("t1", "ok", False)]


def test_a_result_without_a_call_is_left_out():
    log = log_of([("user", "go"), result("ghost"), ("assistant", "done")])
    assert [exchange.role for exchange in exchanges(log)] == ["user", "assistant"]


def test_a_result_before_its_call_is_none_of_it():
    log = log_of([("user", "go"), result("c1"), call("c1")])
    assert _results(log) == [("c1", INTERRUPTED, True)]


def test_an_id_used_again_takes_the_results_behind_it():
    log = log_of([call("0"), result("0", "first"), call("0"), result("0", "second"), result("0", "third")])
    assert _results(log) == [("0", "first", False), ("0", "second", False)]


def test_an_id_used_again_leaves_the_older_call_unanswered():
    log = log_of([call("0"), call("0"), result("0", "for the second")])
    assert _results(log) == [("0", INTERRUPTED, True), ("0", "for the second", False)]


def test_one_message_with_the_same_id_twice_takes_two_results():
    log = log_of([call("0", "0"), result("0", "first"), result("0", "second")])
    assert _results(log) == [("0", "first", False), ("0", "second", False)]


def test_a_tool_that_failed_without_a_message_is_named():
    log = log_of(
        [
            call("a", "b", "c", "d", "e"),
            result("a", "", metadata={"error": "TimeoutError"}),
            result("b", ""),
            result("c", " \n", metadata={"is_error": True}),
            result("d", "disk full", metadata={"error": "OSError"}),
            result("e", "fine", metadata={"is_error": False}),
        ]
    )
    assert _results(log) == [
        ("a", "Error: TimeoutError", True),
        ("b", NO_OUTPUT, False),
        ("c", NO_REASON, True),
        ("d", "disk full", True),
        ("e", "fine", False),
    ]


def test_messages_that_say_nothing_are_left_out_but_never_the_users():
    log = log_of([("system", " "), ("user", ""), ("assistant", "\n"), ("assistant", "hm")])
    assert [exchange.role for exchange in exchanges(log)] == ["user", "assistant"]
    assert exchanges(log)[0].text == "(empty message)"


def test_repair_changes_no_message():
    log = log_of([call("a"), result("ghost"), ("user", "")])
    before = repr(log)
    exchanges(log)
    assert repr(log) == before


@given(RANDOM_LOGS)
def test_repairing_what_was_repaired_changes_nothing(log: list[StoredMessage]):
    once = exchanges(log)
    assert exchanges(messages_of(once)) == once


@pytest.mark.parametrize("rendering", CHECKS)
@settings(max_examples=150, deadline=None)
@given(log=RANDOM_LOGS)
def test_every_rendering_of_any_log_is_accepted(rendering: str, log: list[StoredMessage]):
    CHECKS[rendering](getattr(adapters, rendering)(log))


@given(RANDOM_LOGS)
def test_the_system_prompt_of_any_log_is_text_that_goes_out(log: list[StoredMessage]):
    strict_json(adapters.system_prompt(log))


@pytest.mark.parametrize("rendering", CHECKS)
@settings(deadline=None)
@given(log=RANDOM_LOGS)
def test_rendering_twice_gives_the_same_bytes_and_changes_nothing(rendering: str, log: list[StoredMessage]):
    before = repr(log)
    render = getattr(adapters, rendering)
    assert json.dumps(render(log)) == json.dumps(render(list(log)))
    assert repr(log) == before


@given(RANDOM_LOGS)
def test_what_langchain_gets_survives_a_round_trip(log: list[StoredMessage]):
    rendered = adapters.to_langchain_messages(log)
    again = log_of([adapters.from_langchain(message) for message in rendered])
    assert adapters.to_langchain_messages(again) == rendered
