"""OpenTelemetry spans: turns, steps, commits, and the way from a request through the inbox into a turn.

Where the library (``opentelemetry-api``) is not installed, or no provider of traces is set up, nothing is
made: a turn then costs a comparison or two. Model calls are OpenTelemetry's own to trace, by its
instrumentation of the OpenAI client (the GenAI conventions), where that package is installed.

Spans name kinds, methods and ids, never an actor's name or what anybody said.
"""

from __future__ import annotations

import contextvars
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer

    from agents.turn import Turn

logger = logging.getLogger("agents.tracing")

INSTALLED = find_spec("opentelemetry") is not None and find_spec("opentelemetry.trace") is not None
# How often it is looked whether somebody has set up a provider of traces.
LOOK = 1.0  # seconds

_tracer: Tracer | None = None
_look_at = 0.0
_instrumented = False


def active() -> bool:
    """Whether spans are made: the library is there, and a provider is set up."""
    global _tracer, _look_at
    if _tracer is not None:
        return True
    if not INSTALLED or (now := time.monotonic()) < _look_at:
        return False
    _look_at = now + LOOK
    from opentelemetry import trace

    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return False
    _tracer = trace.get_tracer("agents")
    return True


def turn_began(turn: Turn, context: contextvars.Context) -> None:
    """Opens a turn's span, and makes it the current one of the context in which its method runs."""
    from opentelemetry import context as otel
    from opentelemetry import trace

    assert _tracer is not None
    parent, links = _origin(turn)
    attributes: dict[str, str | int | float | bool] = {
        "agents.kind": turn.actor.kind,
        "agents.actor.id": turn.actor.id,
        "agents.turn.id": str(turn.id),
        "agents.origin": turn.origin,
        "agents.method": turn.method,
        "agents.waited": turn.waited,
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": turn.actor.kind,
    }
    if turn.task is not None:
        attributes["agents.task.lane"] = turn.task.lane
        attributes["agents.task.attempt"] = turn.task.attempt
    turn.span = span = _tracer.start_span(
        f"turn {turn.actor.kind}.{turn.method}",
        context=parent,
        kind=trace.SpanKind.CONSUMER if turn.task is not None else trace.SpanKind.INTERNAL,
        attributes=attributes,
        links=links,
    )
    context.run(otel.attach, trace.set_span_in_context(span, parent))


def _origin(turn: Turn) -> tuple[Context | None, list[Any]]:
    """A call is part of its caller's trace, the inbox of the teller's; a timer has one that links back."""
    if turn.task is None:
        return None, []
    from opentelemetry import trace
    from opentelemetry.context import Context

    from agents.observing import carrying

    origin = _extract(carrying.read(turn.task.carried).traceparent)
    if origin is None:
        return Context(), []
    if turn.task.lane == "inbox":
        return origin, []
    return Context(), [trace.Link(trace.get_current_span(origin).get_span_context())]


def turn_ended(turn: Turn, outcome: str, error: BaseException | None) -> None:
    """Closes a turn's span; its commit becomes a span of its own."""
    from opentelemetry import trace

    span: Span = turn.span
    now = time.time_ns()
    if _tracer is not None and turn.ended_at is not None and outcome != "lost":
        began = now - int((time.monotonic() - turn.ended_at) * 1e9)
        commit = _tracer.start_span("commit", context=trace.set_span_in_context(span), start_time=began)
        commit.end(now)
    span.set_attribute("agents.outcome", outcome)
    if error is not None:
        span.set_attribute("error.type", getattr(error, "code", None) or type(error).__qualname__)
        span.set_status(trace.Status(trace.StatusCode.ERROR))
    span.end(now)


@contextmanager
def step(name: str, use: int) -> Iterator[None]:
    """A span around a step's function."""
    if not active():
        yield
        return
    assert _tracer is not None
    attributes: dict[str, str | int] = {"agents.step.name": name, "agents.step.use": use}
    with _tracer.start_as_current_span(
        f"step {name}", attributes=attributes, record_exception=False, set_status_on_exception=False
    ) as span:
        try:
            yield
        except BaseException as error:
            _failed(span, error)
            raise


def _failed(span: Span, error: BaseException) -> None:
    # Not what the error says: it may quote somebody.
    from opentelemetry import trace

    span.set_attribute("error.type", getattr(error, "code", None) or type(error).__qualname__)
    span.set_status(trace.Status(trace.StatusCode.ERROR))


def traceparent() -> str:
    """The current span, as ``traceparent`` (W3C Trace Context) carries it; empty without one."""
    if not active():
        return ""
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier.get("traceparent", "")


def _extract(traceparent: str) -> Context | None:
    if not traceparent:
        return None
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract({"traceparent": traceparent}, Context())


def instrument_models() -> None:
    """Lets OpenTelemetry trace the OpenAI client, where its instrumentation is installed."""
    global _instrumented
    if _instrumented or not INSTALLED:
        return
    _instrumented = True
    try:
        from opentelemetry.instrumentation.genai.openai import OpenAIInstrumentor
    except ImportError:
        return
    instrumentor = OpenAIInstrumentor()
    if not instrumentor.is_instrumented_by_opentelemetry:
        instrumentor.instrument()


def reset() -> None:
    """Looks anew for a provider of traces (tests)."""
    global _tracer, _look_at
    _tracer, _look_at = None, 0.0
