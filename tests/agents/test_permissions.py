"""Who on the team may see which conversations."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, Group, Permission
from django.urls import reverse

from agents import kinds, permissions
from agents.models import Actor, TurnRecord
from agents.permissions import is_operator, may, visible
from conversations.models import Message
from scheduler.models import Task
from tests.adminpages import page, signed_in
from tests.agents.cast import Counter, Keeper

pytestmark = pytest.mark.django_db

NOW = dt.datetime(2026, 11, 30, 12, tzinfo=dt.UTC)


def grant(user: Any, *names: str) -> Any:
    """Gives permissions, and a fresh object of the user, which knows of them."""
    for name in names:
        app, codename = name.split(".")
        user.user_permissions.add(Permission.objects.get(content_type__app_label=app, codename=codename))
    return type(user).objects.get(pk=user.pk)


@pytest.fixture
def dana(django_user_model: Any) -> Any:
    """On the team, for the conversations of one kind."""
    user = django_user_model.objects.create_user("dana", "dana@example.org", "dana", is_staff=True)
    return grant(user, permissions.permission_of(Counter.kind))


def test_migrate_makes_a_permission_for_every_installed_kind() -> None:
    rows = Permission.objects.filter(codename__startswith="view_kind_")
    rows.delete()
    permissions.create_permissions(sender=None, using="default")  # type: ignore[arg-type] # what migrate calls
    made = set(rows.values_list("codename", flat=True))
    assert {f"view_kind_{kind}" for kind in kinds.installed()} <= made
    permissions.create_permissions(sender=None, using="default")  # type: ignore[arg-type] # a second time
    assert Permission.objects.filter(codename=f"view_kind_{Counter.kind}").count() == 1


def test_an_operator_is_active_staff_that_may_view_actors_or_this_kind(
    alice: Any, bob: Any, charlie: Any, dana: Any
) -> None:
    everyone = [alice, bob, charlie, dana, AnonymousUser()]
    assert [is_operator(u, Counter.kind) for u in everyone] == [True, True, False, True, False]
    assert [is_operator(u, Keeper.kind) for u in everyone] == [True, True, False, False, False]
    assert [is_operator(u) for u in everyone] == [True, True, False, True, False]


def test_a_permission_without_being_staff_or_active_is_worth_nothing(charlie: Any, dana: Any) -> None:
    assert not is_operator(grant(charlie, "agents.view_actor"), Counter.kind)
    dana.is_active = False
    assert not is_operator(dana, Counter.kind)
    assert not visible(dana, Actor.objects.all()).exists()


def test_a_group_gives_out_a_kind(django_user_model: Any) -> None:
    erin = django_user_model.objects.create_user("erin", is_staff=True)
    group = Group.objects.create(name="counting")
    group.permissions.add(Permission.objects.get(codename=f"view_kind_{Counter.kind}"))
    erin.groups.add(group)
    assert is_operator(erin, Counter.kind)


def test_what_an_operator_may_do_needs_a_permission_and_the_kind(alice: Any, bob: Any, dana: Any) -> None:
    verb = "scheduler.change_task"
    assert may(alice, verb, Counter.kind)
    assert not may(bob, verb, Counter.kind)
    assert not may(dana, verb, Counter.kind)
    dana = grant(dana, verb)
    assert may(dana, verb, Counter.kind) and may(dana, verb)
    assert not may(dana, verb, Keeper.kind)


def test_rows_of_other_kinds_are_not_there(alice: Any, charlie: Any, dana: Any) -> None:
    mine, other = (Actor.objects.create(kind=kind, name="a") for kind in (Counter.kind, Keeper.kind))
    for actor in (mine, other):
        Task.objects.create(actor=actor, task_id="t", method="m", due_at=NOW)
    assert set(visible(alice, Actor.objects.all())) == {mine, other}
    assert set(visible(dana, Actor.objects.all())) == {mine}
    assert [task.actor for task in visible(dana, Task.objects.all(), "actor__kind")] == [mine]
    assert not visible(charlie, Actor.objects.all()).exists()


def test_the_admin_shows_an_operator_their_kinds_alone(dana: Any) -> None:
    verbs = ["scheduler.view_task", "scheduler.change_task"]
    dana = grant(dana, "agents.view_turnrecord", "conversations.view_message", *verbs)
    client = signed_in(dana)
    rows: dict[str, list[Any]] = {}
    for kind in (Counter.kind, Keeper.kind):
        actor = Actor.objects.create(kind=kind, name=f"name-of-{kind}", seq=1)
        message = Message.objects.create(actor=actor, seq=1, role="user", content="hello", at=NOW)
        task = Task.objects.create(actor=actor, task_id="t", method="m", due_at=NOW)
        turn = TurnRecord.objects.create(
            actor=actor, version=1, turn_id="12345678123456781234567812345678", origin="call", method="m",
            outcome="done", started_at=NOW, duration_seconds=1,
        )  # fmt: skip
        rows[kind] = [actor, message, task, turn]
    for mine, other in zip(rows[Counter.kind], rows[Keeper.kind], strict=True):
        options = mine._meta
        listed = page(client, reverse(f"admin:{options.app_label}_{options.model_name}_changelist"))
        assert f"name-of-{Counter.kind}" in listed.text and f"name-of-{Keeper.kind}" not in listed.text
        change = f"admin:{options.app_label}_{options.model_name}_change"
        assert page(client, reverse(change, args=[mine.pk])).status == 200
        assert page(client, reverse(change, args=[other.pk])).status == 302  # "perhaps it was deleted?"
    for kind, status in ((Counter.kind, 200), (Keeper.kind, 404)):
        transcript = reverse("admin:conversations_transcript", args=[rows[kind][0].pk])
        assert page(client, transcript).status == status
    operate = reverse("admin:scheduler_task_operate", args=[rows[Keeper.kind][2].pk])
    assert client.post(operate, {"verb": "run_now"}).status_code == 404
