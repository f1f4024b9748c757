"""Plots as SVG: plain, and the same bytes for the same figures."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

from bench.measurement import Plot

COLOURS = ("#2a6f97", "#e07a1f", "#4c956c", "#8d5a97")


def draw(plot: Plot, folder: Path) -> Path:
    """Writes `<name>.svg`."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "stateflow", "svg.fonttype": "none", "font.size": 10})
    from matplotlib import pyplot, ticker

    figure, axes = pyplot.subplots(figsize=(8, 3.6), layout="constrained")
    (_bars if plot.kind == "bars" else _lines)(axes, plot)
    for number, (name, level) in enumerate(plot.marks.items()):
        axes.axhline(level, color="#555555", linewidth=1, linestyle=("--", ":")[number % 2], label=name)
    if plot.logarithmic:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(ticker.StrMethodFormatter("{x:,.10g}"))
    axes.set_title(plot.title)
    axes.set_xlabel(plot.x_label)
    axes.set_ylabel(plot.y_label)
    axes.grid(axis="y", color="#dddddd", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if len(plot.series) + len(plot.marks) > 1:
        axes.legend(frameon=False)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{plot.name}.svg"
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
    return path


def _bars(axes: Any, plot: Plot) -> None:
    width = 0.8 / len(plot.series)
    for number, (name, values) in enumerate(plot.series.items()):
        at = [i + (number - (len(plot.series) - 1) / 2) * width for i in range(len(values))]
        bars = axes.bar(at, values, width, color=COLOURS[number % len(COLOURS)], label=name)
        axes.bar_label(bars, [f"{v:,.0f}" if v >= 100 else f"{v:.2f}" for v in values], padding=2, fontsize=8)
    names = [
        textwrap.fill(str(x), round(90 / len(plot.x)), break_on_hyphens=False, break_long_words=False)
        for x in plot.x
    ]
    axes.set_xticks(range(len(plot.x)), names, fontsize=8)


def _lines(axes: Any, plot: Plot) -> None:
    for number, (name, values) in enumerate(plot.series.items()):
        marker = "o" if len(values) <= 60 else None
        axes.plot(
            plot.x,
            values,
            color=COLOURS[number % len(COLOURS)],
            label=name,
            marker=marker,
            markersize=3,
            linewidth=1.4,
        )
