"""Agents that the tests of the API talk to: in pytest's process and in that of the site."""

from __future__ import annotations

import asyncio
import datetime as dt
from pathlib import Path
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpResponse, JsonResponse, StreamingHttpResponse

from agents import Agent, LimitError, exposed, reads
from agents.http.requests import AgentRequest
from agents.sockets.admission import ConnectionRequest


def _tool(path: Path) -> None:
    with (path / "outside").open("a") as outside:
        outside.write("done\n")


class TalkerAgent(Agent[dict[str, Any]]):
    """Belongs to the user of its name, and answers what it is told."""

    kind = "test-talker"
    share_state = True

    def initial_state(self) -> dict[str, Any]:
        return {"mood": "calm", "since": dt.date(2026, 11, 30)}

    async def authorize(self, request: ConnectionRequest) -> bool:
        return await super().authorize(request) or request.user.get_username() == self.name

    async def receive(self, message: dict[str, Any]) -> None:
        if message["text"].startswith("unnamed "):
            await self.messages.add("user", message["text"])  # keeps no id, as README's agent
        else:
            await self.messages.add_received(message)
        await self.set_state({"last": {k: message[k] for k in ("from", "user_id", "claims", "metadata")}})
        if not message["text"].startswith("silence"):
            await self.queue("reply", message["text"], id=f"reply-{message['id']}")

    async def reply(self, text: str) -> None:
        if text.startswith("work in "):
            path = Path(text.removeprefix("work in "))
            await self.step("tool", _tool, path)
            while not (path / "go").exists():  # what a model takes  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        call = {"id": "c1", "name": "think", "args": {}}
        await self.messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        await self.messages.append({"role": "tool", "tool_call_id": "c1", "name": "think", "content": "hm"})
        await self.messages.add("assistant", f"You said: {text}")

    async def park(self) -> None:
        raise ValueError("parks")

    async def later(self) -> None: ...

    @exposed
    async def add(self, role: str, content: str) -> int:
        return await self.messages.add(role, content)

    @exposed
    async def many(self, count: int, role: str = "user", text: str = "m") -> int:
        for n in range(count):
            await self.messages.add(role, f"{text}{n + 1}")
        return count

    @exposed
    async def set(self, patch: dict[str, Any]) -> dict[str, Any]:
        return await self.set_state(patch)

    @exposed
    @reads
    async def echo(self, value: Any = None, **more: Any) -> Any:
        return [value, more] if more else value

    @exposed
    async def nap(self, seconds: float) -> str:
        await self.messages.add("user", "never seen, if it is stopped")
        await asyncio.sleep(seconds)
        return "rested"

    @exposed
    async def fail(self) -> None:
        await self.messages.add("user", "never seen")
        raise ValueError("the secret of the insides")

    @exposed
    async def forbid(self) -> None:
        raise PermissionDenied("not you")

    @exposed
    async def too_much(self) -> None:
        raise LimitError("over what the agent allows", limit="MAX_EVENT_BYTES", maximum=1, actual=2)

    async def hidden(self) -> str:
        return "not for clients"

    async def on_request(self, request: AgentRequest) -> Any:
        match request.path.split("/"):
            case [""]:
                return {
                    "method": request.method, "url": request.url, "query": request.query.dict(),
                    "user": request.user.get_username(), "claims": request.claims,
                    "cookie": "cookie" in request.headers or "authorization" in request.headers,
                    "body": request.body.decode(), "name": self.name,
                }  # fmt: skip
            case ["orders", number]:
                seq = await self.messages.add("user", f"order {number}")
                return JsonResponse({"seq": seq}, status=201, headers={"Location": f"/orders/{number}"})
            case ["fails"]:
                await self.messages.add("user", "never seen")
                raise ValueError("the secret of the insides")
            case ["json"]:
                return {"given": request.json()}
            case ["form"]:
                return {"given": request.form().dict()}
            case ["none"]:
                return None
            case ["text"]:
                return "<b>words</b>"
            case ["bytes"]:
                return b"\0\1"
            case ["page"]:
                return HttpResponse("<b>a page</b>")
            case ["streams"]:
                await self.messages.add("user", "never seen")
                return StreamingHttpResponse(["a", "b"])
            case ["long", length]:
                return "x" * int(length)
            case ["odd"]:
                await self.messages.add("user", "never seen")
                return object()
            case ["forbidden"]:
                raise PermissionDenied("not you")
        raise Http404


class ReticentAgent(Agent[dict[str, Any]]):
    """Shares nothing, hears nothing, answers nothing."""

    kind = "test-reticent"


class PublicAgent(Agent[dict[str, Any]]):
    """Everybody may see it."""

    kind = "test-public"

    async def authorize(self, request: ConnectionRequest) -> bool:
        return True

    async def receive(self, message: dict[str, Any]) -> None:
        await self.messages.add_received(message)
