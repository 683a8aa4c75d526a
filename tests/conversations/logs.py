"""Logs for tests: made by hand, and random ones with everything in them that breaks."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from conversations.messages import StoredMessage, message_of, row_of
from tests.conversations.files import GIF, JPEG, PDF, PNG

AT = dt.datetime(2026, 5, 1, 12, tzinfo=dt.UTC)


def log_of(messages: Iterable[Mapping[str, Any] | tuple[str, str]]) -> list[StoredMessage]:
    """The messages as a log keeps them, with seqs from 1. A pair is a role and a content."""
    return [
        message_of({**row_of(_mapping(message)), "seq": seq, "at": AT})
        for seq, message in enumerate(messages, start=1)
    ]


def _mapping(message: Mapping[str, Any] | tuple[str, str]) -> Mapping[str, Any]:
    return {"role": message[0], "content": message[1]} if isinstance(message, tuple) else message


def call(*ids: str, content: str = "", name: str = "lookup", args: Any = None) -> dict[str, Any]:
    """An assistant message that calls a tool once for each id."""
    calls = [{"id": id_, "name": name, "args": {"q": id_} if args is None else args} for id_ in ids]
    return {"role": "assistant", "content": content, "tool_calls": calls}


def result(id_: str, content: str = "ok", **more: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id_, "content": content, **more}


# Random logs

IDS = st.sampled_from(["c1", "c2", "c3", "functions.write:0", "a:1", "a.1", "a|1", "x" * 41, "é", "x" * 80])
NAMES = st.sampled_from(["lookup", "write_file", "functions.write", "n" * 65, "Ä"])
TEXTS = st.one_of(
    st.sampled_from(["", " ", "\n\t", "hello", "ab\x00cd", "\ud800", "naïve 😋", "tail \n"]),
    st.text(max_size=12),
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | TEXTS
    | st.binary(max_size=4)
    | st.just(AT)
    | st.just(Decimal("1.10"))
    | st.sets(st.integers(), max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.one_of(TEXTS, st.integers(0, 3)), inner, max_size=3)
    ),
    max_leaves=6,
)
ARGS = st.one_of(
    st.none(),
    st.sampled_from(["", "  ", "{}", '{"b": 1, "a": NaN}', '{"value": ', "[1]", "null"]),
    st.dictionaries(TEXTS, VALUES, max_size=3),
    VALUES,
)
CITATION = {
    "type": "char_location",
    "cited_text": "w",
    "document_index": 0,
    "document_title": None,
    "start_char_index": 0,
    "end_char_index": 1,
}
SUMMARY = {"type": "summary_text", "text": "let me see"}
SEARCHED = {"type": "search", "query": "q"}
PARTS = st.sampled_from(
    [
        {"type": "text", "text": ""},
        {"type": "text", "text": "from a part"},
        {"type": "text"},
        {"type": "image", "url": "https://example.org/a.png"},
        {"type": "image", "base64": PNG, "mime_type": "image/png"},
        {"type": "image", "base64": JPEG, "mime_type": "image/png"},
        {"type": "image", "base64": "aGk=", "mime_type": "image/png"},
        {"type": "image", "url": "https://example.org/a.png", "mime_type": "image/png"},
        {"type": "image", "url": "data:image/svg+xml,<svg/>"},
        {"type": "image", "base64": "not base64", "mime_type": "image/png"},
        {"type": "image", "base64": b"hi", "mime_type": "image/tiff"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/gif", "data": GIF}},
        {"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{JPEG}"}},
        {"type": "image_url"},
        {"type": "file", "base64": PDF, "mime_type": "application/pdf", "extras": {"filename": "a.pdf"}},
        {"type": "file", "base64": "aGk=", "mime_type": "application/pdf"},
        {"type": "file", "base64": "aGk=", "mime_type": "text/csv"},
        {"type": "file", "file": {"file_id": "file-1"}},
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "words"}},
        {"type": "audio", "base64": "aGk=", "mime_type": "audio/wav"},
        {"type": "input_audio", "input_audio": {"data": "aGk=", "format": "mp3"}},
        {"type": "video", "url": "ftp://example.org/v"},
        {"type": "thinking", "thinking": "let me see", "signature": "EqQB"},
        {"type": "thinking", "thinking": "no signature"},
        {"type": "redacted_thinking", "data": "Zm9v"},
        {"type": "reasoning", "reasoning": "hm", "extras": {"signature": "Rz"}},
        {"type": "weather_card", "sunny": True},
        {"type": "refusal", "refusal": "I can't"},
        {"type": "text", "text": "cited", "citations": [CITATION]},
        {"type": "text", "text": "cited", "citations": [{"type": "of tomorrow"}]},
        {"type": "output_text", "text": "said", "id": "msg_1", "phase": "commentary"},
        {"type": "text-plain", "text": "words of a file", "mime_type": "text/plain", "title": "a.txt"},
        {"type": "input_image", "image_url": "https://example.org/a.png", "detail": "low"},
        {"type": "input_image", "file_id": "file-1"},
        {"type": "input_file", "file_url": "https://example.org/a.pdf"},
        {"type": "input_file", "file_data": f"data:application/pdf;base64,{PDF}", "filename": "a.pdf"},
        {"type": "audio", "id": "audio_1", "transcript": "what was said"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"},
        {"type": "reasoning", "id": "rs_2", "summary": [SUMMARY], "encrypted_content": "gAAB"},
        {"type": "reasoning", "id": "rs_3", "summary": [SUMMARY]},
        {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "lookup"},
        {"type": "custom_tool_call", "id": "ctc_1", "call_id": "c2", "name": "lookup"},
        {"type": "tool_use", "id": "c1", "name": "lookup"},
        {"type": "tool_call", "id": "c3", "name": "lookup", "extras": {"item_id": "fc_3"}},
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": SEARCHED},
        {"type": "computer_call", "id": "cu_1", "status": "completed"},
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "q"}},
        {"type": "server_tool_use", "id": "srv:2", "name": "web_search", "input": {"query": "q"}},
        {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
        {"type": "source-url", "sourceId": "s1", "url": "https://example.org"},
        {"type": "source-url"},
        {"type": "reasoning-file", "mediaType": "image/png", "url": "no address"},
        {"type": "data-weather", "data": {"sunny": True}},
        {"type": "data-weather"},
        {"type": "image", "url": "https://exa mple.org/\u00e4"},
    ]
)
METADATA = st.one_of(
    st.none(),
    st.sampled_from(
        [
            {"is_error": True},
            {"error": "TimeoutError"},
            {"interrupted": True},
            {"langchain": {"id": "m1"}},
            {"langchain": {"id": "seq-2", "response_metadata": {"model_provider": "anthropic"}}},
            {"langchain": "not ours"},
            {"langchain": {}},
            {"ai_sdk": {"id": "m1", "metadata": {"a": 1}}},
            {"ai_sdk": {"json": True}},
            {"anthropic": {"id": "msg_1", "usage": {"input_tokens": 3}}},
            {"id": "said-1"},
        ]
    ),
)
SPEAKERS = st.sampled_from([None, "anna", "Anna Müller", "n" * 200])


@st.composite
def random_messages(draw: st.DrawFn) -> dict[str, Any]:
    role = draw(st.sampled_from(["system", "user", "user", "assistant", "assistant", "tool", "tool"]))
    message: dict[str, Any] = {"role": role, "content": draw(TEXTS), "metadata": draw(METADATA)}
    if draw(st.integers(0, 4)) == 0:
        message["parts"] = draw(st.lists(PARTS, max_size=5))
    if role == "tool":
        message["tool_call_id"] = draw(IDS)
    else:
        message["name"] = draw(SPEAKERS)
    if role == "assistant" and draw(st.booleans()):
        message["tool_calls"] = draw(
            st.lists(st.fixed_dictionaries({"id": IDS, "name": NAMES, "args": ARGS}), max_size=3)
        )
    return message


#: Logs with results missing, doubled, late, without a call; ids used again; blank and odd texts.
RANDOM_LOGS = st.lists(random_messages(), max_size=14).map(log_of)
