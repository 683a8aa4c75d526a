"""``/api/actors/<kind>/<name>/messages/``: the log behind a seq, waiting for more; saying something."""

from __future__ import annotations

import asyncio
import math
import uuid
from typing import Any

from drf_spectacular.utils import OpenApiResponse, extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from agents import codec, conf
from agents.exceptions import RequestError
from agents.http.actors import AnyField
from agents.http.pagination import MAX_PAGE, PAGE
from agents.http.schema import BODY, KEY, NAME, documented
from agents.http.views import ActorView
from agents.http.watching import watching
from agents.http.work import in_thread
from agents.models import Actor
from agents.saying import MAX_ID, RECEIVE, key_of, saying
from agents.sockets.tokens import Grant
from conversations import shown
from conversations.models import Role
from conversations.replies import Awaited

MAX_SEQ = 2**63 - 1


class Seconds(serializers.FloatField):
    """How long to wait: 0 to API_WAIT."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(min_value=0, max_value=conf.get("API_WAIT"), default=0, **kwargs)

    def to_internal_value(self, data: Any) -> float:
        seconds = super().to_internal_value(data)
        if not math.isfinite(seconds):
            self.fail("invalid")
        return seconds


class MessageShown(serializers.Serializer[Any]):
    seq = serializers.IntegerField()
    role = serializers.ChoiceField(Role.choices)
    content = serializers.CharField(allow_blank=True)
    at = serializers.DateTimeField()
    parts = serializers.ListField(child=AnyField(), required=False)
    name = serializers.CharField(required=False)
    tool_calls = serializers.ListField(child=AnyField(), required=False)
    tool_call_id = serializers.CharField(required=False)
    metadata = AnyField(required=False)


class MessagePage(serializers.Serializer[Any]):
    results = MessageShown(many=True)
    after = serializers.IntegerField(help_text="What to ask for next: `after` of the next page.")
    seq = serializers.IntegerField(help_text="The number of the log's last message.")
    more = serializers.BooleanField(help_text="Whether there are more by now.")


class MessageQuery(serializers.Serializer[Any]):
    after = serializers.IntegerField(
        min_value=0, max_value=MAX_SEQ, default=0, help_text="Messages behind this number."
    )
    limit = serializers.IntegerField(min_value=1, max_value=MAX_PAGE, default=PAGE)
    wait = Seconds(help_text="Seconds to wait where there are none.")


@extend_schema_field({"type": "string", "pattern": r"\S", "description": "More than blanks."})
class Words(serializers.Field[Any, Any, Any, Any]):
    """Text as it is: nothing else becomes text, and no blanks are cut off."""

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str) or not data.strip():
            raise serializers.ValidationError("This must be text, and more than blanks.")
        return data


class SayBody(serializers.Serializer[Any]):
    text = Words()
    metadata = serializers.DictField(child=AnyField(allow_null=True), required=False)


class SayQuery(serializers.Serializer[Any]):
    wait_for_reply = Seconds(help_text="Seconds to wait for the reply.")


class Said(serializers.Serializer[Any]):
    id = serializers.CharField(help_text="The Idempotency-Key, or one that was made up.")
    duplicate = serializers.BooleanField(help_text="It had been said before.")
    message = MessageShown(allow_null=True, help_text="What was said, where it was waited for.")
    reply = MessageShown(allow_null=True, help_text="The reply, if it came in time.")


class Messages(ActorView):
    """``GET``, ``POST /api/actors/<kind>/<name>/messages/``"""

    @documented(
        operation_id="list_messages", tags=["messages"], parameters=[NAME, MessageQuery],
        responses={200: MessagePage},
    )  # fmt: skip
    async def get(self, request: Request, **kwargs: Any) -> Response:
        """Messages behind a number, oldest first: the log from there on, a page at a time.

        With `wait` a request for messages that are not there yet is answered as soon as there is one, or
        with none when the time is up. Messages of the role `system` are for operators.
        """
        query = self.checked(MessageQuery, request.query_params)
        seconds = query["wait"]
        if not seconds:
            return Response(await in_thread(self._page, query))
        deadline = asyncio.get_running_loop().time() + seconds
        async with watching(request._request, self.address) as watch:
            while True:
                page = await in_thread(self._page, query)
                if page["results"] or not await watch.news(deadline):
                    return Response(page)
                query["after"] = page["after"]

    def _page(self, query: dict[str, Any]) -> dict[str, Any]:
        id, seq = self._head()
        after = query["after"]
        if id is None or after >= seq:
            return {"results": [], "after": after, "seq": seq, "more": False}
        found, after = shown.after(id, after, seq, query["limit"], private=self.is_operator)
        return {"results": found, "after": after, "seq": seq, "more": after < seq}

    def _head(self) -> tuple[int | None, int]:
        kind, name = self.address
        row = Actor.objects.filter(kind=kind, name=name).values_list("id", "seq").first()
        return row or (None, 0)

    @documented(
        *BODY, operation_id="say", tags=["messages"], parameters=[NAME, KEY, SayQuery], request=SayBody,
        responses={
            200: OpenApiResponse(Said, description="With the reply."),
            202: OpenApiResponse(Said, description="It is in the actor's inbox."),
        },
    )  # fmt: skip
    async def post(self, request: Request, **kwargs: Any) -> Response:
        """Says something, as a socket's `say` does: it is in the inbox, for good, when this answers (202).

        With `wait_for_reply` it answers with the agent's reply (200), or when the time is up (202): the same
        request with the same Idempotency-Key then waits on.
        """
        query = self.checked(SayQuery, request.query_params)
        seconds = query["wait_for_reply"]
        given = self.checked(SayBody, request.data)
        id = _key(request)
        claims = request.auth.claims if isinstance(request.auth, Grant) else None
        payload = saying(id, given["text"], request.user, claims=claims, metadata=given.get("metadata"))
        deadline = asyncio.get_running_loop().time() + seconds
        if not seconds:
            accepted = await self._tell(payload)
            return _said(payload, accepted, None)
        async with watching(request._request, self.address) as watch:
            _, seq = await in_thread(self._head)
            accepted = await self._tell(payload)
            awaited = Awaited(payload["id"], payload["text"], seq)
            is_new = accepted
            while not await in_thread(self._look, awaited, is_new):
                is_new = True  # it was looked for once
                if not await watch.news(deadline):
                    break
        return _said(payload, accepted, awaited)

    async def _tell(self, payload: dict[str, Any]) -> bool:
        return await self.agent.named(self.name).tell(RECEIVE, payload, key=key_of(payload["id"]))

    def _look(self, awaited: Awaited, is_new: bool) -> bool:
        id, seq = self._head()
        if id is None:
            return False
        if not is_new:
            awaited.go_back(id)
        return awaited.look(id, seq)


def _said(payload: dict[str, Any], accepted: bool, awaited: Awaited | None) -> Response:
    reply = awaited and awaited.reply
    said = {
        "id": payload["id"],
        "duplicate": not accepted,
        "message": awaited and awaited.message,
        "reply": reply,
    }
    return Response(said, status=200 if reply else 202)


def _key(request: Request) -> str:
    key = request.headers.get("Idempotency-Key")
    if key is None:
        return uuid.uuid4().hex
    try:
        key = key.encode("latin-1").decode()  # WSGI and ASGI read headers as Latin-1
    except UnicodeError:
        pass
    if not 0 < len(key) <= MAX_ID:
        raise RequestError(f"a key has 1 to {MAX_ID} characters", field="Idempotency-Key")
    return codec.clean_text(key)
