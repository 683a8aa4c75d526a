"""A month of ``every(300)`` on a thousand actors: ``python -m tests.scheduler.month``.

8,640,000 runs, in the database that DATABASE_URL names (by default an SQLite file in VAR_DIR). It must be
empty, or hold the beginning of such a month: SIGTERM and Ctrl+C end the run after the moment that it plays,
and the next run goes on from there. After each simulated day the attempts of that day are looked at, and the
project's retention takes them and the records of the turns. Prints a line a day; exits with 1 as soon as a
firing is missing, doubled, early, late, or not alone.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import signal
import sys
import time

import django


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--actors", type=int, default=1000)
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument(
        "--batch", type=int, default=500, help="turns in one batch of the store (default: 500)"
    )
    options = parser.parse_args()
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
    agents = {"STORE_BATCH": options.batch, "METRICS": False, "KEEP_TURNS": 0, "KEEP_ATTEMPTS": 0}
    os.environ["TEST_AGENTS"] = json.dumps(agents)
    django.setup()
    sys.exit(1 if month(options) else 0)


def month(options: argparse.Namespace) -> list[str]:
    from django.core.management import call_command
    from django.db import connection

    from agents import runtime
    from agents.models import Actor
    from scheduler.retention import prune_history
    from tests.scheduler import recurring
    from tests.scheduler.recurring import EVERY, START, Punctual, play, wrong_attempts, wrong_states

    call_command("migrate", verbosity=0)
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            # Nobody pulls the plug of the server; if somebody did, this would begin again a second earlier.
            name = connection.ops.quote_name(connection.settings_dict["NAME"])
            cursor.execute(f"ALTER DATABASE {name} SET synchronous_commit TO off")
        connection.close()
    ids = list(Actor.objects.order_by("pk").values_list("pk", flat=True)) or recurring.begun(options.actors)
    if not Actor.objects.filter(kind=Punctual.kind).count() == len(ids) == options.actors:
        raise SystemExit("this database holds something else")
    # Where it was: each actor's alarm is the next moment that it has not seen.
    moment = min(alarm for alarm in Actor.objects.values_list("alarm", flat=True) if alarm)
    end = START + dt.timedelta(days=options.days)
    problems: list[str] = []
    ended: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: ended.append(number))
    runtime.settle_down()
    ran, began, working = 0, time.monotonic(), time.process_time()
    while moment <= end and not problems and not ended:
        Punctual.moment = moment
        play(ids, 2 * options.batch)
        ran += len(ids)
        if (moment - START) % dt.timedelta(days=1) == dt.timedelta():
            day = (moment - START).days
            problems = wrong_attempts(options.actors, moment - dt.timedelta(days=1), moment)
            problems += wrong_states(options.actors, moment)
            pruned = prune_history()
            took = time.monotonic() - began
            print(
                f"day {day}: {day * 288 * len(ids):,} runs, {ran / took:,.0f} a second,"
                f" {(time.process_time() - working) / ran * 1e6:.0f} us of this process each,"
                f" {pruned['attempts']:,} attempts and {pruned['turns']:,} turns pruned;"
                f" {problems or 'all right'}",
                flush=True,
            )
        moment += EVERY
    runtime.shutdown()
    return problems


if __name__ == "__main__":
    main()
