"""What the running product does in a second, beside others on the same machine.

    python -m benchmarks.jobs [ingest] [turns] [frames] [timers] [latency]      all of them unless named
        [--against baseline,restate,cloudflare,workerd] [--runs 3] [--seconds 10] [--page]

Each run starts every contestant in its turn (the product first), each alone, does the jobs, and stops it. The
figures are medians over the runs; a ratio is the median of the ratios within each run.

ingest   Job A. Texts acknowledged a second, by 16 clients in a closed loop, over 1,000 actors; each goes to
         the log, two keys into the state, and a task is queued.
turns    Job B. The task answers in the log, patches the state and sets a timer that replaces the last one:
         such tasks completed a second, from the first text until the last is answered.
frames   Job C. 100 sockets of as many actors, each in a closed loop: a frame is logged and its number
         broadcast back.
timers   Job D. 5,000 timers on 1,000 actors due at one instant, until all ran; and how late 100 a second are.
latency  Job L. Job B offered openly at 50 a second: from the POST to the stored answer.

Contestants are in benchmarks/product.py, benchmarks/baseline/ and benchmarks/peers/; what the peers need is
installed from the registries into VAR_DIR/benchmarks when they first take part. Actors are touched before
they are measured. Needs PostgreSQL (DATABASE_URL: a database of its own is made there), Redis (REDIS_URL)
and wrk.
``--of embedded`` measures what bin/dev starts. ``--page`` writes the table and the plot into docs/.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.contestants import NAMES, Contestant, contestant
from benchmarks.drivers import Refused, closed_loop, each_once, frames, fresh, open_loop, percentile
from benchmarks.processes import ROOT

WARM_UP = 3  # seconds
#: Texts that are prepared for each second: more than anybody takes.
PREPARED = 2500
TIMERS = 5  # an actor's, due at once
#: From setting timers until the first is due: so many seconds, and three times as long as it takes to touch
#: all actors. All must be set by then.
AHEAD = 5
STREAM = 100  # timers a second

Figures = dict[str, float]


def ingest(site: Contestant, options: argparse.Namespace) -> Figures:
    return _closed_loop(site, options, "ingest")


def turns(site: Contestant, options: argparse.Namespace) -> Figures:
    return _closed_loop(site, options, "answer")


def _closed_loop(site: Contestant, options: argparse.Namespace, kind: str) -> Figures:
    file = site.folder / "requests"

    def sent(seconds: float) -> Figures:
        texts = site.texts(kind, fresh(), int(seconds * PREPARED))
        return closed_loop(site.port, texts, file, options.clients, seconds)

    touch(site, kind)
    sent(WARM_UP)
    site.finish()
    texts = list(site.texts(kind, fresh(), int(options.seconds * PREPARED)))
    before, began = site.counters(), time.monotonic()
    result = closed_loop(site.port, texts, file, options.clients, options.seconds)
    memory = site.memory()
    site.finish()
    took = time.monotonic() - began
    time.sleep(1.5)  # until the database has told its statistics
    after = site.counters()
    return {
        "acknowledged_a_second": result["count"] / result["seconds"],
        "p50_ms": result["p50_ms"],
        "p99_ms": result["p99_ms"],
        "turns_a_second": result["count"] / took,
        "memory_mb": memory,
        **{f"{key}_a_text": (after[key] - before[key]) / result["count"] for key in before},
    }


def touch(site: Contestant, kind: str) -> None:
    """What the first turn of an actor costs is not in any figure."""
    if kind not in site.touched:
        asyncio.run(each_once(site.port, site.texts(kind, fresh(), site.actors)))
        site.finish()
        site.touched.add(kind)


def echoes(site: Contestant, options: argparse.Namespace) -> Figures:
    run = fresh()
    sockets = [site.socket(f"{run}-{number}") for number in range(options.sockets)]
    took = asyncio.run(frames(sockets, WARM_UP, options.seconds))
    return {
        "frames_a_second": len(took) / options.seconds,
        "p50_ms": 1000 * percentile(took, 0.5),
        "p99_ms": 1000 * percentile(took, 0.99),
        "memory_mb": site.memory(),
    }


def timers(site: Contestant, options: argparse.Namespace) -> Figures:
    began = time.monotonic()
    asyncio.run(each_once(site.port, _timers(site, 1, lambda number: time.time())))
    site.finish()
    ahead = AHEAD + 3 * (time.monotonic() - began)
    due = time.time() + ahead
    _set(site, TIMERS, due, lambda number: due)
    at_once = [(set_for, ran) for set_for, ran in site.fired() if abs(set_for - due) < 0.001]
    if len(at_once) != site.actors * TIMERS:
        raise Refused(f"{site.label}: {len(at_once)} of {site.actors * TIMERS} timers ran")
    first = time.time() + ahead
    _set(site, 1, first, lambda number: first + number / STREAM)
    late = [1000 * (ran - due) for due, ran in site.fired() if due > first - 0.001]
    if len(late) != site.actors:
        raise Refused(f"{site.label}: {len(late)} of {site.actors} timers ran")
    return {
        "all_ran_seconds": max(ran for _, ran in at_once) - due,
        "late_p50_ms": percentile(late, 0.5),
        "late_p99_ms": percentile(late, 0.99),
        "late_least_ms": min(late),
        "memory_mb": site.memory(),
    }


def _set(site: Contestant, each: int, first: float, due: Callable[[int], float]) -> None:
    """Sets the timers of all actors, and waits until they ran."""
    asyncio.run(each_once(site.port, _timers(site, each, due)))
    site.finish()
    if (spare := first - time.time()) < 1:
        raise Refused(f"{site.label}: the timers were set {-spare:.1f} s after they were due")
    time.sleep(spare + site.actors / STREAM * (each == 1) + 1)
    site.finish()


def _timers(site: Contestant, each: int, due: Callable[[int], float]) -> Iterable[bytes]:
    for number in range(site.actors):
        yield site.text("timed", site.sender(number), f"timers {each} {due(number):.6f}")


def latency(site: Contestant, options: argparse.Namespace) -> Figures:
    touch(site, "answer")
    run, count = fresh(), int(options.rate * options.seconds)
    times = asyncio.run(open_loop(site.port, list(site.texts("answer", run, count)), options.rate))
    site.finish()
    time.sleep(0.5)
    sent = {f"text {number} {run}": at for number, (at, _) in enumerate(times)}
    answered, stages = site.answered(), site.stages()
    waits = [1000 * (answered[text] - at) for text, at in sent.items()]
    until: dict[str, list[float]] = {"acknowledged": [1000 * (after - at) for at, after in times]}
    for text, at in sent.items():
        for stage, moment in stages.get(text, {}).items():
            until.setdefault(stage, []).append(1000 * (moment - at))
    return {
        **{f"until_{stage}_ms": percentile(waits, 0.5) for stage, waits in until.items()},
        "p50_ms": percentile(waits, 0.5),
        "p99_ms": percentile(waits, 0.99),
        "memory_mb": site.memory(),
    }


JOBS = {"ingest": ingest, "turns": turns, "frames": echoes, "timers": timers, "latency": latency}


# The runs


def main() -> None:
    options = parse()
    var = Path(os.environ.get("VAR_DIR", ROOT / "var")).resolve()
    runs = []
    for number in range(options.runs):
        run: dict[str, Any] = {"load": os.getloadavg()[0], "figures": {}}
        for name in [options.of, *options.against]:
            run["figures"][name] = one(name, var, options)
            print(f"run {number + 1}, {name}: {json.dumps(rounded(run['figures'][name]))}", flush=True)
        runs.append(run)
        result = report.result(runs, options)
        if options.json:  # after each run: what was measured is not lost if a later one fails
            options.json.write_text(json.dumps(result, indent=1))
    print(report.text(result))
    if options.page:
        report.page(result)


def parse() -> argparse.Namespace:
    def names(text: str) -> list[str]:
        if unknown := set(text.split(",")) - set(NAMES):
            raise argparse.ArgumentTypeError(f"not among {', '.join(NAMES)}: {', '.join(unknown)}")
        return text.split(",")

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("jobs", nargs="*", choices=[*JOBS, []], metavar="job", help=", ".join(JOBS))
    parser.add_argument("--of", default="agents", choices=list(NAMES), help="(default: %(default)s)")
    parser.add_argument("--against", type=names, default=[], help=f"of {', '.join(NAMES)}")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10, help="a measurement (default: %(default)g)")
    parser.add_argument("--actors", type=int, default=1000, help="(default: %(default)s)")
    parser.add_argument("--clients", type=int, default=16, help="of jobs A and B (default: %(default)s)")
    parser.add_argument("--sockets", type=int, default=100, help="of job C (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=50, help="of job L (default: %(default)g)")
    parser.add_argument("--json", type=Path, help="a file for all figures")
    parser.add_argument("--page", action="store_true", help="renew docs/performance.md")
    options = parser.parse_args()
    options.jobs = options.jobs or list(JOBS)
    return options


def one(name: str, var: Path, options: argparse.Namespace) -> dict[str, Figures]:
    """All jobs of one contestant."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        site = contestant(name)(stack, Path(folder), var, actors=options.actors)
        done = {}
        for job in options.jobs:
            try:
                done[job] = JOBS[job](site, options)
            except Refused as refusal:
                if name == options.of:
                    raise
                print(f"{name}, {job}: no figures, {refusal}", flush=True)
        return done


def rounded(figures: dict[str, Figures]) -> dict[str, Figures]:
    return {job: {key: round(value, 2) for key, value in of.items()} for job, of in figures.items()}


if __name__ == "__main__":
    main()
