"""The admin's pages in a large database: time and number of queries of each.

    DATABASE_URL=postgres://postgres@127.0.0.1:5432/admin_bench python -m benchmarks.admin

Fills the database, which must be migrated and have no actors, with COPY: 100,000 actors, 1,000,000 messages,
as many turns, attempts and texts as fit them, over seven days; then opens each page as a superuser and prints
its first time, the best and the worst of three more, the least processor time (of this process and of the
database's; on a busy machine the figure to compare), the queries, and the pages of 8 kB that the database
looked at. ``--keep`` finds it filled already, ``--only`` measures the pages whose names have this in them.
Needs ``DEBUG=true``, or ``manage.py collectstatic``, and a server on this machine.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import random
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import django

WORDS = """order parcel refund blue green invoice late tomorrow thanks shipping address please where when
number card delivery return size help store open closed price stock week monday friday morning evening"""
KINDS = ["support"] * 7 + ["billing"] * 2 + ["sales"]
WEEK = 7 * 86_400
TIMES = 3


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--actors", type=int, default=100_000)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--keep", action="store_true", help="the database is filled already")
    parser.add_argument("--only", default="", help="pages with this in their names")
    given = parser.parse_args()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "agentsite.settings")
    django.setup()
    from agents.models import Actor

    if not given.keep:
        if Actor.objects.exists():
            raise SystemExit("This database has actors: give it an empty one, or --keep.")
        began = time.perf_counter()
        fill(given.actors, given.messages)
        print(f"filled in {time.perf_counter() - began:.0f} s")
    measure(given.only)


# Filling


def fill(actors: int, messages: int) -> None:
    from django.db import connection

    chance = random.Random(8)
    now = dt.datetime.now(dt.UTC)
    each = max(2, messages // actors)
    words = WORDS.split()
    starts = sorted(now - dt.timedelta(seconds=chance.random() * WEEK) for _ in range(actors))

    def said() -> str:
        return " ".join(chance.choices(words, k=chance.randint(4, 18)))

    def actor_rows() -> Iterator[tuple[Any, ...]]:
        for n, at in enumerate(starts, 1):
            state = json.dumps(
                {"status": chance.choice(["open", "answered", "closed"]), "cart": {"count": n % 9}}
            )
            alarm = now - dt.timedelta(minutes=5) if n % 5_000 == 0 else at + dt.timedelta(days=30)
            yield (n, chance.choice(KINDS), f"+1555{n:07}", at, each // 2, True, each, 0, alarm, state)

    def message_rows() -> Iterator[tuple[Any, ...]]:
        # In the order of time, as they come: conversations lie among each other.
        for seq in range(1, each + 1):
            for n, at in enumerate(starts, 1):
                rare = " zanzibar" if (n * seq) % 100_003 == 7 else ""
                role = "user" if seq % 2 or n % 50 == 0 else "assistant"
                yield (n, seq, role, said() + rare, "", "", at + dt.timedelta(minutes=seq))

    def conversation_rows() -> Iterator[tuple[Any, ...]]:
        for n, at in enumerate(starts, 1):
            last = at + dt.timedelta(minutes=each)
            waits = n % 50 == 0
            asked = each if waits or each % 2 else each - 1
            yield (n, last, asked, at + dt.timedelta(minutes=asked), 0 if waits else each - each % 2)

    def turns() -> Iterator[tuple[int, int, dt.datetime]]:
        for number in range(1, each // 2 + 1):
            for n, at in enumerate(starts, 1):
                yield n, number, at + dt.timedelta(minutes=2 * number)

    def record_rows() -> Iterator[tuple[Any, ...]]:
        for n, number, at in turns():
            change = json.dumps({"patch": {"cart": {"count": number}}})
            undo = json.dumps({"patch": {"cart": {"count": number - 1}}})
            yield (n, number, uuid.UUID(int=chance.getrandbits(128)), "task", "process", "done", at, 0.8,
                   2 * number - 1, 2 * number, change, undo, at)  # fmt: skip

    def attempt_rows() -> Iterator[tuple[Any, ...]]:
        for n, number, at in turns():
            bad = chance.random() < 0.01
            yield (n, number, "process", "timer", "process", 1, uuid.UUID(int=chance.getrandbits(128)),
                   "failed" if bad else "done", at - dt.timedelta(seconds=chance.random()), at, at,
                   "RateLimitError: 429" if bad else "", "")  # fmt: skip

    def outbound_rows() -> Iterator[tuple[Any, ...]]:
        for n, _, at in turns():
            status = "undelivered" if chance.random() < 0.005 else "delivered"
            yield (n, uuid.UUID(int=chance.getrandbits(128)), "telnyx", "+15550009999", f"+1555{n:07}",
                   said(), status, at, at, at)  # fmt: skip

    def inbound_rows() -> Iterator[tuple[Any, ...]]:
        for n, number, at in turns():
            name = f"{n}-{number}"
            yield (n, "telnyx", name, name, f"+1555{n:07}", "+15550009999", said(), at)

    def task_rows() -> Iterator[tuple[Any, ...]]:
        for n, at in enumerate(starts, 1):
            parked = n % 1_000 == 0
            yield (n, "nudge", "timer", "process" if parked else "nudge", "parked" if parked else "pending",
                   at + dt.timedelta(days=30), "", "", 6 if parked else 0, 5, at, at if parked else None,
                   "RateLimitError: 429 from the model" if parked else "")  # fmt: skip

    copy("agents_actor", "id kind name created_at version started seq cursor alarm state", actor_rows())
    copy("conversations_message", "actor_id seq role content name tool_call_id at", message_rows())
    copy(
        "conversations_conversation", "actor_id last_at asked_seq asked_at answered_seq", conversation_rows()
    )
    copy(
        "agents_turnrecord",
        "actor_id version turn_id origin method outcome started_at duration_seconds first_seq last_seq"
        " state_change state_undo committed_at",
        record_rows(),
    )
    copy(
        "scheduler_attempt",
        "actor_id task_pk task_id lane method number turn_id outcome due_at started_at ended_at error"
        " traceback",
        attempt_rows(),
    )
    copy(
        "conversations_outboundtext",
        "actor_id uid provider from_number to_number text status due_at created_at sent_at",
        outbound_rows(),
    )
    copy(
        "conversations_inboundtext",
        "actor_id provider event_id message_id from_number to_number text received_at",
        inbound_rows(),
    )
    copy(
        "scheduler_task",
        "actor_id task_id lane method status due_at cron tz attempts max_retries created_at parked_at error",
        task_rows(),
    )
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")


def copy(table: str, columns: str, rows: Iterable[tuple[Any, ...]]) -> None:
    from django.db import connection

    began, count = time.perf_counter(), 0
    with connection.cursor() as cursor:
        statement = f"COPY {table} ({', '.join(columns.split())}) FROM STDIN"
        with cursor.copy(statement) as into:  # type: ignore[attr-defined]
            for row in rows:
                into.write_row(row)
                count += 1
        if "id" in columns.split():
            cursor.execute(f"SELECT setval(pg_get_serial_sequence('{table}', 'id'), {count})")
    print(f"{table}: {count:,} rows in {time.perf_counter() - began:.0f} s", flush=True)


# Measuring


def pages() -> dict[str, str]:
    conversation, message = "/admin/conversations/conversation/", "/admin/conversations/message/"
    outbound, attempt, actor = (
        "/admin/conversations/outboundtext/", "/admin/scheduler/attempt/", "/admin/agents/actor/"
    )  # fmt: skip
    return {
        "front page, day": "/admin/",
        "front page, week": "/admin/?span=week",
        "conversations": conversation,
        "conversations, page 100": f"{conversation}?p=100",
        "conversations of a kind": f"{conversation}?kind=sales",
        "conversations that wait": f"{conversation}?waiting=1h",
        "conversations new to me": f"{conversation}?new=yes",
        "conversations with parked tasks": f"{conversation}?tasks=parked",
        "conversations by state": f"{conversation}?state=%24.cart.count+%3D+3",
        "conversations by a rare state": f"{conversation}?state=%24.cart.count+%3D+77",
        "conversations, a rare word": f"{conversation}?q=zanzibar",
        "conversations, a common word": f"{conversation}?q=parcel",
        "conversations, a phrase": f"{conversation}?q=%22late+tomorrow%22",
        "conversations, a name": f"{conversation}?q=0031415",
        "a conversation": f"{message}transcript/777/",
        "a conversation as of a turn": f"{message}transcript/777/?version=1",
        "messages": message,
        "messages, a rare word": f"{message}?q=zanzibar",
        "messages, a common word": f"{message}?q=parcel",
        "messages, two words": f"{message}?q=parcel+refund",
        "messages, seven words": f"{message}?q=parcel+refund+late+tomorrow+order+blue+green",
        "messages, a word but not another": f"{message}?q=parcel+-refund",
        "messages, a word of a kind": f"{message}?q=parcel&kind=sales",
        "messages, nothing": f"{message}?q=quagga",
        "messages, a phrase": f"{message}?q=%22late+tomorrow%22",
        "messages, a phrase of three": f"{message}?q=%22late+tomorrow+parcel%22",
        "messages, a phrase, further back": f"{message}?q=%22late+tomorrow%22+before:300000",
        "messages of a kind and role": f"{message}?kind=sales&role=assistant",
        "actors": actor,
        "actors, a name": f"{actor}?q=0031415",
        "actors with due tasks": f"{actor}?stuck=due",
        "actors whose process died": f"{actor}?stuck=lost",
        "tasks": "/admin/scheduler/task/",
        "parked tasks of a kind": "/admin/scheduler/task/?status=parked&kind=support",
        "attempts": attempt,
        "failed attempts of a kind": f"{attempt}?outcome=failed&kind=sales",
        "turns": "/admin/agents/turnrecord/",
        "outbound texts": outbound,
        "undelivered texts": f"{outbound}?status=undelivered",
        "inbound texts": "/admin/conversations/inboundtext/",
    }


def measure(only: str = "") -> None:
    from django.contrib.auth import get_user_model
    from django.db import connection
    from django.test import Client
    from django.test.utils import CaptureQueriesContext

    user, _ = get_user_model().objects.get_or_create(
        username="benchmark", defaults={"is_staff": True, "is_superuser": True}
    )
    client = Client(headers={"host": "localhost"})
    client.force_login(user)
    backend = Backend()
    print(
        f"{'page':36} {'first':>8} {'best':>8} {'worst':>8} {'cpu':>8} {'queries':>8} {'pages':>8} {'kB':>6}"
    )
    for name, url in pages().items():
        if only not in name:
            continue
        times, works, count, size, read = [], [], 0, 0, 0
        for _ in range(TIMES + 1):
            before, worked = backend.pages(), backend.seconds() + time.process_time()
            with CaptureQueriesContext(connection) as queries:
                began = time.perf_counter()
                answer = client.get(url, secure=True)
                times.append(time.perf_counter() - began)
                count, size = len(queries), len(answer.content)
            works.append(backend.seconds() + time.process_time() - worked)
            read = backend.pages() - before
            if answer.status_code != 200 or b"took too long" in answer.content:
                name += f" !{answer.status_code}"
        first, *rest = times
        line = f"{name:36} {first:7.3f}s {min(rest):7.3f}s {max(rest):7.3f}s {min(works[1:]):7.3f}s"
        print(f"{line} {count:8} {read:8,} {size / 1000:6.0f}", flush=True)


class Backend:
    """The process of the database that serves this connection: how long it worked, and what it read."""

    def __init__(self) -> None:
        self._number = self._ask("SELECT pg_backend_pid()")

    def seconds(self) -> float:
        return int(Path(f"/proc/{self._number}/schedstat").read_text().split()[0]) / 1e9

    def pages(self) -> int:
        self._ask("SELECT pg_stat_force_next_flush()")
        self._ask("SELECT pg_stat_clear_snapshot()")
        of = ("heap_blks_read", "heap_blks_hit", "idx_blks_read", "idx_blks_hit", "toast_blks_read",
              "toast_blks_hit")  # fmt: skip
        total = " + ".join(f"coalesce({column}, 0)" for column in of)
        return self._ask(f"SELECT sum({total}) FROM pg_statio_user_tables")

    def _ask(self, question: str) -> int:
        from django.db import connection

        with connection.cursor() as cursor:
            cursor.execute(question)
            answer = cursor.fetchone()[0]
        return int(answer) if answer else 0


if __name__ == "__main__":
    main()
