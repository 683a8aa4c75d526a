"""The client for scripts, over real sockets, with a server that the tests play."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from agents import client as client_module
from agents.client import Ack, AgentClient, retry_pause, socket_url
from agents.exceptions import ClientError, InvalidNameError
from tests.scripted import Scripted, message, scripted


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses of a hundredth: what is tested is that they are there, not how long."""
    monkeypatch.setattr(client_module, "PAUSE", (0.005, 0.3))
    monkeypatch.setattr(client_module, "PAUSES", {1013: (0.05, 1.0)})


def client(server: Scripted, **options: Any) -> AgentClient:
    return AgentClient("support", "日本 +1", url=server.url, **options)


def noted(agent: AgentClient, kind: str) -> list[Any]:
    notes: list[Any] = []
    agent.on(kind, notes.append)
    return notes


async def test_it_attaches_first_and_never_puts_a_token_into_the_address() -> None:
    async with scripted() as server, client(server, token="secret", headers={"X-Mine": "1"}) as agent:
        link = await server.link()
        assert link.path == "/ws/agents/support/~E6~97~A5~E6~9C~AC~20~2B1/"
        assert link.headers["X-Mine"] == "1"
        assert await link.accept() == {"v": 1, "kind": "attach", "token": "secret"}
        await agent.opened()
        assert agent.connection.state == "open"


async def test_messages_come_once_and_in_order_over_a_cut_link() -> None:
    async with scripted() as server, client(server) as agent:
        messages, gaps = noted(agent, "message"), noted(agent, "gap")
        first = await server.link()
        await first.accept()
        await first.send(message(1), message(2), message(1), message(2))
        await agent.wait_for("message", lambda m: m["seq"] == 2)
        first.cut()
        second = await server.link()
        assert await second.accept(2) == {"v": 1, "kind": "attach", "cursor": 2}
        await second.send(message(2), message(3), message(5, 4))
        await agent.wait_for("message", lambda m: m["seq"] == 4)
        assert [m["content"] for m in messages] == ["m1", "m2", "m3", "m4"]
        assert (agent.cursor, agent.seq, gaps) == (5, 4, [])


async def test_a_snapshot_fills_in_and_says_what_is_missing() -> None:
    async with scripted() as server, client(server, cursor=3, seq=2) as agent:
        messages, gaps, states = noted(agent, "message"), noted(agent, "gap"), noted(agent, "state")
        newest = [message(0, seq)["message"] for seq in (8, 9)]
        await (await server.link()).accept(5000, messages=newest, state={"a": 1})
        await agent.opened()
        assert [m["seq"] for m in messages] == [8, 9]
        assert gaps == [{"after": 2, "before": 8}]
        assert states == [{"a": 1}]
        assert agent.cursor == 5000


async def test_a_log_that_is_shorter_than_what_was_seen_is_another_log() -> None:
    async with scripted() as server, client(server, cursor=100, seq=40) as agent:
        messages, resets = noted(agent, "message"), noted(agent, "reset")
        link = await server.link()
        await link.accept(1)
        assert await link.accept(1, messages=[message(1)["message"]]) == {"v": 1, "kind": "attach"}
        await agent.opened()
        assert (len(resets), [m["seq"] for m in messages], agent.cursor) == (1, [1], 1)


async def test_a_log_with_fewer_messages_than_were_seen_is_another_log() -> None:
    async with scripted() as server, client(server, cursor=3, seq=40) as agent:
        messages, resets = noted(agent, "message"), noted(agent, "reset")
        await (await server.link()).accept(5000, messages=[message(0, seq)["message"] for seq in (1, 2)])
        await agent.opened()
        assert (len(resets), [m["seq"] for m in messages]) == (1, [1, 2])


async def test_what_is_said_without_a_connection_is_said_later_with_the_same_id() -> None:
    async with scripted() as server, client(server) as agent:
        saying = [asyncio.create_task(agent.say(text, id=text)) for text in ("one", "two", "three")]
        link = await server.link()
        await link.accept()
        assert [(await link.next("say"))["id"] for _ in range(3)] == ["one", "two", "three"]
        await link.send({"kind": "ack", "id": "one"})
        await asyncio.wait([saying[0]])
        link.cut()
        link = await server.link()
        await link.accept()
        assert [(await link.next("say"))["text"] for _ in range(2)] == ["two", "three"]
        await link.send({"kind": "ack", "id": "two", "duplicate": True}, {"kind": "ack", "id": "three"})
        assert await asyncio.gather(*saying) == [Ack("one", False), Ack("two", True), Ack("three", False)]


async def test_what_the_server_refuses_raises_with_its_code() -> None:
    async with scripted() as server, client(server) as agent:
        errors = noted(agent, "error")
        saying = asyncio.create_task(agent.say("x", id="a"))
        calling = asyncio.create_task(agent.call("secret", 1, last=2))
        link = await server.link()
        await link.accept()
        call = await link.next("call")
        assert (call["method"], call["args"], call["kwargs"]) == ("secret", [1], {"last": 2})
        await link.send(
            {"kind": "error", "id": "a", "code": "inbox_full", "message": "later"},
            {"kind": "error", "id": call["id"], "code": "private_method", "message": "no", "turn": "t"},
            {"kind": "error", "code": "bad_frame", "message": "eh"},
        )
        with pytest.raises(ClientError, match="later") as refused:
            await saying
        assert refused.value.code == "inbox_full"
        with pytest.raises(ClientError) as private:
            await calling
        assert (private.value.code, private.value.turn_id) == ("private_method", "t")
        while not errors:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert [error.code for error in errors] == ["bad_frame"]


async def test_a_call_is_sent_once_and_nobody_waits_for_ever() -> None:
    async with scripted() as server, client(server) as agent:
        calling = asyncio.create_task(agent.call("a"))
        link = await server.link()
        await link.accept()
        await link.next("call")
        link.cut()
        with pytest.raises(ClientError) as lost:
            await calling
        assert lost.value.code == "connection_lost"
        link = await server.link()
        await link.accept()
        await agent.opened()
        agent.call_timeout = 0.3
        with pytest.raises(ClientError) as late:
            await agent.call("b")
        assert late.value.code == "timeout"
        agent.call_timeout = 30.0
        calling = asyncio.create_task(agent.call("c"))
        while (call := await link.next("call"))["method"] != "c":
            pass
        await link.send({"kind": "result", "id": call["id"], "value": [1]})
        assert await calling == [1]
        assert [f["method"] for f in link.heard if f["kind"] == "call"] == ["b", "c"]


async def test_a_stop_is_never_kept_for_later() -> None:
    async with scripted() as server, client(server) as agent:
        with pytest.raises(ClientError) as offline:
            await agent.stop()
        assert offline.value.code == "offline"
        link = await server.link()
        await link.accept()
        await agent.opened()
        stopping = asyncio.create_task(agent.stop("turn"))
        frame = await link.next("stop")
        assert frame["turn"] == "turn"
        await link.send({"kind": "ack", "id": frame["id"], "stopped": True})
        assert await stopping is True


@pytest.mark.parametrize(("code", "reason"), [(4403, "denied"), (4404, "not_found"), (4401, "unauthorized")])
async def test_after_a_refusal_it_does_not_come_back(code: int, reason: str) -> None:
    async with scripted() as server, client(server) as agent:
        saying = asyncio.create_task(agent.say("x"))
        link = await server.link()
        await link.next("attach")
        await link.close(code, "no")
        with pytest.raises(ClientError, match="no") as refused:
            await saying
        assert refused.value.code == reason
        with pytest.raises(ClientError):
            await agent.opened()
        await asyncio.sleep(0.1)
        assert server.count == 1
        assert agent.connection.state == "closed"


async def test_a_function_for_tokens_is_asked_again_when_one_is_refused() -> None:
    asked = []

    async def token() -> str:
        asked.append(1)
        if len(asked) == 1:
            raise OSError("away for a moment")
        return f"t{len(asked)}"

    async with scripted() as server, client(server, token=token) as agent:
        link = await server.link()
        assert (await link.next("attach"))["token"] == "t2"
        await link.close(4401)
        link = await server.link()
        assert (await link.accept())["token"] == "t3"
        await agent.opened()
        await link.close(1001)
        assert (await (await server.link()).accept())["token"] == "t3"


async def test_connected_again_after_it_gave_up_it_asks_for_a_token_anew_and_has_as_many_tries() -> None:
    asked: list[str] = []

    def token() -> str:
        asked.append(f"t{len(asked) + 1}")
        return asked[-1]

    async with scripted() as server, client(server, token=token) as agent:
        ended = asyncio.create_task(agent.wait_for("connection", lambda now: now.state == "closed", 60.0))
        for _ in range(3):
            await (await server.link()).close(4401)
        await ended
        assert agent.refused is not None and agent.refused.code == "unauthorized"
        agent.connect()  # the person signed in again
        link = await server.link()
        assert (await link.next("attach"))["token"] == "t4"
        await link.close(4401)
        assert (await (await server.link()).accept())["token"] == "t5"
        await agent.opened()


async def test_streams_are_put_together_and_end_as_their_message() -> None:
    def delta(index: int, text: str, **more: Any) -> dict[str, Any]:
        return {"kind": "delta", "stream": "s", "index": index, "text": text, **more}

    async with scripted() as server, client(server) as agent:
        deltas = noted(agent, "delta")
        link = await server.link()
        await link.accept()
        await link.send(delta(7, "so far", reset=True), delta(7, "so far"), delta(8, ", on"), delta(10, "?"))
        await link.send(message(1, metadata={"stream": "s"}), delta(11, "late"), delta(12, "x", reset=True))
        await link.send(message(2))
        await agent.wait_for("message", lambda m: m["seq"] == 2)
        assert [(d.text, d.whole) for d in deltas] == [
            ("so far", True),
            ("so far, on", True),
            ("so far, on?", False),
        ]


async def test_streams_that_end_without_a_message_are_taken_back() -> None:
    async with scripted() as server, client(server) as agent:
        deltas = noted(agent, "delta")
        link = await server.link()
        await link.accept()
        whole = {"kind": "delta", "stream": "s", "index": 3, "text": "so far", "reset": True}
        await link.send(
            whole, {"kind": "delta", "stream": "s", "index": 0, "reset": True, "done": True}, whole
        )
        await agent.wait_for("delta", lambda d: len(deltas) == 3)
        link.cut()
        await (await server.link()).accept()
        await agent.opened()
        assert [(d.text, d.reset and d.done) for d in deltas] == [("so far", False), ("", True)] * 2


async def test_states_events_broadcasts_and_statuses_arrive_as_values() -> None:
    async with scripted() as server, client(server) as agent:
        states, events = noted(agent, "state"), noted(agent, "event")
        broadcasts, statuses = noted(agent, "broadcast"), noted(agent, "status")
        link = await server.link()
        await link.accept(1, state={"a": {"b": 1, "c": 2}})
        await link.send(
            {"kind": "state", "cursor": 2, "patch": {"a": {"b": None}}},
            {"kind": "event", "cursor": 3, "type": "tick", "payload": 1},
            {"kind": "broadcast", "cursor": 4, "data": "text"},
            {"kind": "broadcast", "base64": "AP8="},
            {"kind": "status", "status": "thinking"},
            {"kind": "later", "cursor": 9},
            {"kind": "message", "cursor": 5},
        )
        await link.socket.send("not a frame")
        await link.send({"kind": "status", "status": ""})
        await agent.wait_for("status", lambda status: status == "")
        assert states == [{"a": {"b": 1, "c": 2}}, {"a": {"c": 2}}]
        assert events == [{"type": "tick", "payload": 1, "cursor": 3}]
        assert broadcasts == ["text", b"\0\xff"]
        assert statuses == ["thinking", ""]


async def test_the_server_learns_how_far_it_is() -> None:
    async with scripted() as server, client(server):
        link = await server.link()
        await link.accept()
        await link.send(*(message(n) for n in range(1, 66)))
        assert (await link.next("seen"))["cursor"] == 1
        assert (await link.next("seen"))["cursor"] == 65
        await link.send(message(66))
        assert (await link.next("seen"))["cursor"] == 66


async def test_many_things_said_at_once_do_not_flood_the_server() -> None:
    async with scripted() as server, client(server) as agent:
        saying = [asyncio.create_task(agent.say("x", id=str(n))) for n in range(200)]
        link = await server.link()
        await link.accept()
        for n in range(200):
            frame = await link.next("say")
            assert frame["id"] == str(n)
            assert len([f for f in link.heard if f["kind"] == "say"]) <= n + 32
            await link.send({"kind": "ack", "id": frame["id"]})
        await asyncio.gather(*saying)


async def test_a_frame_that_is_too_large_is_not_sent() -> None:
    async with scripted() as server, client(server) as agent:
        room = 1024 * 1024 - len(json.dumps({"v": 1, "kind": "say", "id": "a", "text": ""}))
        saying = asyncio.create_task(agent.say("x" * room, id="a"))
        link = await server.link()
        await link.accept()
        assert len((await link.next("say"))["text"]) == room
        await link.send({"kind": "ack", "id": "a"})
        await saying
        with pytest.raises(ClientError) as large:
            await agent.say("x" * (room + 1), id="a")
        assert large.value.code == "too_large"


async def test_closing_fails_what_still_waits() -> None:
    async with scripted() as server:
        agent = client(server)
        agent.connect()
        saying = asyncio.create_task(agent.say("x"))
        await (await server.link()).next("attach")
        await agent.close()
        with pytest.raises(ClientError) as closed:
            await saying
        assert closed.value.code == "closed"
        with pytest.raises(ClientError):
            await agent.say("y")
        with pytest.raises(ClientError):
            agent.connect()


async def test_a_listener_that_fails_harms_nobody_else() -> None:
    seen: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: seen.append(context["exception"]))
    async with scripted() as server, client(server) as agent:

        def fail(value: Any) -> None:
            raise RuntimeError("mine")

        agent.on("message", fail)
        messages = noted(agent, "message")
        link = await server.link()
        await link.accept()
        await link.send(message(1), message(2))
        await agent.wait_for("message", lambda m: m["seq"] == 2)
        assert len(messages) == len(seen) == 2


async def test_a_listener_for_what_does_not_exist_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="mesage"):
        AgentClient("support", "x").on("mesage", print)


def test_addresses_are_made_of_the_site_and_the_escaped_name() -> None:
    assert (
        socket_url("https://a.example/app/?q", "support", "a b")
        == "wss://a.example/app/ws/agents/support/a~20b/"
    )
    with pytest.raises(ValueError, match=r"https://example\.org"):
        socket_url("a.example", "support", "x")
    with pytest.raises(InvalidNameError):
        socket_url("http://a.example", "support", "")


def test_pauses_double_up_to_the_longest() -> None:
    for code, first, longest in ((1006, 0.005, 0.3), (1013, 0.05, 1.0)):
        assert first / 2 <= retry_pause(code, 0) <= first
        assert first <= retry_pause(code, 1) <= first * 2
        assert longest / 2 <= retry_pause(code, 10_000) <= longest
