"""The support agent's story with pydantic-ai as the harness.

pydantic-ai has messages of its own; ``history_of`` and ``messages_of`` translate, in a page, and show what a
framework needs that the log has no method for. Every tool turn is kept.

Needs the package of the extra ``pydantic-ai``. It is imported when the first text comes, not before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypedDict

from agents import Agent
from conversations.segments import fit
from examples import orders

if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from pydantic_ai.messages import ModelMessage

INSTRUCTIONS = (
    "You are a terse, helpful SMS support agent. Answer in one or two sentences of plain text."
    " Look up an order before you say anything about it."
)
NUDGE = "Just checking in: did that sort things out?"
NUDGE_AFTER = 86_400  # seconds
WINDOW = 40  # messages of the log that the model sees


class PydanticState(TypedDict, total=False):
    channel: str  # where the person wrote last: "sms", or empty


class PydanticSupportAgent(Agent[PydanticState]):
    """Named by a phone number; each conversation is an actor of its own."""

    kind = "support-pydantic-ai"

    async def receive(self, message: dict[str, Any]) -> None:
        """A text, or what was said on the chat page. It was acknowledged before this runs."""
        await self.messages.add_received(message)  # its words, and its pictures
        await self.set_state({"channel": message.get("channel", "")})
        await self.queue("process", id="process")  # one pending run, however many texts came

    async def process(self) -> None:
        """One run of the agent: it ends with an answer, and all that it did on the way goes into the log."""
        history = await self.messages.to_openai(last=WINDOW)
        # A run is a step: when the commit fails, or a later line, it isn't paid for twice.
        made = await self.step("run", run, self.env.OPENAI, self.env.MODEL, history)
        await self.messages.append_many(made)
        answer = await self.messages.last()
        if answer is None or not answer.content.strip():
            raise ValueError("the model answered with nothing")  # a failed attempt: it is asked again
        await self._text(answer.content)
        await self.schedule(NUDGE_AFTER, "nudge", id="nudge")  # replaces the one before

    async def nudge(self) -> None:
        """A day later, unless the person wrote meanwhile."""
        last = await self.messages.last()
        if last is not None and last.role == "assistant":
            await self.messages.add("assistant", NUDGE)
            await self._text(NUDGE)

    async def _text(self, text: str) -> None:
        if (await self.get_state()).get("channel") == "sms":
            await self.sms.send(fit(text))  # to whoever wrote last, from the number they wrote to


async def run(client: AsyncOpenAI, model: str, history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages that a run adds to the log: calls, results, the answer."""
    agent = await asyncio.to_thread(agent_of, client, model)  # the first time it imports, for a second
    result = await agent.run(message_history=history_of(history))
    return messages_of(result.new_messages())


@lru_cache(maxsize=4)
def agent_of(client: AsyncOpenAI, model: str) -> Any:
    """pydantic-ai's agent, once for each client."""
    from pydantic_ai import Agent as PydanticAgent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    chat = OpenAIChatModel(model, provider=OpenAIProvider(openai_client=client))
    agent = PydanticAgent(chat, instructions=INSTRUCTIONS)

    @agent.tool_plain
    def lookup_order(order_id: str) -> str:
        """Look up the state of a customer's order by its number."""
        return orders.lookup(order_id)

    return agent


def history_of(messages: Iterable[dict[str, Any]]) -> list[ModelMessage]:
    """``to_openai``'s messages as pydantic-ai's."""
    from pydantic_ai import messages as theirs

    history: list[ModelMessage] = []
    tools: dict[str, str] = {}  # the name of each call's tool
    for message in messages:
        content = message["content"]
        if message["role"] == "assistant":
            calls = message.get("tool_calls", [])
            tools |= {call["id"]: call["function"]["name"] for call in calls}
            said = [theirs.TextPart(content)] if content else []
            asked = [
                theirs.ToolCallPart(call["function"]["name"], call["function"]["arguments"], call["id"])
                for call in calls
            ]
            history.append(theirs.ModelResponse(parts=[*said, *asked]))
            continue
        part: Any
        if message["role"] == "tool":
            id = message["tool_call_id"]
            part = theirs.ToolReturnPart(tool_name=tools[id], content=content, tool_call_id=id)
        elif message["role"] == "system":
            part = theirs.SystemPromptPart(content)
        else:
            part = theirs.UserPromptPart(_words(content))
        history.append(theirs.ModelRequest(parts=[part]))
    return history


def messages_of(new: Iterable[ModelMessage]) -> list[dict[str, Any]]:
    """What a run added, as the log takes it. What was said to the model is in the log already."""
    from pydantic_ai import messages as theirs

    made: list[dict[str, Any]] = []
    for message in new:
        if isinstance(message, theirs.ModelResponse):
            made.append(_answer(message))
            continue
        for part in message.parts:
            if isinstance(part, theirs.ToolReturnPart):
                made.append(_result(part, part.model_response_str()))
            elif isinstance(part, theirs.RetryPromptPart) and part.tool_name:
                made.append({**_result(part, part.model_response()), "metadata": {"is_error": True}})
    return made


def _answer(response: Any) -> dict[str, Any]:
    calls = [
        {"id": part.tool_call_id, "name": part.tool_name, "args": part.args}
        for part in response.parts
        if part.part_kind == "tool-call"
    ]
    text = "".join(part.content for part in response.parts if part.part_kind == "text")
    return {"role": "assistant", "content": text, "tool_calls": calls}


def _result(part: Any, content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": part.tool_call_id, "name": part.tool_name, "content": content}


def _words(content: str | list[dict[str, Any]]) -> str:
    if isinstance(content, str):
        return content
    return (
        "\n".join(part["text"] for part in content if part["type"] == "text") or "(something without words)"
    )
