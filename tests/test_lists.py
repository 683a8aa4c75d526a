"""Every list of the admin, with each of its filters and searches: a fixed number of queries, 20 at most."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.db import connection
from django.test import Client, RequestFactory
from django.test.utils import CaptureQueriesContext

from agents.adminkit import ReadOnlyAdmin, TypedFilter
from agents.display import list_url
from agents.models import Operation, TurnRecord
from conversations.models import Message
from scheduler.models import ReplayJob
from tests.adminpages import signed_in
from tests.conversations.test_admin import NOW
from tests.test_desk import everything_stuck

pytestmark = pytest.mark.django_db

MOST_QUERIES = 20

LISTS = {model: one for model, one in admin.site._registry.items() if isinstance(one, ReadOnlyAdmin)}
#: What somebody types into the filters that are typed.
TYPED = {"state": "$.status != 1", "since": "2h"}


def a_bit_of_everything(name: str) -> None:
    actor = everything_stuck(name)
    Message.objects.create(actor=actor, seq=1, role="user", content="my parcel is late", at=NOW)
    TurnRecord.objects.create(
        actor=actor, version=1, turn_id=uuid.uuid4(), origin="call", method="m", outcome="done",
        started_at=NOW, duration_seconds=1,
    )  # fmt: skip
    Operation.objects.create(actor=actor, kind=actor.kind, verb="pause", by="alice")
    ReplayJob.objects.create(by="alice", reason="why", source="parked", total=1)


def questions(one: Any, user: Any) -> Iterator[str]:
    """The query strings that a list's page offers."""
    request = RequestFactory().get("/")
    request.user = user
    yield ""
    if one.search_fields:
        yield from ("?q=parcel", "?q=%22parcel+is%22+-order", "?q=late+before:9999999")
    changes = ChangeList(request, one.model, *_arguments(one, request))
    for spec in changes.filter_specs:
        if isinstance(spec, TypedFilter):
            yield f"?{spec.parameter_name}={TYPED[str(spec.parameter_name)]}"
        else:
            yield from (str(choice["query_string"]) for choice in spec.choices(changes))


def _arguments(one: Any, request: Any) -> list[Any]:
    shown = one.get_list_display(request)
    return [
        shown, one.get_list_display_links(request, shown), one.get_list_filter(request), one.date_hierarchy,
        one.get_search_fields(request), one.get_list_select_related(request), one.list_per_page,
        one.list_max_show_all, one.list_editable, one, one.get_sortable_by(request), one.search_help_text,
    ]  # fmt: skip


@pytest.mark.parametrize("model", LISTS, ids=lambda model: model._meta.label)
def test_a_list_takes_20_queries_at_most_however_many_rows(model: Any, alice: Any) -> None:
    client = signed_in(alice)
    a_bit_of_everything("first")
    asked = [f"{list_url(model)}{question}" for question in questions(LISTS[model], alice)]
    few = [_count(client, url) for url in asked]
    for n in range(12):
        a_bit_of_everything(f"n{n}")
    many = [_count(client, url) for url in asked]
    assert many == few
    assert max(many) <= MOST_QUERIES


def _count(client: Client, url: str) -> int:
    with CaptureQueriesContext(connection) as queries:
        assert client.get(url).status_code == 200, url
    return len(queries)
