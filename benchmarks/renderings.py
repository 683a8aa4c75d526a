"""What a window of a long log costs, and what a log weighs.

    python benchmarks/renderings.py [--database URL] [--sizes 100,10000,100000] [--runs 200]

Prints the median and the 95th percentile of ``to_openai(last=40)`` and ``to_openai(max_tokens=2000)`` on
logs of each size, of the whole path (database, repair, rendering), the sizes by turns; then the bytes that a
message takes over a conversation of 200 tool calls. Works in a database of its own: SQLite in a temporary
folder, or on the PostgreSQL server that --database (or DATABASE_URL) names, where it makes
``bench_renderings`` and drops it again. On PostgreSQL nothing is analyzed before: the worst that a planner
can know.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

BATCH = 2000  # rows of one INSERT
DATABASE = "bench_renderings"
TOOL_CALLS = 200
STEP = 50  # tool calls between two weighings


def messages(count: int) -> Iterator[dict[str, Any]]:
    """A prompt, then over and over: a question, two calls with their results, an answer."""
    yield {"role": "system", "content": "You are a terse, helpful SMS support agent."}
    number = 1
    while number < count:
        for message in exchange(number):
            if number == count:
                return
            yield message
            number += 1


def exchange(number: int) -> list[dict[str, Any]]:
    ids = [f"call_{number:08d}{letter}" for letter in "ab"]
    calls = [{"id": id, "name": "lookup_order", "args": {"order_id": str(number)}} for id in ids]
    results = [
        {"role": "tool", "tool_call_id": id, "content": f"Order {number} was shipped on Monday."}
        for id in ids
    ]
    return [
        {"role": "user", "content": f"Where is order {number}? I have been waiting since Monday."},
        {"role": "assistant", "content": "", "tool_calls": calls},
        *results,
        {"role": "assistant", "content": f"Order {number} was shipped on Monday and arrives on Friday."},
    ]


def fill(size: int) -> Any:
    from django.utils import timezone

    from agents.models import Actor
    from conversations.messages import row_of
    from conversations.models import Message

    actor = Actor.objects.create(kind="bench", name=f"log of {size}", seq=size)
    now = timezone.now()
    rows = (
        Message(actor=actor, seq=seq, at=now, **row_of(message))
        for seq, message in enumerate(messages(size), start=1)
    )
    while batch := [row for _, row in zip(range(BATCH), rows, strict=False)]:
        Message.objects.bulk_create(batch)
    return actor


def windows(sizes: list[int], runs: int) -> None:
    from conversations import adapters, history
    from conversations.adapters.windows import Bounds

    actors = {size: fill(size) for size in sizes}
    for name, bounds in (("last=40", Bounds(last=40)), ("max_tokens=2000", Bounds(max_tokens=2000))):
        took: dict[int, list[float]] = {size: [] for size in sizes}
        for run in range(runs + 10):
            for size, actor in actors.items():  # by turns: whatever else the machine does, does it to each
                began = time.perf_counter()
                rendered = adapters.to_openai(history.window_of(actor.pk, size, [], bounds))
                if run >= 10:
                    took[size].append(time.perf_counter() - began)
                assert rendered[1]["role"] == "user"
        for size in sizes:
            ordered = sorted(took[size])
            p50, p95 = statistics.median(ordered) * 1e3, ordered[int(len(ordered) * 0.95)] * 1e3
            print(f"to_openai({name}) of {size:>7,} messages: p50 {p50:.2f} ms, p95 {p95:.2f} ms")


def growth() -> None:
    from django.utils import timezone

    from agents.models import Actor
    from conversations.messages import row_of
    from conversations.models import Message

    actor = Actor.objects.create(kind="bench", name="growing")
    seq, before = 0, 0
    for number in range(1, TOOL_CALLS + 1):
        for message in exchange(number):
            if message["role"] == "assistant" and message.get("tool_calls"):
                message["tool_calls"] = message["tool_calls"][:1]
            if message.get("tool_call_id", "").endswith("b"):
                continue
            seq += 1
            Message.objects.create(actor=actor, seq=seq, at=timezone.now(), **row_of(message))
        if number % STEP == 0:
            weight = stored(actor.pk)
            part = (weight - before) / (STEP * 4)
            print(f"{number} tool calls: {seq} messages, {weight:,} bytes, the newest {part:.0f} a message")
            before = weight


def stored(actor_id: int) -> int:
    """The bytes of an actor's messages, in all columns as the database keeps them."""
    from django.db import connection

    columns = ("role", "content", "parts", "name", "tool_calls", "tool_call_id", "metadata")
    texts = " + ".join(
        f"COALESCE(LENGTH(CAST({column} AS {'BLOB' if connection.vendor == 'sqlite' else 'TEXT'})), 0)"
        for column in columns
    )
    if connection.vendor == "postgresql":
        texts = "pg_column_size(m.*)"
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT SUM({texts}) FROM conversations_message m WHERE actor_id = %s", [actor_id])
        return int(cursor.fetchone()[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--database", default=os.environ.get("DATABASE_URL", ""))
    parser.add_argument("--sizes", default="100,10000,100000")
    parser.add_argument("--runs", type=int, default=200)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(VAR_DIR=folder, ENV_FILE="", DEBUG="false", SECRET_KEY="benchmark")
        os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
        os.environ.pop("DATABASE_URL", None)
        if asked.database:
            os.environ["DATABASE_URL"] = asked.database.rsplit("/", 1)[0] + f"/{DATABASE}"
        import django

        django.setup()
        from django.db import connection

        connection.settings_dict["TEST"]["NAME"] = DATABASE if asked.database else f"{folder}/bench.sqlite3"
        connection.creation.create_test_db(verbosity=0, autoclobber=True)
        try:
            print(f"{connection.display_name}, Python {sys.version.split()[0]}")
            windows([int(size) for size in asked.sizes.split(",")], asked.runs)
            growth()
        finally:
            connection.creation.destroy_test_db(connection.settings_dict["NAME"], verbosity=0)


if __name__ == "__main__":
    main()
