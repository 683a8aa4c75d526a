"""Who on the team may see which conversations, and do what there.

One rule for admin, API, sockets, chat and media. Two questions, each answered by Django's permissions, so
that groups and the admin's own pages give them out:

- **Where?** An *operator* of a kind is active staff with ``agents.view_actor`` (every kind), or with the
  kind's own permission, ``agents.view_kind_<kind>``: "Can view conversations of kind <kind>", which
  ``migrate`` makes.
- **What?** There, what the permission of the rows in question says: ``conversations.view_message`` for
  transcripts in the admin, ``scheduler.view_task`` to look at tasks, ``scheduler.change_task`` for verbs.

``may(user, "scheduler.change_task", kind)`` asks both; ``is_operator(user, kind)`` the first alone. Lists are
filtered by ``visible(user, rows, "actor__kind")``: a row of another kind is not there. Whoever is no operator
may see a conversation where its class's ``authorize`` admits them (``agents/sockets/admission.py``), which
also decides for operators, in sockets, API, chat and media alike; by default it admits those of the kind.

Synchronous: permissions are read from the database, once for each user object.
"""

from __future__ import annotations

from typing import Any, TypeVar

from django.apps import AppConfig
from django.db.models import Model, QuerySet

from agents import kinds

#: Makes an operator of every kind.
EVERY_KIND = "agents.view_actor"
_PREFIX = "view_kind_"

ModelT = TypeVar("ModelT", bound=Model)


def permission_of(kind: str) -> str:
    """The permission that makes an operator of one kind, as ``has_perm`` takes it."""
    return f"agents.{_PREFIX}{kind}"


def is_operator(user: Any, kind: str | None = None) -> bool:
    """Whether this user may look at the conversations of a kind; without one: of any kind at all."""
    if not (user.is_active and user.is_staff):
        return False
    if user.has_perm(EVERY_KIND):
        return True
    return bool(_kinds(user)) if kind is None else user.has_perm(permission_of(kind))


def may(user: Any, permission: str, kind: str | None = None) -> bool:
    """Whether this user is an operator of a kind (of any, without one) who has a permission, too."""
    return is_operator(user, kind) and user.has_perm(permission)


def visible(user: Any, rows: QuerySet[ModelT], field: str = "kind") -> QuerySet[ModelT]:
    """Those of the rows whose kind (the column ``field``, such as ``actor__kind``) the user may look at."""
    if not (user.is_active and user.is_staff):
        return rows.none()
    if user.has_perm(EVERY_KIND):
        return rows
    found = _kinds(user)
    return rows.filter(**{f"{field}__in": sorted(found)}) if found else rows.none()


def _kinds(user: Any) -> set[str]:
    prefix = permission_of("")
    return {name.removeprefix(prefix) for name in user.get_all_permissions() if name.startswith(prefix)}


def create_permissions(sender: AppConfig, using: str, apps: Any = None, **kwargs: Any) -> None:
    """After ``migrate``: a permission for each installed kind. Those of kinds that are gone stay."""
    from django.contrib.auth.models import Permission
    from django.contrib.contenttypes.models import ContentType

    from agents.models import Actor

    content_type = ContentType.objects.db_manager(using).get_for_model(Actor)
    Permission.objects.using(using).bulk_create(
        [
            Permission(
                content_type=content_type,
                codename=f"{_PREFIX}{kind}",
                name=f"Can view conversations of kind {kind}",
            )
            for kind in kinds.installed()
        ],
        ignore_conflicts=True,
    )
