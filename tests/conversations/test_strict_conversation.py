"""Fifty turns with tools through the official SDKs, against a server that refuses what providers refuse.

On the way a process dies between a call and its result, a person stops a tool and a half-written answer,
tools end out of order, and a result comes twice. What is sent is a window of the log.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anthropic
import openai
import pytest

from agents import Agent
from agents.models import Actor
from agents.testing import advance, drain, reset_clock
from conversations.log import messages_of
from tests.conversations.strict_server import StrictServer, strict_server
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

TURNS = 50
WINDOW = 12
DIES, STOPPED, STOPPED_WRITING, OUT_OF_ORDER, TWICE = 11, 23, 31, 17, 37
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "lookup", "parameters": {"type": "object", "properties": {}}}}
]

#: What happens in the world while a tool runs; one at a time, since one test runs at a time.
begun = threading.Event()
died: list[int] = []


class Researcher(Agent):
    """Asks a model until it has an answer, and keeps every step of it in the log."""

    kind = "test-researcher"

    async def receive(self, said: dict[str, Any]) -> None:
        await self.messages.add("user", said["text"])
        await self.queue("process", said, id="process")

    async def process(self, said: dict[str, Any]) -> None:
        turn = said["turn"]
        if turn == STOPPED_WRITING:
            async with self.messages.stream("assistant") as out:
                await out.write("Once upon a time")
                begun.set()
                await asyncio.sleep(60)
        for _ in range(4):
            await getattr(self, f"_ask_{said['provider']}")(said["url"])
            last = await self.messages.last()
            assert last is not None
            if not last.tool_calls:
                return
            await self.checkpoint()
            if turn == DIES and turn not in died:
                died.append(turn)
                raise RuntimeError("the process dies here: its calls are in the log, no result ever will be")
            if turn == STOPPED:
                begun.set()
                await asyncio.sleep(60)
            await self._run_tools(turn, last.tool_calls)

    async def _run_tools(self, turn: int, calls: list[Any]) -> None:
        results = [
            {"role": "tool", "tool_call_id": call.id, "content": f"{call.args['word']} was found"}
            for call in calls
        ]
        if turn == OUT_OF_ORDER:
            results.reverse()
        if turn == TWICE:
            results.append({**results[0], "content": "again"})
        await self.messages.append_many(results)

    async def _ask_openai(self, url: str) -> None:
        async with openai.AsyncOpenAI(api_key="x", base_url=f"{url}/v1", max_retries=0) as client:
            messages: Any = await self.messages.to_openai(last=WINDOW)
            answer = await client.chat.completions.create(model="strict", messages=messages, tools=TOOLS)
        await self.messages.append_openai(answer)

    async def _ask_responses(self, url: str) -> None:
        async with openai.AsyncOpenAI(api_key="x", base_url=f"{url}/v1", max_retries=0) as client:
            items: Any = await self.messages.to_openai_responses(last=WINDOW)
            answer = await client.responses.create(
                model="strict", input=items, store=False, include=["reasoning.encrypted_content"]
            )
        await self.messages.append_openai_responses(answer)

    async def _ask_anthropic(self, url: str) -> None:
        async with anthropic.AsyncAnthropic(api_key="x", base_url=url, max_retries=0) as client:
            turns: Any = await self.messages.to_anthropic(last=WINDOW)
            answer = await client.messages.create(
                model="strict",
                max_tokens=2048,
                system=await self.messages.system_prompt(last=WINDOW),
                thinking={"type": "enabled", "budget_tokens": 1024},
                messages=turns,
            )
        await self.messages.append_anthropic(answer)


@pytest.fixture(autouse=True)
def _a_world_of_ones_own() -> Any:
    begun.clear()
    died.clear()
    yield
    reset_clock()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("provider", ["openai", "responses", "anthropic"])
def test_fifty_turns_with_a_crash_two_stops_and_a_window_are_never_refused(provider: str):
    stub = Researcher.named(provider).sync
    with strict_server() as server:
        for turn in range(1, TURNS + 1):
            words = " ".join(f"w{turn}-{n}" for n in range(turn % 4))
            text = f"Please look up {words}" if words else f"Hello number {turn}"
            stub.tell("receive", {"text": text, "turn": turn, "provider": provider, "url": server.url})
            if turn in (STOPPED, STOPPED_WRITING):
                _drain_and_stop(stub)
            drain()
            if turn == DIES:
                advance(60)  # the retry's pause
                drain()
        _check(server, provider)


def _drain_and_stop(stub: Any) -> None:
    begun.clear()
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(drain)
        wait_until(begun.is_set)
        assert stub.stop() is True
        running.result()


def _check(server: StrictServer, provider: str) -> None:
    assert server.refused == []
    assert len(server.requests) > TURNS
    actor = Actor.objects.get(kind="test-researcher", name=provider)
    log = messages_of(actor.pk)
    assert [m.content.startswith(("Please", "Hello")) for m in log if m.role == "user"] == [True] * TURNS
    answered = {m.tool_call_id for m in log if m.role == "tool"}
    open_calls = [call for m in log for call in m.tool_calls if call.id not in answered]
    assert len(open_calls) == DIES % 4 + STOPPED % 4  # in the log they are as they were
    assert [m.content for m in log if m.metadata.get("interrupted")] == ["Once upon a time"]
    sent = [len(body["input" if provider == "responses" else "messages"]) for body in server.requests]
    assert max(sent) <= 2 * WINDOW  # in the Responses API calls and reasoning are items of their own


@pytest.mark.timeout(300)
def test_two_hundred_tool_calls_take_storage_that_grows_with_the_messages_and_no_faster():
    stub = Researcher.named("growing").sync
    weights: list[tuple[int, int]] = [(0, 0)]  # messages, bytes
    with strict_server() as server:
        for turn in range(1, 41):
            words = " ".join(f"w{turn:02}-{n}" for n in range(5))
            said = {"text": f"Please look up {words}", "turn": -turn, "provider": "openai", "url": server.url}
            stub.tell("receive", said)
            drain()
            if turn % 10 == 0:
                weights.append(_weight(Actor.objects.get(name="growing")))
    assert server.refused == []
    parts = [
        (later[1] - earlier[1]) / (later[0] - earlier[0]) for earlier, later in itertools.pairwise(weights)
    ]
    for (messages, weight), part in zip(weights[1:], parts, strict=True):
        print(f"{messages} messages, {weight:,} bytes in all tables, the newest {part:.0f} a message")
    assert weights[-1][0] == 40 * 8
    assert max(parts) < 1.1 * min(parts)


def _weight(actor: Actor) -> tuple[int, int]:
    """How many messages there are, and the bytes of all rows of the actor in whatever table."""
    rows = 0
    for relation in actor._meta.related_objects:
        found = relation.related_model._base_manager.filter(**{relation.field.name: actor})
        rows += sum(len(json.dumps(row, default=str)) for row in found.values())
    return actor.seq, rows + len(json.dumps(actor.state, default=str))


CALLED: dict[str, Any] = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def test_the_stand_in_refuses_what_nobody_repaired():
    said: Any = {"role": "user", "content": "x"}
    with strict_server() as server:
        with openai.OpenAI(api_key="x", base_url=f"{server.url}/v1", max_retries=0) as client:
            messages: Any = [said, {"role": "assistant", "content": None, "tool_calls": [CALLED]}, said]
            with pytest.raises(openai.BadRequestError):
                client.chat.completions.create(model="strict", messages=messages)
            call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
            items: Any = [{"type": "message", **said}, call]
            with pytest.raises(openai.BadRequestError):
                client.responses.create(model="strict", input=items)
        with anthropic.Anthropic(api_key="x", base_url=server.url, max_retries=0) as claude:
            forged: Any = {"type": "thinking", "thinking": "hm", "signature": "mine"}
            used: Any = {"type": "tool_use", "id": "t1", "name": "f", "input": {}}
            result: Any = {"type": "tool_result", "tool_use_id": "t1", "content": "ok"}
            for content, answer in (
                ([used], said["content"]),
                ([forged, used], [result]),
                ([used], [result]),
            ):
                turns: Any = [
                    said,
                    {"role": "assistant", "content": content},
                    {"role": "user", "content": answer},
                ]
                with pytest.raises(anthropic.BadRequestError):
                    claude.messages.create(model="strict", max_tokens=100, messages=turns)
        assert len(server.refused) == 5
