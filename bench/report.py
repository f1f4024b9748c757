"""Writes the page of figures: first every target, met or missed, then each measurement in full."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from bench.measurement import Form, Measurement, Section
from bench.plots import draw
from bench.store import ROOT, Found, ResultStore, fingerprint

BUSY = 1.0
"""A higher load when a trial began means that something else was running."""


@dataclass(frozen=True, slots=True)
class Page:
    """The results so far, ready for the page."""

    form: Form
    measured: tuple[tuple[Measurement, Found, Section], ...]
    missing: tuple[Measurement, ...]
    fingerprint: str

    @property
    def targets(self) -> Iterator[tuple[Measurement, str, str, bool, bool]]:
        """The measurement, the target, what was measured, whether that meets it, and whether today's code was measured."""
        for measurement, found, section in self.measured:
            for target in section.targets:
                today = found.fingerprint == self.fingerprint
                yield measurement, target.text, target.measured, target.met, today


def gathered(store: ResultStore, form: Form, measurements: Sequence[Measurement]) -> Page:
    current, sections, missing = fingerprint(), [], []
    for measurement in measurements:
        result_set = store.newest(form, measurement, current)
        if result_set is None:
            missing.append(measurement)
        else:
            section = measurement.section(result_set.results, measurement.sizes[form])
            sections.append((measurement, result_set, section))
    return Page(form, tuple(sections), tuple(missing), current)


def write_page(page: Page, docs: Path = ROOT / "docs") -> Path:
    """Writes the page and its plots. The quick form has a page of its own, so that it never replaces full figures."""
    full = page.form == "full"
    path = docs / ("benchmarks.md" if full else "benchmarks-quick.md")
    images = "img" if full else "img/quick"
    docs.mkdir(exist_ok=True)
    path.write_text("\n".join(_lines(page, docs, images)) + "\n", encoding="utf-8")
    return path


def _lines(page: Page, docs: Path, images: str) -> Iterator[str]:
    full = page.form == "full"
    yield "# Benchmarks" if full else "# Benchmarks, quick form"
    yield ""
    yield (
        "<!-- written by `make bench`; do not edit -->" if full else "<!-- written by `make bench-quick` -->"
    )
    yield ""
    if full:
        yield "`make bench` measures everything anew and writes this page. It goes on where it was interrupted."
    else:
        yield (
            "`make bench-quick` shows that everything runs. **Its sizes are a tenth of the full form's and smaller, and most "
            "is run once: these figures say nothing about the targets**, which are listed only for orientation."
        )
    yield ""
    yield f"Machine: {_machine()}. Versions: {_versions()}."
    yield ""
    targets = list(page.targets)
    yield _counted(targets)
    if targets:
        rows = [[m.title, text, measured, _verdict(met, today)] for m, text, measured, met, today in targets]
        yield ""
        yield from _table(("", "target", "measured", ""), rows)
    if page.missing:
        yield ""
        yield f"Not measured yet: {', '.join(m.title.lower() for m in page.missing)}."
    yield ""
    yield "## How it is measured"
    yield ""
    yield from METHOD
    for measurement, result_set, section in page.measured:
        yield ""
        yield f"## {measurement.title}"
        yield ""
        yield section.text
        yield ""
        yield from _table(section.header, section.rows)
        for plot in section.plots:
            image = draw(plot, docs / images)
            yield ""
            yield f"![{plot.title}]({images}/{image.name})"
        yield ""
        yield _provenance(page, measurement, result_set)


def _counted(targets: Sequence[tuple[Measurement, str, str, bool, bool]]) -> str:
    """A figure of earlier code meets no target: the code may have lost it since."""
    now = [met for *_, met, today in targets if today]
    before = [met for *_, met, today in targets if not today]
    said = [f"{sum(now)} of {len(now)} met"] if now else []
    said += [f"with earlier code {sum(before)} of {len(before)} others"] if before else []
    return f"## Targets: {'; '.join(said)}" if said else "## Targets"


def _verdict(met: bool, today: bool) -> str:
    return ("met" if met else "**missed**") + ("" if today else " by earlier code")


METHOD = (
    "- Data is generated from a seed: Delta tables with one Parquet file per micro-batch, read by every side in the same",
    "  order. Outputs are appended to Delta: by this library in two phases, by the others with `txnAppId` and `txnVersion`.",
    "- Each trial is a fresh process, with a JVM of its own where Spark takes part. Unless a section says otherwise it is",
    "  `local[2]` on the local disk, 4 GB, two shuffle partitions, the same settings for",
    "  every side. Spark's state store is RocksDB with changelog checkpointing. This library runs with its defaults: it",
    "  fsyncs its records, which Spark does not.",
    "- The sides are interleaved: A B C A B C A B C. A figure is the median of the repeats, each the median of the batches",
    "  after a warm-up. Bytes, which do not vary, are counted once.",
    "- A batch lasts as long as Spark's `triggerExecution` says, for every side: from planning its offsets to the commit of",
    "  its log, with all state commits, records and the sink between them.",
)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(header)} |"
    yield f"|{'---|' * len(header)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def _provenance(page: Page, measurement: Measurement, result_set: Found) -> str:
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(result_set.measured))
    repeats = f"{result_set.repeats} repeat{'s' if result_set.repeats > 1 else ''}"
    notes = [f"Measured {when}", f"{repeats} of each side"]
    if page.form == "full" and result_set.repeats < measurement.repeats:
        notes.append(f"of {measurement.repeats} wanted")
    if result_set.fingerprint != page.fingerprint:
        notes.append("with an earlier version of the code")
    if result_set.load > BUSY:
        notes.append(f"while the machine was busy (load {result_set.load:.1f} when a trial began)")
    return f"<sub>{', '.join(notes)}.</sub>"


def _machine() -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{len(os.sched_getaffinity(0))} cores ({_processor()}), {memory:.0f} GB"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )


def _versions() -> str:
    names = ("pyspark", "delta-spark", "rocksdict", "pyarrow")
    return ", ".join([f"Python {platform.python_version()}", *(f"{name} {version(name)}" for name in names)])
