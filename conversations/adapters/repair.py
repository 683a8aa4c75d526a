"""Repair: the log as a conversation that every provider takes, whatever it holds.

A worker dies between a tool call and its result, a client retries and a result is stored twice, tools end
out of order, somebody writes while a tool runs. Providers refuse all of these, and with a log that only
grows they would refuse every later request too. So each rendering starts from *exchanges*: an assistant
message with exactly one result for each of its calls, in call order; and every other message alone.

The rules (docs/messages.md has them with their reasons):

- A result belongs to the last assistant message before it that made a call with its id, and there to the
  first call with that id that has no result yet. It moves to its call, over whatever came between.
- A call without a result gets one that says so, as an error.
- A further result of a call, and a result without a call, are left out: the first one is what the model saw.
- A picture that is larger than providers take has no data: a note stands for it.
- Blank text is left out. A blank user message stays, as a note: it may be the one to answer.

Nothing here changes a message, and repairing what was repaired changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from conversations.content import Block, CallPlace, Media, Other, Reasoning, Text, notes_and_text, read_parts
from conversations.filetypes import MAX_PICTURE
from conversations.messages import StoredMessage, ToolCall

INTERRUPTED = "Error: this tool call was interrupted before it gave a result."
NO_OUTPUT = "(no output)"
NO_REASON = "Error: the tool failed without saying why."
EMPTY_MESSAGE = "(empty message)"


@dataclass(frozen=True, slots=True)
class CallBlock:
    """Among the blocks of an assistant message: call number ``index`` of it."""

    index: int
    call: ToolCall
    #: Its block among the parts, if it had one.
    given: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)


RenderBlock = Text | Reasoning | Media | Other | CallBlock


@dataclass(frozen=True, slots=True)
class Result:
    """The one result of a call; ``message`` is None when none ever came."""

    call: ToolCall
    message: StoredMessage | None = None

    @property
    def is_error(self) -> bool:
        """Known from the tool message's metadata: ``is_error`` or ``error``, the failure's name."""
        if self.message is None:
            return True
        metadata = self.message.metadata
        return metadata.get("is_error") is True or bool(metadata.get("error"))

    @property
    def blocks(self) -> list[RenderBlock]:
        """What the tool gave, never blank."""
        if self.message is None:
            return [Text(INTERRUPTED)]
        return blocks_of(self.message) or [Text(self._instead_of_nothing())]

    @property
    def text(self) -> str:
        """The same as one text."""
        return notes_and_text(self.blocks, "tool")

    def _instead_of_nothing(self) -> str:
        if not self.is_error:
            return NO_OUTPUT
        assert self.message is not None
        reason = self.message.metadata.get("error")
        return f"Error: {reason}" if isinstance(reason, str) and reason.strip() else NO_REASON


@dataclass(frozen=True, slots=True)
class Exchange:
    """A message, and the results of its calls in call order (of an assistant message with calls)."""

    message: StoredMessage
    results: tuple[Result, ...] = ()

    @property
    def role(self) -> str:
        return self.message.role

    @property
    def blocks(self) -> list[RenderBlock]:
        """What the message says, never nothing and never blank text."""
        return blocks_of(self.message) or [Text(EMPTY_MESSAGE)]

    @property
    def text(self) -> str:
        """Its text, with notes for what isn't text; empty for an assistant that only called tools."""
        if not self.message.parts:
            return self.message.content if self.message.content.strip() else self._placeholder
        return notes_and_text(blocks_of(self.message), self.role) or self._placeholder

    @property
    def _placeholder(self) -> str:
        return EMPTY_MESSAGE if self.role == "user" else ""

    def __len__(self) -> int:
        return 1 + len(self.results)

    def messages(self) -> list[StoredMessage]:
        """The messages of the log that it was made of, in repaired order."""
        return [self.message, *(result.message for result in self.results if result.message is not None)]


def exchanges(messages: Sequence[StoredMessage]) -> list[Exchange]:
    """The repaired conversation of messages in the order of their seq."""
    kept: list[StoredMessage] = []
    answers: dict[int, list[StoredMessage | None]] = {}  # by place in ``kept``
    caller: dict[str, int] = {}  # call id -> place of the last message that used it
    for message in messages:
        if message.role == "tool":
            place = caller.get(message.tool_call_id or "")
            if place is not None:
                _answer(kept[place], answers[place], message)
        elif not is_left_out(message):
            for call in message.tool_calls:
                caller[call.id] = len(kept)
            answers[len(kept)] = [None] * len(message.tool_calls)
            kept.append(message)
    return [
        Exchange(message, tuple(map(Result, message.tool_calls, answers[place])))
        for place, message in enumerate(kept)
    ]


def blocks_of(message: StoredMessage) -> list[RenderBlock]:
    """A message's content and calls in order; blank texts are left out.

    ``parts`` with text are the whole message. ``parts`` without are beside ``content``, which then comes
    first (after what the model thought). Calls stand where parts name them, or at the end.
    """
    read: list[Block] = [_without_excess(block) for block in read_parts(message.parts)]
    if message.role != "assistant":
        read = [block for block in read if not isinstance(block, Reasoning)]
    if message.content.strip() and not any(isinstance(block, Text) for block in read):
        thought = next((i for i, block in enumerate(read) if not isinstance(block, Reasoning)), len(read))
        read.insert(thought, Text(message.content))
    waiting = dict(enumerate(message.tool_calls))
    blocks: list[RenderBlock] = []
    for block in read:
        if not isinstance(block, CallPlace):
            blocks.append(block)
            continue
        index = next((i for i, call in waiting.items() if call.id == block.call_id), None)
        if index is not None:
            # Calls that no part names come before, so that calls stand in call order everywhere.
            blocks.extend(CallBlock(i, waiting.pop(i)) for i in sorted(waiting) if i < index)
            blocks.append(CallBlock(index, waiting.pop(index), given=block.given))
    blocks.extend(CallBlock(index, call) for index, call in waiting.items())
    return blocks


def _without_excess(block: Block) -> Block:
    too_large = isinstance(block, Media) and block.kind == "image" and len(block.data) > MAX_PICTURE
    return replace(block, data="") if isinstance(block, Media) and too_large else block


def _answer(caller: StoredMessage, answers: list[StoredMessage | None], result: StoredMessage) -> None:
    for index, call in enumerate(caller.tool_calls):
        if call.id == result.tool_call_id and answers[index] is None:
            answers[index] = result
            return


def is_left_out(message: StoredMessage) -> bool:
    """Whether a message that is no result says nothing that any provider takes."""
    if message.role == "user" or message.tool_calls or (not message.parts and message.content.strip()):
        return False
    return not any(isinstance(block, Text | Media) for block in blocks_of(message))
