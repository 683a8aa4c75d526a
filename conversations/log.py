"""The message log of one actor: ``self.messages``.

Append-only; the order is ``seq`` (1, 2, 3 ... for each actor), never time. What a turn appends gets its seq
at once and is written by the turn's commit; reads in the same turn see it, exactly as later ones will. How
the log becomes a model's input is in ``conversations/adapters``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator, Iterable, Mapping
from typing import TYPE_CHECKING, Any, overload

from agents.exceptions import MessageError
from agents.parts import Part
from agents.turn import Turn
from agents.writes import Table, Writes
from conversations import adapters, history, standing
from conversations.adapters import langchain, windows
from conversations.adapters.repair import Exchange
from conversations.adapters.windows import Counter
from conversations.history import messages_of
from conversations.messages import StoredMessage, ToolCall, message_of, row_of, text_row

if TYPE_CHECKING:
    from conversations.streams import MessageStream

MESSAGE = Table(
    "conversations.Message",
    ("actor_id", "seq", "role", "content", "parts", "name", "tool_calls", "tool_call_id", "metadata", "at"),
)

Rendered = list[dict[str, Any]]


class MessageLog(Part):
    """The conversation, as its agent reads and writes it.

    A message given to ``append`` is a mapping with ``role`` (system, user, assistant, tool) and ``content``
    (text), and where they apply ``parts`` (content blocks), ``name``, ``tool_calls`` (``id``, ``name``,
    ``args`` each; of assistants), ``tool_call_id`` (of tool messages) and ``metadata``; the original's
    ``toolCalls`` and ``toolCallId`` are understood too. Every writing method raises MessageError for what
    is no message, CodecError for values that cannot be kept, LimitError past MAX_MESSAGE_BYTES, and writes
    nothing then.
    """

    def __init__(self, turn: Turn) -> None:
        super().__init__(turn)
        self._committed_seq = turn.committed_seq  # of the log as it was before its first use here
        self._opened = 0  # streams that this turn opened
        # Those of which there may be rows, and readers may have seen something.
        self._begun: set[str] = set()
        # Those whose rows go with the next commit: uid -> whether readers are told to throw them away.
        self._over: dict[str, bool] = {}
        self._over_collected: list[str] = []
        self._rows: list[dict[str, Any]] = []  # everything this turn appended
        self._collected = self._written = 0  # how many of them collect() gave, and the database has

    # Writing

    async def add(self, role: str, content: str) -> int:
        """Appends a message that is only text; returns its seq."""
        return self._append(text_row(role, content))

    async def add_received(
        self, message: Mapping[str, Any], *, metadata: Mapping[str, Any] | None = None
    ) -> int:
        """Appends what somebody wrote, as ``receive`` got it: its words and its pictures; returns its seq."""
        parts, words = message.get("parts") or [], message.get("text") or ""
        given: dict[str, Any] = {"role": "user"}
        if any(part.get("type") != "text" for part in parts):
            given["parts"] = parts
        else:
            said = "\n".join(part.get("text", "") for part in parts) or words
            given["content"] = said if said.strip() else "(an empty text)"
        if message.get("channel") == "web" and message.get("id"):
            given["metadata"] = {"id": message["id"]}  # by which its sender's page knows it again
        if metadata:
            given["metadata"] = {**given.get("metadata", {}), **metadata}
        return await self.append(given)

    async def append(self, message: Mapping[str, Any] | StoredMessage) -> int:
        """Appends one message; returns its seq. A StoredMessage of whichever log gets a new seq."""
        return self._append(row_of(message))

    async def append_many(self, messages: Iterable[Mapping[str, Any] | StoredMessage]) -> int:
        """Appends all of them or none; returns the last seq, for an empty batch the current count."""
        if isinstance(messages, Mapping | str | bytes) or not isinstance(messages, Iterable):
            raise MessageError(f"append_many takes several messages, not {type(messages).__name__}")
        rows = [row_of(message) for message in messages]
        if not rows:
            return self.turn.seq
        self.turn.writing(len(rows))
        return [self._take(row) for row in rows][-1]

    # What models and frameworks return: objects or dicts, one or several (all or none of them); each
    # returns the last seq. Raises MessageError for what is none of theirs.

    async def append_openai(self, messages: Any) -> int:
        """Appends a completion of OpenAI's (its first choice), a message, or several messages."""
        return await self.append_many(adapters.from_openai(messages))

    async def append_openai_responses(self, response: Any) -> int:
        """Appends a response of OpenAI's Responses API, or input items."""
        return await self.append_many(adapters.from_openai_responses(response))

    async def append_anthropic(self, messages: Any) -> int:
        """Appends an answer of Anthropic's, or turns; results in a user's turn become tool messages."""
        return await self.append_many(adapters.from_anthropic(messages))

    async def append_ai_sdk(self, messages: Any) -> int:
        """Appends UIMessages of the AI SDK, as ``useChat`` sends them."""
        return await self.append_many(adapters.from_ai_sdk(messages))

    async def append_langchain(self, messages: Any) -> int:
        """Appends messages of LangChain, also in ``messages_to_dict``'s form."""
        several = [messages] if langchain.is_one(messages) else messages
        if isinstance(several, str | bytes) or not isinstance(several, Iterable):
            raise MessageError(f"not a LangChain message: {type(messages).__name__}")
        return await self.append_many([adapters.from_langchain(message) for message in several])

    def stream(self, role: str = "assistant") -> MessageStream:
        """A message that readers see while it is written: ``async with ... as out: await out.write(text)``.

        It is appended when the block ends. What becomes of it when it doesn't: conversations/streams.py.
        """
        from conversations.streams import MessageStream

        return MessageStream(self, role)

    # Reading

    def all(self) -> AllMessages:
        """The whole log, oldest first: ``await`` it for a list, or go through it with ``async for``."""
        return AllMessages(self)

    @overload
    async def last(self) -> StoredMessage | None: ...

    @overload
    async def last(self, n: int) -> list[StoredMessage]: ...

    async def last(self, n: int | None = None) -> StoredMessage | list[StoredMessage] | None:
        """The newest message (None in an empty log), or the newest ``n``, oldest of them first."""
        if n is None:
            newest = await self._newest(1)
            return newest[0] if newest else None
        if isinstance(n, bool) or not isinstance(n, int) or n < 0:
            raise MessageError(f"last takes a number of messages, got {n!r:.100}")
        return await self._newest(n)

    async def count(self) -> int:
        """How many messages were ever appended: the last seq."""
        return self.turn.seq

    # For models: see conversations/adapters. ``last`` and ``max_tokens`` ask for a window, see
    # conversations/adapters/windows.py; without either it is the whole log. ``count_tokens`` counts the
    # tokens of a text for ``max_tokens``; ``summary`` is put in front, behind the prompt.

    async def to_openai(
        self,
        last: int | None = None,
        max_tokens: int | None = None,
        *,
        count_tokens: Counter | None = None,
        summary: str | None = None,
        reasoning_field: str | None = None,
    ) -> Rendered:
        """Messages for OpenAI's Chat Completions API. ``reasoning_field``: see docs/messages.md."""
        messages = await self._window(last, max_tokens, count_tokens, summary)
        return adapters.to_openai(messages, reasoning_field=reasoning_field)

    async def to_openai_responses(
        self,
        last: int | None = None,
        max_tokens: int | None = None,
        *,
        count_tokens: Counter | None = None,
        summary: str | None = None,
    ) -> Rendered:
        """Input items for OpenAI's Responses API."""
        messages = await self._window(last, max_tokens, count_tokens, summary)
        return adapters.to_openai_responses(messages)

    async def to_anthropic(
        self,
        last: int | None = None,
        max_tokens: int | None = None,
        *,
        count_tokens: Counter | None = None,
        summary: str | None = None,
    ) -> Rendered:
        """Turns for Anthropic's Messages API; the system prompt goes separately (``system_prompt``)."""
        messages = await self._window(last, max_tokens, count_tokens, summary)
        return adapters.to_anthropic(messages)

    async def to_langchain(
        self,
        last: int | None = None,
        max_tokens: int | None = None,
        *,
        count_tokens: Counter | None = None,
        summary: str | None = None,
    ) -> list[dict[str, str]]:
        """Plain ``{"role", "content"}`` messages for LangChain, without tool turns."""
        messages = await self._window(last, max_tokens, count_tokens, summary)
        return adapters.to_langchain(messages)

    async def to_langchain_messages(
        self,
        last: int | None = None,
        max_tokens: int | None = None,
        *,
        count_tokens: Counter | None = None,
        summary: str | None = None,
    ) -> Rendered:
        """LangChain's own messages as dicts, with tool turns and content blocks."""
        messages = await self._window(last, max_tokens, count_tokens, summary)
        return adapters.to_langchain_messages(messages)

    async def to_langchain_objects(
        self,
        last: int | None = None,
        max_tokens: int | None = None,
        *,
        count_tokens: Counter | None = None,
        summary: str | None = None,
    ) -> list[Any]:
        """The same as objects: ``HumanMessage``, ``AIMessage`` ... Needs langchain-core."""
        messages = await self._window(last, max_tokens, count_tokens, summary)
        return adapters.to_langchain_objects(messages)

    async def to_ai_sdk(
        self,
        last: int | None = None,
        max_tokens: int | None = None,
        *,
        count_tokens: Counter | None = None,
        summary: str | None = None,
    ) -> Rendered:
        """UIMessages of the AI SDK, for ``useChat``."""
        messages = await self._window(last, max_tokens, count_tokens, summary)
        return adapters.to_ai_sdk(messages)

    async def system_prompt(
        self,
        last: int | None = None,
        max_tokens: int | None = None,
        *,
        count_tokens: Counter | None = None,
    ) -> str:
        """The system messages of the log, or of a window, as one text; "" when there are none."""
        if last is not None or max_tokens is not None:
            return adapters.system_prompt(await self._window(last, max_tokens, count_tokens, None))
        stored = await self._read(history.system_messages, self._committed_seq)
        return adapters.system_prompt([*stored, *self._buffered()])

    # The turn

    def collect(self, writes: Writes) -> None:
        appended = self._rows[self._written :]
        for row in appended:
            writes.insert(MESSAGE, row)
        standing.collect(writes, appended)
        self._collected = len(self._rows)
        if self._over:
            from conversations import streams

            streams.forget(writes, self.turn.actor.id, self._over)
        self._over_collected = list(self._over)

    def committed(self) -> None:
        self._written = self._collected
        for uid in self._over_collected:
            self._begun.discard(uid)
            if self._over.pop(uid):
                from conversations import streams

                streams.discarded(self.turn, uid)

    async def abandoned(self) -> None:
        # A task's streams stay for its retry, or for what it leaves (streams.kept).
        if self._begun and self.turn.task is None:
            from conversations import streams

            await streams.undo(self.turn, self._begun)

    # For streams

    def next_stream(self) -> int:
        self._opened += 1
        return self._opened

    def begin_stream(self, uid: str) -> None:
        self._begun.add(uid)

    def end_stream(self, stream: MessageStream, message: Mapping[str, Any]) -> int:
        """The stream is this message now; returns its seq."""
        seq = self._append(row_of(message))
        if stream.shown:
            self._over[stream.uid] = False
        return seq

    def drop_stream(self, uid: str) -> None:
        self._over[uid] = True

    def keep_stream(self, role: str, uid: str, text: str) -> None:
        """What readers saw of a stream that was interrupted is a message, and says so."""
        if text:
            metadata = {"interrupted": True, "stream": uid}
            self._append(row_of({"role": role, "content": text, "metadata": metadata}))
        self._over[uid] = not text

    def _append(self, row: dict[str, Any]) -> int:
        self.turn.writing()
        return self._take(row)

    def _take(self, row: dict[str, Any]) -> int:
        seq = self.turn.next_seq()
        row["actor_id"] = self.turn.actor.id
        row["seq"] = seq
        row["at"] = self.turn.now()
        self._rows.append(row)
        self.turn.emit("message", {"seq": seq}, shown=row)
        return seq

    def _buffered(self, last: int | None = None) -> list[StoredMessage]:
        """What this turn appended, read anew each time: nobody's copy is another's."""
        rows = self._rows if last is None else self._rows[max(len(self._rows) - last, 0) :]
        return [message_of(row) for row in rows]

    async def _newest(self, n: int) -> list[StoredMessage]:
        buffered = self._buffered(n)
        missing = min(n - len(buffered), self._committed_seq)
        if missing <= 0:
            return buffered
        return [*await self._read(messages_of, self._committed_seq, missing), *buffered]

    async def _window(
        self, last: int | None, max_tokens: int | None, count_tokens: Counter | None, summary: str | None
    ) -> list[StoredMessage]:
        """The messages of a window, with the actor's files themselves in place of their addresses here."""
        from conversations.media import for_models

        return await for_models(self.turn, await self._bare_window(last, max_tokens, count_tokens, summary))

    async def _bare_window(
        self, last: int | None, max_tokens: int | None, count_tokens: Counter | None, summary: str | None
    ) -> list[StoredMessage]:
        bounds = windows.bounds_of(last, max_tokens, count_tokens)
        before = windows.summary_of(summary)
        if bounds is None:
            return windows.with_summary(await self.all(), before)
        if before is not None:
            bounds = bounds.less([Exchange(before)], count=False)
        if self._committed_seq:
            args = self._committed_seq, self._buffered(), bounds
            return windows.with_summary(await self._read(history.window_of, *args), before)
        return windows.with_summary(windows.window(self._buffered(), bounds), before)

    async def _read(self, fn: Callable[..., list[StoredMessage]], *args: Any) -> list[StoredMessage]:
        """Reads of the log as it was before this turn; nothing to read costs no query."""
        if not self._committed_seq:
            return []
        return await self.turn.read(fn, self.turn.actor.id, *args)


class AllMessages:
    """The whole log, as a list (``await``) or page by page (``async for``).

    What is appended while it is gone through is not in it.
    """

    def __init__(self, log: MessageLog) -> None:
        self._log = log

    def __await__(self) -> Generator[Any, None, list[StoredMessage]]:
        return self._list().__await__()

    async def __aiter__(self) -> AsyncIterator[StoredMessage]:
        buffered = self._log._buffered()
        seq, up_to = 0, self._log._committed_seq
        while seq < up_to:
            page = await self._log._read(history.page_after, seq, up_to, history.PAGE)
            for message in page:
                yield message
            seq += history.PAGE
        for message in buffered:
            yield message

    async def _list(self) -> list[StoredMessage]:
        buffered = self._log._buffered()
        return [*await self._log._read(messages_of, self._log._committed_seq), *buffered]


__all__ = ["MESSAGE", "AllMessages", "MessageLog", "StoredMessage", "ToolCall", "messages_of"]
