"""The support agent's story on LangGraph and on pydantic-ai: whole turns against the offline model."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from agents import faults
from agents.env import env
from agents.testing import CrashError, advance, drain, on_runtime, reset_clock
from conversations.dev import model
from conversations.models import Message, OutboundText
from examples.agents import NUDGE, NUDGE_AFTER
from scheduler.models import Task
from tests.examples.test_support_agent import text

langchain = pytest.importorskip("langchain", reason="needs the packages of the extra langchain")
pydantic_ai = pytest.importorskip("pydantic_ai", reason="needs the packages of the extra pydantic-ai")

from examples.langgraph_agent import LangGraphSupportAgent  # noqa: E402
from examples.pydantic_ai_agent import PydanticSupportAgent, history_of, messages_of  # noqa: E402

pytestmark = pytest.mark.django_db(transaction=True)

AGENTS = [LangGraphSupportAgent, PydanticSupportAgent]
OFFLINE = "[offline model]"


@pytest.fixture(autouse=True)
def offline(live_server: Any, settings: Any) -> Iterator[None]:
    settings.DEBUG = True
    settings.AGENTS = {"SITE_URL": live_server.url}
    yield
    on_runtime(lambda engine: env.close())
    reset_clock()


@pytest.fixture(params=AGENTS, ids=lambda agent: agent.kind)
def alice(request: pytest.FixtureRequest) -> Any:
    return request.param.named("+15550001111").sync


def log() -> list[tuple[str, str]]:
    return list(Message.objects.order_by("seq").values_list("role", "content"))


def sent() -> list[str]:
    return list(OutboundText.objects.order_by("id").values_list("text", flat=True))


def test_a_text_is_answered_with_its_tool_turns_in_the_log_and_a_nudge_pending(alice: Any):
    alice.tell("receive", text("Where is order 1042?"))
    drain()
    assert [role for role, _ in log()] == ["user", "assistant", "tool", "assistant"]
    call, result, answer = Message.objects.order_by("seq")[1:]
    assert call.tool_calls is not None
    assert (call.tool_calls[0]["name"], call.tool_calls[0]["args"]) == ("lookup_order", {"order_id": "1042"})
    assert result.tool_call_id == call.tool_calls[0]["id"]
    assert "two kettles" in result.content
    assert sent() == [answer.content]
    assert answer.content == f"{OFFLINE} {result.content}"
    assert Task.objects.get().task_id == "nudge"


def test_the_next_run_has_the_tool_turns_in_its_history_and_the_model_takes_it(alice: Any):
    alice.tell("receive", text("Where are orders #1042 and #2001?"))
    drain()
    alice.tell("receive", text("thanks"))
    alice.tell("receive", text("bye"))
    drain()
    assert [role for role, _ in log()] == [
        "user", "assistant", "tool", "tool", "assistant", "user", "user", "assistant",
    ]  # fmt: skip
    assert sent()[1:] == [f"{OFFLINE} I read: thanks / bye"]
    advance(NUDGE_AFTER + 60)
    drain()
    assert sent()[2:] == [NUDGE]


def test_a_crash_at_the_commit_leaves_nothing_and_the_run_is_not_paid_for_twice(
    alice: Any, monkeypatch: pytest.MonkeyPatch
):
    asked: list[Any] = []
    complete = model.complete

    def counted(request: Any) -> Any:
        asked.append(request)
        return complete(request)

    monkeypatch.setattr(model, "complete", counted)
    alice.receive(text("Where is order 1042?", channel="web"))
    passes: list[str] = []

    def crash() -> None:
        passes.append("the step's result, then the turn")
        if len(passes) == 2:
            raise CrashError("commit.written")

    with faults.at("commit.written", crash):
        drain()
    assert [role for role, _ in log()] == ["user"]
    advance(60)
    drain()
    assert [role for role, _ in log()] == ["user", "assistant", "tool", "assistant"]
    assert len(asked) == 2  # for the call, and for the answer


def test_a_broken_history_is_no_obstacle(alice: Any):
    alice.tell("receive", text("hello"))
    drain()
    actor = Message.objects.earliest("seq").actor
    calls = [{"id": "functions.lookup_order:0", "name": "lookup_order", "args": '{"order_id": '}]
    Message.objects.create(
        actor=actor, seq=actor.seq + 1, role="assistant", tool_calls=calls, at="2026-11-30T12:00:00Z"
    )
    type(actor).objects.update(seq=actor.seq + 1)
    alice.tell("receive", text("are you there?"))
    drain()
    assert sent()[1:] == [f"{OFFLINE} I read: are you there?"]


def test_pydantic_ais_messages_come_back_as_they_went():
    calls = [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}]
    history = history_of(
        [
            {"role": "system", "content": "s"},
            {
                "role": "user",
                "content": [{"type": "text", "text": "u"}, {"type": "image_url", "image_url": {}}],
            },
            {"role": "assistant", "content": "I look", "tool_calls": calls},
            {"role": "tool", "tool_call_id": "c1", "content": "ok"},
            {"role": "assistant", "content": "done"},
        ]
    )
    assert messages_of(history) == [
        {
            "role": "assistant",
            "content": "I look",
            "tool_calls": [{"id": "c1", "name": "f", "args": '{"a":1}'}],
        },
        {"role": "tool", "tool_call_id": "c1", "name": "f", "content": "ok"},
        {"role": "assistant", "content": "done", "tool_calls": []},
    ]


def test_frameworks_are_imported_when_an_agent_first_needs_them_and_not_before():
    code = (
        "import os, sys; os.environ['DJANGO_SETTINGS_MODULE'] = 'tests.settings'\n"
        "import django; django.setup()\n"
        "from agents import kinds; kinds.get('support-langgraph'); kinds.get('support-pydantic-ai')\n"
        "heavy = {'langchain', 'langchain_core', 'langgraph', 'pydantic_ai', 'openai', 'anthropic'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
