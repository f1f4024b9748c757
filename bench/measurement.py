"""A measurement: sides that run in turn, each time in a process of its own, and a section of the page."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Form = Literal["full", "quick"]


@dataclass(frozen=True, slots=True)
class Workplace:
    """The folder of a trial, and how it reports progress."""

    folder: Path
    say: Callable[[str], None] = lambda text: None


@dataclass(frozen=True, slots=True)
class Trial:
    """One repeat of one side."""

    measurement: str
    side: str
    repeat: int
    form: Form


@dataclass(frozen=True, slots=True)
class Target:
    """A target and the measured value."""

    text: str
    measured: str
    met: bool


@dataclass(frozen=True, slots=True)
class Plot:
    """bars: one bar for each x. lines: a line per series over x."""

    name: str
    title: str
    kind: Literal["bars", "lines"]
    x: Sequence[Any]
    series: Mapping[str, Sequence[float]]
    x_label: str
    y_label: str
    marks: Mapping[str, float] = field(default_factory=dict)
    """Dashed level lines."""
    logarithmic: bool = False


@dataclass(frozen=True, slots=True)
class Section:
    """The section of the page for one measurement."""

    text: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    targets: Sequence[Target]
    plots: Sequence[Plot] = ()


@dataclass(frozen=True, slots=True)
class Results:
    """The results of one measurement's trials, by side and repeat."""

    by_side: Mapping[str, Sequence[Mapping[str, Any]]]

    def of(self, side: str) -> Sequence[Mapping[str, Any]]:
        return self.by_side[side]

    def first(self, side: str) -> Mapping[str, Any]:
        return self.by_side[side][0]

    def median(self, side: str, value: Callable[[Mapping[str, Any]], float]) -> float:
        """The median over the repeats."""
        return statistics.median(map(value, self.by_side[side]))


@dataclass(frozen=True, slots=True)
class Measurement:
    name: str
    title: str
    sides: tuple[str, ...]
    sizes: Mapping[Form, Any]
    """Each is a dataclass of the measurement's own."""
    run: Callable[[str, Any, Workplace], dict[str, Any]]
    """Runs in the trial's process. Its result is stored as JSON."""
    section: Callable[[Results, Any], Section]
    repeats: int = 3
    """Repeats in the full form. One is enough for bytes, which are the same every time."""
    minutes: Mapping[Form, float] = field(default_factory=dict)
    """About how long one repeat of all sides takes on a quiet machine with two cores."""
    named_only: bool = False
    """Whether it runs only when it is named, for it fetches other engines or takes too long for every time."""
    whole: bool = True
    """Whether its section needs every side. Of many sides one that fails must not hide the others."""
    patience: float = 20
    """Minutes after which one trial has failed."""

    def trials(self, form: Form, repeats: int | None) -> Iterator[Trial]:
        """Repeats of all sides in turn, so that changes on the machine fall on every side."""
        count = repeats or (self.repeats if form == "full" else 1)
        for repeat in range(min(count, self.repeats)):
            for side in self.sides:
                yield Trial(self.name, side, repeat, form)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest of the values that `share` of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-round(len(ordered) * share * 1000) // 1000) - 1)]


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def thirds(values: Sequence[float], warm_up: float = 0) -> tuple[float, float]:
    """The medians of the first and of the last third of what follows this share of the values."""
    settled = values[round(warm_up * len(values)) :]
    third = max(1, len(settled) // 3)
    return median(settled[:third]), median(settled[-third:])


def seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 1 else f"{value * 1000:.0f} ms"


def size(value: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.2f} GiB"


def at_least(text: str, value: float, bound: float, unit: str = "x") -> Target:
    return Target(text, f"{value:.2f}{unit}", value >= bound)


def at_most(text: str, value: float, bound: float, text_of: Callable[[float], str] | None = None) -> Target:
    return Target(text, text_of(value) if text_of else f"{value:.2f}x", value <= bound)
