"""Who gets what at every address of the site. An address without a row here fails: say who may go there."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.test import Client as Browser
from django.urls import URLPattern, get_resolver
from websockets.exceptions import InvalidStatus

from agents import pages
from agents.models import Actor, Operation, TurnRecord
from agents.permissions import permission_of
from agents.sockets.routing import websocket_urlpatterns
from conversations.models import Message
from scheduler.models import Attempt, AttemptOutcome, Task
from tests.agents.sockets.site import Site
from tests.api.conftest import KIND, grant
from tests.api.talkers.agents import ReticentAgent

pytestmark = [pytest.mark.processes, pytest.mark.django_db(transaction=True)]

NOW = dt.datetime(2026, 11, 30, 12, tzinfo=dt.UTC)
UUID = "12345678123456781234567812345678"

#: The conversation belongs to olga. Erin is staff without a permission; dana an operator of another kind,
#: with every permission to view rows, and to change tasks; bob may view everything; alice is a superuser.
WHO = ("nobody", "charlie", "olga", "erin", "dana", "bob", "alice")

# A row: the method, then what each of WHO gets. "-" is anything that shows and does nothing (302, 403, 404),
# "+" that or a page: of rows that are not there.
ROWS = {
    # No such provider.
    "^webhooks/(?P<provider>[^/]+)/(?P<kind>[^/]+)/?$": "POST 404 404 404 404 404 404 404",
    "^webhooks/(?P<provider>[^/]+)/?$": "POST 404 404 404 404 404 404 404",
    "media/sent/<str:token>": "GET 404 404 404 404 404 404 404",  # the token is the permission
    "media/<str:kind>/<str:name>/<str:key>": "GET 403 403 404 403 403 404 404",  # no such file
    "chat/": "GET 302 403 403 403 200 200 200",
    "chat/<str:kind>/<str:name>/": "GET 302 403 200 403 403 200 200",
    "dev/texts/": "GET 404 404 404 404 404 404 404",  # without DEBUG there is nothing
    "dev/model/v1/chat/completions": "POST 404 404 404 404 404 404 404",
    "admin/": "GET 302 302 302 200 200 200 200",
    "admin/login/": "GET 200 200 200 302 302 302 302",
    "admin/logout/": "GET 302 302 302 405 405 405 405",
    "admin/password_change/": "GET 302 302 302 200 200 200 200",
    "admin/password_change/done/": "GET 302 302 302 200 200 200 200",
    "admin/autocomplete/": "GET 302 302 302 403 403 403 403",
    "admin/jsi18n/": "GET 302 302 302 200 200 200 200",
    "admin/r/<path:content_type_id>/<path:object_id>/": "GET 302 302 302 404 404 404 404",
    "admin/<app>/": "GET 302 302 302 404 404 404 404",
    "admin/(?P<url>.*)$": "GET 302 302 302 404 404 404 404",
    "admin/auth/user/<id>/password/": "GET 302 302 302 403 403 403 200",
    "admin/conversations/message/transcript/<int:actor_id>/": "GET 302 302 302 403 404 200 200",
    "admin/conversations/message/transcript/<int:actor_id>/operate/": "POST 302 302 302 404 404 403 302",
    "admin/agents/actor/<int:pk>/do/<str:verb>/": "GET 302 302 302 404 404 403 200",
    "admin/scheduler/replayjob/<int:pk>/operate/": "POST 302 302 302 403 403 403 404",  # no such job
    "admin/scheduler/attempt/<int:pk>/operate/": "POST 302 302 302 403 404 403 302",
    "admin/scheduler/task/<int:pk>/operate/": "POST 302 302 302 403 404 403 302",
    "api/schema/": "GET 403 200 200 200 200 200 200",
    "api/docs/": "GET 302 200 200 200 200 200 200",
    "api/": "GET 404 404 404 404 404 404 404",
    "api/actors/": "GET 401 403 403 403 200 200 200",
    "api/actors/<str:kind>/<str:name>/": "GET 401 403 200 403 403 200 200",
    "api/actors/<str:kind>/<str:name>/state/": "GET 401 403 200 403 403 200 200",
    "api/actors/<str:kind>/<str:name>/messages/": "POST 401 403 202 403 403 202 202",
    "api/actors/<str:kind>/<str:name>/call/<str:method>/": "POST 401 403 200 403 403 200 200",
    "api/actors/<str:kind>/<str:name>/stop/": "POST 401 403 200 403 403 200 200",
    "api/tasks/": "GET 401 403 403 403 200 200 200",
    "api/actors/<str:kind>/<str:name>/tasks/": "GET 401 403 403 403 403 200 200",
    "api/actors/<str:kind>/<str:name>/tasks/<number:number>/": "GET 401 403 403 403 403 200 200",
    "api/actors/<str:kind>/<str:name>/tasks/<number:number>/replay/": "POST 401 403 403 403 403 403 200",
    "api/actors/<str:kind>/<str:name>/tasks/<number:number>/run-now/": "POST 401 403 403 403 403 403 200",
    "api/actors/<str:kind>/<str:name>/tasks/<number:number>/cancel/": "POST 401 403 403 403 403 403 200",
    "api/actors/<str:kind>/<str:name>/attempts/": "GET 401 403 403 403 403 200 200",
    "api/actors/<str:kind>/<str:name>/attempts/<number:number>/replay/": "POST 401 403 403 403 403 403 200",
    "agents/<str:kind>/<str:name>/": "GET 401 403 200 403 403 200 200",
    "agents/<str:kind>/<str:name>/<path:rest>": "POST 401 403 200 403 403 200 200",
}
# Of each model in the admin.
OURS = {
    "": "GET 302 302 302 403 200 200 200",
    "add/": "GET 302 302 302 403 403 403 403",
    "<path:object_id>/history/": "GET 302 302 302 302 302 200 200",
    "<path:object_id>/delete/": "GET 302 302 302 403 403 403 403",
    "<path:object_id>/change/": "GET 302 302 302 403 302 200 200",
    "<path:object_id>/": "GET 302 302 302 302 302 302 302",
}
NONE_YET = {
    **OURS,
    "<path:object_id>/history/": "GET 302 302 302 302 302 302 302",
    "<path:object_id>/change/": "GET 302 302 302 - 302 302 302",
}
DJANGOS = {
    "": "GET 302 302 302 403 403 403 200",
    "add/": "GET 302 302 302 403 403 403 200",
    "<path:object_id>/history/": "GET 302 302 302 - - - +",
    "<path:object_id>/delete/": "GET 302 302 302 - - - +",
    "<path:object_id>/change/": "GET 302 302 302 - - - +",
    "<path:object_id>/": "GET 302 302 302 302 302 302 302",
}
# Not of conversations: of kinds.
PAUSES = {**DJANGOS, "": "GET 302 302 302 403 200 200 200"}
# May be of every kind, and so for those who may look at every kind.
JOBS = {
    **DJANGOS,
    "": "GET 302 302 302 403 403 200 200",
    "<path:object_id>/delete/": "GET 302 302 302 403 403 403 403",
}
MODELS = {
    "agents/actor": OURS,
    "agents/erasure": NONE_YET,
    "agents/operation": OURS,
    "agents/pause": PAUSES,
    "agents/turnrecord": OURS,
    "conversations/message": OURS,
    "conversations/conversation": NONE_YET,
    "conversations/inboundtext": NONE_YET,
    "conversations/outboundtext": NONE_YET,
    "conversations/consent": NONE_YET,
    "scheduler/attempt": OURS,
    "scheduler/replayjob": JOBS,
    "scheduler/task": OURS,
    "auth/group": DJANGOS,
    "auth/user": DJANGOS,
    "authtoken/tokenproxy": DJANGOS,
    **{
        f"django_celery_beat/{model}": DJANGOS
        for model in (
            "clockedschedule", "crontabschedule", "intervalschedule", "periodictask", "solarschedule"
        )
    },
}  # fmt: skip
SOCKETS = {
    "ws/agents/<str:kind>/<str:name>/": "4401 4403 hello 4403 4403 hello hello",
    "": "403 403 403 403 403 403 403",
}


def rows() -> dict[str, str]:
    found = dict(ROWS)
    for model, of_model in MODELS.items():
        found |= {f"admin/{model}/{suffix}": row for suffix, row in of_model.items()}
    return found


def routes() -> set[str]:
    """Every address of the URLconf."""

    def walk(patterns: Any, before: str) -> Iterator[str]:
        for pattern in patterns:
            route = before + str(pattern.pattern)
            if not isinstance(pattern, URLPattern):
                yield from walk(pattern.url_patterns, route)
            else:
                yield "admin/<app>/" if pattern.name == "app_list" else route

    return set(walk(get_resolver().url_patterns, ""))


def test_every_address_has_a_row() -> None:
    assert routes() - rows().keys() == set(), "say in this file who may go there"
    assert rows().keys() - routes() == set()
    assert {str(pattern.pattern) for pattern in websocket_urlpatterns} == SOCKETS.keys()


@pytest.fixture
def browsers(alice: Any, bob: Any, charlie: Any, olga: Any, django_user_model: Any) -> dict[str, Browser]:
    erin, dana = (django_user_model.objects.create_user(name, is_staff=True) for name in ("erin", "dana"))
    views = Permission.objects.filter(codename__startswith="view_").exclude(codename="view_actor")
    ours = views.filter(content_type__app_label__in=("agents", "conversations", "scheduler"))
    dana.user_permissions.set(ours.exclude(codename__startswith="view_kind_"))
    grant(dana, permission_of(ReticentAgent.kind), "scheduler.change_task")
    found = {}
    for who, user in zip(WHO, (None, charlie, olga, erin, dana, bob, alice), strict=True):
        found[who] = Browser(raise_request_exception=False)
        if user is not None:
            found[who].force_login(user)
    return found


class World:
    """What there is of olga's conversation. Verbs use tasks up: each request gets one of its own."""

    def __init__(self) -> None:
        self.actor = Actor.objects.create(kind=KIND, name="olga", seq=1)
        message = Message.objects.create(actor=self.actor, seq=1, role="user", content="hi", at=NOW)
        turn = TurnRecord.objects.create(
            actor=self.actor, version=1, turn_id=UUID, origin="call", method="m", outcome="done",
            started_at=NOW, duration_seconds=1,
        )  # fmt: skip
        self.attempt = Attempt.objects.create(
            actor=self.actor, task_pk=10**6, task_id="gone", lane="timer", method="later", number=1,
            turn_id=UUID, outcome=AttemptOutcome.DONE, due_at=NOW, started_at=NOW, ended_at=NOW,
        )  # fmt: skip
        operation = Operation.objects.create(actor=self.actor, kind=KIND, verb="pause", by="alice")
        self.pks = {
            "agents/actor": self.actor.pk,
            "conversations/message": message.pk,
            "agents/turnrecord": turn.pk,
            "scheduler/attempt": self.attempt.pk,
            "agents/operation": operation.pk,
            "auth/user": User.objects.get(username="alice").pk,
            "auth/group": Group.objects.create(name="a group").pk,
        }
        self.tasks = 0

    def address(self, route: str) -> str:
        model = "/".join(route.split("/")[1:3])
        task = self._task(route) if "/tasks/<" in route or model == "scheduler/task" else 0
        pk = str(task if model == "scheduler/task" else self.pks.get(model, 1))
        number = str(self.attempt.pk if "/attempts/" in route else task)
        given = {
            "<str:kind>": KIND, "<str:name>": "olga", "<str:method>": "echo", "<path:rest>": "form",
            "<str:token>": "x", "<str:key>": "x", "<number:number>": number, "<int:pk>": pk, "<id>": pk,
            "<str:verb>": "pause",
            "<int:actor_id>": str(self.actor.pk), "<path:object_id>": pk, "<path:content_type_id>": "0",
            "^webhooks/(?P<provider>[^/]+)/": "webhooks/nobody/", "(?P<kind>[^/]+)/?$": "x/", "?$": "",
            "(?P<url>.*)$": "nothing", "<app>": "nothing",
        }  # fmt: skip
        for placeholder, value in given.items():
            route = route.replace(placeholder, value)
        assert not set(route) & set("<>()"), f"say in World.address what goes into {route}"
        return f"/{route}"

    def _task(self, route: str) -> int:
        self.tasks += 1
        parked = {"status": "parked", "parked_at": NOW} if "replay" in route or "operate" in route else {}
        later = dt.datetime.now(dt.UTC) + dt.timedelta(days=2)
        task = Task.objects.create(
            actor=self.actor, task_id=f"t{self.tasks}", method="later", due_at=later, **parked
        )
        return task.pk


def fits(status: int, expected: str) -> bool:
    if expected in "-+":
        return status in (302, 403, 404) or (expected == "+" and status == 200)
    return status == int(expected)


def test_everybody_gets_what_is_theirs_and_no_more(browsers: dict[str, Browser]) -> None:
    world = World()
    wrong = []
    for route, row in rows().items():
        method, *expected = row.split()
        for who, status in zip(WHO, expected, strict=True):
            if row in DJANGOS.values() and who not in ("charlie", "bob", "alice"):
                continue  # these pages are Django's and celery's own
            address, more = world.address(route), {}
            if method == "POST" and not route.startswith("admin/"):
                more = {"data": {"text": "hi"} if route.endswith("messages/") else {}}
                more["content_type"] = "application/json"  # type: ignore[assignment]
            elif method == "POST":
                more = {"data": {"verb": "replay"}}
            answer = getattr(browsers[who], method.lower())(address, **more)
            if not fits(answer.status_code, status):
                wrong.append(f"{who}: {method} {address} is {answer.status_code}, not {status}")
    assert wrong == []


@pytest.mark.parametrize("verb", pages.VERBS.values(), ids=lambda verb: verb.name)
def test_each_deed_of_an_operator_needs_its_own_permission(verb: Any, django_user_model: Any) -> None:
    """GET of its page; a POST asks the same first. Not: everything else, nor this on other kinds."""
    actor = Actor.objects.create(kind=KIND, name="olga")
    address = f"/admin/agents/actor/{actor.pk}/do/{verb.name}/"
    frank = django_user_model.objects.create_user("frank", is_staff=True)

    def got(*permissions: Any) -> list[int]:
        frank.user_permissions.set(permissions)
        browser = Browser(raise_request_exception=False)
        browser.force_login(frank)
        return [browser.get(address).status_code, browser.post(address, {"version": "x"}).status_code]

    app, codename = verb.permission.split(".")
    own = Permission.objects.get(content_type__app_label=app, codename=codename)
    mine = Permission.objects.get(codename=permission_of(KIND).split(".")[1])
    other = Permission.objects.get(codename=permission_of(ReticentAgent.kind).split(".")[1])
    assert got(*Permission.objects.exclude(pk=own.pk)) == [403, 403]
    assert got(own, other) == got(own) == [404, 404]
    assert got(mine) == [403, 403]
    assert got(own, mine)[0] == 200
    frank.user_permissions.set([own, mine])
    frank.is_staff = False
    frank.save()
    assert got(own, mine) == [302, 302]


def test_everybody_gets_the_sockets_that_are_theirs(site: Site, browsers: dict[str, Browser]) -> None:
    for who, expected in zip(WHO, SOCKETS["ws/agents/<str:kind>/<str:name>/"].split(), strict=True):
        cookie = browsers[who].cookies.get("sessionid")
        with site.client(KIND, "olga", session=cookie.value if cookie else None) as client:
            client.send("ping")  # no token: whoever is not admitted without one is not admitted
            if expected == "hello":
                assert client.until("hello")["actor"]["name"] == "olga", who
            else:
                assert (who, client.closed()) == (who, int(expected))
                assert client.passed == []
    with pytest.raises(InvalidStatus) as refused:
        site.client("../nowhere", "olga", escaped=True)
    assert refused.value.response.status_code == int(SOCKETS[""].split()[0])
