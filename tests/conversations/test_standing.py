"""Where each log stands: what a commit says of it, and what the log itself says."""

from __future__ import annotations

from typing import Any

import pytest

from agents import Agent
from agents.models import Actor
from conversations import standing
from conversations.models import Conversation, Message

pytestmark = pytest.mark.django_db(transaction=True)

CALL = {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "name": "look", "args": {}}]}
RESULT = {"role": "tool", "content": "seen", "tool_call_id": "c"}


class Standing(Agent):
    kind = "standing"

    async def say(self, *messages):
        await self.messages.append_many(messages)

    async def in_two(self):
        await self.messages.add("user", "one")
        await self.checkpoint()
        await self.messages.add("assistant", "two")


def said(role: str, content: str = "words") -> dict[str, Any]:
    return {"role": role, "content": content}


def stands(name: str = "x") -> tuple[int, int, bool]:
    row = Conversation.objects.get(actor__kind="standing", actor__name=name)
    assert row.last_at == Message.objects.filter(actor=row.actor).latest("seq").at
    return row.asked_seq, row.answered_seq, row.waits


def test_a_commit_says_what_was_asked_and_what_was_answered():
    say = Standing.named("x").sync.say
    say(said("system"))
    assert stands() == (0, 0, False)
    say(said("user"))
    assert stands() == (2, 0, True)
    say(CALL, RESULT)
    assert stands() == (2, 0, True)
    say(said("assistant"))
    assert stands() == (2, 5, False)
    say(said("user"), said("assistant"), said("user"))
    assert stands() == (8, 7, True)
    assert list(Conversation.objects.waiting()) == [Conversation.objects.get()]


def test_a_checkpoint_says_its_part():
    Standing.named("x").sync.in_two()
    assert stands() == (1, 2, False)


def test_the_log_alone_says_the_same():
    Standing.named("x").sync.say(said("user"), CALL, RESULT, said("assistant"), said("user"))
    Standing.named("y").sync.say(said("system"))
    before = list(Conversation.objects.order_by("pk").values())
    Conversation.objects.all().delete()
    empty = Actor.objects.create(kind="standing", name="never spoke")
    assert standing.refresh(Actor.objects.values_list("pk", flat=True)) == 2
    assert list(Conversation.objects.order_by("pk").values()) == before
    assert standing.refresh([empty.pk]) == 0
    Conversation.objects.update(asked_seq=99)
    standing.refresh(Actor.objects.values_list("pk", flat=True))
    assert list(Conversation.objects.order_by("pk").values()) == before
