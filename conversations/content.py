"""Content blocks: what a message holds beyond its text, and the one way in which all formats read it.

A message's ``parts`` are kept as they were given. They may be LangChain's standard content blocks (the form
that docs/messages.md recommends) or the blocks that OpenAI's and Anthropic's APIs return; ``read_parts``
understands all of them and gives the few shapes below. Nothing here needs a database.

Sources of the shapes: LangChain, "Standard content blocks"; Anthropic, Messages API; OpenAI, Chat
Completions API and Responses API.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from conversations import filetypes

_DATA_URL = re.compile(r"data:([^;,]*)(?:;[^;,]*)*;base64,(.*)", re.DOTALL)
_MIME = re.compile(r"[a-z]+/[A-Za-z0-9.+_-]+")

#: The types of blocks that ask for a tool: LangChain's, Anthropic's, and OpenAI's two in the Responses API.
CALL_TYPES = frozenset({"tool_call", "tool_use", "function_call", "custom_tool_call"})

#: How closely OpenAI may look at an image.
DETAILS = ("auto", "low", "high")


def _given() -> Any:
    """The block as it was given; None for what was not one."""
    return field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Text:
    """Text; never blank."""

    text: str
    given: Mapping[str, Any] | None = _given()


@dataclass(frozen=True, slots=True)
class Reasoning:
    """What a model thought.

    Anthropic takes it back with the signature it came with, OpenAI with its encrypted content and its id;
    both only so.
    """

    text: str
    signature: str = ""
    redacted: str = ""  # the encrypted data of a block whose text was not given
    id: str = ""
    encrypted: str = ""  # OpenAI's
    given: Mapping[str, Any] | None = _given()


@dataclass(frozen=True, slots=True)
class Media:
    """An image, a sound, a film or a file: inline data (base64), an address or an id at a provider."""

    kind: str  # image | audio | video | file
    mime: str = ""
    data: str = ""  # valid base64
    url: str = ""
    file_id: str = ""
    name: str = ""
    text: str = ""  # a document that is plain text
    detail: str = ""  # how closely OpenAI looks at an image: auto, low, high
    mistaken: str = ""  # the type that its data was said to be of, where it is of another
    given: Mapping[str, Any] | None = _given()

    def note(self) -> str:
        """What stands for it where it cannot be sent."""
        what = self.name or (self.url if self.url.startswith(("http://", "https://")) else "")
        return f"[{self.kind}: {what}]" if what else f"[{self.kind}]"

    def words(self) -> str:
        """The note, and what a document of plain text says."""
        return f"{self.note()}\n{self.text}" if self.text.strip() else self.note()


@dataclass(frozen=True, slots=True)
class CallPlace:
    """Where, among the other blocks, the model asked for a tool."""

    call_id: str
    given: Mapping[str, Any] | None = _given()


@dataclass(frozen=True, slots=True)
class Other:
    """A block of another type. Who made it may take it back; nobody else."""

    given: Mapping[str, Any]

    @property
    def type(self) -> str:
        kind: str = self.given["type"]
        return kind

    def note(self) -> str:
        return f"[{self.type}]"

    def words(self) -> str:
        return self.note()


Block = Text | Reasoning | Media | CallPlace | Other


def read_parts(parts: Iterable[Mapping[str, Any]]) -> list[Block]:
    """The blocks of a message's parts, in order. Blank texts are left out: no provider takes them."""
    blocks = (_read(part) for part in parts)
    return [block for block in blocks if not (isinstance(block, Text) and not block.text.strip())]


def text_of_parts(parts: Iterable[Mapping[str, Any]], role: str) -> str:
    """The text in a message's parts. A model's text may come in pieces; other texts stand on their own."""
    texts = [block.text for block in read_parts(parts) if isinstance(block, Text)]
    return ("" if role == "assistant" else "\n").join(texts)


def calls_in_parts(parts: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The tool calls in a message's parts, as ``{"id", "name", "args"}``."""
    return [_call(part) for part in parts if part["type"] in CALL_TYPES]


def _call(part: Mapping[str, Any]) -> dict[str, Any]:
    match part["type"]:
        case "tool_use":
            args = part.get("input")
        case "function_call":
            args = part.get("arguments")
        case "custom_tool_call":
            args = {"input": part.get("input")}  # free text, which no other API has a place for
        case _:
            args = part.get("args")
    return {"id": _call_id(part), "name": part.get("name"), "args": args}


def _call_id(part: Mapping[str, Any]) -> Any:
    """In the Responses API ``id`` is the item's; the result names ``call_id``."""
    return part.get("call_id") if part["type"] in ("function_call", "custom_tool_call") else part.get("id")


def notes_and_text(blocks: Iterable[object], role: str) -> str:
    """The blocks as one text, with a note for what was shown there but isn't text."""
    pieces = [
        block.text if isinstance(block, Text) else block.words()
        for block in blocks
        if isinstance(block, Text | Media) or (isinstance(block, Other) and role != "assistant")
    ]
    return ("" if role == "assistant" else "\n").join(pieces)


def _read(part: Mapping[str, Any]) -> Block:
    kind = part["type"]
    if kind in CALL_TYPES:
        return CallPlace(_str(_call_id(part)), given=part)
    reader = _READERS.get(kind)
    return Other(part) if reader is None else replace(reader(part), given=part)


def _read_text(part: Mapping[str, Any]) -> Text:
    text = part.get("refusal" if part["type"] == "refusal" else "text")
    return Text(_str(text))


def _read_reasoning(part: Mapping[str, Any]) -> Reasoning:
    """LangChain's block, or the item of OpenAI's Responses API (``summary``, ``content``)."""
    extras = part.get("extras")
    more = {**extras, **part} if isinstance(extras, Mapping) else part
    pieces = [*_pieces(part.get("summary")), *_pieces(part.get("content"))]
    return Reasoning(
        _str(part.get("reasoning")) or "\n\n".join(pieces),
        _str(more.get("signature")),
        id=_str(part.get("id")),
        encrypted=_str(more.get("encrypted_content")),
    )


def _pieces(texts: Any) -> list[str]:
    """The texts of ``[{"type": "summary_text", "text": ...}, ...]``."""
    if not isinstance(texts, list):
        return []
    return [piece["text"] for piece in texts if isinstance(piece, Mapping) and _str(piece.get("text"))]


def _read_thinking(part: Mapping[str, Any]) -> Reasoning:
    return Reasoning(_str(part.get("thinking")), _str(part.get("signature")))


def _read_redacted(part: Mapping[str, Any]) -> Reasoning:
    return Reasoning("", redacted=_str(part.get("data")))


def _read_audio(part: Mapping[str, Any]) -> Text | Media:
    """A model's own sound comes with its words: OpenAI's ``audio``. They are what other models can read."""
    spoken = _str(part.get("transcript"))
    return Text(spoken) if spoken.strip() else _read_media(part)


def _read_media(part: Mapping[str, Any]) -> Media:
    """LangChain's image, audio, video and file (both generations), Anthropic's image and document."""
    kind = "file" if part["type"] in ("document", "text-plain") else part["type"]
    source = part.get("source")
    given = source if isinstance(source, Mapping) else part
    extras = part.get("extras")
    name = part.get("title") or part.get("filename") or part.get("name")
    if not name and isinstance(extras, Mapping):
        name = extras.get("filename") or extras.get("name")
    data = given.get("base64") or given.get("data")
    text = given.get("text")
    if given.get("type") == "text" or given.get("source_type") == "text":
        text, data = text or data, None
    return _media(
        kind,
        mime=given.get("mime_type") or given.get("media_type"),
        data=data,
        url=given.get("url"),
        file_id=given.get("file_id") or (given.get("id") if given.get("source_type") == "id" else None),
        name=name,
        text=text,
        detail=extras.get("detail") if isinstance(extras, Mapping) else None,
    )


def _read_image_url(part: Mapping[str, Any]) -> Media:
    image = part.get("image_url")
    given = image if isinstance(image, Mapping) else {"url": image}
    return _media("image", url=given.get("url"), detail=given.get("detail"))


def _read_input_image(part: Mapping[str, Any]) -> Media:
    return _media("image", url=part.get("image_url"), file_id=part.get("file_id"), detail=part.get("detail"))


def _read_input_audio(part: Mapping[str, Any]) -> Media:
    audio = part.get("input_audio")
    if not isinstance(audio, Mapping):
        return Media("audio")
    return _media("audio", mime=f"audio/{_str(audio.get('format'))}", data=audio.get("data"))


def _read_openai_file(part: Mapping[str, Any]) -> Media:
    if not isinstance(part.get("file"), Mapping):
        return _read_media(part)
    return _read_input_file(part["file"])


def _read_input_file(file: Mapping[str, Any]) -> Media:
    data = file.get("file_data")
    url = data if isinstance(data, str) and data.startswith("data:") else file.get("file_url")
    return _media(
        "file",
        data=None if url else data,
        url=url,
        file_id=file.get("file_id"),
        name=file.get("filename"),
    )


_READERS: dict[str, Callable[[Mapping[str, Any]], Text | Reasoning | Media]] = {
    "text": _read_text,
    "input_text": _read_text,
    "output_text": _read_text,
    "refusal": _read_text,
    "reasoning": _read_reasoning,
    "thinking": _read_thinking,
    "redacted_thinking": _read_redacted,
    "image": _read_media,
    "audio": _read_audio,
    "video": _read_media,
    "document": _read_media,
    "text-plain": _read_media,
    "image_url": _read_image_url,
    "input_audio": _read_input_audio,
    "input_image": _read_input_image,
    "input_file": _read_input_file,
    "file": _read_openai_file,
}


def _media(
    kind: str,
    *,
    mime: Any = None,
    data: Any = None,
    url: Any = None,
    file_id: Any = None,
    name: Any = None,
    text: Any = None,
    detail: Any = None,
) -> Media:
    if isinstance(url, str) and (inline := _DATA_URL.fullmatch(url)):
        mime, data, url = mime or inline[1], inline[2], None
    if isinstance(data, bytes):
        data = base64.b64encode(data).decode("ascii")
    mime = _str(mime).lower()
    mime = mime if _MIME.fullmatch(mime) else ""
    data = data if isinstance(data, str) and _is_base64(data) else ""
    seen = _type_of(kind, mime, data)
    return Media(
        kind,
        mime=seen or mime,
        data=data if seen is not None else "",
        mistaken=mime if seen and seen != mime else "",
        url=_str(url),
        file_id=_str(file_id),
        name=_str(name),
        text=_str(text),
        detail=detail if detail in DETAILS else "",
    )


def _type_of(kind: str, mime: str, data: str) -> str | None:
    """What data is, by its bytes where these tell; None where it is not what its block says.

    Providers look, too, and refuse a request with one picture that is none, or is called another.
    """
    if not data:
        return mime
    if kind == "image":
        return filetypes.picture_type(filetypes.beginning(data))
    if kind != "file" or mime not in ("", filetypes.PDF):
        return mime
    if filetypes.is_pdf(filetypes.beginning(data)):
        return filetypes.PDF
    return None if mime else ""


def _is_base64(data: str) -> bool:
    """Whether providers would take it: a request with one broken block is refused whole."""
    try:
        return bool(binascii.a2b_base64(data, strict_mode=True))
    except (ValueError, binascii.Error):
        return False


def _str(value: Any) -> str:
    return value if isinstance(value, str) else ""
