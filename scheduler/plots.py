"""Plots of hours as SVG, drawn on the server by pygal, which is imported when the first is drawn.

The SVG stands in the page, so it takes the page's colours, light and dark. For who can't see it there is a
sentence, and the numbers as a table beside it.
"""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.utils.safestring import SafeString

HEIGHT, WIDTH = 220, 560


@dataclass(frozen=True)
class Series:
    """A line of a plot: its name, and a number for each label."""

    name: str
    values: Sequence[float]
    tone: str = ""  # a colour of the page: agents-plot-<tone>

    @property
    def highest(self) -> float:
        return max(self.values, default=0)


@dataclass(frozen=True)
class Plot:
    title: str
    labels: Sequence[str]
    series: Sequence[Series]
    unit: str = ""
    #: Every how many labels are written.
    every: int = 6

    @property
    def summary(self) -> str:
        """What the plot shows, in a sentence."""
        parts = [f"{s.name}: {_number(s.highest)}{self.unit} at most" for s in self.series]
        return f"{self.title}, hour by hour. {'; '.join(parts)}."

    @property
    def rows(self) -> list[tuple[str, list[str]]]:
        """The hours in which there is anything, the newest first, for a table."""
        rows = zip(self.labels, *(s.values for s in self.series), strict=True)
        return [(label, [_number(v) for v in values]) for label, *values in rows if any(values)][::-1]

    def svg(self) -> SafeString:
        """The drawing. pygal escapes what it is given, and all of that is ours."""
        pygal = _pygal()
        style = pygal.style.Style(
            background="transparent",
            plot_background="transparent",
            foreground="var(--body-quiet-color)",
            foreground_strong="var(--body-fg)",
            foreground_subtle="var(--hairline-color)",
            colors=tuple(f"var(--agents-plot-{s.tone or n})" for n, s in enumerate(self.series)),
            font_family="inherit",
            label_font_size=11,
            major_label_font_size=11,
            legend_font_size=12,
            opacity=".7",
        )
        options: Mapping[str, Any] = {
            "style": style,
            "js": [],
            "height": HEIGHT,
            "width": WIDTH,
            "margin": 4,
            "spacing": 8,
            "disable_xml_declaration": True,
            "legend_at_bottom": True,
            "legend_at_bottom_columns": len(self.series),
            "legend_box_size": 10,
            "show_minor_x_labels": False,
            "x_labels_major_every": self.every,
            "truncate_label": -1,
            "show_y_guides": True,
            "y_labels_major_count": 4,
            "show_minor_y_labels": False,
            "include_x_axis": True,
            "no_data_text": "Nothing yet",
            "value_formatter": lambda value: f"{_number(value)}{self.unit}",
        }
        chart = (
            pygal.StackedBar(**options)
            if len(self.labels) <= 24
            else pygal.StackedLine(**options, fill=True, show_dots=False, interpolate=None)
        )
        chart.x_labels = list(self.labels)
        for series in self.series:
            chart.add(series.name, list(series.values))
        root = chart.render_tree()
        for parent in list(root.iter()):
            for script in [child for child in parent if str(child.tag).endswith("script")]:
                parent.remove(script)
        return SafeString(pygal.etree.etree.tostring(root, encoding="unicode"))


def _number(value: float) -> str:
    if value >= 10 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def _pygal() -> Any:
    # pygal asks the backport for its plugins. That would put itself in the place of the standard library's
    # look-up of installed packages, and setuptools, when it is imported, takes it out again: nothing would be
    # found any more in this process.
    borrowed = sys.modules.setdefault("importlib_metadata", importlib.metadata)
    try:
        import pygal
    finally:
        if borrowed is importlib.metadata:
            sys.modules.pop("importlib_metadata", None)
    # It leaves a finder for plugins that we have none of, in a form that Python 3.11 warns of at each
    # import of what isn't there.
    for finder in [f for f in sys.meta_path if isinstance(f, pygal.PluginImportFixer)]:
        sys.meta_path.remove(finder)
    return pygal
