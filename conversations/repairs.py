"""What in a log has to be repaired at rendering, message by message: for operators, and for tests.

Nothing here changes anything, and no rendering asks it: they repair by the same rules while they render
(conversations/adapters/repair.py). A log without findings is rendered as it stands.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from conversations.adapters.ids import NAME_LENGTH, OPENAI_ID_LENGTH, STRICT
from conversations.adapters.repair import blocks_of, is_left_out
from conversations.content import Media
from conversations.messages import StoredMessage, ToolCall

#: Each kind of finding: what is sent instead, and who would have refused it.
KINDS = {
    "assistant_first": "Anthropic gets a note of the user's before it; refused by Anthropic",
    "bad_arguments": "sent inside of an object; refused by Anthropic and by servers of open models",
    "blank_message": "left out; refused by Anthropic",
    "blank_result": "'(no output)' or the failure's name is sent; refused by Anthropic",
    "blank_user_message": "'(empty message)' is sent; refused by Anthropic",
    "duplicate_result": "left out, the first one counts; refused by all",
    "illegal_id": "sent with legal characters and a digest; refused by Anthropic or OpenAI",
    "illegal_name": "sent with legal characters and a digest; refused by all",
    "late_result": "sent right behind its call; refused by all",
    "missing_result": "a result that says so is sent, as an error; refused by all",
    "mistyped_media": "sent as what its bytes are; refused by Anthropic and OpenAI",
    "orphan_result": "left out; refused by all",
    "result_out_of_order": "sent in call order; refused by nobody we know, mistaken by some",
    "reused_id": "the later call is sent with an id of its own; refused by Anthropic",
    "system_in_the_middle": "moved to the front for LangChain and Anthropic; refused by both",
    "unusable_media": "a note is sent; refused by all",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is repaired. ``seq`` is the message's where it shows."""

    seq: int
    kind: str  # of KINDS
    about: str

    def __str__(self) -> str:
        return f"#{self.seq} {self.kind}: {self.about}; {KINDS[self.kind]}"


@dataclass(slots=True)
class _Caller:
    """An assistant message with calls, while results come in."""

    message: StoredMessage
    answered: list[bool] = field(default_factory=list)

    def take(self, call_id: str | None) -> int | None:
        """The first call of that id without a result; it has one now."""
        for index, call in enumerate(self.message.tool_calls):
            if call.id == call_id and not self.answered[index]:
                self.answered[index] = True
                return index
        return None


def findings(messages: Iterable[StoredMessage]) -> Iterator[Finding]:
    """Everything that is repaired, of a whole log in the order of its seqs. Goes through it once.

    Missing results come last: until the end of the log they may still come.
    """
    callers: dict[str, _Caller] = {}  # by the id of a call: the last message that used it
    newest: StoredMessage | None = None  # that is sent and is no result
    unanswered: list[_Caller] = []
    said_anything = False
    for message in messages:
        if message.role == "tool":
            yield from _of_result(message, callers.get(message.tool_call_id or ""), newest)
            continue
        yield from _of_message(message)
        if is_left_out(message):
            continue
        if message.role == "system" and said_anything:
            yield Finding(message.seq, "system_in_the_middle", "a system message behind the first words")
        if message.role == "assistant" and not said_anything:
            yield Finding(message.seq, "assistant_first", "the conversation begins with the assistant")
        said_anything = said_anything or message.role != "system"
        newest = message
        if message.tool_calls:
            caller = _Caller(message, [False] * len(message.tool_calls))
            yield from _of_calls(message, callers)
            callers |= dict.fromkeys((call.id for call in message.tool_calls), caller)
            unanswered = [*(c for c in unanswered if not all(c.answered)), caller]
    for caller in unanswered:
        for call, is_answered in zip(caller.message.tool_calls, caller.answered, strict=True):
            if not is_answered:
                still = " so far" if newest is caller.message else ""
                yield Finding(caller.message.seq, "missing_result", f"{_named(call)} has no result{still}")


def _of_result(
    message: StoredMessage, caller: _Caller | None, newest: StoredMessage | None
) -> Iterator[Finding]:
    about = f"the result of {message.tool_call_id!r}"
    if caller is None:
        yield Finding(message.seq, "orphan_result", f"{about} has no call before it")
        return
    index = caller.take(message.tool_call_id)
    if index is None:
        yield Finding(message.seq, "duplicate_result", f"{about} came again")
        return
    if newest is not caller.message:
        yield Finding(message.seq, "late_result", f"{about} came after other messages")
    if any(caller.answered[index + 1 :]):
        yield Finding(message.seq, "result_out_of_order", f"{about} came after that of a later call")
    if not blocks_of(message):
        yield Finding(message.seq, "blank_result", f"{about} says nothing")
    yield from _of_media(message)


def _of_message(message: StoredMessage) -> Iterator[Finding]:
    if message.role == "user" and not blocks_of(message):
        yield Finding(message.seq, "blank_user_message", "it says nothing")
    elif is_left_out(message):
        yield Finding(message.seq, "blank_message", f"a message of the {message.role} that says nothing")
    if message.name and not _is_legal(message.name, NAME_LENGTH):
        yield Finding(message.seq, "illegal_name", f"the name {message.name!r:.80}")
    yield from _of_media(message)


def _of_calls(message: StoredMessage, callers: Mapping[str, _Caller]) -> Iterator[Finding]:
    seen: set[str] = set()
    for call in message.tool_calls:
        if call.id in callers or call.id in seen:
            yield Finding(message.seq, "reused_id", f"{_named(call)} has the id of an earlier call")
        seen.add(call.id)
        if not _is_legal(call.id, OPENAI_ID_LENGTH):
            yield Finding(message.seq, "illegal_id", f"the id of {_named(call)}")
        if not _is_legal(call.name, NAME_LENGTH):
            yield Finding(message.seq, "illegal_name", f"the name of {_named(call)}")
        if not isinstance(call.args, Mapping):
            yield Finding(message.seq, "bad_arguments", f"those of {_named(call)} are no object")


def _of_media(message: StoredMessage) -> Iterator[Finding]:
    for block in blocks_of(message):
        if not isinstance(block, Media):
            continue
        if not (block.data or block.url or block.file_id or block.text.strip()):
            yield Finding(message.seq, "unusable_media", f"{block.note()} holds nothing that can be sent")
        elif block.data and block.mistaken:
            yield Finding(
                message.seq, "mistyped_media", f"{block.note()} is {block.mime}, not {block.mistaken}"
            )


def _is_legal(text: str, max_length: int) -> bool:
    return len(text) <= max_length and STRICT.fullmatch(text) is not None


def _named(call: ToolCall) -> str:
    return f"call {call.id!r:.60} of {call.name!r:.40}"
