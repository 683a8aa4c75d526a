"""The operator's window on actors: which are stuck, what they hold, what their turns did.

As ``agents.agent`` puts the parts of a turn together, the page of an actor puts together what the other apps
keep of it: tasks, and the way to its transcript.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, ClassVar

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.db.models import Count, Exists, OuterRef, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern
from django.utils import timezone
from django.utils.safestring import SafeString

from agents import erasing, kinds, moving, pages, pauses, permissions
from agents.adminkit import ActorFilter, ActorKindFilter, KindFilter, Panel, ReadOnlyAdmin, Tool, by, code
from agents.display import (
    NONE,
    actor_link,
    as_json,
    badge,
    link,
    list_url,
    seconds,
    short,
    title,
    transcript_url,
    two,
    url_of,
    when,
)
from agents.masking import masked, sensitive_keys
from agents.models import Actor, Blob, Erasure, Operation, Pause, TurnRecord
from agents.models.turn import Outcome
from agents.sql.panels import kept_panels
from scheduler import forks
from scheduler.display import described
from scheduler.models import Attempt, Task, TaskStatus

#: Rows of each panel on an actor's page.
SHOWN = 20
#: Actors that one action takes.
MOST = 500

TONES = {
    Outcome.DONE: "good",
    Outcome.CHECKPOINT: "busy",
    Outcome.FAILED: "bad",
    Outcome.LOST: "bad",
}


class StuckFilter(admin.SimpleListFilter):
    title = "what is stuck"
    parameter_name = "stuck"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [
            ("running", "running now"),
            ("lost", "its process died"),
            ("due", "has due tasks"),
            ("parked", "has parked tasks"),
        ]

    def queryset(self, request: HttpRequest, rows: QuerySet[Actor]) -> QuerySet[Actor]:
        now = timezone.now()
        match self.value():
            case "running":
                return rows.filter(token__isnull=False, lease_expires_at__gt=now)
            case "lost":
                return rows.filter(token__isnull=False, lease_expires_at__lte=now)
            case "due":
                return rows.filter(alarm__lte=now)
            case "parked":
                return rows.filter(Exists(Task.objects.parked().filter(actor_id=OuterRef("pk"))))
        return rows


def _count(status: TaskStatus) -> Coalesce:
    tasks = Task.objects.filter(actor_id=OuterRef("pk"), status=status).order_by()
    return Coalesce(Subquery(tasks.values("actor_id").annotate(n=Count("pk")).values("n")), 0)


@admin.register(Actor)
class ActorAdmin(ReadOnlyAdmin):
    list_display = ["actor", "now", "messages", "pending", "parked", "alarm_", "version"]
    list_filter = [KindFilter, StuckFilter]
    search_fields = ["name"]
    search_help_text = "A part of the name, such as a phone number"
    deferred = ("state",)
    kind_field = "kind"
    fieldsets: ClassVar[Any] = [
        (
            None,
            {
                "fields": [
                    ("kind", "name"),
                    ("now", "alarm_"),
                    ("messages", "events", "version"),
                    "created",
                ]
            },
        )
    ]
    lease: ClassVar[Any] = (
        "Lease",
        {"fields": ["turn_id", ("turn_started_at", "lease_expires_at"), ("stop_turn_id", "waits_for")]},
    )

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        fieldsets = [*super().get_fieldsets(request, obj)]
        return [*fieldsets, self.lease] if obj is not None and obj.token is not None else fieldsets

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return permissions.is_operator(request.user)

    actions: Any = ["pause", "resume"]

    def get_urls(self) -> list[URLPattern]:
        return [*pages.urls(self), *super().get_urls()]

    def has_pause_permission(self, request: HttpRequest) -> bool:
        return bool(request.user.has_perm("agents.pause_actor"))

    @admin.action(description="Pause actors", permissions=["pause"])
    def pause(self, request: HttpRequest, queryset: QuerySet[Actor]) -> None:
        self._each(request, queryset, pauses.pause, "Paused")

    @admin.action(description="Let paused actors go on", permissions=["pause"])
    def resume(self, request: HttpRequest, queryset: QuerySet[Actor]) -> None:
        self._each(request, queryset, pauses.resume, "Goes on")

    def _each(
        self, request: HttpRequest, queryset: QuerySet[Actor], verb: Callable[..., bool], said: str
    ) -> None:
        done = [
            actor
            for actor in queryset.only("kind", "name").order_by("pk")[:MOST]
            if verb(actor.kind, actor.name, by=request.user.get_username())
        ]
        if done:
            LogEntry.objects.log_actions(request.user.pk, done, CHANGE, said)  # type: ignore[arg-type]
        messages.info(request, f"{said}: {len(done)} of the chosen actors.")

    def rows_of_list(self, request: HttpRequest, rows: QuerySet[Actor]) -> QuerySet[Actor]:
        return rows.annotate(
            n_pending=_count(TaskStatus.PENDING),
            n_parked=_count(TaskStatus.PARKED),
        )

    def tools(self, request: HttpRequest, obj: Actor) -> Iterable[Tool]:
        if request.user.has_perm("conversations.view_message"):
            yield Tool("Transcript", transcript_url(obj.pk))
        if request.user.has_perm("scheduler.view_task"):
            yield Tool("Tasks", list_url(Task, actor=obj.pk))
        if request.user.has_perm("scheduler.view_attempt"):
            yield Tool("Attempts", list_url(Attempt, actor=obj.pk))
        if request.user.has_perm("agents.view_turnrecord"):
            yield Tool("Turns", list_url(TurnRecord, actor=obj.pk))
        for verb in pages.VERBS.values():
            if verb.offered(obj) and permissions.may(request.user, verb.permission, obj.kind):
                yield Tool(verb.label, pages.url(obj, verb.name))

    def panels(self, request: HttpRequest, obj: Actor) -> Iterable[Panel]:
        untouched = "Nothing was written yet: initial_state answers."
        yield code("State", untouched if obj.state is None else as_json(masked(obj.kind, obj.state)))
        if request.user.has_perm("scheduler.view_task"):
            # Parked ones first: they need somebody.
            tasks = Task.objects.filter(actor_id=obj.pk).defer("payload").order_by("status", "due_at")
            context = {"tasks": [described(task) for task in tasks[:SHOWN]]}
            yield Panel("Tasks", "scheduler/_tasks.html", context)
        if request.user.has_perm("agents.view_turnrecord"):
            turns = TurnRecord.objects.filter(actor_id=obj.pk).order_by("-version")[:SHOWN]
            yield Panel(
                "Latest turns", "agents/_turns.html", {"turns": [_turn(turn, obj.kind) for turn in turns]}
            )
        if request.user.has_perm("agents.view_blob") and (
            blobs := list(Blob.objects.filter(actor_id=obj.pk).order_by("key")[:SHOWN])
        ):
            yield Panel("Files", "agents/_blobs.html", {"blobs": blobs})
        yield from kept_panels(request, obj)

    @admin.display(description="actor")
    def actor(self, obj: Actor) -> SafeString:
        return title(url_of(obj), short(obj.name, 60), obj.kind)

    @admin.display(description="now")
    def now(self, obj: Actor) -> SafeString | str:
        if obj.token is None:
            held = "taken over" if obj.taken_at else "paused" if obj.paused_at else ""
            return two(badge(held, "busy"), when(obj.taken_at or obj.paused_at)) if held else "idle"
        at = timezone.now()
        if obj.lease_expires_at is None or obj.lease_expires_at <= at:
            return badge("lost", "bad")
        began = obj.turn_started_at or at
        text = "waiting" if obj.waits_for_id else "stopping" if obj.stop_turn_id else "running"
        return two(badge(text, "busy"), f"for {seconds(max(0.0, (at - began).total_seconds()))}")

    @admin.display(description="messages")
    def messages(self, obj: Actor) -> SafeString:
        return link(transcript_url(obj.pk), obj.seq)

    @admin.display(description="pending")
    def pending(self, obj: Any) -> SafeString | str:
        url = list_url(Task, actor=obj.pk, status=TaskStatus.PENDING.value)
        return link(url, obj.n_pending) if obj.n_pending else NONE

    @admin.display(description="parked")
    def parked(self, obj: Any) -> SafeString | str:
        if not obj.n_parked:
            return NONE
        url = list_url(Task, actor=obj.pk, status=TaskStatus.PARKED.value)
        return link(url, badge(str(obj.n_parked), "bad"))

    @admin.display(description="next alarm")
    def alarm_(self, obj: Actor) -> SafeString | str:
        return when(obj.alarm, late=True)

    @admin.display(description="created")
    def created(self, obj: Actor) -> SafeString | str:
        return when(obj.created_at)

    @admin.display(description="events")
    def events(self, obj: Actor) -> int:
        return obj.cursor

    @admin.display(description="waits for")
    def waits_for(self, obj: Actor) -> SafeString | str:
        return actor_link(Actor.objects.filter(pk=obj.waits_for_id).first()) if obj.waits_for_id else NONE


pages.register(
    pages.Verb(
        "pause",
        "Pause",
        "No turn of this actor begins until it is let go on; one that runs ends. Calls are refused; its"
        " tasks, its timers and what is said to it wait.",
        "agents.pause_actor",
        lambda actor, by, data: (
            (pauses.pause(actor.kind, actor.name, by=by, reason=data["reason"]) and "Paused.")
            or "It was paused before."
        ),
        offered=lambda actor: actor.paused_at is None,
    )
)
pages.register(
    pages.Verb(
        "resume",
        "Let it go on",
        "What has waited runs now.",
        "agents.pause_actor",
        lambda actor, by, data: (
            (pauses.resume(actor.kind, actor.name, by=by, reason=data["reason"]) and "It goes on.")
            or "It was not paused."
        ),
        offered=lambda actor: actor.paused_at is not None,
    )
)


class PauseForm(forms.ModelForm):
    """Which kind of the operator's, or all of them."""

    user: Any = None
    kind = forms.ChoiceField(required=False)

    class Meta:
        model = Pause
        fields = ("kind", "reason")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "kind" in self.fields:
            theirs = [kind for kind in kinds.installed() if permissions.is_operator(self.user, kind)]
            choices = [(kind, kind) for kind in theirs]
            if self.user.has_perm(permissions.EVERY_KIND):
                choices.insert(0, (Pause.EVERYTHING, "everything"))
            self.fields["kind"].choices = choices  # type: ignore[attr-defined]

    def clean_kind(self) -> str:
        kind: str = self.cleaned_data["kind"]
        if kind == Pause.EVERYTHING and not self.user.has_perm(permissions.EVERY_KIND):
            raise forms.ValidationError("Choose a kind: to pause everything takes somebody for every kind.")
        return kind


@admin.register(Pause)
class PauseAdmin(admin.ModelAdmin):
    """Kinds that are paused. To add one pauses it, to delete one lets it go on."""

    form = PauseForm
    list_display = ["__str__", "by", "paused_at", "reason"]
    fields = ("kind", "reason")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Pause]:
        return permissions.visible(request.user, super().get_queryset(request))

    def get_form(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        form = super().get_form(request, *args, **kwargs)
        return type(form.__name__, (form,), {"user": request.user})

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def save_model(self, request: HttpRequest, obj: Pause, form: Any, change: bool) -> None:
        by = request.user.get_username()
        pauses.pause_kind(obj.kind, by=by, reason=obj.reason)
        obj.pk = Pause.objects.get(kind=obj.kind).pk

    def delete_model(self, request: HttpRequest, obj: Pause) -> None:
        pauses.resume_kind(obj.kind, by=request.user.get_username())

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Pause]) -> None:
        for obj in queryset:
            self.delete_model(request, obj)


def _export(actor: Actor, by: str, data: dict[str, Any], *, sensitive: bool = False) -> HttpResponse:
    lines = moving.export(
        actor.kind,
        actor.name,
        by=by,
        reason=data["reason"],
        redacted=data.get("redacted", False),
        sensitive=sensitive,
    )
    head = next(lines)  # raises before an answer has begun
    answer = HttpResponse(head, content_type="application/jsonl")
    for line in lines:
        answer.write(line)
    answer["Content-Disposition"] = f'attachment; filename="actor-{actor.pk}.jsonl"'
    return answer


def _erase(actor: Actor, by: str, data: dict[str, Any]) -> str:
    gone = erasing.erase(actor.kind, actor.name, by=by, reason=data["reason"])
    return "Erased." if gone else "It was gone before."


class ExportForm(pages.WhyForm):
    """Whether the file says what people said."""

    redacted = forms.BooleanField(required=False, help_text="Shapes alone: words become as many x.")


pages.register(
    pages.Verb(
        "export",
        "Export",
        "Everything that is kept of this actor, as one file of JSON lines, but for what its class calls"
        " sensitive.",
        "agents.export_actor",
        _export,
        form=ExportForm,
    )
)
pages.register(
    pages.Verb(
        "export-sensitive",
        "Export with what is sensitive",
        "Everything that is kept of this actor, as one file of JSON lines, and what its class calls sensitive"
        " as well: to move it. Nobody else is to have the file.",
        "agents.export_sensitive_actor",
        partial(_export, sensitive=True),
        form=pages.NeededWhyForm,
        offered=lambda actor: bool(sensitive_keys(actor.kind)),
    )
)
pages.register(
    pages.Verb(
        "erase",
        "Erase",
        "Everything that is kept of this actor goes for good: messages, state, tasks, texts, files. What"
        " stays is that it happened, when, by whom and why (name nobody there), and that its people want no"
        " texts.",
        "agents.erase_actor",
        _erase,
        form=pages.NeededWhyForm,
        danger=True,
    )
)


class ForkForm(pages.WhyForm):
    """From which turn on."""

    version = forms.IntegerField(min_value=1, help_text="The version that the turn made: see its turns.")


def _fork(actor: Actor, by: str, data: dict[str, Any]) -> str:
    made = forks.fork(actor.kind, actor.name, data["version"], by=by, reason=data["reason"])
    now = f" As of now, not of then: {', '.join(made.as_of_now)}." if made.as_of_now else ""
    return f"{made.actor.name} runs on from there, with {made.inputs} inputs.{now}"


pages.register(
    pages.Verb(
        "fork",
        "Run on in a copy",
        "A copy of this actor, as it was before the turn you name, gets what came in since once more. Its"
        " texts are not sent and it tells other actors nothing; models are asked for real.",
        "agents.fork_actor",
        _fork,
        form=ForkForm,
    )
)


@admin.register(Erasure)
class ErasureAdmin(ReadOnlyAdmin):
    """That actors were erased."""

    kind_field = "kind"
    list_display = ["__str__", "erased_at", "reason"]
    fieldsets: ClassVar[Any] = [(None, {"fields": [("kind", "by", "erased_at"), "reason", "address"]})]

    def panels(self, request: HttpRequest, obj: Erasure) -> Iterable[Panel]:
        yield code("Rows", as_json(obj.counts))


@admin.register(Operation)
class OperationAdmin(ReadOnlyAdmin):
    """What operators did: who, when, why."""

    kind_field = "kind"

    list_display = ["deed", "by", "at_", "reason"]
    list_filter = [ActorFilter, ActorKindFilter]
    list_select_related = ["actor"]
    search_fields = ["=by", "=verb", "name"]
    fieldsets: ClassVar[Any] = [
        (None, {"fields": ["actor_", ("verb", "by", "at"), "reason", ("kind", "name")]})
    ]

    def panels(self, request: HttpRequest, obj: Operation) -> Iterable[Panel]:
        if obj.detail is not None:
            yield code("Detail", as_json(obj.detail))

    @admin.display(description="deed")
    def deed(self, obj: Operation) -> SafeString:
        return title(url_of(obj), obj.verb, actor_link(obj.actor) if obj.actor else obj.kind or "everything")

    @admin.display(description="actor")
    def actor_(self, obj: Operation) -> SafeString | str:
        return actor_link(obj.actor)

    @admin.display(description="at")
    def at_(self, obj: Operation) -> SafeString | str:
        return when(obj.at)


@admin.register(TurnRecord)
class TurnRecordAdmin(ReadOnlyAdmin):
    list_display = ["turn", "outcome_", "began", "seqs", "version"]
    list_filter = [ActorFilter, by("outcome", Outcome), ActorKindFilter]
    list_select_related = ["actor"]
    deferred = ("state_change",)
    fieldsets: ClassVar[Any] = [
        (
            None,
            {
                "fields": [
                    "actor_",
                    ("method", "origin"),
                    ("outcome_", "version", "seqs"),
                    ("started_at", "took"),
                    "turn_id",
                ]
            },
        ),
    ]

    def panels(self, request: HttpRequest, obj: TurnRecord) -> Iterable[Panel]:
        if obj.state_change is not None:
            yield code("State change", as_json(masked(obj.actor.kind, obj.state_change)))

    def tools(self, request: HttpRequest, obj: TurnRecord) -> Iterable[Tool]:
        yield Tool("All turns of the actor", list_url(TurnRecord, actor=obj.actor_id))

    @admin.display(description="turn")
    def turn(self, obj: TurnRecord) -> SafeString:
        return title(url_of(obj), obj.method, actor_link(obj.actor))

    @admin.display(description="actor")
    def actor_(self, obj: TurnRecord) -> SafeString | str:
        return actor_link(obj.actor)

    @admin.display(description="outcome")
    def outcome_(self, obj: TurnRecord) -> SafeString | str:
        return two(badge(obj.outcome, _tone(obj.outcome)), obj.origin)

    @admin.display(description="started")
    def began(self, obj: TurnRecord) -> SafeString | str:
        return two(when(obj.started_at), f"took {seconds(obj.duration_seconds)}")

    @admin.display(description="took")
    def took(self, obj: TurnRecord) -> str:
        return seconds(obj.duration_seconds)

    @admin.display(description="messages")
    def seqs(self, obj: TurnRecord) -> SafeString | str:
        return _seqs(obj)


def _turn(turn: TurnRecord, kind: str) -> dict[str, Any]:
    return {
        "method": turn.method,
        "origin": turn.origin,
        "outcome": badge(turn.outcome, _tone(turn.outcome)),
        "version": turn.version,
        "began": when(turn.started_at),
        "took": seconds(turn.duration_seconds),
        "seqs": _seqs(turn),
        "change": "" if turn.state_change is None else as_json(masked(kind, turn.state_change), 5_000),
    }


def _tone(outcome: str) -> str:
    return TONES.get(Outcome(outcome), "") if outcome in Outcome.values else ""


def _seqs(turn: TurnRecord) -> SafeString | str:
    if turn.first_seq is None:
        return NONE
    span = str(turn.first_seq) if turn.first_seq == turn.last_seq else f"{turn.first_seq}-{turn.last_seq}"
    return link(transcript_url(turn.actor_id, seq=turn.first_seq), f"#{span}")
