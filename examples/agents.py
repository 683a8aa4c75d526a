"""A support agent that owns its loop: the texts come in, a model answers, a tool looks up orders.

The durable parts are the framework's: the log, the retries, the follow-up after a day. The loop is
``process``. It runs as a task: when it fails or its process dies, nothing that it wrote is there, and it
runs again; what the model had already answered is remembered by ``step`` and not paid for twice. Who writes
on the chat page sees the answer come word by word instead, and a retry starts it again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypedDict

from agents import Agent, GiveUp, exposed, reads
from conversations.segments import fit
from examples import orders

if TYPE_CHECKING:
    from openai import AsyncOpenAI

SYSTEM_PROMPT = (
    "You are a terse, helpful SMS support agent. Answer in one or two sentences of plain text."
    " Look up an order before you say anything about it."
)
NUDGE = "Just checking in: did that sort things out?"
NUDGE_AFTER = 86_400  # seconds
WINDOW = 40  # messages of the log that the model sees
ROUNDS = 5  # calls of the model for one reply; the last one gets no tools

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "lookup_order",
            "description": "Look up the state of a customer's order by its number.",
            "parameters": {
                "type": "object",
                "properties": {"order_id": {"type": "string", "description": "such as 1042"}},
                "required": ["order_id"],
                "additionalProperties": False,
            },
        },
    }
]


class SupportState(TypedDict, total=False):
    status: str  # new | thinking | waiting
    channel: str  # where the person wrote last: "sms", "web", or empty


class SupportAgent(Agent[SupportState]):
    """Named by a phone number; each conversation is an actor of its own."""

    def initial_state(self) -> SupportState:
        return {"status": "new", "channel": ""}

    async def receive(self, message: dict[str, Any]) -> None:
        """A text, or what was said on the chat page. It was acknowledged before this runs."""
        await self.messages.add_received(message)  # its words, and its pictures
        channel = message.get("channel", "")
        if channel == "sms" and await self.sms.opted_out():
            return  # they want no texts: nothing is worth thinking about until they write START
        await self.set_state({"status": "thinking", "channel": channel})
        await self.queue("process", id="process")  # one pending run, however many texts came

    async def process(self) -> None:
        """The loop: ask the model, run the tools that it asks for, until it has an answer."""
        self.status("thinking")
        for round in range(ROUNDS):
            history = [
                {"role": "system", "content": SYSTEM_PROMPT},
                *await self.messages.to_openai(last=WINDOW),
            ]
            answer = await self._ask(history, may_call=round < ROUNDS - 1)
            if not answer["tool_calls"]:
                await self._replied(answer["content"])
                return
            for call in answer["tool_calls"]:
                result = await self.step(step_name(call), run_tool, call["name"], call["args"])
                await self.messages.append(
                    {"role": "tool", "tool_call_id": call["id"], "name": call["name"], "content": result}
                )
        raise GiveUp("the model calls tools and never answers")

    async def nudge(self) -> None:
        """A day later, unless the person wrote meanwhile."""
        last = await self.messages.last()
        if last is not None and last.role == "assistant" and not await self._is_unwanted():
            await self.messages.add("assistant", NUDGE)
            await self._text(NUDGE)

    async def on_delivery_failed(self, text: dict[str, Any]) -> None:
        """A text will never arrive: the next answer should know."""
        words = f"The text {text['text'][:60]!r} could not be delivered: {text['error']}"
        await self.messages.add("system", words)

    async def on_consent(self, change: dict[str, Any]) -> None:
        """They wrote STOP: no follow-up."""
        if change["state"] == "opted_out":
            await self.cancel_schedule("nudge")

    @exposed
    @reads
    async def history(self, last: int = 20) -> list[dict[str, Any]]:
        """The newest messages, oldest first: ``{"seq", "role", "content", "at"}``."""
        return [
            {"seq": m.seq, "role": m.role, "content": m.content, "at": m.at.isoformat()}
            for m in await self.messages.last(last)
        ]

    async def _ask(self, history: list[dict[str, Any]], may_call: bool) -> dict[str, Any]:
        """What the model answers; it is in the log."""
        model = self.env.OPENAI, self.env.MODEL, history, may_call
        if (await self.get_state()).get("channel") == "web":
            async with self.messages.stream("assistant") as out:
                answer = await ask(*model, out.write)
                out.tool_calls = answer["tool_calls"]
            return answer
        answer = await self.step("model", ask, *model)
        await self.messages.append({"role": "assistant", **answer})
        return answer

    async def _replied(self, text: str) -> None:
        await self._text(text)
        await self.set_state({"status": "waiting"})
        await self.schedule(NUDGE_AFTER, "nudge", id="nudge")  # replaces the one before

    async def _text(self, text: str) -> None:
        if (await self.get_state()).get("channel") == "sms":
            await self.sms.send(fit(text))  # to whoever wrote last, from the number they wrote to

    async def _is_unwanted(self) -> bool:
        return (await self.get_state()).get("channel") == "sms" and await self.sms.opted_out()


async def ask(
    client: AsyncOpenAI,
    model: str,
    history: list[dict[str, Any]],
    may_call: bool,
    heard: Callable[[str], Awaitable[None]] | None = None,
) -> dict[str, Any]:
    """One call of the model: ``{"content", "tool_calls": [{"id", "name", "args"}]}``.

    ``heard`` is given each piece of the text as it comes.
    """
    messages: Any = history
    content, finished = "", False
    calls: dict[int, dict[str, str]] = {}
    async with await client.chat.completions.create(
        model=model, messages=messages, tools=TOOLS, tool_choice="auto" if may_call else "none", stream=True
    ) as chunks:
        async for chunk in chunks:
            for choice in chunk.choices[:1]:
                finished = finished or choice.finish_reason is not None
                if piece := choice.delta.content:
                    content += piece
                    if heard is not None:
                        await heard(piece)
                for part in choice.delta.tool_calls or []:
                    call = calls.setdefault(part.index, {"id": "", "name": "", "args": ""})
                    call["id"] = part.id or call["id"]
                    if part.function is not None:
                        call["name"] += part.function.name or ""
                        call["args"] += part.function.arguments or ""
    # Either is a failed attempt: it is asked again.
    if not finished:
        raise ValueError("the model's answer broke off")
    if not calls and not content.strip():
        raise ValueError("the model answered with nothing")
    asked = [{**call, "args": _arguments(call["args"])} for _, call in sorted(calls.items())]
    return {"content": content, "tool_calls": asked}


def step_name(call: dict[str, Any]) -> str:
    """The name under which a call's result is remembered: what is asked for.

    An answer that was shown as it came is no step: a retry asks the model again, and it may call other tools,
    or in another order, under ids that it has used before. By its place a call could get another's result.
    """
    asked = json.dumps([call["name"], call["args"]], sort_keys=True)
    return f"tool {hashlib.sha256(asked.encode()).hexdigest()}"


def run_tool(name: str, args: Any) -> str:
    """What the tool says. The model learns of its mistakes by reading them."""
    if name != "lookup_order":
        return f"There is no tool named {name}."
    if not isinstance(args, dict) or not args.get("order_id"):
        return "lookup_order needs an order_id."
    return orders.lookup(args["order_id"])


def _arguments(text: str) -> Any:
    """The arguments of a call; text that is no JSON stays text, and the tool says so."""
    try:
        return json.loads(text or "{}")
    except ValueError:
        return text


# The same story on other harnesses, where their packages are installed (docs/harnesses.md). Nothing of them
# is imported here.
if find_spec("langchain") and find_spec("langchain_openai"):
    from examples.langgraph_agent import LangGraphSupportAgent as LangGraphSupportAgent
if find_spec("pydantic_ai"):
    from examples.pydantic_ai_agent import PydanticSupportAgent as PydanticSupportAgent
