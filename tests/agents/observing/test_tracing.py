"""Spans: of turns, steps, commits and model calls, and the way from a request through the inbox."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.util._once import Once

from agents import runtime
from agents.env import env
from agents.observing import tracing
from agents.testing import drain
from scheduler.models import Task
from tests.agents.cast import Counter, Writer
from tests.agents.observing.model import echoing
from tests.agents.observing.texted.agents import ObservedAgent

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER_SET_ONCE", Once())
    trace.set_tracer_provider(provider)
    tracing.reset()
    yield exporter
    runtime.shutdown(1)
    provider.shutdown()
    monkeypatch.undo()
    tracing.reset()


def named(spans: InMemorySpanExporter, name: str) -> ReadableSpan:
    (span,) = [span for span in spans.get_finished_spans() if span.name == name]
    return span


def facts(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def is_in(span: ReadableSpan, other: ReadableSpan) -> bool:
    parent, context = span.parent, other.get_span_context()
    return parent is not None and context is not None and parent.span_id == context.span_id


def test_a_call_is_a_span_in_its_callers_trace_with_its_commit_in_it(spans: InMemorySpanExporter):
    with trace.get_tracer("test").start_as_current_span("request"):
        Counter.named("+15550001111").sync.add(1)
    request, turn, commit = (named(spans, n) for n in ("request", "turn test-counter.add", "commit"))
    assert is_in(turn, request) and is_in(commit, turn)
    assert facts(turn)["agents.outcome"] == "done"
    assert facts(turn)["gen_ai.operation.name"] == "invoke_agent"
    assert facts(turn)["agents.origin"] == "call"
    assert not [v for s in spans.get_finished_spans() for v in facts(s).values() if "15550001111" in str(v)]
    assert turn.end_time is not None and commit.end_time is not None and commit.end_time <= turn.end_time


def test_what_is_told_is_part_of_the_tellers_trace(spans: InMemorySpanExporter):
    with trace.get_tracer("test").start_as_current_span("webhook"):
        Writer.named("w").sync.tell("give_up")
    assert Task.objects.get().carried.startswith(" 00-")
    drain(Writer.named("w"))
    webhook, turn = named(spans, "webhook"), named(spans, "turn test-writer.give_up")
    assert is_in(turn, webhook)
    assert turn.kind == trace.SpanKind.CONSUMER
    assert facts(turn)["agents.outcome"] == "failed"
    assert facts(turn)["error.type"] == "GiveUp"
    assert turn.status.status_code == trace.StatusCode.ERROR
    assert turn.status.description is None and not turn.events  # what it said is nobody's business


def test_a_timer_begins_a_trace_that_leads_back_to_where_it_was_scheduled(spans: InMemorySpanExporter):
    Writer.named("w").sync.everything()
    first = named(spans, "turn test-writer.everything")
    Task.objects.update(due_at="2020-01-01T00:00:00Z")
    from agents.models import Actor

    Actor.objects.update(alarm="2020-01-01T00:00:00Z")
    drain(Writer.named("w"))
    later = named(spans, "turn test-writer.later")
    assert later.parent is None
    assert [link.context.span_id for link in later.links] == [first.get_span_context().span_id]  # type: ignore[union-attr]


def test_a_model_call_is_a_span_in_its_step_after_the_genai_conventions(
    spans: InMemorySpanExporter, agents_settings: Any
):
    with echoing() as (url, came):
        agents_settings(OPENAI_BASE_URL=url, MODEL="echo-1", OPENAI_API_KEY="k" * 8)
        env.reset()
        tracing._instrumented = False
        ObservedAgent.named("+15550001111").sync.tell("process", "my secret word is aubergine")
        drain()
        assert len(came) >= 1
    turn, step = named(spans, "turn observed.process"), named(spans, "step reply")
    model = named(spans, "chat echo-1")
    assert is_in(step, turn) and is_in(model, step)
    assert facts(step)["agents.step.use"] == 1
    assert facts(model)["gen_ai.request.model"] == "echo-1"
    assert facts(model)["gen_ai.usage.input_tokens"] == 3
    assert "aubergine" not in "".join(span.to_json() for span in spans.get_finished_spans())


def test_without_a_provider_of_traces_there_are_none():
    tracing.reset()
    assert not tracing.active()
    Counter.named("a").sync.add(1)
    assert tracing.traceparent() == ""


def test_without_the_library_everything_runs():
    """In a process that cannot import it."""
    code = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "import importlib.util as u; find = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name.startswith('opentelemetry') else find(name, *a)\n"
        "from agents.observing import tracing\n"
        "assert not tracing.INSTALLED and not tracing.active() and tracing.traceparent() == ''\n"
        "with tracing.step('a', 1): pass\n"
        "tracing.instrument_models(); print('fine')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr) == ("fine\n", "")
