"""The figures of several runs as one table and one plot, for the terminal and for docs/performance.md."""

from __future__ import annotations

import argparse
import datetime as dt
import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.contestants import contestant
from benchmarks.databases import POSTGRES, rows
from benchmarks.processes import ROOT

PAGE = ROOT / "docs/performance.md"
PLOT = ROOT / "docs/images/jobs.svg"
#: The page between these is this program's; the rest is written by hand.
BEGIN, END = "<!-- jobs: begin -->", "<!-- jobs: end -->"


@dataclass(frozen=True)
class Line:
    job: str
    figure: str
    says: str
    #: Whether more is better; otherwise less is.
    more: bool = False
    #: In the plot: what the job is about.
    main: bool = False

    def of(self, figures: dict[str, dict[str, float]]) -> float | None:
        return figures.get(self.job, {}).get(self.figure)


LINES = [
    Line("ingest", "acknowledged_a_second", "A: texts acknowledged a second", more=True, main=True),
    Line("ingest", "p50_ms", "A: acknowledged after, p50, ms"),
    Line("ingest", "p99_ms", "A: acknowledged after, p99, ms"),
    Line("turns", "turns_a_second", "B: full turns a second", more=True, main=True),
    Line("frames", "frames_a_second", "C: frames a second", more=True, main=True),
    Line("frames", "p50_ms", "C: there and back, p50, ms"),
    Line("timers", "all_ran_seconds", "D: 5,000 timers due at once ran within, s", main=True),
    Line("timers", "late_p50_ms", "D: 100 timers a second, late, p50, ms"),
    Line("timers", "late_p99_ms", "D: 100 timers a second, late, p99, ms"),
    Line("timers", "late_least_ms", "D: 100 timers a second, late, least, ms"),
    Line("latency", "p50_ms", "L: text to stored answer, p50, ms", main=True),
    Line("latency", "p99_ms", "L: text to stored answer, p99, ms"),
    Line("turns", "memory_mb", "memory in job B, all processes but servers, MB"),
]
#: What a text of job B costs, where it is known.
COSTS = {
    "web_cpu_ms_a_text": "processor of the web processes, ms",
    "worker_cpu_ms_a_text": "processor of the worker, ms",
    "server_cpu_ms_a_text": "processor of the server, ms",
    "service_cpu_ms_a_text": "processor of the service, ms",
    "workerd_cpu_ms_a_text": "processor of workerd, ms",
    "postgres_cpu_ms_a_text": "processor of PostgreSQL, ms",
    "transactions_a_text": "transactions",
    "statements_a_text": "statements",
    "rows_a_text": "rows written",
    "wal_bytes_a_text": "bytes of write-ahead log",
}
#: What becomes of a text of job L, in that order.
STAGES = {
    "until_taken_in_ms": "parsed, its signature checked, known to be new: it is being written",
    "until_acknowledged_ms": "on disk, and the POST answered",
    "until_first_turn_ms": "a worker has heard of it by Redis and Celery, and takes the actor's lease",
    "until_second_turn_ms": "its first turn commits, in which the second begins",
    "until_answer_ms": "its second turn commits the answer",
}


def result(runs: list[dict[str, Any]], options: argparse.Namespace) -> dict[str, Any]:
    """Medians, and ratios: the median of the ratios within each run, each so that more than 1 is better for
    the first contestant."""
    names = list(runs[0]["figures"])
    table = []
    for line in LINES:
        found = {name: [line.of(run["figures"][name]) for run in runs] for name in names}
        if any(value is None for value in found[names[0]]):
            continue
        found = {name: values for name, values in found.items() if None not in values}
        ratios = {
            name: median(
                ours / theirs if line.more else theirs / ours
                for ours, theirs in zip(found[names[0]], found[name], strict=True)
            )
            for name in found
            if min(found[name]) > 0 and min(found[names[0]]) > 0
        }
        table.append(
            {
                "says": line.says,
                "main": line.main,
                "medians": {name: median(values) for name, values in found.items()},
                "ratios": ratios,
            }
        )
    costs = {}
    for figure, says in COSTS.items():
        of = {
            name: median(run["figures"][name]["turns"][figure] for run in runs)
            for name in names
            if all(figure in run["figures"][name].get("turns", {}) for run in runs)
        }
        if of:
            costs[says] = of
    return {
        "at": dt.datetime.now(dt.UTC).isoformat(timespec="minutes"),
        "machine": machine(),
        "settings": {
            key: getattr(options, key) for key in ("seconds", "actors", "clients", "sockets", "rate")
        },
        "contestants": names,
        "table": table,
        "costs": costs,
        "stages": {
            says: median(run["figures"][names[0]]["latency"][figure] for run in runs)
            for figure, says in STAGES.items()
            if all(figure in run["figures"][names[0]].get("latency", {}) for run in runs)
        },
        "runs": runs,
    }


def machine() -> dict[str, Any]:
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    shown = {}
    for name in ("server_version", "fsync", "synchronous_commit", "shared_buffers"):
        shown[name] = rows(f"{POSTGRES.rpartition('/')[0]}/postgres", f"SHOW {name}")[0][0]
    return {
        "processors": os.cpu_count(),
        "model": model[1] if model else platform.processor(),
        "memory_gb": round(memory),
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
        "postgresql": shown,
    }


def number(value: float) -> str:
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def labels(result: dict[str, Any]) -> dict[str, str]:
    return {name: contestant(name).label for name in result["contestants"]}


def cells(row: dict[str, Any], name: str, first: str) -> str:
    if name not in row["medians"]:
        return ""
    shown = number(row["medians"][name])
    return shown if name == first or name not in row["ratios"] else f"{shown} ({row['ratios'][name]:.2f})"


def text(result: dict[str, Any]) -> str:
    """For a terminal: a line a figure, and what the others are behind by."""
    first, *others = result["contestants"]
    lines = [f"{'':48}" + "".join(f"{name:>20}" for name in result["contestants"])]
    for row in result["table"]:
        shown = [cells(row, name, first) for name in [first, *others]]
        lines.append(f"{row['says']:48}" + "".join(f"{cell:>20}" for cell in shown))
    for says, of in result["costs"].items():
        shown = [number(of[name]) if name in of else "" for name in [first, *others]]
        lines.append(f"{'a text of B: ' + says:48}" + "".join(f"{cell:>20}" for cell in shown))
    for says, after in result["stages"].items():
        lines.append(f"a text of L, after {number(after)} ms: {says}")
    loads = ", ".join(f"{run['load']:.1f}" for run in result["runs"])
    lines.append(f"{len(result['runs'])} runs; load average before each: {loads}")
    return "\n".join(lines)


# The page


def page(result: dict[str, Any]) -> None:
    """Renews what lies between the marks."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{markdown(result)}\n{END}{after}")
    plot(result)


def markdown(result: dict[str, Any]) -> str:
    first, *others = result["contestants"]
    named, is_on, given = labels(result), result["machine"], result["settings"]
    database = is_on["postgresql"]
    loads = ", ".join(f"{run['load']:.1f}" for run in result["runs"])
    head = " | ".join(named[name] for name in [first, *others])
    lines = [
        f"{result['at'][:10]}; {is_on['processors']} processors ({is_on['model']}), {is_on['memory_gb']} GB,"
        f" {is_on['system']}, Python {is_on['python']}; PostgreSQL {database['server_version'].split()[0]},"
        f" fsync {database['fsync']}, synchronous_commit {database['synchronous_commit']},"
        f" shared_buffers {database['shared_buffers']}; drivers on the same machine. Medians of"
        f" {len(result['runs'])} run(s) of {given['seconds']:g} s a job; load average before each {loads}.",
        "In brackets how many times this project is ahead of that figure (below 1: behind), the median of the"
        " ratios within each run.",
        "",
        f"| | {head} |",
        "|---|" + "---|" * len(result["contestants"]),
    ]
    for row in result["table"]:
        shown = " | ".join(cells(row, name, first) for name in [first, *others])
        lines.append(f"| {row['says']} | {shown} |")
    lines += ["", "![Each contestant beside this project, job by job](images/jobs.svg)", ""]
    lines += ["What one text of job B costs:", "", f"| | {head} |"]
    lines.append("|---|" + "---|" * len(result["contestants"]))
    for says, of in result["costs"].items():
        shown = " | ".join(number(of[name]) if name in of else "" for name in [first, *others])
        lines.append(f"| {says} | {shown} |")
    if result["stages"]:
        lines += ["", "What becomes of a text of job L here, p50:", "", "| after, ms | |", "|---|---|"]
        lines += [f"| {number(after)} | {says} |" for says, after in result["stages"].items()]
    lines.append("")
    lines += [f"- **{named[name]}**: {contestant(name).about}." for name in [first, *others]]
    return "\n".join(lines)


def plot(result: dict[str, Any]) -> None:
    """How far each gets of what the first contestant reaches: 1 is the same, less is less."""
    import pygal
    from pygal.style import CleanStyle

    main = [row for row in result["table"] if row["main"]]
    paces = {
        name: [1 / row["ratios"][name] if row["ratios"].get(name) else None for row in main]
        for name in labels(result)
    }
    widest = max((pace for of in paces.values() for pace in of if pace), default=1.0)
    chart = pygal.HorizontalBar(
        style=CleanStyle, width=900, height=620, legend_at_bottom=True, legend_at_bottom_columns=2,
        range=(0, max(1.2, widest)), truncate_legend=-1, js=[], show_y_guides=True, print_values=True,
        value_formatter=lambda value: f"{value:.2f}",
        title="What each reaches of this project's pace (1.00: the same)",
    )  # fmt: skip
    chart.x_labels = [row["says"].split(", ")[0] for row in main]
    for name, label in labels(result).items():
        chart.add(label, paces[name])
    PLOT.parent.mkdir(exist_ok=True)
    PLOT.write_bytes(chart.render())
