"""``manage.py call_agent``: real turns, committed by the runtime's own threads."""

from __future__ import annotations

import json
import uuid
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from agents.models import Actor
from agents.store import get_store
from agents.store.requests import Claim
from tests.scheduler.clerks import agents

pytestmark = pytest.mark.django_db(transaction=True)

KIND = agents.ClerkAgent.kind


def call(*args: str, **options: Any) -> Any:
    out = StringIO()
    call_command("call_agent", KIND, *args, stdout=out, **options)
    return json.loads(out.getvalue())


def refused(*args: str, kind: str = KIND) -> str:
    with pytest.raises(CommandError) as caught:
        call_command("call_agent", kind, *args, stdout=StringIO())
    return str(caught.value)


def test_a_call_is_a_turn_and_its_result_is_printed_as_json() -> None:
    assert call("+15550001111", "add") == 1
    assert call("+15550001111", "add", "[5]") == 6
    assert call("+15550001111", "add", '{"n": 2, "times": 3}') == 12
    assert call("+15550001111", "add", "4") == 16
    assert Actor.objects.get(kind=KIND, name="+15550001111").state == {"count": 16}


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ("[[1, 2]]", [1, 2]),
        ('[{"a": 1}]', {"a": 1}),
        ('{"value": {"$date": "2026-11-30"}}', {"$$date": "2026-11-30"}),  # plain JSON in, no tag
        ('"text 😋"', "text 😋"),
        ("null", None),
        ("[]", None),
        ("-5", -5),
    ],
)
def test_json_becomes_arguments(text: str, given: Any) -> None:
    assert call("alice", "echo", text) == given


def test_a_result_beyond_json_is_printed_with_the_codecs_tags() -> None:
    assert call("alice", "odd") == {"on": {"$date": "2026-11-30"}, "tags": {"$set": ["a"]}}


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("alice", "fail"), "ValueError: no such order"),
        (("alice", "missing"), "unknown_method"),
        (("alice", "_begin"), "private_method"),
        (("alice", "set_state"), "private_method"),
        (("", "add"), "invalid_name"),
        (("alice", "add", "[1, 2]"), "TypeError"),
        (("alice", "add", "{not json"), "codec_error: the arguments are not JSON"),
        (("alice", "echo", "[NaN]"), "codec_error"),
    ],
)
def test_what_cannot_be_called_is_said_with_its_code(args: tuple[str, ...], says: str) -> None:
    assert says in refused(*args)


def test_an_unknown_kind_is_said_with_its_code() -> None:
    assert "unknown_kind" in refused("alice", "add", kind="nobody")


def test_a_call_that_failed_leaves_nothing() -> None:
    assert "unknown_method" in refused("alice", "missing")
    assert not Actor.objects.exists()


def test_a_busy_actor_is_waited_for_only_as_long_as_was_asked() -> None:
    actor_id = get_store().ensure([(KIND, "alice")])[KIND, "alice"]
    assert get_store().claim([Claim(actor_id, uuid.uuid4())])[0]
    assert "busy" in refused("alice", "add", "--patience=0.2")
    assert "seconds are needed" in refused("alice", "add", "--patience=soon")
