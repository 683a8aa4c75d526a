"""The jobs as Restate's virtual objects: one a kind of actor, one key an actor.

Runs with Restate's own packages, in their own environment. An actor's whole state comes with each turn, as is
the default: its log, a key a message, is short here. (Naming the keys that come, ``state_preload``, takes a
newer server than 1.7.)
"""

from __future__ import annotations

import json
import time
from datetime import timedelta
from typing import Any

import restate
from restate import ObjectContext, VirtualObject

received: set[str] = set()
answered: dict[str, float] = {}
due: dict[str, float] = {}
fired: dict[str, float] = {}


async def append(ctx: ObjectContext, role: str, content: str) -> int:
    seq = (await ctx.get("seq") or 0) + 1
    ctx.set("seq", seq)
    ctx.set(f"message-{seq}", {"role": role, "content": content})
    return seq


async def merge(ctx: ObjectContext, patch: dict[str, Any]) -> None:
    ctx.set("state", {**(await ctx.get("state") or {}), **patch})


def texted(name: str) -> VirtualObject:
    actor = VirtualObject(name)

    @actor.handler()
    async def receive(ctx: ObjectContext, message: dict[str, str]) -> None:
        received.add(message["text"])
        await append(ctx, "user", message["text"])
        await merge(ctx, {"last": message["text"], "from": message["from"]})
        ctx.object_send(process, ctx.key(), message["text"])

    @actor.handler()
    async def process(ctx: ObjectContext, text: str) -> None:
        if name == "answer":
            await append(ctx, "assistant", "Thank you. We look into it.")
            await merge(ctx, {"answered": True})
            # The timer before this one finds that it was replaced.
            number = (await ctx.get("nudge") or 0) + 1
            ctx.set("nudge", number)
            ctx.object_send(nudge, ctx.key(), number, send_delay=timedelta(days=1))
        answered[text] = time.time()

    @actor.handler()
    async def nudge(ctx: ObjectContext, number: int) -> None:
        if number != await ctx.get("nudge"):
            return

    return actor


timed = VirtualObject("timed")


@timed.handler()
async def set_timers(ctx: ObjectContext, message: dict[str, str]) -> None:
    _, count, at = message["text"].split()
    now = await ctx.time()
    for number in range(int(count)):
        timer = f"{ctx.key()} {at} {number}"
        due[timer] = float(at)
        ctx.object_send(fire, ctx.key(), timer, send_delay=timedelta(seconds=max(0.0, float(at) - now)))


@timed.handler()
async def fire(ctx: ObjectContext, timer: str) -> None:
    at = time.time()
    await merge(ctx, {"fired": timer})
    fired.setdefault(timer, at)


echo = VirtualObject("echo")


@echo.handler("append")
async def append_frame(ctx: ObjectContext, frame: str) -> int:
    return await append(ctx, "user", frame)


services = restate.app([texted("ingest"), texted("answer"), timed, echo])


async def app(scope: Any, receive: Any, send: Any) -> None:
    """The services, and what they did, at ``/facts``."""
    if scope["type"] != "http" or scope["path"] != "/facts":
        await services(scope, receive, send)
        return
    late = sum(at <= time.time() for at in due.values()) - len(fired)
    facts = {
        "unfinished": len(received) - len(answered) + late,
        "answered": answered,
        "fired": [(due[timer], at) for timer, at in fired.items() if timer in due],
    }
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": json.dumps(facts).encode()})
