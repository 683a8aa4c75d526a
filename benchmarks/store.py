"""How many turns a second the store alone claims and commits on PostgreSQL, beside pgbench.

    python benchmarks/store.py [--batches 1,8,64] [--seconds 5] [--rounds 3] [--no-wait] [--profile]

A turn here is what receiving a text costs the store: a claim, and a commit that writes one message, one
event, one pending task (replaced by its id), a state, and the record of the turn. No method runs and no event
loop is in the way: this measures ``agents.store`` and the database.

pgbench runs the same turn in two hand-written transactions of prepared one-row statements, in the same
minute, with one client (its latency is what a lone turn could cost) and with two (what the machine gives).

It makes a database of its own on the server that ``DATABASE_URL`` names and drops it at the end.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import re
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SERVER = os.environ.get("DATABASE_URL", "postgres://postgres@127.0.0.1:5432/postgres")
NAME = f"bench_store_{os.getpid()}"

PGBENCH = r"""
\set id 1 + :client_id + :clients * random(0, :actors / :clients - 1)
BEGIN;
UPDATE agents_actor SET token = gen_random_uuid(), turn_id = gen_random_uuid(), turn_started_at = now(),
       lease_expires_at = clock_timestamp() + interval '15 seconds', stop_turn_id = NULL,
       waits_for_id = NULL, waiting_at = NULL
 WHERE id = :id AND (token IS NULL OR lease_expires_at <= clock_timestamp())
RETURNING id AS actor, kind, name, version, seq, cursor, state, started, token::text AS token \gset
COMMIT;
BEGIN;
SET LOCAL lock_timeout = 250;
SELECT id, version FROM agents_actor WHERE id = :actor ORDER BY id FOR NO KEY UPDATE;
SELECT clock_timestamp();
DELETE FROM scheduler_step s USING scheduler_task t
 WHERE t.actor_id = :actor AND t.task_id = 'process' AND s.actor_id = t.actor_id AND s.task_pk = t.id;
DELETE FROM scheduler_task WHERE actor_id = :actor AND task_id = 'process';
INSERT INTO conversations_message
    (actor_id, seq, role, content, name, tool_call_id, at)
    VALUES (:actor, :seq + 1, 'user', 'Where is my order A-17? It should have been here on Monday.', '', '',
            now());
INSERT INTO agents_event (actor_id, cursor, type, payload, created_at)
    VALUES (:actor, :cursor + 1, 'message', '{"seq": 1}', now());
INSERT INTO scheduler_task
    (actor_id, task_id, lane, method, payload, status, due_at, cron, tz, attempts, max_retries, created_at,
     error)
    VALUES (:actor, 'process', 'timer', 'process', '{"from": "+15550001111"}', 'pending', now(), '', '', 0, 5,
            now(), '');
INSERT INTO agents_turnrecord
    (actor_id, version, turn_id, origin, method, outcome, started_at, duration_seconds, first_seq, last_seq,
     state_change, committed_at)
    VALUES (:actor, :version + 1, gen_random_uuid(), 'task', 'receive', 'done', now(), 0.01,
            :seq + 1, :seq + 1, '{"patch": {"status": "busy"}}', now());
UPDATE agents_actor a SET token = NULL, lease_expires_at = NULL, turn_id = NULL, turn_started_at = NULL,
       version = version + 1, started = true, seq = seq + 1, cursor = cursor + 1,
       state = '{"status": "busy", "from": "+15550001111", "orders": ["A-17"]}',
       alarm = LEAST((SELECT min(t.due_at) FROM scheduler_task t
                       WHERE t.actor_id = a.id AND t.status = 'pending' AND NOT t.lane = 'inbox'),
                     (SELECT t.due_at FROM scheduler_task t
                       WHERE t.actor_id = a.id AND t.status = 'pending' AND t.lane = 'inbox'
                       ORDER BY t.id LIMIT 1))
 WHERE id = :actor;
COMMIT;
"""


def main() -> None:
    options = parse()
    if options.no_wait:
        os.environ["PGOPTIONS"] = "-c synchronous_commit=off"
    admin(f"CREATE DATABASE {NAME}")
    try:
        url = SERVER.rpartition("/")[0] + f"/{NAME}"
        os.environ |= {"DATABASE_URL": url, "SECRET_KEY": "benchmark", "ENV_FILE": ""}
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "agentsite.settings")
        sys.path.insert(0, str(ROOT))
        import django

        django.setup()
        from django.core.management import call_command

        call_command("migrate", verbosity=0)
        run(options, url)
        from django.db import connection, connections

        connections.close_all()
        connection.close_pool()  # type: ignore[attr-defined]
    finally:
        admin(f"DROP DATABASE {NAME} WITH (FORCE)")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", default="1,8,64", help="turns in a batch (default: %(default)s)")
    parser.add_argument("--actors", type=int, default=1000, help="rows of actors (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=5, help="a measurement (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=1, help="of all measurements (default: %(default)s)")
    parser.add_argument("--profile", action="store_true", help="print where the store's own time goes")
    parser.add_argument("--no-pgbench", action="store_true")
    parser.add_argument(
        "--no-wait",
        action="store_true",
        help="nobody waits for the disk: what the processors alone would give",
    )
    return parser.parse_args()


def admin(statement: str) -> None:
    import psycopg

    with psycopg.connect(SERVER, autocommit=True) as connection:
        connection.execute(statement)  # type: ignore[call-overload]


def run(options: argparse.Namespace, url: str) -> None:
    from agents.store import get_store

    addresses = [("bench", f"actor-{n}") for n in range(options.actors)]
    ids = list(get_store().ensure(addresses).values())
    analyze()
    for _ in range(options.rounds):
        lone = None
        for size in (int(n) for n in options.batches.split(",")):
            profile = cProfile.Profile() if options.profile else None
            turns, times, client, server = measure(get_store(), ids, size, options.seconds, profile)
            times.sort()
            p50, p95 = (times[int(len(times) * q)] * 1000 for q in (0.5, 0.95))
            rate = turns / sum(times)
            print(
                f"store, batches of {size:3}: {rate:7.0f} turns/s   p50 {p50:6.2f} ms   p95 {p95:6.2f} ms   "
                f"processor time: {client / turns * 1e6:4.0f} us here, {server / turns * 1e6:4.0f} us there"
            )
            if size == 1:
                lone = p50
            if profile:
                pstats.Stats(profile).sort_stats("tottime").print_stats(22)
        if options.no_pgbench:
            continue
        analyze()
        for clients in (1, 2):
            latency, tps = pgbench(url, clients, options.actors, options.seconds)
            ratio = (
                f"   a lone turn of the store takes {lone / latency:.2f} of it"
                if lone and clients == 1
                else ""
            )
            print(f"pgbench, {clients} client(s):    {tps:7.0f} turns/s   mean {latency:5.2f} ms{ratio}")


def analyze() -> None:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")


def measure(
    store: Any, ids: list[int], size: int, seconds: float, profile: cProfile.Profile | None
) -> tuple[int, list[float], float, float]:
    """Turns committed, how long each batch of them took (claim and commit), and the processor time that all
    of them took here and in the database's process. Seconds."""
    from agents.store.requests import Claim

    at, turns, times, client, server = 0, 0, [], 0.0, 0.0
    warm_until = time.perf_counter() + min(1.0, seconds / 4)
    until = warm_until + seconds
    while (began := time.perf_counter()) < until:
        chosen = [ids[(at + n) % len(ids)] for n in range(size)]
        at += size
        if profile and began > warm_until:
            profile.enable()
        start, used = time.perf_counter(), time.thread_time()
        claimed = store.claim([Claim(id, uuid.uuid4()) for id in chosen])
        middle, used = time.perf_counter(), time.thread_time() - used
        if profile:
            profile.disable()
        commits = [turn(c) for c in claimed]  # the turn's own work, not the store's
        if profile and began > warm_until:
            profile.enable()
        restart, resumed = time.perf_counter(), time.thread_time()
        results = store.commit(commits)
        end, used = time.perf_counter(), used + time.thread_time() - resumed
        if profile:
            profile.disable()
        bad = [r for r in results if isinstance(r, BaseException)]
        if bad:
            raise bad[0]
        if began > warm_until:
            turns += size
            times.append(middle - start + end - restart)
            client += used
        else:
            server = server_time()
    return turns, times, client, server_time() - server


def server_time() -> float:
    """Processor time of the database's process that serves this thread; 0 on another machine."""
    from django.db import connection

    connection.ensure_connection()
    try:
        fields = (
            Path(f"/proc/{connection.connection.info.backend_pid}/stat")
            .read_text()
            .rpartition(")")[2]
            .split()
        )
    except FileNotFoundError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def turn(claimed: Any) -> Any:
    """What a turn that received a text commits."""
    from agents.store.base import TASK
    from agents.store.requests import Commit
    from agents.turn import EVENT
    from agents.writes import Table, Writes

    global _message, _task_key
    if _message is None:
        _message = Table(
            "conversations.Message",
            ("actor_id", "seq", "role", "content", "parts", "name", "tool_calls", "tool_call_id", "metadata",
             "at"),
        )  # fmt: skip
        _task_key = Table("scheduler.Task", ("actor_id", "task_id"))
    actor, now = claimed.actor, claimed.actor.now
    writes = Writes()
    writes.insert(_message, {
        "actor_id": actor.id, "seq": actor.seq + 1, "role": "user",
        "content": "Where is my order A-17? It should have been here on Monday.", "parts": None, "name": "",
        "tool_calls": None, "tool_call_id": "", "metadata": None, "at": now,
    })  # fmt: skip
    writes.insert(EVENT, {
        "actor_id": actor.id, "cursor": actor.cursor + 1, "type": "message",
        "payload": {"seq": actor.seq + 1}, "created_at": now,
    })  # fmt: skip
    writes.delete(_task_key, {"actor_id": actor.id, "task_id": "process"})
    writes.insert(TASK, {
        "actor_id": actor.id, "task_id": "process", "lane": "timer", "method": "process",
        "payload": {"from": "+15550001111"}, "status": "pending", "due_at": now, "every_seconds": None,
        "cron": "", "tz": "", "attempts": 0, "max_retries": 5, "created_at": now, "parked_at": None,
        "error": "", "carried": "",
    })  # fmt: skip
    return Commit(
        actor.id, claimed.token, claimed.turn_id, actor.version, dirty=True, seq=actor.seq + 1,
        cursor=actor.cursor + 1, state_changed=True, writes=writes,
        state={"status": "busy", "from": "+15550001111", "orders": ["A-17"]},
        record={
            "actor_id": actor.id, "version": actor.version + 1, "turn_id": claimed.turn_id, "origin": "task",
            "method": "receive", "outcome": "done", "started_at": now, "duration_seconds": 0.01,
            "first_seq": actor.seq + 1, "last_seq": actor.seq + 1,
            "state_change": {"patch": {"status": "busy"}},
        },
    )  # fmt: skip


_message: Any = None
_task_key: Any = None


def pgbench(url: str, clients: int, actors: int, seconds: float) -> tuple[float, float]:
    """Mean latency in milliseconds, and turns a second."""
    program = shutil.which("pgbench") or "/usr/lib/postgresql/15/bin/pgbench"
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as script:
        script.write(PGBENCH)
        script.flush()
        out = subprocess.run(
            [program, "-n", "-M", "prepared", "-f", script.name, "-c", str(clients), "-j", str(clients),
             "-T", str(max(1, round(seconds))), "-D", f"actors={actors}", "-D", f"clients={clients}", url],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
    latency = re.search(r"latency average = ([\d.]+) ms", out)
    tps = re.search(r"tps = ([\d.]+)", out)
    assert latency and tps, out
    return float(latency[1]), float(tps[1])


if __name__ == "__main__":
    main()
