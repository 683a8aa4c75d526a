"""The pages of replay jobs: choose, see what would run, say why, watch, stop, go on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.models import ADDITION, CHANGE
from django.contrib.admin.widgets import AdminSplitDateTime
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils.safestring import SafeString

from agents import kinds, permissions
from agents.adminkit import Panel, Tool, code
from agents.display import actor_link, as_json, badge, short, title, two, url_of, when
from agents.exceptions import AgentsError
from scheduler import replays
from scheduler.admin.operated import OperatedAdmin
from scheduler.models import ReplayChange, ReplayItemStatus, ReplayJob, ReplaySource, ReplayStatus, Task

#: Tasks that a page shows.
SHOWN = 20
TONES = {ReplayStatus.RUNNING: "busy", ReplayStatus.STOPPED: "bad", ReplayStatus.DONE: "good"}


class ReplayForm(forms.Form):
    """What to replay, as what, how fast, and why."""

    source = forms.ChoiceField(choices=ReplaySource.choices, label="What")
    numbers = forms.RegexField(
        r"^\s*\d{1,18}(\s*,\s*\d{1,18})*\s*$",
        required=False,
        help_text="Of tasks (of attempts, where finished ones are replayed), separated by commas.",
    )
    kind = forms.ChoiceField(required=False)
    name = forms.CharField(required=False, max_length=255, help_text="The actor's, exactly.")
    method = forms.CharField(required=False, max_length=128)
    task_id = forms.CharField(required=False, max_length=255, label="Task's own id")
    error = forms.CharField(required=False, max_length=500, help_text="Words of the error.")
    since = forms.SplitDateTimeField(required=False, widget=AdminSplitDateTime())
    until = forms.SplitDateTimeField(required=False, widget=AdminSplitDateTime())
    change = forms.ChoiceField(choices=ReplayChange.choices, label="Payload", required=False)
    payload = forms.JSONField(required=False, widget=forms.Textarea(attrs={"rows": 4, "cols": 60}))
    per_minute = forms.IntegerField(required=False, min_value=1, help_text="Tasks a minute; empty: no limit.")
    reason = forms.CharField(
        required=False, max_length=2000, widget=forms.Textarea(attrs={"rows": 2, "cols": 60})
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        choices = [("", "any"), *((kind, kind) for kind in kinds.installed())]
        self.fields["kind"].choices = choices  # type: ignore[attr-defined]

    @property
    def selection(self) -> replays.Selection:
        names = ("source", "kind", "name", "method", "task_id", "error", "since", "until")
        numbers = [int(number) for number in self.cleaned_data["numbers"].split(",") if number.strip()]
        return replays.Selection(numbers=numbers, **{name: self.cleaned_data[name] for name in names})

    @property
    def payload_change(self) -> replays.Change:
        how = self.cleaned_data["change"] or ReplayChange.NONE
        payload = self.cleaned_data["payload"] if how != ReplayChange.NONE else None
        # A form's text that was JSON is of a type of its own.
        return replays.Change(how, str(payload) if isinstance(payload, str) else payload)


def _initial(request: HttpRequest) -> dict[str, Any]:
    """What the address asks for; of one task its payload, to be changed."""
    initial: dict[str, Any] = request.GET.dict()
    number = initial.get("numbers", "")
    if number.isascii() and number.isdigit() and len(number) <= 18:
        tasks = permissions.visible(request.user, Task.objects.parked(), "actor__kind")
        if (task := tasks.filter(pk=number).first()) is not None:
            initial |= {"change": ReplayChange.REPLACE, "payload": task.payload}
    return initial


@admin.register(ReplayJob)
class ReplayJobAdmin(OperatedAdmin):
    """To add one: ``scheduler.add_replayjob``; to stop or resume one: ``scheduler.change_replayjob``."""

    kind_field = None
    list_display = ["job", "status_", "progress", "by_"]
    fieldsets: ClassVar[Any] = [
        (
            None,
            {
                "fields": [
                    ("status_", "progress"),
                    ("by", "created_at", "ended_at"),
                    "reason",
                    ("source", "change", "per_minute"),
                ]
            },
        )
    ]

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        # A job may be about every kind.
        return permissions.may(request.user, "scheduler.view_replayjob") and request.user.has_perm(
            permissions.EVERY_KIND
        )

    def has_add_permission(self, request: HttpRequest) -> bool:
        return permissions.may(request.user, "scheduler.add_replayjob")

    def has_operate_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return permissions.may(request.user, "scheduler.change_replayjob")

    def add_view(self, request: HttpRequest, form_url: str = "", extra_context: Any = None) -> HttpResponse:
        """Chooses; shows what would run; begins."""
        if not self.has_add_permission(request):
            raise PermissionDenied
        form = ReplayForm(request.POST or None, initial=_initial(request))
        shown: list[replays.Preview] = []
        count, asked = 0, request.method == "POST" and form.is_valid()
        if asked:
            rows = permissions.visible(request.user, form.selection.rows(), "actor__kind")
            count = rows.order_by()[: replays.MOST + 1].count()
            try:
                shown = list(replays.preview(rows, form.payload_change, SHOWN))
                if "begin" in request.POST:
                    if not form.cleaned_data["reason"].strip():
                        form.add_error("reason", "Say why.")
                    else:
                        return self._begin(request, form, rows)
            except AgentsError as error:
                form.add_error(None, f"{error} ({error.code})")
        context = {
            **self.admin_site.each_context(request),
            "title": "Replay tasks",
            "opts": self.opts,
            "form": form,
            "asked": asked and not form.errors.get("__all__"),
            "count": count,
            "shown": [
                {
                    "actor": actor_link(one.row.actor),
                    "method": one.row.method,
                    "payload": as_json(one.payload, 2_000),
                    "error": one.error,
                }
                for one in shown
            ],
            "media": self.media + form.media,
        }
        request.current_app = self.admin_site.name
        return TemplateResponse(request, "scheduler/replay_add.html", context)

    def _begin(self, request: HttpRequest, form: ReplayForm, rows: QuerySet[Any]) -> HttpResponse:
        job = replays.start(
            form.selection,
            by=request.user.get_username(),
            reason=form.cleaned_data["reason"],
            change=form.payload_change,
            per_minute=form.cleaned_data["per_minute"],
            rows=rows,
        )
        self.note(request, [job], ADDITION, "Began")
        messages.success(request, f"Began: {job.total} tasks.")
        if self.has_view_permission(request):
            return HttpResponseRedirect(url_of(job))
        return HttpResponseRedirect(request.path)

    def operate(self, request: HttpRequest, obj: ReplayJob, verb: str) -> HttpResponse:
        by = request.user.get_username()
        if verb == "stop" and replays.stop(obj, by=by):
            self.note(request, [obj], CHANGE, "Stopped")
        elif verb == "resume" and replays.resume(obj, by=by):
            self.note(request, [obj], CHANGE, "Resumed")
        else:
            messages.warning(request, f"The job is {obj.status}.")
        return HttpResponseRedirect(url_of(obj))

    def tools(self, request: HttpRequest, obj: ReplayJob) -> Iterable[Tool]:
        if self.has_operate_permission(request):
            if obj.status == ReplayStatus.RUNNING:
                yield Tool("Stop", self.operate_url(obj), "stop")
            elif obj.status == ReplayStatus.STOPPED:
                yield Tool("Go on", self.operate_url(obj), "resume")

    def panels(self, request: HttpRequest, obj: ReplayJob) -> Iterable[Panel]:
        refused = obj.items.filter(status=ReplayItemStatus.REFUSED).select_related("actor").order_by("pk")
        lines = [f"{item.actor} {item.number}: {item.error}" for item in refused[:SHOWN]]
        if lines:
            yield code("Refused", "\n".join(lines))
        yield code("Chosen", as_json(obj.chosen))
        if obj.change != ReplayChange.NONE:
            yield code("Payload", as_json(obj.payload))

    @admin.display(description="job")
    def job(self, obj: ReplayJob) -> SafeString:
        return title(url_of(obj), str(obj), short(obj.reason, 80))

    @admin.display(description="status")
    def status_(self, obj: ReplayJob) -> SafeString:
        return badge(obj.status, TONES[ReplayStatus(obj.status)])

    @admin.display(description="progress")
    def progress(self, obj: ReplayJob) -> SafeString | str:
        return two(f"{obj.done} replayed, {obj.refused} not", f"{obj.left} left of {obj.total}")

    @admin.display(description="by")
    def by_(self, obj: ReplayJob) -> SafeString | str:
        return two(obj.by, when(obj.created_at))
