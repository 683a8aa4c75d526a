"""The pages of tasks: due, waiting, parked; replay, run now, cancel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar

from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, DELETION
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.safestring import SafeString

from agents import permissions
from agents.adminkit import ActorFilter, ActorKindFilter, Panel, Tool, by, code
from agents.display import (
    NONE,
    actor_link,
    as_json,
    short,
    title,
    transcript_url,
    two,
    url_of,
    when,
)
from scheduler import verbs
from scheduler.admin.operated import MethodFilter, OperatedAdmin
from scheduler.display import (
    attempted,
    described,
    error_line,
    id_line,
    recurrence,
    status_badge,
)
from scheduler.models import Attempt, Lane, Step, Task, TaskStatus

#: Attempts on a task's page, tasks on the page that asks.
SHOWN = 20
#: Tasks that a message names.
NAMED = 5
#: Tasks that one action takes at a time, and at all.
BATCH, MOST = 500, 10_000

# What was done, for people: the verb, the same done, and whether it leaves the row.
SAID = {
    "replay": ("Replay", "Replayed", CHANGE),
    "run_now": ("Run now", "Made due now", CHANGE),
    "cancel": ("Cancel", "Cancelled", DELETION),
}


class DueFilter(admin.SimpleListFilter):
    title = "when"
    parameter_name = "due"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("now", "due now"), ("retry", "waits for a retry"), ("recurring", "recurs")]

    def queryset(self, request: HttpRequest, rows: QuerySet[Task]) -> QuerySet[Task]:
        pending = rows.filter(status=TaskStatus.PENDING)
        match self.value():
            case "now":
                return pending.filter(due_at__lte=timezone.now())
            case "retry":
                return pending.filter(attempts__gt=0)
            case "recurring":
                return rows.exclude(cron="", every_seconds=None)
        return rows


@admin.register(Task)
class TaskAdmin(OperatedAdmin):
    list_display = ["task", "status_", "due_", "error_"]
    list_filter = [
        ActorFilter,
        by("status", TaskStatus),
        DueFilter,
        ActorKindFilter,
        MethodFilter,
        by("lane", Lane),
    ]
    list_select_related = ["actor"]
    search_fields = ["=task_id", "actor__name"]
    search_help_text = "A task's own id, or a part of the actor's name"
    deferred = ("payload",)
    actions: Any = ["replay", "run_now", "cancel"]
    fieldsets: ClassVar[Any] = [
        (
            None,
            {
                "fields": [
                    "actor_",
                    ("method", "task_id"),
                    ("status_", "lane"),
                    ("due", "repeats"),
                    ("created", "parked"),
                    "whole_error",
                    "steps",
                ]
            },
        ),
    ]

    # Verbs

    @admin.action(description="Replay parked tasks", permissions=["operate"])
    def replay(self, request: HttpRequest, queryset: QuerySet[Task]) -> None:
        self._many(request, queryset, "replay", verbs.replay_all)

    @admin.action(description="Run pending tasks now", permissions=["operate"])
    def run_now(self, request: HttpRequest, queryset: QuerySet[Task]) -> None:
        self._many(request, queryset, "run_now", verbs.run_all_now)

    @admin.action(description="Cancel tasks", permissions=["operate"])
    def cancel(self, request: HttpRequest, queryset: QuerySet[Task]) -> HttpResponse | None:
        if "confirmed" not in request.POST:
            return self._confirm(request, queryset.select_related("actor").defer("payload"))
        self._many(request, queryset, "cancel", verbs.cancel_all)
        return None

    def operate(self, request: HttpRequest, obj: Task, verb: str) -> HttpResponse:
        one = Task.objects.filter(pk=obj.pk)
        if verb == "replay":
            self.replay(request, one)
        elif verb == "run_now":
            self.run_now(request, one)
        elif verb == "cancel":
            if (answer := self.cancel(request, one)) is not None:
                return answer
        else:
            messages.error(request, "There is no such verb.")
        gone = not one.exists()
        return HttpResponseRedirect(reverse("admin:scheduler_task_changelist") if gone else url_of(obj))

    def _many(
        self,
        request: HttpRequest,
        queryset: QuerySet[Task],
        verb: str,
        run: Callable[[Iterable[Task]], verbs.Outcome],
    ) -> None:
        _, done_word, flag = SAID[verb]
        done, refused = 0, []
        for batch in _batches(queryset):
            outcome = run(batch)
            self.note(request, outcome.done, flag, done_word)
            done += len(outcome.done)
            refused += outcome.refused
        if done:
            messages.success(request, f"{done_word}: {done} {'task' if done == 1 else 'tasks'}.")
        reasons: dict[str, list[str]] = {}
        for task, error in refused:
            reasons.setdefault(str(error), []).append(f"{short(task.method, 40)} ({short(task.task_id, 40)})")
        for reason, names in reasons.items():
            more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
            messages.warning(request, f"Left as before: {', '.join(names[:NAMED])}{more}. {reason}")
        if done + len(refused) >= MOST:
            messages.warning(request, f"An action takes {MOST:,} tasks at most: repeat it for the rest.")

    def _confirm(self, request: HttpRequest, queryset: QuerySet[Task]) -> HttpResponse:
        shown = list(queryset[: SHOWN + 1])
        context = {
            **self.admin_site.each_context(request),
            "title": "Cancel tasks",
            "opts": self.opts,
            "tasks": [described(task, actor=True) for task in shown[:SHOWN]],
            "more": len(shown) > SHOWN,
            "selected": request.POST.getlist("_selected_action"),
            "across": request.POST.get("select_across", "0"),
            "media": self.media,
        }
        request.current_app = self.admin_site.name
        return TemplateResponse(request, "scheduler/task_cancel.html", context)

    # The page of one

    def tools(self, request: HttpRequest, obj: Task) -> Iterable[Tool]:
        if self.has_operate_permission(request):
            offered = ["replay", "cancel"] if obj.status == TaskStatus.PARKED else ["run_now", "cancel"]
            for verb in offered:
                yield Tool(SAID[verb][0], self.operate_url(obj), verb)
        if obj.status == TaskStatus.PARKED and permissions.may(
            request.user, "scheduler.add_replayjob", obj.actor.kind
        ):
            add = reverse("admin:scheduler_replayjob_add")
            yield Tool("Replay with another payload", f"{add}?numbers={obj.pk}")
        if request.user.has_perm("conversations.view_message"):
            yield Tool("Transcript", transcript_url(obj.actor_id))

    def panels(self, request: HttpRequest, obj: Task) -> Iterable[Panel]:
        yield code("Payload", as_json(obj.payload))
        if not request.user.has_perm("scheduler.view_attempt"):
            return
        attempts = Attempt.objects.filter(actor_id=obj.actor_id, task_pk=obj.pk).defer("payload")
        context = {"attempts": [attempted(attempt) for attempt in attempts.order_by("-pk")[:SHOWN]]}
        yield Panel("Latest attempts", "scheduler/_attempts.html", context)

    # Columns and fields

    @admin.display(description="task")
    def task(self, obj: Task) -> SafeString:
        return title(url_of(obj), obj.method, id_line(obj), actor_link(obj.actor))

    @admin.display(description="actor")
    def actor_(self, obj: Task) -> SafeString | str:
        return actor_link(obj.actor)

    @admin.display(description="status")
    def status_(self, obj: Task) -> SafeString | str:
        tried = f"{obj.attempts} of {obj.max_retries + 1} attempts" if obj.attempts else ""
        return two(status_badge(obj), tried)

    @admin.display(description="due")
    def due_(self, obj: Task) -> SafeString | str:
        return two(self.due(obj), recurrence(obj))

    @admin.display(description="due")
    def due(self, obj: Task) -> SafeString | str:
        return when(obj.due_at, late=True) if obj.status == TaskStatus.PENDING else NONE

    @admin.display(description="repeats")
    def repeats(self, obj: Task) -> str:
        return recurrence(obj) or NONE

    @admin.display(description="last error")
    def error_(self, obj: Task) -> SafeString | str:
        return error_line(obj)

    @admin.display(description="last error")
    def whole_error(self, obj: Task) -> str:
        return obj.error or NONE

    @admin.display(description="created")
    def created(self, obj: Task) -> SafeString | str:
        return when(obj.created_at)

    @admin.display(description="parked")
    def parked(self, obj: Task) -> SafeString | str:
        return when(obj.parked_at)

    @admin.display(description="saved steps")
    def steps(self, obj: Task) -> str:
        names = Step.objects.filter(actor_id=obj.actor_id, task_pk=obj.pk).order_by("pk")
        return ", ".join(names.values_list("name", flat=True)[:SHOWN]) or NONE


def _batches(queryset: QuerySet[Task]) -> Iterator[list[Task]]:
    """The tasks in batches, at most MOST of them, whatever a verb changes of the rows meanwhile."""
    pks = list(queryset.order_by("pk").values_list("pk", flat=True)[:MOST])
    for start in range(0, len(pks), BATCH):
        yield list(Task.objects.filter(pk__in=pks[start : start + BATCH]).defer("payload"))
