"""A process that runs turns, for tests that need another one: ``python -m tests.faults.worker COMMAND ...``.

Says ``ready`` when it may begin, reads a line, and begins; says what it found as one line of JSON.

drain                           runs what is due until its input ends
add NAME TIMES                  calls the counter NAME so often; the results
meet NAME OTHER FOLDER ROUNDS   in each round calls OTHER from NAME while OTHER calls NAME; the outcomes
tell NAME TIMES                 tells the keeper NAME so often; drains what its commits wake, without a sweep
call KIND NAME METHOD ARGS      one call; its result, or the class of its error
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
import time
from typing import Any

import django


def say(what: Any) -> None:
    print(json.dumps(what), flush=True)


def main(command: str, *args: str) -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    django.setup()
    if limit := os.environ.get("TEST_MEMORY"):
        resource.setrlimit(resource.RLIMIT_AS, (int(limit), int(limit)))
    from agents import kinds, runtime
    from scheduler.dispatchers import local
    from tests.agents import cast
    from tests.scheduler.clerks import agents as _clerks  # noqa: F401

    runtime.get_runtime()
    say("ready")
    sys.stdin.readline()
    if command in ("drain", "tell"):
        local.start(sweeping=command == "drain")
    match command:
        case "drain":
            sys.stdin.read()
        case "add":
            name, times = args
            say([cast.Counter.named(name).sync.add() for _ in range(int(times))])
        case "meet":
            name, other, folder, rounds = args
            say([_meet(cast, name, other, f"{folder}/{n}") for n in range(int(rounds))])
        case "tell":
            asyncio.run(_tell(cast.Keeper.named(args[0]), int(args[1])))
            say("told")
            sys.stdin.read()
        case "call":
            kind, name, method, rest = args
            say(_outcome(lambda: kinds.get(kind).named(name).sync.call(method, tuple(json.loads(rest)))))
    local.stop()
    runtime.shutdown()


def _meet(cast: Any, name: str, other: str, path: str) -> list[Any]:
    began = time.monotonic()
    outcome = _outcome(lambda: cast.Caller.named(name).sync.meet(path, 2, other))
    took = time.monotonic() - began
    asyncio.run(cast.meeting(f"{path}.over", 2))  # no round begins before both have ended theirs
    return [outcome, took]


def _outcome(call: Any) -> Any:
    try:
        return call()
    except Exception as error:
        return type(error).__name__


async def _tell(stub: Any, times: int) -> None:
    """Several at once, as webhooks come."""
    todo = iter(range(times))

    async def one_after_another() -> None:
        for n in todo:
            await stub.tell("count", n)

    await asyncio.gather(*(one_after_another() for _ in range(20)))


if __name__ == "__main__":
    main(*sys.argv[1:])
