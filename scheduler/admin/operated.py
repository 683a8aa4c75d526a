"""Read-only pages with verbs, and what the lists of tasks and attempts have in common."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.urls import URLPattern, path, reverse
from django.views.decorators.http import require_POST

from agents.adminkit import ReadOnlyAdmin
from agents.display import (
    short,
)

#: Rows among which the method filter looks for names.
RECENT = 2_000


class MethodFilter(admin.SimpleListFilter):
    """By method: those among the newest rows. A distinct over the whole table would be slow."""

    title = "method"
    parameter_name = "method"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        newest = model_admin.model._default_manager.order_by("-pk").values_list("method", flat=True)
        chosen = self.used_parameters.get(self.parameter_name)
        names = {*newest[:RECENT], *([str(chosen)] if chosen else [])}
        return [(name, short(name, 40)) for name in sorted(names)]

    def queryset(self, request: HttpRequest, rows: QuerySet[Any]) -> QuerySet[Any]:
        return rows.filter(method=self.value()) if self.value() else rows


class OperatedAdmin(ReadOnlyAdmin):
    """Read-only rows with verbs: who may change tasks may ask for them."""

    def has_operate_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return bool(request.user.has_perm("scheduler.change_task"))

    def get_urls(self) -> list[URLPattern]:
        name = f"{self.opts.app_label}_{self.opts.model_name}_operate"
        view = self.admin_site.admin_view(require_POST(self.operate_view))
        return [path("<int:pk>/operate/", view, name=name), *super().get_urls()]

    def operate_url(self, obj: Any) -> str:
        return reverse(f"admin:{self.opts.app_label}_{self.opts.model_name}_operate", args=[obj.pk])

    def operate_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        if not self.has_operate_permission(request):
            raise PermissionDenied
        row = get_object_or_404(self.get_queryset(request), pk=pk)
        return self.operate(request, row, request.POST.get("verb", ""))

    def operate(self, request: HttpRequest, obj: Any, verb: str) -> HttpResponse:
        raise NotImplementedError

    def note(self, request: HttpRequest, rows: Iterable[Any], flag: int, said: str) -> None:
        """Writes the log of who did what, one entry a row, the same for one as for many."""
        LogEntry.objects.log_actions(request.user.pk, list(rows), flag, said)  # type: ignore[arg-type]
