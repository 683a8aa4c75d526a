"""The chat page: a conversation to take part in, live with JavaScript and a plain transcript without.

Whoever the socket admits may see it: staff that may look at actors, and those whom the class's ``authorize``
lets in. What it shows first is rendered here; from then on ``static/conversations/chat.js`` makes the same
elements from the socket's frames.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views import View

from agents import codec, kinds
from agents.agent import Agent
from agents.exceptions import AgentsError, InboxFullError, InvalidNameError, LimitError, UnknownKindError
from agents.http.admission import is_admitted
from agents.models import Actor
from agents.names import check_name, escape_name, unescape_name
from agents.permissions import is_operator, may
from agents.saying import MAX_ID, RECEIVE, key_of, saying
from conversations import shown, transcripts
from conversations.addresses import is_own
from conversations.content import Media, read_parts
from conversations.filetypes import PICTURES
from conversations.messages import COLUMNS, StoredMessage
from conversations.models import Message, Role
from conversations.transcripts import Call, Entry

#: Messages shown first, and with each step back; fewer where they are long.
SHOWN = 50
SHOWN_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Bubble:
    """One message, as the page shows it."""

    message: StoredMessage
    at: str  # ISO 8601, as frames have it
    id: str  # that its sender's client gave it
    tool: str  # whose result this is; empty for other messages
    interrupted: bool
    calls: Sequence[Call]
    pictures: Sequence[str]  # addresses
    folds: Sequence[tuple[str, str]]  # what is more than text: its title, itself


class ChatIndex(View):
    """``/chat/``: for staff, where to go: a kind and a name."""

    def get(self, request: HttpRequest) -> HttpResponseBase:
        if not is_operator(request.user):
            return _turned_away(request)
        kind, name = request.GET.get("kind", ""), request.GET.get("name", "")
        error = ""
        if name:
            try:
                return redirect(chat_url(kinds.get(kind).kind, name))
            except (UnknownKindError, InvalidNameError) as refused:
                error = str(refused)
        chattable = [
            known
            for known in kinds.installed()
            if can_chat(kinds.get(known)) and is_operator(request.user, known)
        ]
        context = {"kinds": chattable, "kind": kind, "name": name, "error": error}
        return _page(request, "conversations/chat_index.html", context, status=400 if error else 200)


class ChatView(View):
    """``/chat/<kind>/<name>/``, where the name is in the escape of addresses.

    ``?before=51`` shows the messages before that number, to read; ``?message=17`` is one message alone, for
    the script. A POST says something, as the form without JavaScript does; the same ``id`` twice is one
    message.
    """

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        kind, escaped = kwargs["kind"], kwargs["name"]
        try:
            self.agent = kinds.get(kind)
            self.name = unescape_name(escaped)
        except UnknownKindError as error:
            raise Http404(str(error)) from None
        except InvalidNameError:
            return _with_name_escaped(request, kind, escaped)
        self.is_operator = is_operator(request.user, self.agent.kind)
        if not is_admitted(request, self.agent, self.name):
            return _turned_away(request)
        return super().dispatch(request, *args, **kwargs)

    def get(self, request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
        if one := _number(request.GET.get("message")):
            return self._one(request, one)
        return self._show(request)

    def post(self, request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
        text = request.POST.get("text", "").strip()
        id = request.POST.get("id") or uuid.uuid4().hex
        if not text:
            return self._show(request, error="There was nothing to send.")
        if len(id) > MAX_ID:
            return self._show(request, error="That id is too long.", text=text)
        try:
            say(self.agent, self.name, id, text, request.user)
        except InboxFullError:
            error = "Too much waits for this agent. Try again later."
        except LimitError:
            error = "That is too long."
        except AgentsError as refused:
            error = str(refused)
        else:
            return redirect(request.path)
        return self._show(request, error=error, text=text, id=id)

    def _one(self, request: HttpRequest, seq: int) -> HttpResponseBase:
        actor = self._actor()
        bubbles = self._bubbles(actor, up_to=seq, count=1) if actor and seq <= actor.seq else []
        if not bubbles or bubbles[0].message.seq != seq:
            raise Http404(f"there is no message {seq}")
        return _page(request, "conversations/_chat_message.html", {"bubble": bubbles[0]})

    def _show(
        self, request: HttpRequest, *, error: str = "", text: str = "", id: str = ""
    ) -> HttpResponseBase:
        actor = self._actor()
        seq = actor.seq if actor else 0
        before = _number(request.GET.get("before")) or 0
        up_to = min(seq, before - 1) if before else seq
        bubbles = self._bubbles(actor, up_to) if actor else []
        first = bubbles[0].message.seq if bubbles else 0
        context = {
            "kind": self.agent.kind,
            "name": self.name,
            "escaped": escape_name(self.name),
            "live": not before,
            "can_chat": can_chat(self.agent),
            "cursor": actor.cursor if actor else 0,
            # Of what this reader sees: the newest may be for operators alone.
            "seq": bubbles[-1].message.seq if bubbles else 0,
            "bubbles": bubbles,
            "earlier": first if first > 1 else 0,
            "transcript": _transcript_url(request, actor),
            "is_operator": self.is_operator,
            "error": error,
            "text": text,
            "id": id or uuid.uuid4().hex,
        }
        return _page(request, "conversations/chat.html", context, status=400 if error else 200)

    def _actor(self) -> Actor | None:
        rows = Actor.objects.filter(kind=self.agent.kind, name=self.name)
        return rows.only("id", "kind", "name", "cursor", "seq").first()

    def _bubbles(self, actor: Actor, up_to: int, count: int = SHOWN) -> list[Bubble]:
        """The newest messages up to a number, oldest of them first."""
        rows = Message.objects.of(actor.pk, up_to).order_by("-seq")
        if not self.is_operator:
            rows = rows.exclude(role=Role.SYSTEM)  # as shown.is_private has it
        found: list[dict[str, Any]] = []
        size = 0
        for row in rows.values("pk", *COLUMNS)[:count].iterator(chunk_size=shown.SNAPSHOT_PAGE):
            size += codec.size(shown.message(row))
            if found and size > SHOWN_BYTES:
                break
            found.append(row)
        return bubbles_of(found[::-1])


def bubbles_of(rows: Sequence[Mapping[str, Any]]) -> list[Bubble]:
    """Rows of messages (``pk`` and COLUMNS), in their order, as the page shows them."""
    longest = max((len(row["content"]) for row in rows), default=0)
    return [_bubble(entry) for entry in transcripts.entries(rows, limit=longest)]


def chat_url(kind: str, name: str) -> str:
    """Where an actor's chat page is. Raises InvalidNameError."""
    return reverse("chat", kwargs={"kind": kind, "name": escape_name(name)})


def can_chat(agent: type[Agent[Any]]) -> bool:
    """Whether agents of this class hear what is said to them."""
    return agent.task_method(RECEIVE) is not None


def say(agent: type[Agent[Any]], name: str, id: str, text: str, user: Any) -> None:
    """As a client's ``say``, with the same payload and key. Raises AgentsError."""
    agent.named(name).sync.tell(RECEIVE, saying(id, text, user), key=key_of(id))


def _bubble(entry: Entry) -> Bubble:
    message = entry.message
    pictures, folds = [], []
    for block in read_parts(message.parts):
        if address := _picture(block):
            pictures.append(address)
        elif fold := transcripts.title_and_body(block):
            folds.append(fold)
    id = message.metadata.get("id")
    return Bubble(
        message=message,
        at=shown.moment(message.at),
        id=id if isinstance(id, str) else "",
        tool=entry.tool,
        interrupted=entry.interrupted,
        calls=entry.calls,
        pictures=pictures,
        folds=folds,
    )


def _picture(block: Any) -> str:
    """The address of a picture that may be shown in place; empty for anything else."""
    if not isinstance(block, Media) or block.kind != "image":
        return ""
    if block.data and block.mime in PICTURES:
        return f"data:{block.mime};base64,{block.data}"
    return block.url if is_own(block.url) or urlsplit(block.url).scheme == "https" else ""


def _with_name_escaped(request: HttpRequest, kind: str, typed: str) -> HttpResponseBase:
    """Somebody typed the name as it is: the page has one address."""
    try:
        address = chat_url(kind, check_name(typed))
    except InvalidNameError as error:
        raise Http404(str(error)) from None
    if request.method not in ("GET", "HEAD"):
        raise Http404("not an escaped name")
    return redirect(address)


def _turned_away(request: HttpRequest) -> HttpResponseBase:
    if request.user.is_authenticated:
        raise PermissionDenied
    return redirect_to_login(request.get_full_path())


def _transcript_url(request: HttpRequest, actor: Actor | None) -> str:
    if actor is None or not may(request.user, "conversations.view_message", actor.kind):
        return ""
    return reverse("admin:conversations_transcript", args=[actor.pk])


def _page(
    request: HttpRequest, template: str, context: dict[str, Any], status: int = 200
) -> HttpResponseBase:
    """A page that runs only our own scripts, and is kept by no cache: it is somebody's conversation."""
    response = render(request, template, context, status=status)
    response.headers.setdefault("Content-Security-Policy", _policy(request))
    response.headers["Cache-Control"] = "no-store"
    return response


def _policy(request: HttpRequest) -> str:
    """The page's Content-Security-Policy. Static files may lie on another host; sockets are on this one."""
    files = urlsplit(settings.STATIC_URL)
    own = f"'self' {files.scheme}://{files.netloc}" if files.netloc else "'self'"
    socket = f"{'wss' if request.is_secure() else 'ws'}://{request.get_host()}"
    return "; ".join(
        [
            "default-src 'none'",
            f"script-src {own}",
            f"style-src {own}",
            "img-src 'self' https: data:",
            f"connect-src 'self' {socket}",  # 'self' alone does not mean sockets in every browser
            "form-action 'self'",
            "base-uri 'none'",
            "frame-ancestors 'self'",
        ]
    )


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) <= 18 else None
