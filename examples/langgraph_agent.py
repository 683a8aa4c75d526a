"""The support agent's story with LangGraph as the harness: its ReAct loop runs inside ``process``.

LangGraph thinks and calls the tools; what is durable stays with the actor: the log with every tool turn, the
retry, the follow-up after a day. No checkpointer: the log is where the next run begins.

Needs the packages of the extra ``langchain``. They are imported when the first text comes, not before.
"""

from __future__ import annotations

import asyncio
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypedDict

from agents import Agent
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


class LangGraphState(TypedDict, total=False):
    channel: str  # where the person wrote last: "sms", or empty


class LangGraphSupportAgent(Agent[LangGraphState]):
    """Named by a phone number; each conversation is an actor of its own."""

    kind = "support-langgraph"

    async def receive(self, message: dict[str, Any]) -> None:
        """A text, or what was said on the chat page. It was acknowledged before this runs."""
        await self.messages.add_received(message)  # its words, and its pictures
        await self.set_state({"channel": message.get("channel", "")})
        await self.queue("process", id="process")  # one pending run, however many texts came

    async def process(self) -> None:
        """One run of the graph: it ends with an answer, and all that it did on the way goes into the log."""
        history = await self.messages.to_langchain_messages(last=WINDOW)
        # A run is a step: when the commit fails, or a later line, it isn't paid for twice.
        made = await self.step("run", run, self.env.OPENAI, self.env.MODEL, history)
        await self.messages.append_langchain(made)
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
    """The messages that a run adds to its history: calls, results, the answer; as LangChain's dicts."""
    graph = await asyncio.to_thread(graph_of, client, model)  # the first time it imports, for a second
    out = await graph.ainvoke({"messages": history})
    # Nothing in between may have replaced or removed what was there: the new ones are the rest.
    return [message.model_dump(mode="json") for message in out["messages"][len(history) :]]


@lru_cache(maxsize=4)
def graph_of(client: AsyncOpenAI, model: str) -> Any:
    """The ReAct agent, once for each client: LangGraph's ``create_react_agent`` is LangChain's now."""
    from langchain.agents import create_agent
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI

    chat = ChatOpenAI(
        model=model,
        api_key=client.api_key,  # type: ignore[arg-type]
        base_url=str(client.base_url),
        root_async_client=client,  # the process's own, with its connections
        async_client=client.chat.completions,
        use_responses_api=False,
        max_retries=0,  # a failed run is the task's to repeat
    )

    @tool
    def lookup_order(order_id: str) -> str:
        """Look up the state of a customer's order by its number."""
        return orders.lookup(order_id)

    return create_agent(chat, [lookup_order], system_prompt=SYSTEM_PROMPT)
