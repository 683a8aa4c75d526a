"""What is repaired at rendering, and the command that tells an operator."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from hypothesis import given, settings

from agents.models import Actor
from conversations import adapters
from conversations.adapters.repair import exchanges
from conversations.adapters.windows import messages_of
from conversations.messages import StoredMessage, row_of
from conversations.models import Message
from conversations.repairs import KINDS, findings
from tests.conversations.files import JPEG
from tests.conversations.logs import RANDOM_LOGS, call, log_of, result

HEALTHY: list[Any] = [
    ("system", "be kind"),
    ("user", "go"),
    call("a", "b"),
    result("a"),
    result("b"),
    ("user", "x"),
]

DAMAGED: dict[str, tuple[list[Any], list[tuple[int, str]]]] = {
    "a call whose process died": ([("user", "go"), call("a"), ("user", "hello?")], [(2, "missing_result")]),
    "results in the order the tools ended": (
        [("user", "go"), call("a", "b"), result("b"), result("a")],
        [(4, "result_out_of_order")],
    ),
    "a result, and none of the call before its own": (
        [("user", "go"), call("a", "b"), result("b")],
        [(2, "missing_result")],
    ),
    "a result after the next message": (
        [("user", "go"), call("a"), ("user", "hello?"), result("a")],
        [(4, "late_result")],
    ),
    "a result stored twice": (
        [("user", "go"), call("a"), result("a"), result("a")],
        [(4, "duplicate_result")],
    ),
    "a result without a call": ([("user", "go"), result("a")], [(2, "orphan_result")]),
    "an id used again": (
        [("user", "go"), call("a"), result("a"), call("a"), result("a")],
        [(4, "reused_id")],
    ),
    "an id used again before its result came": (
        [("user", "go"), call("a"), call("a"), result("a")],
        [(3, "reused_id"), (2, "missing_result")],
    ),
    "ids of another provider": ([("user", "go"), call("a:1"), result("a:1")], [(2, "illegal_id")]),
    "arguments cut short": (
        [("user", "go"), call("a", args='{"value": '), result("a")],
        [(2, "bad_arguments")],
    ),
    "blank texts": (
        [("user", ""), call("a"), result("a", " "), ("assistant", "\n"), ("system", "")],
        [(1, "blank_user_message"), (3, "blank_result"), (4, "blank_message"), (5, "blank_message")],
    ),
    "the assistant first": ([("system", "s"), ("assistant", "hi")], [(2, "assistant_first")]),
    "a system message in the middle": (
        [("system", "s"), ("user", "hi"), ("system", "now")],
        [(3, "system_in_the_middle")],
    ),
    "names that nobody takes": (
        [{"role": "user", "content": "hi", "name": "Anna Müller"}, call("a", name="look up"), result("a")],
        [(1, "illegal_name"), (2, "illegal_name")],
    ),
    "an image that holds nothing": (
        [{"role": "user", "content": "see", "parts": [{"type": "image", "base64": "?"}]}],
        [(1, "unusable_media")],
    ),
    "a picture that is called another": (
        [
            {
                "role": "user",
                "content": "see",
                "parts": [{"type": "image", "base64": JPEG, "mime_type": "image/png"}],
            }
        ],
        [(1, "mistyped_media")],
    ),
}


@pytest.mark.parametrize(("log", "expected"), DAMAGED.values(), ids=DAMAGED)
def test_what_is_repaired_is_found(log: list[Any], expected: list[tuple[int, str]]):
    assert [(finding.seq, finding.kind) for finding in findings(log_of(log))] == expected


def test_every_kind_of_finding_is_tested():
    assert {kind for _, expected in DAMAGED.values() for _, kind in expected} == set(KINDS)


def test_a_healthy_log_has_no_findings():
    assert list(findings(log_of(HEALTHY))) == []


@settings(max_examples=300, deadline=None)
@given(RANDOM_LOGS)
def test_a_log_is_sent_as_it_stands_exactly_when_nothing_is_found_that_moves_or_drops(
    log: list[StoredMessage],
):
    kinds = {finding.kind for finding in findings(log)}
    moved = {"duplicate_result", "late_result", "orphan_result", "result_out_of_order", "blank_message"}
    conversation = exchanges(log)
    assert (messages_of(conversation) == log) == (not kinds & moved)
    has_missing = any(result.message is None for exchange in conversation for result in exchange.results)
    assert has_missing == ("missing_result" in kinds)
    if not kinds & {"reused_id", "illegal_id"}:
        ids = [call.id for message in log for call in message.tool_calls]
        sent = [
            block["id"]
            for turn in adapters.to_anthropic(log)
            if not isinstance(turn["content"], str)
            for block in turn["content"]
            if block["type"] == "tool_use"
        ]
        assert sent == ids


# The command


@pytest.fixture
def logs(db: None) -> None:
    for name, messages in {"healthy": HEALTHY, **{name: log for name, (log, _) in DAMAGED.items()}}.items():
        log = log_of(messages)
        actor = Actor.objects.create(kind="support", name=name, seq=len(log))
        Message.objects.bulk_create(Message(actor=actor, seq=m.seq, at=m.at, **row_of(m)) for m in log)
    Actor.objects.create(kind="other", name="empty")


def run(*args: str) -> str:
    out = io.StringIO()
    call_command("check_transcripts", *args, stdout=out, stderr=io.StringIO())
    return out.getvalue()


def test_the_command_names_each_log_what_is_wrong_and_who_would_refuse(logs: None):
    said = run()
    assert f"{len(DAMAGED)} of {len(DAMAGED) + 1} logs need repair at rendering" in said
    assert "support/healthy" not in said
    assert "support/a call whose process died: 1 thing in 3 messages" in said
    assert "  #2 missing_result: call 'a' of 'lookup' has no result; a result that says so is sent" in said


def test_the_command_looks_at_some_logs_and_prints_so_many_findings(logs: None):
    said = run("--name", "blank texts", "--most", "1")
    assert "4 things in 5 messages" in said
    assert "and 3 more" in said
    assert "1 of 1 logs" in said
    assert run("--kind", "other") == "0 of 0 logs need repair at rendering\n"


def test_the_command_gives_json_and_fails_where_it_is_asked_to(logs: None):
    lines = [json.loads(line) for line in run("--json", "--name", "an id used again").splitlines()]
    assert lines == [
        {
            "kind": "support",
            "name": "an id used again",
            "seq": 4,
            "finding": "reused_id",
            "about": "call 'a' of 'lookup' has the id of an earlier call",
        }
    ]
    with pytest.raises(CommandError) as caught:
        run("--fail")
    assert caught.value.returncode == 1
    run("--fail", "--name", "healthy")
