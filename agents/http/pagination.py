"""Pages of lists by cursor: ``{"next", "previous", "results"}``, the addresses of the pages beside."""

from __future__ import annotations

from typing import Any

from django.db.models import Model, QuerySet
from rest_framework import serializers
from rest_framework.exceptions import NotFound
from rest_framework.pagination import CursorPagination
from rest_framework.request import Request

PAGE = 50
MAX_PAGE = 200


class PageQuery(serializers.Serializer[Any]):
    """The parameters that every list has."""

    limit = serializers.IntegerField(
        min_value=1, max_value=MAX_PAGE, default=PAGE, help_text="Rows of a page."
    )
    cursor = serializers.CharField(
        max_length=255, required=False, help_text="Where the page begins: from `next` or `previous`."
    )


class Pages(CursorPagination):
    """Newest first. The limit has been checked (PageQuery)."""

    ordering = "-pk"
    page_size_query_param = "limit"
    page_size = PAGE
    max_page_size = MAX_PAGE


def page_of(rows: QuerySet[Any, Any], request: Request, view: Any, show: Any) -> dict[str, Any]:
    """One page of rows, each as ``show(row)`` gives it. Raises NotFound for a cursor that is none."""
    pages = Pages()
    try:
        found: list[Model] = pages.paginate_queryset(rows, request, view) or []
    except (NotFound, ValueError):
        raise NotFound("That is no cursor of this list.") from None
    shown = [show(row) for row in found]
    data: dict[str, Any] = pages.get_paginated_response(shown).data
    return data
