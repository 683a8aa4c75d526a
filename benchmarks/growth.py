"""Whether costs stay what they are while everything grows: messages, actors, tasks, and what lies on disk.

    python -m benchmarks.growth [messages] [claims] [sweep] [disk]            all of them unless named
        [--most 1000000] [--times 200] [--minutes 1] [--split 8]

messages  A turn that appends one, and ``to_openai(last=40)``, in a log of 10, 10,000 and 1,000,000 messages.
claims    Taking and freeing a lease among 1,000, 100,000 and 1,000,000 actors; alone and 64 at once.
sweep     Looking for due actors among 1,000, 100,000 and 1,000,000 pending tasks, few or all of them due.
disk      Bytes of a message, a turn, a task and what else a turn leaves; and what a load of ``--minutes``
          (60 for an hour) adds to the tables whose rows are only updated.

It makes a database of its own on the PostgreSQL server of DATABASE_URL, fills it with COPY, and drops it.
Beside the time stands the processor time of this process and of the database's: on a busy machine that is the
figure to compare. "growth" is the last figure beside the first: 1 is flat.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime as dt
import os
import random
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.databases import close_django, own_database, processor
from benchmarks.processes import site_environment
from benchmarks.splitting import split

WORDS = "Where is my order A-17? It should have been here on Monday, and it is late now."
KIND = "growth"


def main() -> None:
    options = parse()
    with tempfile.TemporaryDirectory() as folder, own_database("growth") as url:
        os.environ.update(
            site_environment(
                "agentsite.settings", Path(folder), DATABASE_URL=url, AGENT_APPS="benchmarks.growth_app"
            )
        )
        import django

        django.setup()
        from django.core.management import call_command

        call_command("migrate", verbosity=0)
        from agents.testing import shutdown

        if options.split:
            split(options.split)
        try:
            print(f"load average {os.getloadavg()[0]:.1f}", flush=True)
            for part in options.parts:
                PARTS[part](options)
        finally:
            shutdown(0)
            close_django()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], metavar="part", help=", ".join(PARTS))
    parser.add_argument("--most", type=int, default=1_000_000, help="messages, actors, tasks")
    parser.add_argument("--times", type=int, default=200, help="each is measured (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=1, help="of load (default: %(default)g)")
    parser.add_argument("--split", type=int, help="tables in so many parts, by actor (docs/scaling.md)")
    options = parser.parse_args()
    options.parts = options.parts or list(PARTS)
    return options


# Measuring


@dataclass
class Cost:
    """Milliseconds: the median of the time, and the mean of the processor time here and in the database."""

    took: float
    here: float
    there: float


def measure(work: Callable[[], Any], times: int) -> Cost:
    for _ in range(max(3, times // 10)):
        work()
    url, took = os.environ["DATABASE_URL"], []
    here, there = time.process_time(), processor(url)
    for _ in range(times):
        began = time.perf_counter()
        work()
        took.append(1000 * (time.perf_counter() - began))
    here = time.process_time() - here
    return Cost(
        median(took),
        1000 * here / times,
        (processor(url) - there) / times,
    )


def table(title: str, sizes: Sequence[int], what: str, lines: dict[str, list[Cost]]) -> None:
    print(f"\n{title}")
    print(f"{what:>44}" + "".join(f"{size:>26,}" for size in sizes) + f"{'growth':>10}")
    for name, costs in lines.items():
        shown = "".join(f"{c.took:9.2f} ({c.here:6.2f} {c.there:6.2f})" for c in costs)
        first, last = (c.here + c.there for c in (costs[0], costs[-1]))
        print(f"{name:>44}{shown}{last / first:10.2f}", flush=True)
    print(f"{'':>44}ms (of processor: here, in the database)")


# Filling


def copy(name: str, columns: str, rows: Iterable[tuple[Any, ...]]) -> None:
    from django.db import connection

    with (
        connection.cursor() as cursor,
        cursor.copy(f"COPY {name} ({', '.join(columns.split())}) FROM STDIN") as into,  # type: ignore[attr-defined]
    ):
        for row in rows:
            into.write_row(row)


def execute(statement: str, *values: Any) -> list[tuple[Any, ...]]:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        return cursor.fetchall() if cursor.description else []


def new_actors(names: Sequence[str]) -> list[int]:
    """Rows of actors as their first turns leave them."""
    copy("agents_actor", "kind name started", ((KIND, name, True) for name in names))
    found = execute("SELECT id FROM agents_actor WHERE kind = %s AND name = ANY (%s)", KIND, list(names))
    return [id for (id,) in found]


def sizes_up_to(most: int) -> list[int]:
    return [size for size in (1_000, 100_000, 1_000_000) if size < most] + [most]


# Messages


def messages(options: argparse.Namespace) -> None:
    from agents.testing import on_runtime
    from benchmarks.growth_app.agents import GrowingAgent

    sizes = [size for size in (10, 10_000) if size < options.most] + [options.most]
    fill_logs(sizes)
    stubs = [GrowingAgent.named(f"log of {size}") for size in sizes]

    def call(stub: Any, method: str) -> Callable[[], Any]:
        return lambda: on_runtime(lambda engine: getattr(stub, method)())

    methods = {
        "a turn that appends": "append",
        "to_openai(last=40)": "window",
        "messages.last()": "newest",
        "messages.count()": "count",
    }
    lines = {
        name: [measure(call(stub, method), options.times) for stub in stubs]
        for name, method in methods.items()
    }
    table("Messages in the log of an actor", sizes, "messages", lines)


def fill_logs(sizes: Sequence[int]) -> None:
    now = dt.datetime.now(dt.UTC)
    # Built at once at the end: as the site's migration does it for a log that is there.
    ((index,),) = execute("SELECT indexdef FROM pg_indexes WHERE indexname = 'conversations_message_words'")
    execute("DROP INDEX conversations_message_words")
    for size in sizes:
        (id,) = new_actors([f"log of {size}"])
        copy(
            "conversations_message",
            "actor_id seq role content name tool_call_id at",
            (
                (id, seq, "user" if seq % 2 else "assistant", f"{WORDS} {seq}", "", "", now)
                for seq in range(1, size + 1)
            ),
        )
        execute("UPDATE agents_actor SET seq = %s, version = %s WHERE id = %s", size, size, id)
    execute(index)
    execute("VACUUM ANALYZE")


# Claims


def claims(options: argparse.Namespace) -> None:
    from agents.store import get_store
    from agents.store.requests import Claim

    store, chance = get_store(), random.Random(9)
    sizes, alone, many = sizes_up_to(options.most), [], []
    ids: list[int] = []

    def lease(count: int) -> None:
        claimed = store.claim([Claim(id, uuid.uuid4()) for id in chance.sample(ids, count)])
        store.commit([nothing(one) for one in claimed])

    for size in sizes:
        ids += new_actors([f"claimed {number}" for number in range(len(ids), size)])
        execute("VACUUM ANALYZE agents_actor")
        alone.append(measure(lambda: lease(1), options.times))
        many.append(measure(lambda: lease(64), max(5, options.times // 10)))
    table("Leases taken and freed", sizes, "actors", {"one": alone, "64 in a batch": many})


def nothing(claimed: Any) -> Any:
    """The end of a turn that wrote nothing."""
    from agents.store.requests import Commit

    return Commit(claimed.actor.id, claimed.token, claimed.turn_id, claimed.actor.version, dirty=False)


# The sweep


def sweep(options: argparse.Namespace) -> None:
    from agents.store import get_store

    store = get_store()
    now = dt.datetime.now(dt.UTC)
    sizes, have = sizes_up_to(options.most), 0
    soon = dt.timedelta(seconds=2)
    few, all_due = [], []
    for size in sizes:
        ids = new_actors([f"swept {number}" for number in range(have, size)])
        have = size
        due = now + dt.timedelta(days=30)
        copy(
            "scheduler_task",
            "actor_id task_id lane method status due_at cron tz attempts max_retries created_at error",
            ((id, "nudge", "timer", "nudge", "pending", due, "", "", 0, 5, now, "") for id in ids),
        )
        execute("UPDATE agents_actor SET alarm = %s WHERE kind = %s AND name LIKE 'swept%%'", due, KIND)
        execute("VACUUM ANALYZE agents_actor")
        execute("UPDATE agents_actor SET alarm = %s WHERE id = ANY (%s)", now, ids[:50])
        few.append(measure(lambda: store.sweep([KIND], 1000, soon), options.times))
        execute("UPDATE agents_actor SET alarm = %s WHERE kind = %s AND name LIKE 'swept%%'", now, KIND)
        execute("VACUUM ANALYZE agents_actor")
        all_due.append(measure(lambda: store.sweep([KIND], 1000, soon), max(5, options.times // 10)))
    lines = {"50 due, the others in a month": few, "all due, 1,000 taken": all_due}
    table("A sweep", sizes, "pending tasks, one an actor", lines)


# Disk


#: What a turn of the load below leaves, and what its rows are.
LEFT = {
    "conversations_message": "a message",
    "agents_turnrecord": "a turn's record",
    "agents_event": "an event (the last 1,000 of an actor)",
    "scheduler_attempt": "an attempt (30 days)",
}
#: Rows that are updated, or come and go: with one an actor in them, they should stay small.
KEPT = ["agents_actor", "scheduler_task", "conversations_conversation"]


def disk(options: argparse.Namespace) -> None:
    from agents.testing import on_runtime

    wrong, before = audited(), {name: sized(name) for name in [*LEFT, *KEPT]}
    done, seen = 0, []
    parts = max(1, min(6, round(options.minutes * 2)))
    for _ in range(parts):
        done += on_runtime(lambda engine: load(engine, 60 * options.minutes / parts))
        seen.append((done, {name: sized(name)[1] for name in KEPT}))
    print(f"\nDisk: {done:,} texts received and answered, {2 * done:,} turns, {ACTORS} actors")
    for name, what in LEFT.items():
        rows, size = (after - was for after, was in zip(sized(name), before[name], strict=True))
        if rows:
            print(f"{what:>44}{size / rows:10.0f} bytes with its indexes, {rows / done:.1f} a text")
    total = sum(sized(name)[1] - before[name][1] for name in [*LEFT, *KEPT])
    print(f"{'a text, all in all':>44}{total / max(1, done):10.0f} bytes")
    found = sorted(audited() - wrong)
    print("\nThe audit is clean." if not found else "\nThe audit found:\n" + "\n".join(found[:10]))
    if execute("SHOW autovacuum") == [("off",)]:
        print("\nautovacuum is off on this server: what is only updated grows by each update.")
    print("\nSize of what is only updated, MB, while texts went through")
    print(f"{'texts':>44}" + "".join(f"{count:>12,}" for count, _ in seen))
    for name in KEPT:
        print(f"{name:>44}" + "".join(f"{sizes[name] / 1e6:12.2f}" for _, sizes in seen))
    for name in KEPT:
        ((dead, live, updates, hot),) = execute(
            "SELECT sum(n_dead_tup), sum(n_live_tup), sum(n_tup_upd), sum(n_tup_hot_upd)"
            " FROM pg_stat_user_tables WHERE relname ~ %s",
            f"^{name}(_[0-9]+)?$",
        )
        share = f", {100 * hot / updates:.0f} % of {updates:,} updates heap-only" if updates else ""
        print(f"{name:>44} {live:,} rows, {dead:,} dead{share}")


def sized(name: str) -> tuple[int, int]:
    """Rows of a table, and its bytes with indexes, in all its parts."""
    ((rows, size),) = execute(
        f"""SELECT (SELECT count(*) FROM {name}), sum(pg_total_relation_size(relid))
              FROM (SELECT '{name}'::regclass UNION SELECT inhrelid FROM pg_inherits
                     WHERE inhparent = '{name}'::regclass) AS parts (relid)"""
    )
    return rows, int(size)


def audited() -> set[str]:
    """What isn't true of the database and should be. Of rows that were filled in that is much."""
    from scheduler.audit import audit

    return {str(finding) for finding in audit(settled=0)}


ACTORS = 64


async def load(engine: Any, seconds: float) -> int:
    """Receives texts and answers them, by as many callers as there are actors; how many."""
    from benchmarks.growth_app.agents import GrowingAgent
    from scheduler.drain import drain

    until, count = time.monotonic() + seconds, 0

    async def caller(number: int) -> None:
        nonlocal count
        stub = GrowingAgent.named(f"busy {number}")
        id = None
        while time.monotonic() < until:
            await stub.receive({"from": "+15550001111", "text": f"{WORDS} {count}"})
            if id is None:
                found = await engine.in_store(engine.store.find, [(KIND, stub.name)])
                id = found[KIND, stub.name]
            await drain(engine, id, KIND)
            count += 1

    await asyncio.gather(*(caller(number) for number in range(ACTORS)))
    return count


PARTS: dict[str, Callable[[argparse.Namespace], None]] = {
    "messages": messages,
    "claims": claims,
    "sweep": sweep,
    "disk": disk,
}

if __name__ == "__main__":
    main()
