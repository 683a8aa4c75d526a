"""What the admin pages of all apps share: read-only pages with panels, bounded counts, filters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar
from urllib.parse import parse_qsl

from django.contrib import admin, messages
from django.core.paginator import Paginator
from django.db import OperationalError, connection, models, transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.loader import render_to_string
from django.template.response import TemplateResponse
from django.utils.functional import cached_property
from django.utils.safestring import SafeString

from agents import kinds, permissions
from agents.display import short
from agents.models import Actor

#: A list counts up to so many rows and pages through no more: counting a big table is slow.
COUNT_LIMIT = 10_000


#: A list that takes longer is given up: an odd search must not keep the database busy.
LIST_PATIENCE = 10.0  # seconds a statement


class TookTooLongError(Exception):
    """A statement ran past the patience that it was given."""


@contextmanager
def patience(seconds: float) -> Iterator[None]:
    """Statements inside run so long at most (PostgreSQL). Raises TookTooLongError."""
    if connection.vendor != "postgresql":
        yield
        return
    try:
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute("SET LOCAL statement_timeout = %s", [int(seconds * 1000)])
            yield
    except OperationalError as error:
        if getattr(error.__cause__, "sqlstate", "") != "57014":  # query_canceled
            raise
        raise TookTooLongError from error


class BoundedPaginator(Paginator):
    """Counts no further than COUNT_LIMIT. What lies beyond is reached by search and filters."""

    @cached_property
    def _counted(self) -> int:
        rows = self.object_list
        assert isinstance(rows, QuerySet)
        return rows.order_by()[: COUNT_LIMIT + 1].count()

    @property
    def count(self) -> int:
        return min(self._counted, COUNT_LIMIT)

    @property
    def capped(self) -> bool:
        """Whether there is more than is counted."""
        return self._counted > COUNT_LIMIT


@dataclass(frozen=True)
class Panel:
    """A section of an object's page below its fields."""

    title: str
    template: str
    context: Mapping[str, Any] = field(default_factory=dict)

    def render(self) -> SafeString:
        return render_to_string(self.template, dict(self.context))


def code(title: str, text: str) -> Panel:
    """A panel of text as it is: JSON, a traceback."""
    return Panel(title, "agents/_code.html", {"text": text})


@dataclass(frozen=True)
class Tool:
    """A link at the top of an object's page; with ``verb`` a button that posts it there."""

    label: str
    url: str
    verb: str = ""


class ReadOnlyAdmin(admin.ModelAdmin):
    """Pages to look at. Rows that runtimes write are never written by a form: it would undo what they did
    since it was opened.

    Of conversations: whoever may look at rows of this model sees those of the kinds whose operator they are
    (``agents/permissions.py``); the others are not there.
    """

    paginator = BoundedPaginator
    show_full_result_count = False
    list_per_page = 50
    list_max_show_all = 0
    list_display_links: Any = None  # cells say themselves where they lead
    show_facets = admin.ShowFacets.NEVER  # a count for each choice of each filter
    sortable_by: ClassVar[Any] = ()
    ordering: ClassVar[Any] = ("-pk",)
    change_form_template = "agents/admin_object.html"
    change_list_template = "agents/admin_list.html"
    #: Big columns that a list doesn't need.
    deferred: ClassVar[tuple[str, ...]] = ()
    #: Where a row's kind is; None for rows that belong to no conversation.
    kind_field: ClassVar[str | None] = "actor__kind"

    class Media:
        css = {"all": ["agents/admin.css"]}

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        may_view = super().has_view_permission(request, obj)
        return may_view and (self.kind_field is None or permissions.is_operator(request.user))

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows = super().get_queryset(request)
        if self.kind_field is not None:
            rows = permissions.visible(request.user, rows, self.kind_field)
        if request.resolver_match and (request.resolver_match.url_name or "").endswith("_changelist"):
            return self.rows_of_list(request, rows).defer(*self.deferred)
        return rows

    def rows_of_list(self, request: HttpRequest, rows: QuerySet[Any]) -> QuerySet[Any]:
        """What a list needs beside the rows themselves."""
        return rows

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        if request.method != "GET":
            return super().changelist_view(request, extra_context)
        if any("\0" in value for values in request.GET.lists() for value in (values[0], *values[1])):
            messages.error(request, "There is no text with such a character.")
            return HttpResponseRedirect(request.path)
        try:
            with patience(LIST_PATIENCE):
                response = super().changelist_view(request, extra_context)
                if isinstance(response, TemplateResponse):
                    response.render()  # the rows are read here
                return response
        except TookTooLongError:
            request.current_app = self.admin_site.name
            context = {
                **self.admin_site.each_context(request),
                "title": "This took too long",
                "opts": self.opts,
            }
            return TemplateResponse(request, "agents/admin_too_long.html", context)

    def panels(self, request: HttpRequest, obj: Any) -> Iterable[Panel]:
        """Sections of an object's page."""
        return ()

    def tools(self, request: HttpRequest, obj: Any) -> Iterable[Tool]:
        """Links and buttons at the top of an object's page."""
        return ()

    def render_change_form(
        self,
        request: HttpRequest,
        context: dict[str, Any],
        add: bool = False,
        change: bool = False,
        form_url: str = "",
        obj: Any = None,
    ) -> HttpResponse:
        if obj is not None:
            context["panels"] = list(self.panels(request, obj))
            context["tools"] = list(self.tools(request, obj))
        return super().render_change_form(request, context, add, change, form_url, obj)


# Filters


def by(field: str, values: type[models.TextChoices]) -> type[admin.SimpleListFilter]:
    """A filter by a column of choices, in the words that the rows use (the labels explain, at length)."""

    class ChoiceFilter(admin.SimpleListFilter):
        title = field
        parameter_name = field

        def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
            return [(value, value) for value in values.values]

        def queryset(self, request: HttpRequest, rows: QuerySet[Any]) -> QuerySet[Any]:
            return rows.filter(**{field: self.value()}) if self.value() else rows

    return ChoiceFilter


class TypedFilter(admin.SimpleListFilter):
    """A filter that somebody types. What cannot be understood is said, and nothing is found."""

    template = "agents/_typed_filter.html"
    placeholder: ClassVar[str] = ""

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("", "")]  # a filter without any is left out

    def choices(self, changelist: Any) -> Any:
        others = changelist.get_query_string(remove=[self.parameter_name])
        yield {
            "name": self.parameter_name,
            "value": self.value() or "",
            "placeholder": self.placeholder,
            "others": parse_qsl(others.removeprefix("?"), keep_blank_values=True),
            "without": others,
        }

    def queryset(self, request: HttpRequest, rows: QuerySet[Any]) -> QuerySet[Any]:
        if not (text := (self.value() or "").strip()):
            return rows
        try:
            return self.narrowed(rows, text)
        except ValueError as error:
            messages.error(request, f"{self.title}: {error}")
            return rows.none()

    def narrowed(self, rows: QuerySet[Any], text: str) -> QuerySet[Any]:
        """The rows that this text leaves. Raises ValueError, which says what is wrong with it."""
        raise NotImplementedError


class KindFilter(admin.SimpleListFilter):
    """By kind: those this site runs, and the rest together. Asks the registry, not the table."""

    title = "kind"
    parameter_name = "kind"
    field: ClassVar[str] = "kind"
    _REST = "-"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [*((kind, kind) for kind in kinds.installed()), (self._REST, "not installed here")]

    def queryset(self, request: HttpRequest, rows: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        if value == self._REST:
            return rows.exclude(**{f"{self.field}__in": kinds.installed()})
        return rows.filter(**{self.field: value}) if value else rows


class ActorKindFilter(KindFilter):
    """The same, of the row's actor."""

    field = "actor__kind"


class ActorFilter(admin.SimpleListFilter):
    """By one actor; shown only where a link has chosen one. Never a list of all actors."""

    title = "actor"
    parameter_name = "actor"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        value = str(self.used_parameters.get(self.parameter_name, ""))
        if not value.isascii() or not value.isdigit() or len(value) > 18:
            return []
        actor = permissions.visible(request.user, Actor.objects.only("kind", "name")).filter(pk=value).first()
        return [(value, short(str(actor), 40) if actor else f"#{value}")]

    def queryset(self, request: HttpRequest, rows: QuerySet[Any]) -> QuerySet[Any]:
        chosen = {value for value, _ in self.lookup_choices}
        return rows.filter(actor_id=self.value()) if self.value() in chosen else rows
