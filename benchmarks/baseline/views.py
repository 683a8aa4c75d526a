from __future__ import annotations

import datetime as dt

from django.db import transaction
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from benchmarks.baseline.models import Actor
from benchmarks.baseline.tasks import plan


class TextSerializer(serializers.Serializer):
    sender = serializers.CharField(max_length=255)
    text = serializers.CharField(max_length=10_000)

    def to_internal_value(self, data: dict[str, str]) -> dict[str, str]:
        return super().to_internal_value({**data, "sender": data.get("from")})


class TextView(APIView):
    def post(self, request: Request, kind: str) -> Response:
        serializer = TextSerializer(data=request.data)
        serializer.is_valid(raise_exception=True)
        sender, text = serializer.validated_data["sender"], serializer.validated_data["text"]
        with transaction.atomic():
            actor = Actor.locked(kind, sender)
            if kind == "timed":
                _, count, due = text.split()
                at = dt.datetime.fromtimestamp(float(due), dt.UTC)
                for number in range(int(count)):
                    plan(actor, "fire", {"number": number}, at)
            else:
                actor.append("user", text)
                actor.merge(**{"last": text, "from": sender})
                actor.save(update_fields=["state", "seq"])
                plan(actor, "process", {"text": text})
        return Response({"status": "ok"})
