"""The admin's site: Django's, with a front page that says what is stuck and what the day was like."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

from django.contrib.admin import AdminSite
from django.contrib.admin.apps import AdminConfig
from django.http import HttpRequest
from django.template.response import TemplateResponse
from django.utils import timezone

if TYPE_CHECKING:
    from scheduler.models import HourTally
    from scheduler.plots import Plot

DAY, WEEK = 24, 7 * 24  # hours
#: Counting the hours of a very busy site is given up after this; its plots come without them.
PATIENCE = 1.0  # seconds a statement


class DeskConfig(AdminConfig):
    default_site = "agentsite.desk.Desk"


class Desk(AdminSite):
    index_template = "admin/desk.html"
    index_title = "What needs somebody"

    def index(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> TemplateResponse:
        return super().index(request, {**(extra_context or {}), **front_page(request)})


def front_page(request: HttpRequest) -> dict[str, Any]:
    """What the front page shows its reader; nothing to whoever is no operator of any kind."""
    # The admin's app is loaded before those that have models.
    from agents import permissions
    from agents.adminkit import TookTooLongError, patience
    from scheduler import overview, tally

    user = request.user
    if not permissions.is_operator(user):
        return {}
    span = WEEK if request.GET.get("span") == "week" else DAY
    now = timezone.now()
    try:
        with patience(PATIENCE):
            hours = tally.hours(span, now)
    except TookTooLongError:
        hours = tally.kept(span, now)
    mine = {kind: permissions.is_operator(user, kind) for kind in {one.kind for one in hours.tallies}}
    tallies = [one for one in hours.tallies if mine[one.kind]]
    stuck = list(overview.stuck(user, [one for one in tallies if one.hour > now - dt.timedelta(hours=DAY)]))
    return {
        "desk": True,
        "stuck": [thing for thing in stuck if thing.count],
        "fine": [thing for thing in stuck if not thing.count],
        "signs": overview.signs(),
        "plots": plots(tallies, span, now),
        "uncounted": len(hours.uncounted),
        "span": "week" if span == WEEK else "day",
    }


def plots(tallies: list[HourTally], span: int, now: dt.datetime) -> list[Plot]:
    """Texts, turns, lateness and failures of each of the last ``span`` hours."""
    from scheduler.models import HourTally
    from scheduler.plots import Plot, Series
    from scheduler.tally import HOUR, by_hour

    sums, this = by_hour(tallies), now.replace(minute=0, second=0, microsecond=0)
    moments = [this - HOUR * n for n in reversed(range(span))]
    rows = [sums.get(moment) or HourTally() for moment in moments]
    form, every = ("%a %H:%M", 24) if span > DAY else ("%H:%M", 4)
    labels = [timezone.localtime(moment).strftime(form) for moment in moments]

    def series(name: str, column: str, tone: str) -> Series:
        return Series(name, [getattr(row, column) for row in rows], tone)

    texts = [series("in", "texts_in", "user"), series("out", "texts_out", "assistant")]
    failures = [series("attempts", "failures", "bad"), series("texts", "texts_failed", "busy")]
    return [
        Plot("Texts", labels, texts, every=every),
        Plot("Turns", labels, [series("turns", "turns", "assistant")], every=every),
        Plot("Lateness of tasks", labels, [series("mean", "late_seconds", "user")], " s", every=every),
        Plot("Failures", labels, failures, every=every),
    ]
