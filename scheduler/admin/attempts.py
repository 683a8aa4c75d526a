"""The pages of attempts: what ran, how it ended, and running it once more."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.safestring import SafeString

from agents.adminkit import ActorFilter, ActorKindFilter, Panel, Tool, by, code
from agents.display import (
    NONE,
    actor_link,
    as_json,
    link,
    short,
    title,
    two,
    url_of,
    when,
)
from agents.exceptions import AgentsError
from scheduler import verbs
from scheduler.admin.operated import MethodFilter, OperatedAdmin
from scheduler.display import (
    error_line,
    id_line,
    outcome_badge,
    took,
)
from scheduler.models import Attempt, AttemptOutcome, Lane, Task

#: Attempts that one action takes.
MOST = 500


@admin.register(Attempt)
class AttemptAdmin(OperatedAdmin):
    list_display = ["attempt", "outcome_", "started_", "error_"]
    list_filter = [
        ActorFilter,
        by("outcome", AttemptOutcome),
        ActorKindFilter,
        MethodFilter,
        by("lane", Lane),
    ]
    list_select_related = ["actor"]
    search_fields = ["=task_id", "actor__name"]
    search_help_text = "A task's own id, or a part of the actor's name"
    deferred = ("payload", "traceback")
    actions: Any = ["replay"]
    fieldsets: ClassVar[Any] = [
        (
            None,
            {
                "fields": [
                    "actor_",
                    ("method", "task_"),
                    ("outcome_", "lane"),
                    ("started", "took"),
                    "whole_error",
                    "turn_id",
                ]
            },
        ),
    ]

    @admin.action(description="Replay: run again what these attempts ran", permissions=["operate"])
    def replay(self, request: HttpRequest, queryset: QuerySet[Attempt]) -> None:
        done = []
        for attempt in queryset.order_by("pk")[:MOST]:
            try:
                verbs.replay_attempt(attempt)
            except AgentsError as error:
                messages.warning(request, f"{short(str(attempt), 80)}: {error}")
            else:
                done.append(attempt)
        if done:
            self.note(request, done, CHANGE, "Replayed")
            messages.success(request, f"Replayed: {len(done)}, each as a new task that is due now.")
        if len(done) >= MOST:
            messages.warning(request, f"An action takes {MOST} attempts at most.")

    def operate(self, request: HttpRequest, obj: Attempt, verb: str) -> HttpResponse:
        if verb == "replay":
            self.replay(request, Attempt.objects.filter(pk=obj.pk))
        else:
            messages.error(request, "There is no such verb.")
        return HttpResponseRedirect(url_of(obj))

    def tools(self, request: HttpRequest, obj: Attempt) -> Iterable[Tool]:
        if self.has_operate_permission(request) and obj.outcome != AttemptOutcome.RUNNING:
            yield Tool("Replay", self.operate_url(obj), "replay")

    def panels(self, request: HttpRequest, obj: Attempt) -> Iterable[Panel]:
        if obj.traceback:
            yield code("Traceback", obj.traceback)
        yield code("Payload", as_json(obj.payload))

    @admin.display(description="attempt")
    def attempt(self, obj: Attempt) -> SafeString:
        return title(url_of(obj), obj.method, id_line(obj), actor_link(obj.actor))

    @admin.display(description="actor")
    def actor_(self, obj: Attempt) -> SafeString | str:
        return actor_link(obj.actor)

    @admin.display(description="task")
    def task_(self, obj: Attempt) -> SafeString | str:
        task = Task.objects.filter(pk=obj.task_pk, actor_id=obj.actor_id).only("pk").first()
        return link(url_of(task), obj.task_id) if task else f"{obj.task_id} (gone)"

    @admin.display(description="outcome")
    def outcome_(self, obj: Attempt) -> SafeString | str:
        return two(outcome_badge(obj), f"delivery {obj.number}")

    @admin.display(description="started")
    def started_(self, obj: Attempt) -> SafeString | str:
        return two(when(obj.started_at), f"took {took(obj)}" if obj.ended_at else "")

    @admin.display(description="started")
    def started(self, obj: Attempt) -> SafeString | str:
        return when(obj.started_at)

    @admin.display(description="took")
    def took(self, obj: Attempt) -> str:
        return took(obj)

    @admin.display(description="error")
    def error_(self, obj: Attempt) -> SafeString | str:
        return error_line(obj)

    @admin.display(description="error")
    def whole_error(self, obj: Attempt) -> str:
        return obj.error or NONE
