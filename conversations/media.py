"""Pictures and files of texts: fetched into an actor's blobs, given to agents and models, sent, served.

An inbound text is acknowledged before anything of it is fetched. The turn of its ``receive`` begins with
that: each item is fetched (``conversations.fetch``), checked and put into the actor's blobs as part of the
turn, so a turn that fails leaves none and its retry fetches again. What cannot be had now makes the task try
again, twice; then the text is handled without it, and says so: words are not lost for a picture's sake.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import mimetypes
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from django.core import signing
from django.core.files.storage import default_storage
from django.urls import reverse

from agents import blobs as agents_blobs
from agents.exceptions import BlobNotFoundError, ConfigurationError, Retry
from agents.models import Blob
from agents.names import escape_name
from conversations import conf
from conversations.exceptions import BadMediaError, MediaError, MediaRefusedError, MediaUnavailableError
from conversations.filetypes import PDF, PICTURES, fits, picture_type
from conversations.messages import StoredMessage
from conversations.providers import SHORT_NAMES, get_provider
from conversations.providers.base import TextProvider
from conversations.public import origin_of, reachable_url

if TYPE_CHECKING:
    from agents.blobs import Blobs
    from agents.turn import Turn
    from conversations.fetch import Fetched, Origin
    from conversations.models import OutboundText

logger = logging.getLogger(__name__)

#: Deliveries of a text that try to fetch what cannot be had now.
TRIES = 3
#: Pauses between them, in seconds.
PAUSES = (5.0, 30.0)
#: Media of one outbound text (Telnyx's and Twilio's limit).
MAX_SENT = 10
#: How long an address that a provider fetches a picture from is good, in seconds.
SENT_MAX_AGE = 2 * 86_400
SENT_SALT = "conversations.media.sent"

#: What a browser shows in place: nothing of it can run. Everything else is for saving.
INLINE = PICTURES | {
    "audio/mpeg", "audio/mp4", "audio/aac", "audio/ogg", "audio/wav", "audio/webm", "audio/amr",
    "video/mp4", "video/3gpp", "video/webm", "video/quicktime",
}  # fmt: skip
#: What is put into a rendering for a model; adapters say what they cannot take in words.
_FOR_MODELS = PICTURES | {PDF, "audio/mpeg", "audio/mp3", "audio/wav", "audio/x-wav"}


# In


@dataclass(frozen=True, slots=True)
class Item:
    """One picture or file of a text, as it was had, or why not."""

    announced: Mapping[str, Any]
    fetched: Fetched | None = None
    content_type: str = ""
    error: str = ""
    passes: bool = False


async def fetched_payload(turn: Turn, blobs: Blobs, payload: Mapping[str, Any]) -> dict[str, Any]:
    """The payload of an inbound text with its media in the actor's blobs, and ``parts`` for the log.

    Each item of ``media`` gets ``key`` (of ``self.blobs``), ``content_type``, ``size``, ``name``; or
    ``error``. Raises Retry where something cannot be had now and may be had soon.
    """
    announced = [item for item in payload.get("media") or [] if isinstance(item, Mapping)]
    items = await asyncio.gather(*(asyncio.to_thread(_item, item) for item in announced))
    task = turn.task
    attempt = task.attempt if task is not None else TRIES
    if attempt < TRIES and (late := next((item for item in items if item.passes), None)):
        raise Retry(f"a picture cannot be had: {late.error}", after=PAUSES[attempt - 1])
    media: list[dict[str, Any]] = []
    parts: list[dict[str, Any]] = []
    if str(payload.get("text") or "").strip():
        parts.append({"type": "text", "text": payload["text"]})
    for number, item in enumerate(items, start=1):
        if item.fetched is None:
            media.append({**item.announced, "error": item.error})
            parts.append(
                {"type": "text", "text": f"[{_kind(item)} came with this text and could not be loaded]"}
            )
            logger.warning("a picture of text %s is left out: %s", payload.get("id"), item.error)
            continue
        name = f"{number}{_extension(item.content_type)}"
        key = f"sms/{payload.get('id') or turn.id}/{name}"
        info = await blobs.put(key, item.fetched.body, item.content_type)
        media.append(
            {
                **item.announced,
                "key": key,
                "content_type": info.content_type,
                "size": info.size,
                "sha256": info.sha256,
                "name": name,
            }
        )
        parts.append(part_of(turn, key, item.content_type, name))
    return {**payload, "media": media, "parts": parts}


def part_of(turn: Turn, key: str, content_type: str, name: str) -> dict[str, Any]:
    """The content block that stands for a file of the actor, in the form of LangChain's standard blocks.

    ``url`` is where people who may see the conversation see it; models get the file itself (``for_models``).
    """
    kind = content_type.split("/")[0]
    return {
        "type": kind if kind in ("image", "audio", "video") else "file",
        "mime_type": content_type.split(";")[0].strip(),
        "url": url_of(turn.actor.kind, turn.actor.name, key),
        "extras": {"blob": key, "filename": name},
    }


def _kind(item: Item) -> str:
    kind = str(item.announced.get("content_type") or "").split("/")[0]
    return {"image": "a picture", "audio": "a sound", "video": "a film"}.get(kind, "a file")


def _extension(content_type: str) -> str:
    known = {"image/jpeg": ".jpg", "text/vcard": ".vcf", "text/x-vcard": ".vcf", "audio/amr": ".amr"}
    bare = content_type.split(";")[0].strip()
    return known.get(bare) or mimetypes.guess_extension(bare) or ""


def _item(announced: Mapping[str, Any]) -> Item:
    """Fetches one. Synchronous; touches no database."""
    from conversations.fetch import fetch  # its libraries take a moment: for sites that get pictures

    try:
        url = str(announced.get("url") or "")
        found = fetch(
            url,
            maximum=conf.get("MAX_MEDIA_BYTES"),
            timeout=conf.get("SMS_MEDIA_TIMEOUT"),
            headers=_credentials(url),
            exempt=_exempt(),
        )
        return Item(announced, found, _checked_type(found, str(announced.get("content_type") or "")))
    except MediaUnavailableError as error:
        return Item(announced, error=str(error), passes=True)
    except MediaError as error:
        return Item(announced, error=str(error))


def _checked_type(found: Fetched, announced: str) -> str:
    """What a file is: a picture by its bytes, else what its server or the provider calls it.

    A picture that is none would make a model's provider refuse the whole conversation.
    """
    named = found.content_type if found.content_type not in ("", "application/octet-stream") else announced
    named = named.split(";")[0].strip().lower() or "application/octet-stream"
    if not found.body:
        raise MediaRefusedError("it is empty")
    if not _is_kept(named):
        raise MediaRefusedError(f"files of type {named:.80} are not kept")
    seen = picture_type(found.body)
    if seen is not None:
        return seen if named.startswith("image/") else named
    return "application/octet-stream" if named in PICTURES else named


def _is_kept(content_type: str) -> bool:
    allowed = conf.get("SMS_MEDIA_TYPES")
    return content_type in allowed or f"{content_type.split('/')[0]}/*" in allowed


def _credentials(url: str) -> dict[str, str]:
    """The key of the provider whose own address this is."""
    for provider in _providers():
        if headers := provider.media_headers(url):
            return headers
    return {}


def _exempt() -> set[Origin]:
    """What may be reached without TLS or in a private network: what the settings themselves name.

    Hosts of SMS_MEDIA_HOSTS, and a provider's API that is not the public one (a sandbox).
    """
    origins: set[Origin] = set()
    for host in conf.get("SMS_MEDIA_HOSTS"):
        for scheme in ("http", "https"):
            origins.add(origin_of(f"{scheme}://{host}"))
    for provider in _providers():
        if url := provider.api_url():
            origins.add(origin_of(url))
    return origins


def _providers() -> Iterator[TextProvider]:
    for name in (*SHORT_NAMES, *conf.get("SMS_PROVIDERS")):
        try:
            yield get_provider(name)
        except ConfigurationError:
            continue


# From an operator


@dataclass(frozen=True, slots=True)
class Upload:
    """A picture or file that somebody of the team sends along with an answer."""

    name: str
    content_type: str
    body: bytes


def checked_uploads(uploads: Sequence[Upload]) -> list[Upload]:
    """The files of an answer with the types that they are. Raises BadMediaError, which says of which and why.

    As for what comes in: SMS_MEDIA_TYPES, and MAX_MEDIA_BYTES, here of all of them together.
    """
    if len(uploads) > MAX_SENT:
        raise BadMediaError(f"an answer has {MAX_SENT} files at most, not {len(uploads)}")
    size, maximum = sum(len(one.body) for one in uploads), conf.get("MAX_MEDIA_BYTES")
    if size > maximum:
        raise BadMediaError(f"the files of an answer have {maximum:,} bytes together at most, not {size:,}")
    return [_checked_upload(one) for one in uploads]


def _checked_upload(upload: Upload) -> Upload:
    named = upload.content_type.split(";")[0].strip().lower()
    if not upload.body:
        raise BadMediaError(f"{upload.name!r:.100} is empty")
    if not _is_kept(named):
        raise BadMediaError(f"{upload.name!r:.100} is of a type that is not sent: {named:.80}")
    if named.startswith("image/"):
        seen = picture_type(upload.body)
        if seen is None:
            raise BadMediaError(f"{upload.name!r:.100} is no PNG, JPEG, GIF or WebP")
        named = seen
    return replace(upload, content_type=named)


async def keep_uploads(turn: Turn, blobs: Blobs, uploads: Sequence[Upload]) -> list[dict[str, Any]]:
    """Puts the files of an answer into the actor's blobs; returns their content blocks."""
    parts = []
    for number, one in enumerate(uploads, start=1):
        name = f"{number}{_extension(one.content_type)}"
        info = await blobs.put(f"operator/{turn.id}/{name}", one.body, one.content_type)
        parts.append(part_of(turn, info.key, one.content_type, name))
    return parts


# Out


async def checked_media(media: Sequence[Any], blobs: Blobs) -> list[dict[str, str]]:
    """What a text carries: addresses (https) and keys of the actor's blobs. Raises BadMediaError."""
    if isinstance(media, str) or len(media) > MAX_SENT:
        raise BadMediaError(f"media is a list of up to {MAX_SENT} addresses or keys of blobs")
    checked = []
    for item in media:
        given = item.key if isinstance(item, agents_blobs.BlobInfo) else item
        if not isinstance(given, str) or not given:
            raise BadMediaError(f"media are addresses and keys of blobs, got {type(item).__name__}")
        if "://" in given:
            if not given.startswith("https://") or len(given) > 2000:
                raise BadMediaError(f"{given!r:.100} is not an address that begins with https://")
            checked.append({"url": given})
        elif await blobs.info(given) is None:
            raise BadMediaError(f"there is no file under {given!r:.100}")
        else:
            checked.append({"blob": given})
    return checked


def sendable_urls(text: OutboundText, provider: TextProvider) -> tuple[str, ...]:
    """The addresses of a text's media, for its provider to fetch. Raises BadMediaError."""
    urls = []
    base = reachable_url(provider.api_url())
    for item in text.media:
        if "url" in item:
            urls.append(item["url"])
        elif base:
            token = signing.dumps([text.actor_id, item["blob"]], salt=SENT_SALT, compress=True)
            urls.append(base + reverse("sent-media", kwargs={"token": token}))
        elif provider.api_url():
            raise BadMediaError("the provider cannot fetch a file from this site: set SITE_URL")
        else:
            urls.append(f"blob:{item['blob']}")
    return tuple(urls)


def opened_token(token: str) -> tuple[int, str] | None:
    """The actor's id and the key in an address of ``sendable_urls``; None for what is none, or is too old."""
    try:
        actor_id, key = signing.loads(token, salt=SENT_SALT, max_age=SENT_MAX_AGE)
    except (signing.BadSignature, ValueError, TypeError):
        return None
    return int(actor_id), str(key)


# For people and models


def url_of(kind: str, name: str, key: str) -> str:
    """Where a file of an actor is shown to those who may see the conversation."""
    return reverse("media", kwargs={"kind": kind, "name": escape_name(name), "key": escape_name(key)})


def blob_key(part: Mapping[str, Any]) -> str:
    """The key of the file that a content block stands for; "" where it stands for none."""
    extras = part.get("extras")
    key = extras.get("blob") if isinstance(extras, Mapping) else None
    return key if isinstance(key, str) else ""


async def for_models(turn: Turn, messages: Sequence[StoredMessage]) -> list[StoredMessage]:
    """The messages with the files themselves in their content blocks, in place of our addresses.

    The newest first, up to MAX_WINDOW_MEDIA_BYTES; what is beyond that, gone, or of a type or size that no
    model takes becomes a block without data, which adapters say in words. Blocks without a file stay.
    """
    keys = [
        (at, place, blob_key(part))
        for at, message in enumerate(messages)
        for place, part in enumerate(message.parts)
        if isinstance(part, Mapping) and blob_key(part)
    ]
    if not keys:
        return list(messages)
    left = conf.get("MAX_WINDOW_MEDIA_BYTES")
    filled = {at: [dict(part) for part in messages[at].parts] for at, _, _ in keys}
    blobs = _blobs_of(turn)
    for at, place, key in reversed(keys):
        part = filled[at][place]
        part.pop("url", None)
        info = await blobs.info(key)
        if info is None or info.size > left or not _is_for_models(info):
            continue
        try:
            data = await blobs.get(key)
        except (BlobNotFoundError, FileNotFoundError):
            continue
        left -= info.size
        part["mime_type"] = info.content_type.split(";")[0]
        part["base64"] = base64.b64encode(data).decode("ascii")
    return [
        replace(message, parts=filled[at]) if at in filled else message for at, message in enumerate(messages)
    ]


def _is_for_models(info: agents_blobs.BlobInfo) -> bool:
    content_type = info.content_type.split(";")[0]
    return content_type in _FOR_MODELS and (content_type not in PICTURES or fits(info.size))


def _blobs_of(turn: Turn) -> Blobs:
    """The turn's own, so that a picture which it has just stored is seen."""
    for part in reversed(turn.parts):
        if isinstance(part, agents_blobs.Blobs):
            return part
    return agents_blobs.Blobs(turn)


def stored(actor_id: int, key: str) -> Blob | None:
    return Blob.objects.filter(actor_id=actor_id, key=key).first()


def read(blob: Blob) -> bytes | None:
    """The bytes of a file; None when they are gone."""
    try:
        with default_storage.open(blob.path, "rb") as file:
            content: bytes = file.read()
            return content
    except FileNotFoundError:
        return None


def disposition(blob: Blob) -> str:
    """The Content-Disposition of a file: in place only for what cannot run in a browser."""
    name = blob.key.rsplit("/", 1)[-1] or "file"
    how = "inline" if blob.content_type.split(";")[0].strip().lower() in INLINE else "attachment"
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "_" for c in name)[:100]
    return f"{how}; filename=\"{plain}\"; filename*=UTF-8''{quote(name[:100], safe='')}"
