"""The list of conversations: who said what last, who waits, what is new to its reader."""

from __future__ import annotations

import argparse
import datetime as dt
from typing import Any

from django.contrib import admin
from django.db.models import Exists, F, OuterRef, Q, QuerySet, Subquery, Value
from django.db.models.functions import Coalesce, Greatest, Left
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from agents import masking, permissions, statepath
from agents.adminkit import ActorKindFilter, TypedFilter
from agents.display import NONE, badge, link, list_url, seconds, short, title, transcript_url, two, when
from agents.exceptions import StatePathError
from conversations import terms
from conversations.admin.searching import SearchedAdmin
from conversations.models import Conversation, Message, Seen
from scheduler.models import Task, TaskStatus
from scheduler.selection import moment

#: Characters of a text in the list.
START = 160

#: What it takes to be told of them, here as in the transcript.
VIEW_STATE, VIEW_TASKS = "agents.view_turnrecord", "scheduler.view_task"

WAITS = {"any": 0, "10m": 600, "1h": 3_600, "1d": 86_400}


class WaitingFilter(admin.SimpleListFilter):
    title = "waiting for an answer"
    parameter_name = "waiting"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("any", "yes"), ("10m", "for 10 min"), ("1h", "for an hour"), ("1d", "for a day")]

    def queryset(self, request: HttpRequest, rows: QuerySet[Conversation]) -> QuerySet[Conversation]:
        if (least := WAITS.get(str(self.value()))) is None:
            return rows
        before = timezone.now() - dt.timedelta(seconds=least)
        return rows.filter(asked_seq__gt=F("answered_seq"), asked_at__lte=before)


class NewFilter(admin.SimpleListFilter):
    title = "read"
    parameter_name = "new"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("yes", "new to you")]

    def queryset(self, request: HttpRequest, rows: QuerySet[Conversation]) -> QuerySet[Conversation]:
        if self.value() != "yes":
            return rows
        seen = Seen.objects.by(request.user).filter(actor_id=OuterRef("pk"))
        return rows.exclude(Exists(seen.filter(seq__gte=OuterRef("actor__seq"))))


class TroubleFilter(admin.SimpleListFilter):
    title = "tasks"
    parameter_name = "tasks"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("parked", "has parked ones"), ("due", "has due ones")]

    def queryset(self, request: HttpRequest, rows: QuerySet[Conversation]) -> QuerySet[Conversation]:
        match self.value():
            case "parked":
                return rows.filter(Exists(Task.objects.parked().filter(actor_id=OuterRef("pk"))))
            case "due":
                return rows.filter(actor__alarm__lte=timezone.now())
        return rows


class StateFilter(TypedFilter):
    title = "state"
    parameter_name = "state"
    placeholder = '$.status = "open"'

    def narrowed(self, rows: QuerySet[Conversation], text: str) -> QuerySet[Conversation]:
        try:
            condition = statepath.parse(text)
        except StatePathError as error:
            raise ValueError(str(error)) from error
        # A question about what is masked would tell it.
        whole = condition.operator == "has" or isinstance(condition.value, dict | list)
        hidden = masking.hiding(condition.path, whole=whole)
        return condition.of(rows.exclude(actor__kind__in=hidden), "actor__state")


class SinceFilter(TypedFilter):
    title = "said since"
    parameter_name = "since"
    placeholder = "2h, or 2026-11-30 12:00"

    def narrowed(self, rows: QuerySet[Conversation], text: str) -> QuerySet[Conversation]:
        try:
            return rows.filter(last_at__gte=moment(text))
        except (argparse.ArgumentTypeError, OverflowError) as error:
            raise ValueError(str(error)) from error


@admin.register(Conversation)
class ConversationAdmin(SearchedAdmin):
    list_display = ["conversation", "said", "waits", "new", "state_"]
    list_filter = [WaitingFilter, NewFilter, TroubleFilter, StateFilter, SinceFilter, ActorKindFilter]
    list_select_related = ["actor"]
    search_fields = ["actor__name"]
    search_help_text = 'A part of a name, or words that were said; "a phrase", -without, or'
    deferred = ("actor__state",)
    ordering = ("-last_at", "-actor")

    def get_list_filter(self, request: HttpRequest) -> Any:
        """A filter tells what it asks for: only to those whom the transcript would show it."""
        asks = {StateFilter: VIEW_STATE, TroubleFilter: VIEW_TASKS}
        return [
            one for one in self.list_filter if one not in asks or permissions.may(request.user, asks[one])
        ]

    def get_ordering(self, request: HttpRequest) -> Any:
        # Who waits longest is first.
        return ("asked_at", "actor") if request.GET.get("waiting") in WAITS else super().get_ordering(request)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        # The list shows what messages say; the page of one is the transcript.
        return permissions.may(request.user, "conversations.view_message")

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        return redirect("admin:conversations_transcript", object_id)

    def rows_of_list(self, request: HttpRequest, rows: QuerySet[Conversation]) -> QuerySet[Conversation]:
        sees_tasks = permissions.may(request.user, VIEW_TASKS)
        parked = Exists(Task.objects.parked().filter(actor_id=OuterRef("pk"))) if sees_tasks else Value(False)
        last = Message.objects.filter(
            actor_id=OuterRef("pk"), seq=Greatest(OuterRef("asked_seq"), OuterRef("answered_seq"))
        )
        seen = Seen.objects.by(request.user).filter(actor_id=OuterRef("pk"))
        return rows.annotate(
            seen_seq=Coalesce(Subquery(seen.values("seq")), 0),
            start=Subquery(last.annotate(start=Left("content", Value(START))).values("start")),
            is_parked=parked,
        )

    def get_search_results(
        self, request: HttpRequest, rows: QuerySet[Conversation], text: str
    ) -> tuple[QuerySet[Conversation], bool]:
        if not text.strip():
            return rows, False
        mine = permissions.visible(request.user, Message.objects.all(), "actor__kind")
        said = Message.objects.filter(pk__in=self.found(request, mine, text))
        wanted = Q(pk__in=set(said.values_list("actor_id", flat=True)))
        if not terms.goes_on(text):  # their names were found where it began
            wanted |= Q(actor__name__icontains=text.strip())
        return rows.filter(wanted), False

    @admin.display(description="conversation")
    def conversation(self, obj: Conversation) -> SafeString:
        return title(transcript_url(obj.pk), short(obj.actor.name, 60), obj.actor.kind)

    @admin.display(description="last text")
    def said(self, obj: Any) -> SafeString | str:
        by_agent = obj.answered_seq > obj.asked_seq
        who = ("assistant" if by_agent else "user") if obj.said_seq else ""
        text = short(obj.start or "", START - 20) or ("(no words)" if obj.said_seq else "")
        words = format_html('<span dir="auto">{}</span>', text) if text else NONE
        return two(
            words,
            format_html('<span class="agents-role" data-role="{}">{}</span> {}', who, who, when(obj.last_at)),
        )

    @admin.display(description="waits")
    def waits(self, obj: Conversation) -> SafeString | str:
        if not obj.waits or obj.asked_at is None:
            return NONE
        since = max(0.0, (timezone.now() - obj.asked_at).total_seconds())
        return badge(seconds(since), "bad" if since >= WAITS["10m"] else "busy")

    @admin.display(description="new")
    def new(self, obj: Any) -> SafeString | str:
        count = obj.actor.seq - obj.seen_seq
        return badge("99+" if count > 99 else str(count), "new") if count > 0 else NONE

    @admin.display(description="now")
    def state_(self, obj: Any) -> SafeString | str:
        now, actor = timezone.now(), obj.actor
        if obj.is_parked:
            return link(list_url(Task, actor=obj.pk, status=TaskStatus.PARKED.value), badge("parked", "bad"))
        if actor.token is not None:
            dead = actor.lease_expires_at is None or actor.lease_expires_at <= now
            return badge("lost", "bad") if dead else badge("running", "busy")
        return when(actor.alarm, late=True)
