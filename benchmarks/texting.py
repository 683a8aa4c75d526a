"""Texts through the whole product: real processes, the sandbox as provider, the official client.

    python -m benchmarks.texting load --rate 100 --seconds 30
        Texts come in at this rate, each delivered up to three times; the provider loses answers after having
        sent, and reports late, twice and out of order. At the end every text was answered exactly once, every
        status is what the sandbox says, and the audit is clean: printed, and the exit status says so.

    python -m benchmarks.texting ack --times 10 --seconds 20
        The time until a webhook is acknowledged while texts come in at ten times the rate that the workers
        can handle; p50, p99 and the longest. Telnyx gives up after 2 s.

Runs against the database of DATABASE_URL (a database of its own is made in it and dropped) or a SQLite file.
Prints one line of JSON with --json.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.databases import close_django, own
from benchmarks.drivers import percentile
from benchmarks.processes import free_port, running, site_environment, wait_for

APP = "benchmarks.texting_app"
OURS = "+15550009999"
#: Texts of one person stay below what looks like a machine's (SMS_LOOP_TEXTS).
A_PERSON = 20


def environment(folder: Path, database: str, agents: dict[str, Any]) -> dict[str, str]:
    return site_environment(
        "benchmarks.texting_app.settings",
        folder,
        DATABASE_URL=database,
        AGENT_APPS=APP,
        BENCHMARK_AGENTS=json.dumps(agents),
    )


class Site:
    """The web process, the worker, and the sandbox, on one database."""

    def __init__(
        self, stack: ExitStack, folder: Path, agents: dict[str, Any], workers: int, **sandbox: Any
    ) -> None:
        from conversations.sandbox import Sandbox

        self.log = folder / "log"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        webhook = f"{self.url}/webhooks/{{provider}}/answering/"
        self.sandbox = stack.enter_context(Sandbox(webhook=webhook, **sandbox))
        database = os.environ["DATABASE_URL"]
        self.env = environment(
            folder,
            database,
            {**self.sandbox.settings, "SITE_URL": self.url, "SMS_PROVIDER": "telnyx", **agents},
        )
        manage = [sys.executable, "manage.py"]
        serve = [*manage, "serve", "--port", str(self.port), "--no-scheduler"]
        stack.enter_context(running(serve, self.env, self.log))
        for _ in range(workers):
            stack.enter_context(running([*manage, "run_scheduler"], self.env, self.log))
        wait_for(self.url, self.log)


@contextmanager
def database(folder: Path) -> Iterator[None]:
    """A fresh database, as DATABASE_URL of this process and its children."""
    with own("texting", folder) as url:
        os.environ["DATABASE_URL"] = url
        try:
            yield
        finally:
            close_django()


def set_up(folder: Path) -> None:
    """Django in this process, on the same database, with its tables."""
    os.environ.update(environment(folder, os.environ["DATABASE_URL"], {}))
    import django

    django.setup()
    from django.core.management import call_command

    call_command("migrate", verbosity=0)


# Under load


def load(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    from conversations.models import InboundText, OutboundText, TextEvent
    from scheduler.audit import audit
    from scheduler.models import Task

    rng = random.Random(options.seed)
    count = int(options.rate * options.seconds)
    people = [f"+1555{number:07}" for number in range(1, count // A_PERSON * 2 + 10)]
    agents = {"SMS_TIMEOUT": 2.0, "SMS_STALE_AFTER": 5.0, "SMS_CONCURRENCY": 16}
    with ExitStack() as stack:
        site = Site(
            stack, folder, agents, options.workers,
            delay=0.5, doubled=0.3, shuffled=0.3, late=0.1, lost=options.lost, hang=4.0, seed=options.seed,
        )  # fmt: skip
        began = time.monotonic()
        for number in range(count):
            left = began + number / options.rate - time.monotonic()
            if left > 0:
                time.sleep(left)
            again = rng.choice([0, 0, 0, 1, 2])
            site.sandbox.text("telnyx", rng.choice(people), OURS, f"text {number}", again=again)
        delivered = time.monotonic() - began

        def unfinished() -> int:
            return (
                count
                - OutboundText.objects.exclude(status__in=["queued", "sending", "unknown", "sent"]).count()
                + Task.objects.count()
            )

        deadline = time.monotonic() + options.patience
        while (left_over := unfinished()) and time.monotonic() < deadline:
            time.sleep(0.5)
        site.sandbox.settle(60)
        time.sleep(1.5)  # the last sweep
        acks = [one.seconds for one in site.sandbox.delivered if one.said == "received" and one.status]
        refused = [one for one in site.sandbox.delivered if not 200 <= one.status < 300]
        answers = Counter(message.text for message in site.sandbox.sent)
        finals = {message.id: message.status for message in site.sandbox.sent}
        wrong = [
            text.pk for text in OutboundText.objects.all() if finals.get(text.provider_id) != text.status
        ]
        findings = [str(finding) for finding in audit(settled=0) if finding.check != "sessions"]
        expected = {f"answer to text {number}" for number in range(count)}
        result = {
            "texts": count,
            "seconds": round(delivered, 1),
            "until_all_was_done": round(time.monotonic() - began, 1),
            "inbound_rows": InboundText.objects.count(),
            "answered": len(expected & answers.keys()),
            "answered_twice": sorted(text for text, times in answers.items() if times > 1),
            "unanswered": sorted(expected - answers.keys())[:10],
            "events": TextEvent.objects.count(),
            "wrong_statuses": wrong[:10],
            "statuses": dict(Counter(OutboundText.objects.values_list("status", flat=True))),
            "left_over": left_over,
            "refused_deliveries": len(refused),
            "findings": findings[:10],
            "ack_p50_ms": round(percentile(acks, 0.5) * 1000, 1),
            "ack_p99_ms": round(percentile(acks, 0.99) * 1000, 1),
            "ack_max_ms": round(max(acks) * 1000, 1),
        }
        result["ok"] = (
            result["answered"] == result["inbound_rows"] == count
            and not (result["answered_twice"] or wrong or findings or left_over)
            and OutboundText.objects.count() == count
        )
    if not result["ok"]:
        result["log"] = site.log.read_text()[-3000:]
    return result


# Acknowledgements


def ack(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    import httpx

    from conversations.management.commands.text import signed
    from conversations.models import InboundText
    from scheduler.models import Task

    # The workers are made slow, so that ten times their rate is a rate that a client can make.
    agents = {"TURNS": 4, "SMS_LOOP_TEXTS": 0, "SMS_LOOP_SAME": 0, "MAX_INBOX": 1_000_000}
    os.environ["BENCHMARK_SECONDS_A_TEXT"] = str(4 / (options.rate / options.times))
    with ExitStack() as stack:
        site = Site(stack, folder, agents, 1)
        path = "/webhooks/telnyx/answering/"
        client = stack.enter_context(
            httpx.Client(base_url=site.url, timeout=30, limits=httpx.Limits(max_connections=64))
        )
        count = int(options.rate * options.seconds)
        bodies = [
            signed("telnyx", site.url + path, f"+1555{number % 5000:07}", OURS, f"text {number}")
            for number in range(count)
        ]
        took: list[float] = []
        statuses: Counter[int] = Counter()
        lock = threading.Lock()

        def post(number: int) -> None:
            body, _ = bodies[number]
            from conversations.signatures import DEVELOPMENT_SIGNING_KEY, sign

            headers = {"Content-Type": "application/json", **sign(body, DEVELOPMENT_SIGNING_KEY)}
            at = time.monotonic()
            status = client.post(path, content=body, headers=headers).status_code
            with lock:
                took.append(time.monotonic() - at)
                statuses[status] += 1

        post(0)
        took.clear()
        pool = stack.enter_context(ThreadPoolExecutor(64))
        began = time.monotonic()
        done = []
        for number in range(1, count):
            left = began + number / options.rate - time.monotonic()
            if left > 0:
                time.sleep(left)
            done.append(pool.submit(post, number))
        for one in done:
            one.result()
        spent = time.monotonic() - began
        return {
            "rate": round(len(took) / spent, 1),
            "asked_rate": options.rate,
            "worker_rate": round((InboundText.objects.count() - Task.objects.count()) / spent, 1),
            "backlog": Task.objects.count(),
            "statuses": dict(statuses),
            "ack_p50_ms": round(statistics.median(took) * 1000, 1),
            "ack_p99_ms": round(percentile(took, 0.99) * 1000, 1),
            "ack_max_ms": round(max(took) * 1000, 1),
            "ok": statuses.keys() == {200} and percentile(took, 0.99) < 2.0,
        }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["load", "ack"])
    parser.add_argument("--rate", type=float, default=100.0, help="texts a second (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--times", type=float, default=10.0, help="ack: times what the workers can handle")
    parser.add_argument("--lost", type=float, default=0.03, help="load: share of answers that are lost")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--patience", type=float, default=300.0, help="load: seconds until all must be done")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with database(folder):
            set_up(folder)
            result = (load if options.what == "load" else ack)(options, folder)
    if options.json:
        print(json.dumps(result))
    else:
        for key, value in result.items():
            print(f"{key:>20}: {value}")
    sys.exit(0 if result["ok"] else 1)


if __name__ == "__main__":
    main()
