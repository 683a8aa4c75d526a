"""The message log in the database: writing, reading, and that both look the same."""

from __future__ import annotations

import datetime as dt
import json
import math
import random
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection
from django.test.utils import CaptureQueriesContext

from agents.exceptions import CodecError, LimitError, MessageError, ReadOnlyTurnError, TurnEndedError
from agents.models import Actor
from conversations import history
from conversations.log import StoredMessage, ToolCall, messages_of
from conversations.models import Message, Role
from tests.conversations.conftest import Conversation, in_thread

ODD_VALUES = {
    "at": dt.datetime(2026, 5, 1, tzinfo=dt.UTC),
    "nan": [float("inf"), -0.0, 1e22],
    "set": {1, 2},
    "bytes": b"\x00\xff",
    "$tag": {3: "three"},
    "big": 10**40,
    "k\x00": "v\x00",
}
EVERYTHING: dict[str, Any] = {
    "role": "assistant",
    "content": "ab\x00cd \ud800 😋",
    "parts": [{"type": "image", "base64": b"hi", "mime_type": "image/png"}],
    "name": "Anna\x00",
    "tool_calls": [{"id": "c\x00", "name": "look up", "args": ODD_VALUES}],
    "metadata": {"usage": {"tokens": 7}, **ODD_VALUES},
}


# Writing


async def test_add_append_and_append_many_number_from_one(conversation: Conversation):
    log = conversation.turn()
    assert await log.add("user", "hi") == 1
    assert await log.append({"role": "assistant", "content": "hello"}) == 2
    assert await log.append_many([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]) == 4
    assert await log.append_many([]) == 4
    assert await log.count() == 4
    assert await conversation.commit(log) == 4
    assert await conversation.turn().count() == 4
    assert await conversation.turn().append_many(iter(())) == 4


async def test_every_append_emits_its_seq(conversation: Conversation):
    log = conversation.turn()
    await log.add("user", "hi")
    await log.append_many([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}])
    events = [row for table, row in log.turn.collect().inserts if table.model == "agents.Event"]
    assert [(event["type"], event["payload"]) for event in events] == [
        ("message", {"seq": 1}),
        ("message", {"seq": 2}),
        ("message", {"seq": 3}),
    ]


async def test_a_checkpoint_writes_only_what_came_since_the_last_one(conversation: Conversation):
    log = conversation.turn()
    await log.add("user", "one")
    assert await conversation.commit(log) == 1
    await log.add("assistant", "two")
    assert [m.content for m in await log.all()] == ["one", "two"]
    assert await conversation.commit(log) == 1
    assert await conversation.commit(log) == 0
    assert [m.content for m in await conversation.turn().all()] == ["one", "two"]


async def test_what_is_appended_while_a_commit_is_on_its_way_goes_with_the_next(conversation: Conversation):
    log = conversation.turn()
    await log.add("user", "one")
    log.turn.collect()
    await log.add("user", "two")
    log.committed()
    rows = [row["content"] for table, row in log.turn.collect().inserts if table.model.endswith("Message")]
    assert rows == ["two"]


async def test_an_append_that_fails_in_its_batch_leaves_nothing_of_it(conversation: Conversation):
    log = conversation.turn()
    with pytest.raises(MessageError):
        await log.append_many([{"role": "user", "content": "fine"}, {"role": "robot", "content": "no"}])
    assert await log.count() == 0
    assert await log.all() == []
    assert not log.turn.wrote


async def test_camel_case_and_snake_case_are_one(conversation: Conversation):
    log = conversation.turn()
    calls = [{"id": "c1", "name": "f", "args": {"a": 1}}]
    await log.append({"role": "assistant", "content": "", "toolCalls": calls})
    await log.append({"role": "assistant", "content": "", "tool_calls": calls})
    await log.append({"role": "tool", "content": "ok", "toolCallId": "c1"})
    await log.append({"role": "tool", "content": "ok", "tool_call_id": "c1"})
    one, two, three, four = await log.all()
    assert one.tool_calls == two.tool_calls == [ToolCall("c1", "f", {"a": 1})]
    assert three.tool_call_id == four.tool_call_id == "c1"


async def test_a_stored_message_can_be_appended_to_another_log(conversation: Conversation):
    await conversation.append(EVERYTHING, {"role": "tool", "tool_call_id": "c\x00", "content": "ok"})
    stored = await conversation.turn().all()
    log = conversation.turn()
    assert await log.append_many(stored) == 4
    again = (await log.all())[2:]
    for before, after in zip(stored, again, strict=True):
        assert {**before.as_dict(), "seq": 0, "at": 0} == {**after.as_dict(), "seq": 0, "at": 0}


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({"content": "x"}, "role must be one of system, user, assistant, tool"),
        ({"role": "robot", "content": "x"}, "'robot'"),
        ({"role": ["user"], "content": "x"}, "role must be one of"),
        ({"role": "user"}, "content is missing"),
        ({"role": "user", "content": None}, "content is missing"),
        ({"role": "user", "content": 7}, "content must be text, got int"),
        ({"role": "user", "content": [{"type": "text", "text": "x"}]}, "content blocks go into parts"),
        ({"role": "tool", "content": "x"}, "needs tool_call_id"),
        ({"role": "tool", "content": "x", "tool_call_id": ""}, "needs tool_call_id"),
        ({"role": "user", "content": "x", "tool_call_id": "c1"}, "only a tool message"),
        ({"role": "user", "content": "x", "tool_calls": [{"id": "a", "name": "b"}]}, "only an assistant"),
        ({"role": "user", "content": "x", "seq": 1, "at": 2}, "has no 'seq', 'at'"),
        ({"role": "user", "content": "x", 7: 1}, "has no 7"),
        ({"role": "user", "content": "x", "name": "n" * 256}, "name has 256 characters"),
        ({"role": "tool", "content": "x", "tool_call_id": "n" * 256}, "tool_call_id has 256"),
        ({"role": "assistant", "tool_calls": {"id": "a", "name": "b"}}, "tool_calls must be a list"),
        ({"role": "assistant", "content": "", "tool_calls": ["x"]}, "tool_calls[0] must be a mapping"),
        ({"role": "assistant", "content": "", "tool_calls": [{"name": "b"}]}, "tool_calls[0].id is missing"),
        ({"role": "assistant", "tool_calls": [{"id": " ", "name": "b"}]}, "tool_calls[0].id is missing"),
        ({"role": "assistant", "tool_calls": [{"id": "a", "name": 7}]}, "tool_calls[0].name must be text"),
        (
            {"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": {}}]},
            "tool_calls[0] has no 'type', 'function'",
        ),
        ({"role": "assistant", "toolCalls": [], "tool_calls": []}, "given twice"),
        ({"role": "user", "content": "x", "parts": "x"}, "parts must be a list"),
        (
            {"role": "user", "content": "x", "parts": [{"text": "x"}]},
            "parts[0] must be a mapping with a type",
        ),
        ({"role": "user", "content": "x", "metadata": [1]}, "metadata must be a mapping"),
        ("hello", "not str"),
        (None, "not NoneType"),
    ],
)
async def test_what_is_no_message_is_refused_in_words(conversation: Conversation, message: Any, words: str):
    log = conversation.turn()
    with pytest.raises(MessageError) as refused:
        await log.append(message)
    assert words in str(refused.value)
    assert refused.value.code == "bad_message"
    assert await log.count() == 0


async def test_add_refuses_what_append_refuses(conversation: Conversation):
    log = conversation.turn()
    for role, content in (("tool", "x"), ("robot", "x"), (None, "x"), ("user", None), ("user", b"x")):
        with pytest.raises(MessageError):
            await log.add(role, content)  # type: ignore[arg-type]
    with pytest.raises(MessageError):
        await log.append_many({"role": "user", "content": "x"})  # type: ignore[dict-item]
    with pytest.raises(MessageError):
        await log.append_many("user")  # type: ignore[arg-type]
    assert await log.count() == 0
    assert await log.add(Role.USER, "x") == 1


async def test_a_value_that_cannot_be_kept_is_named_by_its_path(conversation: Conversation):
    log = conversation.turn()
    with pytest.raises(CodecError) as refused:
        await log.append({"role": "user", "content": "x", "metadata": {"file": [object()]}})
    assert refused.value.path == "$.metadata.file[0]"
    with pytest.raises(CodecError) as refused:
        await log.append(
            {"role": "assistant", "tool_calls": [{"id": "a", "name": "b", "args": {"x": object()}}]}
        )
    assert refused.value.path == "$.tool_calls[0].args.x"
    assert await log.count() == 0


async def test_a_message_may_have_exactly_its_limit_of_bytes(conversation: Conversation, settings: Any):
    settings.AGENTS = {**settings.AGENTS, "MAX_MESSAGE_BYTES": 100}
    log = conversation.turn()
    assert await log.add("user", "x" * 100) == 1
    assert await log.add("user", "é" * 50) == 2
    metadata = {"k": "v"}  # {"k":"v"} is 9 bytes
    assert await log.append({"role": "user", "content": "x" * 91, "metadata": metadata}) == 3
    for content, more in (("x" * 101, {}), ("é" * 50 + "x", {}), ("x" * 92, {"metadata": metadata})):
        with pytest.raises(LimitError) as refused:
            await log.append({"role": "user", "content": content, **more})
        assert refused.value.limit == "MAX_MESSAGE_BYTES"
        assert (refused.value.maximum, refused.value.actual) == (100, 101)
    with pytest.raises(LimitError):
        await log.add("user", "x" * 101)
    assert await log.count() == 3


async def test_a_turn_may_write_exactly_its_limit_of_messages(conversation: Conversation, settings: Any):
    settings.AGENTS = {**settings.AGENTS, "MAX_TURN_WRITES": 3}
    log = conversation.turn()
    await log.append_many([{"role": "user", "content": str(n)} for n in range(3)])
    with pytest.raises(LimitError):
        await log.add("user", "x")
    assert await log.count() == 3
    other = conversation.turn()
    with pytest.raises(LimitError):
        await other.append_many([{"role": "user", "content": str(n)} for n in range(4)])
    assert await other.count() == 0


async def test_names_and_ids_fill_their_columns(conversation: Conversation):
    full = "é" * 255
    await conversation.append(
        {"role": "assistant", "content": "", "name": full, "tool_calls": [{"id": full, "name": full}]},
        {"role": "tool", "content": "", "name": full, "tool_call_id": full},
    )
    one, two = await conversation.turn().all()
    assert one.name == two.name == two.tool_call_id == one.tool_calls[0].id == full


async def test_no_writing_in_a_read_or_after_the_end(conversation: Conversation):
    await conversation.append(("user", "hi"))
    log = conversation.turn(read_only=True)
    for write in (log.add("user", "x"), log.append({"role": "user", "content": "x"})):
        with pytest.raises(ReadOnlyTurnError):
            await write
    with pytest.raises(ReadOnlyTurnError):
        await log.append_many([{"role": "user", "content": "x"}])
    assert await log.append_many([]) == 1
    ended = conversation.turn()
    ended.turn.ended = True
    with pytest.raises(TurnEndedError):
        await ended.add("user", "x")


# What is stored


@pytest.mark.parametrize(
    ("args", "stored"),
    [
        (None, {}),
        ("", {}),
        ("   ", {}),
        ('{"b": [1, 2.5]}', {"b": [1, 2.5]}),
        ('{"value": ', '{"value": '),
        ("[1]", "[1]"),
        ("7", "7"),
        ({"a": None}, {"a": None}),
        ([1], [1]),
        ('{"a":' * 300 + "1" + "}" * 300, '{"a":' * 300 + "1" + "}" * 300),
    ],
)
async def test_arguments_are_parsed_where_they_parse_and_readable_where_not(
    conversation: Conversation, args: Any, stored: Any
):
    log = conversation.turn()
    await log.append({"role": "assistant", "tool_calls": [{"id": "c", "name": "f", "args": args}]})
    assert (await log.all())[0].tool_calls == [ToolCall("c", "f", stored)]
    await conversation.commit(log)
    assert (await conversation.turn().all())[0].tool_calls == [ToolCall("c", "f", stored)]


async def test_what_is_buffered_looks_exactly_like_a_later_read(conversation: Conversation):
    log = conversation.turn()
    await log.append(EVERYTHING)
    await log.append({"role": "tool", "tool_call_id": "c\x00", "content": "\x00"})
    await log.add("user", "plain")
    buffered = await log.all()
    renderings = [
        await log.to_openai(),
        await log.to_anthropic(),
        await log.to_langchain(),
        await log.to_langchain_messages(),
    ]
    await conversation.commit(log)
    later = conversation.turn()
    stored = await later.all()
    assert _shown(stored) == _shown(buffered)
    assert stored == buffered or "nan" in repr(stored)
    assert json.dumps(renderings) == json.dumps(
        [
            await later.to_openai(),
            await later.to_anthropic(),
            await later.to_langchain(),
            await later.to_langchain_messages(),
        ]
    )
    first = stored[0]
    assert (first.content, first.name, first.tool_calls[0].id) == (
        "ab\ufffdcd \ufffd 😋",
        "Anna\ufffd",
        "c\ufffd",
    )
    assert first.tool_calls[0].args["k\ufffd"] == "v\ufffd"
    assert first.tool_calls[0].args["at"] == ODD_VALUES["at"]
    assert first.parts == EVERYTHING["parts"]
    assert stored[1].tool_call_id == "c\ufffd"


def _shown(messages: list[StoredMessage]) -> str:
    return repr([{**message.as_dict(), "at": message.at.isoformat()} for message in messages])


async def test_a_nul_character_in_any_text_is_stored_as_a_replacement(conversation: Conversation):
    await conversation.append(("user", "ab\x00cd"), EVERYTHING)
    contents = await in_thread(
        lambda: list(Message.objects.order_by("seq").values_list("content", flat=True))
    )
    assert contents == ["ab\ufffdcd", "ab\ufffdcd \ufffd 😋"]


async def test_changing_a_message_that_was_read_changes_no_other_read(conversation: Conversation):
    log = conversation.turn()
    given = {"role": "user", "content": "x", "metadata": {"tags": ["a"]}}
    await log.append(given)
    given["metadata"]["tags"].append("b")  # type: ignore[index]
    (await log.all())[0].metadata["tags"].append("c")
    newest = await log.last()
    assert newest is not None and newest.metadata == {"tags": ["a"]}


async def test_a_message_of_parts_alone_has_their_text_and_their_calls(conversation: Conversation):
    log = conversation.turn()
    parts = [
        {"type": "text", "text": "I look"},
        {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}},
    ]
    await log.append({"role": "assistant", "parts": parts})
    newest = await log.last()
    assert newest is not None
    assert (newest.content, newest.tool_calls, newest.parts) == (
        "I look",
        [ToolCall("t1", "f", {"a": 1})],
        parts,
    )


async def test_a_message_as_a_dict_leaves_out_what_was_not_given(conversation: Conversation):
    log = conversation.turn()
    await log.add("user", "")
    await log.append({"role": "assistant", "tool_calls": [{"id": "c", "name": "f"}], "name": "bot"})
    one, two = [message.as_dict() for message in await log.all()]
    assert set(one) == {"seq", "role", "content", "at"}
    assert two["tool_calls"] == [{"id": "c", "name": "f", "args": {}}] and two["name"] == "bot"


# Reading


async def test_reads_join_the_database_and_the_buffer(conversation: Conversation):
    await conversation.append(*[("user", str(n)) for n in range(5)])
    log = conversation.turn()
    await log.add("assistant", "5")
    await log.add("assistant", "6")
    assert [m.content for m in await log.all()] == list("0123456")
    assert [m.content for m in await log.last(3)] == list("456")
    assert [m.content for m in await log.last(2)] == list("56")
    assert [m.seq for m in await log.last(100)] == [1, 2, 3, 4, 5, 6, 7]
    assert await log.last(0) == []
    newest = await log.last()
    assert newest is not None and (newest.seq, newest.content) == (7, "6")


async def test_an_empty_log_asks_the_database_nothing(conversation: Conversation):
    log = conversation.turn()
    assert await log.last() is None
    assert await log.last(5) == [] and await log.all() == [] and await log.count() == 0
    assert await log.to_openai(last=3) == [] and await log.system_prompt() == ""
    assert [message async for message in log.all()] == []
    assert conversation.reader.reads == 0


@pytest.mark.parametrize("n", [-1, True, "2", 1.5])
async def test_last_takes_a_number(conversation: Conversation, n: Any):
    with pytest.raises(MessageError):
        await conversation.turn().last(n)


async def test_what_is_in_the_buffer_is_not_read_from_the_database(conversation: Conversation):
    await conversation.append(("user", "old"))
    log = conversation.turn()
    await log.add("user", "new")
    await log.last()
    await log.last(1)
    assert conversation.reader.reads == 0


async def test_all_goes_through_the_log_page_by_page(conversation: Conversation, monkeypatch: Any):
    monkeypatch.setattr(history, "PAGE", 3)
    for length in (2, 3, 4, 7):
        missing = length - conversation.actor.seq
        await conversation.append(*[("user", "x") for _ in range(missing)])
        log = conversation.turn()
        await log.add("user", "buffered")
        conversation.reader.reads = 0
        seqs = []
        async for message in log.all():
            seqs.append(message.seq)
            if len(seqs) == 1:
                await log.add("user", "appended while reading")
        assert seqs == list(range(1, length + 2))
        assert conversation.reader.reads == math.ceil(length / 3)
        assert len(await log.all()) == length + 2


async def test_a_read_sees_nothing_beyond_its_turns_seq(conversation: Conversation):
    await conversation.append(("user", "one"))
    reader = conversation.turn(read_only=True)
    await conversation.append(("user", "two"), ("system", "three"))
    assert [m.content for m in await reader.all()] == ["one"]
    assert [m.content async for m in reader.all()] == ["one"]
    newest = await reader.last()
    assert newest is not None and newest.content == "one"
    assert await reader.count() == 1
    assert await reader.to_openai(last=5) == [{"role": "user", "content": "one"}]
    assert await reader.system_prompt() == ""


async def test_a_turn_that_commits_midway_still_sees_each_message_once(conversation: Conversation):
    await conversation.append(("user", "one"))
    log = conversation.turn()
    await log.add("assistant", "two")
    await conversation.commit(log)
    await log.add("user", "three")
    assert [m.content for m in await log.all()] == ["one", "two", "three"]
    assert [m.content for m in await log.last(2)] == ["two", "three"]
    assert [m["content"] for m in await log.to_openai(last=9)] == ["one", "two", "three"]


async def test_messages_of_reads_committed_messages_without_a_turn(conversation: Conversation):
    await conversation.append(*[("user", str(n)) for n in range(6)])
    actor_id = conversation.actor.pk
    read = lambda *args: in_thread(lambda: [m.content for m in messages_of(actor_id, *args)])  # noqa: E731
    assert await read() == list("012345")
    assert await read(4) == list("0123")
    assert await read(None, 2) == list("45")
    assert await read(4, 2) == list("23")
    assert await read(0) == [] and await read(None, 0) == []
    assert await in_thread(messages_of, actor_id + 1) == []


async def test_logs_of_two_actors_never_mix(conversation: Conversation):
    await conversation.append(("user", "mine"))
    other = Conversation(await in_thread(lambda: Actor.objects.create(kind="support", name="other")))
    await other.append(("system", "theirs"), ("user", "theirs"))
    assert [m.content for m in await conversation.turn().all()] == ["mine"]
    assert await conversation.turn().to_openai(last=5) == [{"role": "user", "content": "mine"}]
    assert await conversation.turn().system_prompt() == ""


def test_equal_timestamps_never_change_the_order(transactional_db: None):
    actor = Actor.objects.create(kind="support", name="same time", seq=4)
    at = dt.datetime(2026, 5, 1, tzinfo=dt.UTC)
    call = [{"id": "c1", "name": "f", "args": {}}]
    rows = [
        Message(actor=actor, seq=1, role="user", content="go", at=at),
        Message(actor=actor, seq=2, role="assistant", tool_calls=call, at=at),
        Message(actor=actor, seq=3, role="tool", tool_call_id="c1", content="ok", at=at),
        Message(actor=actor, seq=4, role="assistant", content="done", at=at),
    ]
    random.shuffle(rows)
    for row, key in zip(rows, random.sample(range(10_000, 20_000), 4), strict=True):
        row.pk = key
    Message.objects.bulk_create(rows)
    conversation = Conversation(actor)

    async def roles() -> list[list[str]]:
        log = conversation.turn(read_only=True)
        return [
            [m.role for m in await log.all()],
            [m.role async for m in log.all()],
            [m.role for m in await log.last(4)],
            [m["role"] for m in await log.to_openai()],
            [m["role"] for m in await log.to_openai(last=4)],
        ]

    for _ in range(50):
        assert async_to_sync(roles)() == [["user", "assistant", "tool", "assistant"]] * 5
    assert [m.role for m in messages_of(actor.pk)] == ["user", "assistant", "tool", "assistant"]


def test_a_read_is_one_query(transactional_db: None):
    actor = Actor.objects.create(kind="support", name="queries")
    with CaptureQueriesContext(
        connection,
    ) as queries:
        messages_of(actor.pk, 10, 5)
    assert len(queries) == 1


# LangChain, system


async def test_append_langchain_takes_one_message_or_several(conversation: Conversation):
    log = conversation.turn()
    assert await log.append_langchain({"type": "human", "content": "hi"}) == 1
    assert (
        await log.append_langchain([{"type": "ai", "content": "a"}, {"type": "human", "content": "b"}]) == 3
    )
    assert await log.append_langchain([]) == 3
    with pytest.raises(MessageError):
        await log.append_langchain([{"type": "human", "content": "fine"}, {"type": "remove", "content": ""}])
    for wrong in ("hi", 7, None):
        with pytest.raises(MessageError):
            await log.append_langchain(wrong)
    assert [(m.role, m.content) for m in await log.all()] == [
        ("user", "hi"),
        ("assistant", "a"),
        ("user", "b"),
    ]


async def test_langchain_messages_survive_the_database(conversation: Conversation):
    await conversation.append(("system", "s"), ("user", "hi"), EVERYTHING)
    rendered = await conversation.turn().to_langchain_messages()
    other = Conversation(await in_thread(lambda: Actor.objects.create(kind="support", name="other")))
    log = other.turn()
    await log.append_langchain(rendered)
    assert await log.to_langchain_messages() == rendered
    await other.commit(log)
    assert await other.turn().to_langchain_messages() == rendered


async def test_the_system_prompt_joins_database_and_buffer(conversation: Conversation):
    await conversation.append(("system", "be kind"), ("user", "hi"))
    log = conversation.turn()
    assert await log.system_prompt() == "be kind"
    await log.add("system", "it is Monday")
    assert await log.system_prompt() == "be kind\n\nit is Monday"
