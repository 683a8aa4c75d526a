"""A site of its own under load, with one fault after another: ``python -m tests.faults.soak --duration 60``.

50 people text at random through the real webhook. After each fault the load rests, everything has time to
end, and the audit looks over the whole database. Prints one line a fault: how many texts were acknowledged
while it lasted and around it; how many were lost or doubled since the beginning; how many answers may or may
not have left (a worker held them when it was killed; they are "unknown" in the outbox); the longest pause
between two commits of any turns; and the seconds from the fault's end until the first turn after it, and
until everything was done. Exits with 1 if anything was lost, doubled, or found by the audit.

Needs the programs of PostgreSQL, PgBouncer and Redis; a wrong clock needs libfaketime, a full disk the right
to mount. Databases and brokers that run already are not touched.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import Any

import django


@dataclass
class Row:
    fault: str
    seconds: float = 0.0
    texts: int = 0
    acknowledged: int = 0
    lost: int = 0
    doubled: int = 0
    unknown: int = 0
    pause: float | None = None
    first_turn: float | None = None
    all_done: float | None = None
    left_out: str = ""
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        if self.left_out:
            return f"{self.fault:<40} left out: {self.left_out}"
        counts = f"{self.texts:>6}{self.lost:>6}{self.doubled:>9}{self.unknown:>9}"
        times = "".join(_seconds(at) for at in (self.pause, self.first_turn, self.all_done))
        line = f"{self.fault:<40}{self.seconds:>6.1f} s{counts}{times}"
        return "\n".join([line, *(f"    {problem}" for problem in self.problems[:20])])


HEAD = f"{'fault':<40}{'lasted':>8}{'texts':>6}{'lost':>6}{'doubled':>9}{'unknown':>9}" + "".join(
    f"{name:>8}" for name in ("pause", "turn", "done")
)


def _seconds(value: float | None) -> str:
    return f"{value:>6.1f} s" if value is not None else f"{'-':>8}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--duration", type=float, default=30.0, metavar="MINUTES", help="how long to go on (default: 30)"
    )
    parser.add_argument(
        "--short", action="store_true", help="every fault once and briefly: what the suite does"
    )
    parser.add_argument("--only", metavar="WORDS", help="faults whose name has these words")
    parser.add_argument(
        "--lasting", type=float, metavar="SECONDS", help="how long each fault lasts, instead of its own time"
    )
    parser.add_argument("--people", type=int, default=50)
    parser.add_argument(
        "--every", type=float, default=4.0, help="seconds between two texts of one person (default: 4)"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="one line of JSON at the end")
    options = parser.parse_args()

    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
    # Of the site that is about to start; nothing of it is known yet.
    os.environ["DATABASE_URL"] = "postgres://postgres@127.0.0.1:1/agents"
    os.environ["AGENT_APPS"] = "tests.faults.talkers"
    os.environ["LOG_LEVEL"] = "ERROR"  # of the provider's, which says each delivery that fails
    django.setup()
    rows = soak(options)
    if options.json:
        print(json.dumps([asdict(row) for row in rows]))
    sys.exit(any(row.problems or row.lost or row.doubled for row in rows))


def soak(options: argparse.Namespace) -> list[Row]:
    from tests.faults.breakages import FAULTS
    from tests.faults.load import Load
    from tests.faults.stand import stand

    faults = [f for f in FAULTS if not (options.short and f.only_long and not options.only)]
    if options.only:
        faults = [f for f in faults if options.only.lower() in f.name.lower()]
    # Short leases, so that nobody waits long for the end of one.
    settings: dict[str, Any] = {"LEASE": 4.0, "LEASE_RENEWAL": 1.0} if options.short else {}
    rows: list[Row] = []
    until = time.monotonic() + options.duration * 60
    with stand(**settings) as site:
        connect(site.postgres.port)
        load = Load(
            lambda: site.web.url, site.sandbox.options.signing_key,
            people=options.people, every=options.every, seed=options.seed,
        )  # fmt: skip
        load.start()
        print(HEAD, flush=True)
        try:
            while True:
                for fault in faults:
                    why = fault.cannot(site)
                    row = Row(fault.name, left_out=why) if why else once(site, load, fault, options)
                    rows.append(row)
                    print(row, flush=True)
                    if not options.short and time.monotonic() > until:
                        break
                if options.short or time.monotonic() > until:
                    break
        finally:
            load.stop()
            if any(row.problems for row in rows):
                for process in site.ours:
                    print(f"--- {process.name}\n{process.said()[-4000:]}", file=sys.stderr)
    return rows


def connect(port: int) -> None:
    """This process's audit looks at that database."""
    from django.db import connection

    connection.settings_dict |= {"PORT": str(port), "OPTIONS": {}}


def once(site: Any, load: Any, fault: Any, options: argparse.Namespace) -> Row:
    from tests.faults.promises import look

    short = options.short
    lead, tail, patience = (0.5, 0.5, 60.0) if short else (5.0, 10.0, 180.0)
    row = Row(fault.name, options.lasting or (fault.seconds if short else fault.long))
    before, began = load.count, time.time()
    load.go()
    time.sleep(lead)
    try:
        with fault.does(site):
            time.sleep(row.seconds)
    except AssertionError as error:
        row.problems.append(f"the fault itself: {error}")
    ended = time.time()
    time.sleep(tail)
    for process in site.ours:
        if not process.running:
            row.problems.append(f"{process.name} has ended: {process.said()[-1000:]}")
    try:
        load.rest(patience)
    except AssertionError as error:
        row.problems.append(str(error))
    if left := site.settle(patience):
        row.problems.append(f"still to be done after {patience:g} s: {left}")
    row.all_done = time.time() - ended
    row.first_turn = site.ask(
        "SELECT extract(epoch FROM min(committed_at))::float8 - %s FROM agents_turnrecord"
        " WHERE committed_at > to_timestamp(%s)",
        ended, ended,
    )  # fmt: skip
    row.pause = site.ask(
        """SELECT max(extract(epoch FROM gap))::float8
             FROM (SELECT committed_at - lag(committed_at) OVER (ORDER BY committed_at) AS gap
                     FROM agents_turnrecord WHERE committed_at > to_timestamp(%s)) gaps""",
        began,
    )
    kept = look(site, load)
    row.texts, row.acknowledged = load.count - before, kept.acknowledged
    row.lost, row.doubled, row.unknown = kept.lost, kept.doubled, kept.unknown
    row.problems += kept.problems + audited()
    return row


def audited() -> list[str]:
    """What ``manage.py audit`` finds. The site goes on ticking: what is under way may be so for 5 s."""
    import io

    from django.core.management import CommandError, call_command
    from django.db import connection

    connection.close()
    said = io.StringIO()
    try:
        call_command("audit", settled=5.0, stdout=said)
    except CommandError:
        return [f"audit: {line}" for line in said.getvalue().splitlines()]
    finally:
        connection.close()
    return []


if __name__ == "__main__":
    main()
