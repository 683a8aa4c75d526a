"""How the admin's pages show things: links, states, moments, lengths, JSON.

Everything that people or models wrote reaches a page through Django's escaping (templates, ``format_html``);
``mark_safe`` is used nowhere.
"""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

from django.db.models import Model
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.text import Truncator

from agents.models import Actor

#: Characters of a JSON value that a page shows.
JSON_SHOWN = 100_000

NONE = "—"


def url_of(obj: Model) -> str:
    """An object's page."""
    return reverse(f"admin:{obj._meta.app_label}_{obj._meta.model_name}_change", args=[obj.pk])


def list_url(model: type[Model], **filters: Any) -> str:
    """A model's list, filtered."""
    url = reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist")
    return f"{url}?{urlencode(filters)}" if filters else url


def transcript_url(actor_id: int, **query: Any) -> str:
    """The page on which an actor's conversation can be read."""
    url = reverse("admin:conversations_transcript", args=[actor_id])
    return f"{url}?{urlencode(query)}" if query else url


def link(url: str, text: Any) -> SafeString:
    return format_html('<a href="{}"><bdi>{}</bdi></a>', url, text)


def title(url: str, text: str, *more: Any) -> SafeString:
    """The first cell of a list's row: a link, and below it, quieter, what else names the row."""
    lines = format_html_join("", "<small>{}</small>", ((line,) for line in more if line))
    return format_html('<a href="{}"><b><bdi>{}</bdi></b></a>{}', url, text, lines)


def two(line: Any, below: Any) -> SafeString | str:
    """A cell of two lines, the second quieter; of one where there is no second."""
    return format_html("{}<small>{}</small>", line, below) if below else line


def actor_link(actor: Actor | None) -> SafeString | str:
    return link(url_of(actor), short(str(actor), 60)) if actor else NONE


def badge(text: str, tone: str = "") -> SafeString:
    """A state in a word. Tones: good, busy, bad, or none."""
    return format_html('<span class="agents-badge" data-tone="{}">{}</span>', tone, text)


def short(text: str, length: int = 80) -> str:
    """Text in one line, cut to ``length`` characters."""
    return Truncator(" ".join(text.split())).chars(length)


def when(moment: dt.datetime | None, *, late: bool = False) -> SafeString | str:
    """A moment as "in 3 h" or "5 min ago", exactly when pointed at. ``late``: in the past it is overdue."""
    if moment is None:
        return NONE
    away = (moment - timezone.now()).total_seconds()
    span = seconds(abs(away))
    return format_html(
        '<time datetime="{}" title="{}" data-tone="{}">{}</time>',
        moment.isoformat(),
        timezone.localtime(moment).strftime("%Y-%m-%d %H:%M:%S %Z"),
        "bad" if late and away < -60 else "",
        f"in {span}" if away > 0 else f"{span} ago",
    )


def seconds(span: float) -> str:
    """A length of time in its largest fitting unit."""
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if span >= size:
            return f"{span / size:.0f} {unit}"
    return f"{span:.0f} s" if span >= 10 else f"{span:.1f} s" if span >= 1 else f"{span * 1000:.0f} ms"


def as_json(tree: Any, limit: int = JSON_SHOWN) -> str:
    """A stored JSON tree, indented, cut to ``limit`` characters."""
    text = json.dumps(tree, indent=2, ensure_ascii=False, sort_keys=True)
    more = len(text) - limit
    return text if more <= 0 else f"{text[:limit]}\n… {more:,} more characters"
