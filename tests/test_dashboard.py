"""The dashboard and the alerts ask for nothing that no process tells."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from prometheus_client import REGISTRY
from prometheus_client.core import Metric

from agentsite import figures, metrics
from conversations import observing  # noqa: F401  its counters

ROOT = Path(__file__).resolve().parents[1]
DASHBOARD = json.loads((ROOT / "deploy/grafana-dashboard.json").read_text(encoding="utf-8"))
RULES = yaml.safe_load((ROOT / "deploy/prometheus-rules.yaml").read_text(encoding="utf-8"))

#: Words of PromQL that stand where names of metrics and labels do.
WORDS = {"sum", "max", "by", "le", "rate", "increase", "histogram_quantile", "label_values"}
LABELS = {
    "job", "instance", "kind", "origin", "outcome", "code", "reason", "lane", "then", "verb", "status",
    "provider", "acceptance", "name",
}  # fmt: skip


def queries() -> list[str]:
    panels = [t["expr"] for panel in DASHBOARD["panels"] for t in panel.get("targets", ())]
    variables = [v["definition"] for v in DASHBOARD["templating"]["list"] if "definition" in v]
    return [*panels, *variables, *(rule["expr"] for group in RULES["groups"] for rule in group["rules"])]


def told() -> dict[str, set[str]]:
    """Every sample that a process or the database tells, with its labels."""
    found: dict[str, set[str]] = {}
    families: list[Metric] = [*REGISTRY.collect(), *metrics.Given(figures.read()).collect()]
    for family in families:
        suffixes = {
            "counter": ["_total"],
            "histogram": ["_bucket", "_sum", "_count"],
        }.get(family.type, [""])
        labels = {name for sample in family.samples for name in sample.labels}
        for suffix in suffixes:
            found[family.name + suffix] = labels
    for collector in list(REGISTRY._collector_to_names):  # those that nobody has counted with yet
        for name in getattr(collector, "_labelnames", ()):
            for suffix in ("_total", "_bucket", "_sum", "_count", ""):
                found.setdefault(collector._name + suffix, set()).add(name)  # type: ignore[attr-defined]
    return found


@pytest.mark.django_db
def test_every_query_names_metrics_and_labels_that_the_code_tells():
    known = told()
    assert len(queries()) > 35
    for query in queries():
        bare = re.sub(r'"[^"]*"', "", query)  # values of labels
        names = set(re.findall(r"\b(?:agents|process)_\w+", bare))
        assert names, query
        assert names <= known.keys(), (query, names - known.keys())
        words = set(re.findall(r"(?<![\w$])[a-z_]+\b(?!\$)", bare)) - names - WORDS
        labels = words - {"__rate_interval", "m"}
        assert labels <= LABELS, (query, labels - LABELS)
        if len(names) == 1:
            (name,) = names
            asked = set(re.findall(r"(\w+)(?:=|!)~?", re.sub(r".*?\{(.*?)\}.*", r"\1", bare)))
            assert asked - {"job"} <= known[name] | {"name"}, (query, asked, known[name])


@pytest.mark.django_db
def test_every_metric_of_ours_is_documented_and_shown():
    page = (ROOT / "docs/observability.md").read_text(encoding="utf-8")
    ours = set()
    for collector in list(REGISTRY._collector_to_names):
        if (name := getattr(collector, "_name", "")).startswith("agents_"):
            ours.add(name + ("_total" if collector._type == "counter" else ""))  # type: ignore[attr-defined]
    ours |= {family.name for family in metrics.Given(figures.read()).collect()}
    assert len(ours) > 20
    asked = " ".join(queries())
    for name in ours:
        assert f"`{name}`" in page, name
        assert name in asked, name


def test_panels_do_not_lie_upon_each_other():
    taken: set[tuple[int, int]] = set()
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells


def test_every_signal_is_documented():
    from django.dispatch import Signal

    import agents.signals
    import conversations.signals
    import scheduler.signals

    page = (ROOT / "docs/observability.md").read_text(encoding="utf-8")
    for module in (agents.signals, conversations.signals, scheduler.signals):
        for name, value in vars(module).items():
            if isinstance(value, Signal):
                assert f"`{module.__name__}.{name}`" in page
                assert name in module.__all__
