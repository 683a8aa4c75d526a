"""Tasks and attempts over HTTP, and what an operator does with them: the verbs of ``scheduler/verbs.py``.

Looking needs ``scheduler.view_task`` (``scheduler.view_attempt``), the verbs ``scheduler.change_task``; each
verb leaves the same entry in the log of who did what as the admin's button.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib.admin.models import CHANGE, LogEntry
from django.db.models import QuerySet
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from agents import permissions
from agents.conf import KIND_MAX_LENGTH, METHOD_MAX_LENGTH
from agents.exceptions import TaskGoneError
from agents.http.actors import AnyField, moment
from agents.http.pagination import PageQuery, page_of
from agents.http.schema import BODY, NAME, NUMBER, documented
from agents.http.views import ActorView, OperatorsView
from agents.http.work import in_thread
from agents.names import escape_name
from scheduler import verbs
from scheduler.admin.tasks import SAID
from scheduler.models import Attempt, AttemptOutcome, Lane, Task, TaskStatus

VIEW, VIEW_ATTEMPT, CHANGE_TASK = "scheduler.view_task", "scheduler.view_attempt", "scheduler.change_task"


class TaskShown(serializers.Serializer[Any]):
    number = serializers.IntegerField()
    path = serializers.CharField(help_text="Where it is in this API.")
    id = serializers.CharField(help_text="Its own: process, nudge ...")
    kind = serializers.CharField()
    name = serializers.CharField(help_text="The actor's.")
    lane = serializers.ChoiceField(Lane.choices)
    method = serializers.CharField()
    status = serializers.ChoiceField(TaskStatus.choices)
    due_at = serializers.DateTimeField()
    every_seconds = serializers.FloatField(allow_null=True)
    cron = serializers.CharField(allow_blank=True)
    tz = serializers.CharField(allow_blank=True)
    attempts = serializers.IntegerField(help_text="Since its last success.")
    max_retries = serializers.IntegerField()
    created_at = serializers.DateTimeField()
    parked_at = serializers.DateTimeField(allow_null=True)
    error = serializers.CharField(allow_blank=True, help_text="Why the last attempt failed.")


class TaskWhole(TaskShown):
    payload = AnyField(allow_null=True)


class TaskPage(serializers.Serializer[Any]):
    next = serializers.URLField(allow_null=True)
    previous = serializers.URLField(allow_null=True)
    results = TaskShown(many=True)


class TaskQuery(PageQuery):
    status = serializers.ChoiceField(TaskStatus.choices, required=False)
    method = serializers.CharField(max_length=METHOD_MAX_LENGTH, required=False)


class AllTasksQuery(TaskQuery):
    kind = serializers.CharField(max_length=KIND_MAX_LENGTH, required=False)


class AttemptShown(serializers.Serializer[Any]):
    number = serializers.IntegerField()
    task = serializers.IntegerField(help_text="The task's number; it may be gone.")
    id = serializers.CharField(help_text="The task's own id.")
    lane = serializers.ChoiceField(Lane.choices)
    method = serializers.CharField()
    delivery = serializers.IntegerField(help_text="1 for the first.")
    outcome = serializers.ChoiceField(AttemptOutcome.choices)
    turn = serializers.UUIDField()
    due_at = serializers.DateTimeField()
    started_at = serializers.DateTimeField()
    ended_at = serializers.DateTimeField(allow_null=True)
    error = serializers.CharField(allow_blank=True)


class AttemptPage(serializers.Serializer[Any]):
    next = serializers.URLField(allow_null=True)
    previous = serializers.URLField(allow_null=True)
    results = AttemptShown(many=True)


class AttemptQuery(PageQuery):
    task = serializers.IntegerField(
        min_value=1, max_value=2**63 - 1, required=False, help_text="Of the task of this number."
    )
    outcome = serializers.ChoiceField(AttemptOutcome.choices, required=False)


def shown(task: Task) -> dict[str, Any]:
    """A task as lists show it."""
    actor = task.actor
    return {
        "number": task.pk,
        "path": f"/api/actors/{actor.kind}/{escape_name(actor.name)}/tasks/{task.pk}/",
        "id": task.task_id,
        "kind": actor.kind,
        "name": actor.name,
        "lane": task.lane,
        "method": task.method,
        "status": task.status,
        "due_at": moment(task.due_at),
        "every_seconds": task.every_seconds,
        "cron": task.cron,
        "tz": task.tz,
        "attempts": task.attempts,
        "max_retries": task.max_retries,
        "created_at": moment(task.created_at),
        "parked_at": moment(task.parked_at),
        "error": task.error,
    }


def whole(task: Task) -> dict[str, Any]:
    """The same with its payload."""
    return {**shown(task), "payload": task.payload}


def attempt_shown(attempt: Attempt) -> dict[str, Any]:
    """An attempt as lists show it."""
    return {
        "number": attempt.pk,
        "task": attempt.task_pk,
        "id": attempt.task_id,
        "lane": attempt.lane,
        "method": attempt.method,
        "delivery": attempt.number,
        "outcome": attempt.outcome,
        "turn": str(attempt.turn_id),
        "due_at": moment(attempt.due_at),
        "started_at": moment(attempt.started_at),
        "ended_at": moment(attempt.ended_at),
        "error": attempt.error,
    }


def _chosen(rows: QuerySet[Task], query: dict[str, Any]) -> QuerySet[Task]:
    named = {"status": "status", "method": "method", "kind": "actor__kind"}
    given = {field: query[name] for name, field in named.items() if name in query}
    # The state of an actor is big, and no list's business.
    return rows.filter(**given).select_related("actor").defer("payload", "actor__state")


class AllTasks(OperatorsView):
    """``GET /api/tasks/``: of all actors that an operator may look at."""

    permission = VIEW

    @documented(
        operation_id="list_all_tasks", tags=["tasks"], parameters=[AllTasksQuery], responses={200: TaskPage}
    )
    async def get(self, request: Request) -> Response:
        """Tasks of all conversations, the newest first."""
        query = self.checked(AllTasksQuery, request.query_params)
        return Response(await in_thread(self._page, request, query))

    def _page(self, request: Request, query: dict[str, Any]) -> dict[str, Any]:
        rows = permissions.visible(request.user, Task.objects.all(), "actor__kind")
        return page_of(_chosen(rows, query), request, self, shown)


class Tasks(ActorView):
    """``GET /api/actors/<kind>/<name>/tasks/``"""

    permission = VIEW

    @documented(
        operation_id="list_tasks", tags=["tasks"], parameters=[NAME, TaskQuery], responses={200: TaskPage}
    )
    async def get(self, request: Request, **kwargs: Any) -> Response:
        """Tasks of one actor, the newest first."""
        query = self.checked(TaskQuery, request.query_params)
        return Response(await in_thread(self._page, request, query))

    def _page(self, request: Request, query: dict[str, Any]) -> dict[str, Any]:
        kind, name = self.address
        rows = Task.objects.filter(actor__kind=kind, actor__name=name)
        return page_of(_chosen(rows, query), request, self, shown)


class TaskView(ActorView):
    """A view of one task of one actor."""

    def task(self, number: int) -> Task:
        """Raises TaskGoneError."""
        kind, name = self.address
        rows = Task.objects.filter(actor__kind=kind, actor__name=name, pk=number)
        task = rows.select_related("actor").defer("actor__state").first()
        if task is None:
            raise TaskGoneError
        return task


class OneTask(TaskView):
    """``GET /api/actors/<kind>/<name>/tasks/<number>/``"""

    permission = VIEW

    @documented(
        operation_id="get_task", tags=["tasks"], parameters=[NAME, NUMBER], responses={200: TaskWhole}
    )
    async def get(self, request: Request, number: int, **kwargs: Any) -> Response:
        """One task, with its payload."""
        return Response(whole(await in_thread(self.task, number)))


class VerbView(TaskView):
    """``POST .../tasks/<number>/<verb>/``"""

    permission = CHANGE_TASK
    verb: str
    run: Callable[[Task], Any]

    def _do(self, request: Request, number: int) -> dict[str, Any]:
        task = self.task(number)
        done = type(self).run(task)
        if done is False:  # cancelled by somebody else meanwhile
            raise TaskGoneError
        _, word, flag = SAID[self.verb]
        LogEntry.objects.log_actions(request.user.pk, [task], flag, word)  # type: ignore[arg-type]
        if isinstance(done, Task):
            done.actor = task.actor
            return whole(done)
        return {"cancelled": True}


class Replay(VerbView):
    verb, run = "replay", staticmethod(verbs.replay)

    @documented(
        *BODY, 409, operation_id="replay_task", tags=["tasks"], parameters=[NAME, NUMBER], request=None,
        responses={200: TaskWhole},
    )  # fmt: skip
    async def post(self, request: Request, number: int, **kwargs: Any) -> Response:
        """A parked task becomes pending and due now, with no attempts and no saved steps."""
        return Response(await in_thread(self._do, request, number))


class RunNow(VerbView):
    verb, run = "run_now", staticmethod(verbs.run_now)

    @documented(
        *BODY, 409, operation_id="run_task_now", tags=["tasks"], parameters=[NAME, NUMBER], request=None,
        responses={200: TaskWhole},
    )  # fmt: skip
    async def post(self, request: Request, number: int, **kwargs: Any) -> Response:
        """A pending task is due now."""
        return Response(await in_thread(self._do, request, number))


class Cancelled(serializers.Serializer[Any]):
    cancelled = serializers.BooleanField()


class Cancel(VerbView):
    verb, run = "cancel", staticmethod(verbs.cancel)

    @documented(
        *BODY, 409, operation_id="cancel_task", tags=["tasks"], parameters=[NAME, NUMBER], request=None,
        responses={200: Cancelled},
    )  # fmt: skip
    async def post(self, request: Request, number: int, **kwargs: Any) -> Response:
        """Removes a task, pending or parked, with its saved steps."""
        return Response(await in_thread(self._do, request, number))


class Attempts(ActorView):
    """``GET /api/actors/<kind>/<name>/attempts/``"""

    permission = VIEW_ATTEMPT

    @documented(
        operation_id="list_attempts", tags=["tasks"], parameters=[NAME, AttemptQuery],
        responses={200: AttemptPage},
    )  # fmt: skip
    async def get(self, request: Request, **kwargs: Any) -> Response:
        """Deliveries of an actor's tasks, the newest first."""
        query = self.checked(AttemptQuery, request.query_params)
        return Response(await in_thread(self._page, request, query))

    def _page(self, request: Request, query: dict[str, Any]) -> dict[str, Any]:
        kind, name = self.address
        rows = Attempt.objects.filter(actor__kind=kind, actor__name=name).defer("payload", "traceback")
        named = {"task": "task_pk", "outcome": "outcome"}
        rows = rows.filter(**{field: query[name] for name, field in named.items() if name in query})
        return page_of(rows, request, self, attempt_shown)


class ReplayAttempt(ActorView):
    """``POST /api/actors/<kind>/<name>/attempts/<number>/replay/``"""

    permission = CHANGE_TASK

    @documented(
        *BODY, 409, operation_id="replay_attempt", tags=["tasks"], parameters=[NAME, NUMBER], request=None,
        responses={200: TaskWhole},
    )  # fmt: skip
    async def post(self, request: Request, number: int, **kwargs: Any) -> Response:
        """Runs again what a finished attempt ran: a new task, due now."""
        return Response(await in_thread(self._do, request, number))

    def _do(self, request: Request, number: int) -> dict[str, Any]:
        kind, name = self.address
        rows = Attempt.objects.filter(actor__kind=kind, actor__name=name, pk=number)
        attempt = rows.select_related("actor").defer("actor__state").first()
        if attempt is None:
            raise TaskGoneError("there is no such attempt of this actor")
        task = verbs.replay_attempt(attempt)
        LogEntry.objects.log_actions(request.user.pk, [attempt], CHANGE, "Replayed")  # type: ignore[arg-type]
        task.actor = attempt.actor
        return whole(task)
