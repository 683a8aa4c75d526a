"""Actors over HTTP: which there are, one of them, its state, calls of its methods, stopping its turn."""

from __future__ import annotations

import datetime as dt
import hashlib
import uuid
from typing import Any

from django.core.exceptions import PermissionDenied
from django.utils import timezone
from django.utils.http import parse_etags
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema_field, inline_serializer
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from agents import codec, conf, kinds, permissions
from agents.conf import KIND_MAX_LENGTH, NAME_MAX_LENGTH
from agents.exceptions import AgentsError, NoActorError, RequestError
from agents.http.errors import MethodFailed
from agents.http.pagination import PageQuery, page_of
from agents.http.schema import BODY, NAME, TURN, documented
from agents.http.views import ActorView, OperatorsView
from agents.http.work import in_thread
from agents.masking import masked
from agents.models import Actor
from agents.names import escape_name
from agents.runtime import get_runtime
from agents.turn import Turn


@extend_schema_field({})
class AnyField(serializers.JSONField):
    """Any JSON."""


class ActorShown(serializers.Serializer[Any]):
    kind = serializers.CharField()
    name = serializers.CharField()
    path = serializers.CharField(help_text="Where it is in this API.")
    created_at = serializers.DateTimeField()
    seq = serializers.IntegerField(help_text="The number of its last message.")
    cursor = serializers.IntegerField(help_text="The number of its last event.")
    version = serializers.IntegerField(help_text="Raised by every commit.")
    alarm = serializers.DateTimeField(allow_null=True, help_text="The earliest moment a task could run.")
    running = serializers.BooleanField(help_text="Whether a turn runs now.")


class ActorPage(serializers.Serializer[Any]):
    next = serializers.URLField(allow_null=True)
    previous = serializers.URLField(allow_null=True)
    results = ActorShown(many=True)


class ActorQuery(PageQuery):
    kind = serializers.CharField(max_length=KIND_MAX_LENGTH, required=False, help_text="Of this kind alone.")
    search = serializers.CharField(
        max_length=NAME_MAX_LENGTH, required=False, help_text="A part of the name."
    )


def moment(at: dt.datetime | None) -> str | None:
    """ISO 8601 in UTC, with a Z."""
    return None if at is None else at.astimezone(dt.UTC).isoformat().replace("+00:00", "Z")


def shown(actor: Actor) -> dict[str, Any]:
    """An actor as the API shows it."""
    lease = actor.lease_expires_at
    return {
        "kind": actor.kind,
        "name": actor.name,
        "path": f"/api/actors/{actor.kind}/{escape_name(actor.name)}/",
        "created_at": moment(actor.created_at),
        "seq": actor.seq,
        "cursor": actor.cursor,
        "version": actor.version,
        "alarm": moment(actor.alarm),
        "running": actor.token is not None and lease is not None and lease > timezone.now(),
    }


class Actors(OperatorsView):
    """``GET /api/actors/``: for operators, of the kinds that they may look at."""

    @documented(
        operation_id="list_actors", tags=["actors"], parameters=[ActorQuery], responses={200: ActorPage}
    )
    async def get(self, request: Request) -> Response:
        """Actors, the newest first."""
        query = self.checked(ActorQuery, request.query_params)
        return Response(await in_thread(self._page, request, query))

    def _page(self, request: Request, query: dict[str, Any]) -> dict[str, Any]:
        rows = permissions.visible(request.user, Actor.objects.defer("state"))
        if kind := query.get("kind"):
            kinds.get(kind)
            if not permissions.is_operator(request.user, kind):
                raise PermissionDenied
            rows = rows.filter(kind=kind)
        if search := query.get("search"):
            rows = rows.filter(name__icontains=codec.clean_text(search))
        return page_of(rows, request, self, shown)


class OneActor(ActorView):
    """``GET /api/actors/<kind>/<name>/``"""

    @documented(operation_id="get_actor", tags=["actors"], parameters=[NAME], responses={200: ActorShown})
    async def get(self, request: Request, **kwargs: Any) -> Response:
        """One actor. An actor that nothing was ever written to is a 404, though it may be talked to."""
        return Response(shown(await in_thread(row_of, *self.address)))


def row_of(kind: str, name: str) -> Actor:
    """The actor's row, without its state. Raises NoActorError."""
    row = Actor.objects.filter(kind=kind, name=name).defer("state").first()
    if row is None:
        raise NoActorError
    return row


# State

MATCH = OpenApiParameter(
    "If-None-Match",
    OpenApiTypes.STR,
    OpenApiParameter.HEADER,
    description="An ETag: 304 where the state is still that one.",
)


class State(ActorView):
    """``GET /api/actors/<kind>/<name>/state/``: where the class says ``share_state``, and for operators."""

    @documented(
        operation_id="get_state", tags=["actors"], parameters=[NAME, MATCH],
        responses={
            200: inline_serializer("State", {"state": AnyField()}),
            304: OpenApiResponse(description="It is still the one with this ETag."),
        },
    )  # fmt: skip
    async def get(self, request: Request, **kwargs: Any) -> Response:
        """The state, as the last commit left it. Agents alone write it."""
        if not (self.agent.share_state or self.is_operator):
            raise PermissionDenied("this kind does not share its state")
        tree = masked(self.agent.kind, await self._state())
        etag = f'"{hashlib.sha256(codec.dumps(tree)).hexdigest()[:32]}"'
        headers = {"ETag": etag, "Cache-Control": "private, no-cache"}
        known = parse_etags(request.headers.get("If-None-Match", ""))
        if "*" in known or etag in {tag.removeprefix("W/") for tag in known}:
            return Response(status=304, headers=headers)
        return Response({"state": tree}, headers=headers)

    async def _state(self) -> Any:
        async def body(turn: Turn) -> Any:
            # What an actor that has written none has, its class says.
            state = turn.actor.state
            return codec.encode(self.agent(turn).initial_state()) if state is None else state

        try:
            return await get_runtime().run(
                lambda engine: engine.reads.read(
                    self.address, "initial_state", body, budget=conf.get("CALL_BUDGET")
                )
            )
        except AgentsError:
            raise
        except Exception as error:
            raise MethodFailed("initial_state", error) from None


# Calls


class CallBody(serializers.Serializer[Any]):
    args = serializers.ListField(child=AnyField(allow_null=True), required=False)
    kwargs = serializers.DictField(child=AnyField(allow_null=True), required=False)


class Call(ActorView):
    """``POST /api/actors/<kind>/<name>/call/<method>/``"""

    @documented(
        *BODY, *TURN, operation_id="call", tags=["actors"], parameters=[NAME],
        request=CallBody, responses={200: inline_serializer("Result", {"result": AnyField(allow_null=True)})},
    )  # fmt: skip
    async def post(self, request: Request, method: str, **kwargs: Any) -> Response:
        """Calls a method that is exposed, and waits for its result: one turn, committed when this answers."""
        given = self.checked(CallBody, request.data)
        stub, waiting = self.agent.named(self.name), True
        try:
            call = stub._prepare(
                method, tuple(given.get("args", ())), given.get("kwargs", {}), None, "call",
                from_outside=True, wanted=lambda: waiting,
            )  # fmt: skip
        except TypeError as error:
            raise RequestError(str(error), field="args") from None
        try:
            result = await get_runtime().run(call)
        except (AgentsError, PermissionDenied):
            raise
        except Exception as error:
            raise MethodFailed(method, error) from None
        finally:
            waiting = False  # a client that went away: a turn that has not begun does not begin
        return Response({"result": codec.encode(result)})


class TurnId(serializers.UUIDField):
    def to_internal_value(self, data: Any) -> uuid.UUID:
        if not isinstance(data, str):  # a number would be one, too
            self.fail("invalid", value=data)
        return super().to_internal_value(data)


class StopBody(serializers.Serializer[Any]):
    turn = TurnId(required=False, help_text="This turn alone; without it the one that runs.")


class Stop(ActorView):
    """``POST /api/actors/<kind>/<name>/stop/``"""

    @documented(
        *BODY, operation_id="stop", tags=["actors"], parameters=[NAME], request=StopBody,
        responses={200: inline_serializer("Stopped", {"stopped": serializers.BooleanField()})},
    )  # fmt: skip
    async def post(self, request: Request, **kwargs: Any) -> Response:
        """Stops the turn that runs now. `stopped` is false where none does."""
        given = self.checked(StopBody, request.data)
        return Response({"stopped": await self.agent.named(self.name).stop(given.get("turn"))})
