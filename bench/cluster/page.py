"""docs/long-run.md: what the sittings have seen, with pictures."""

from __future__ import annotations

import os
import platform
from itertools import pairwise
from statistics import median

from bench.cluster.journal import Batch, Journal, Sample, Sitting, Start
from bench.cluster.servers import EXECUTORS
from bench.kill.journal import ROOT
from bench.measurement import Plot, percentile, seconds, size, thirds
from bench.plots import draw

PAGE = ROOT / "docs" / "long-run.md"
PICTURES = ROOT / "docs" / "img"
VICTIMS = {
    "executor": "an executor",
    "worker": "a Python worker of an executor",
    "driver": "the driver: its Python and its JVM; another one is started at once",
    "broker": "Kafka's broker, away for up to six seconds",
    "store": "the server of the object store, away for as long",
}
GOAL = 90
"""Minutes."""
WARM_UP = 0.1
HEAD = f"""# A cluster for a long while

This page shows a job that runs on a Spark cluster while what it needs is killed every few minutes.
`python -m bench.cluster --minutes 90` starts Spark's own cluster with {EXECUTORS} executors, a Kafka broker and a server of S3's protocol. The
job reads a topic, has its root in the object store, keeps state in two operators and writes four sinks: a table of appended rows, a table of
upserted rows, a user's function and the feed of a state. It has two checkpoints in flight. Each sitting ends with a run that reads
what is left. Then the outputs and each key's state are compared with one pass over the input in plain Python, and the store is
searched for files that no record names. The next sitting goes on where this one ended.
"""

BESIDE = (
    f"The table compares the first third of the time with the last, medians, without the first {WARM_UP:.0%}. Each new process begins small "
    "again, so the pictures have teeth.\n"
)


def write(journal: Journal) -> None:
    PAGE.write_text(page(journal), encoding="utf-8")
    for plot in plots(journal):
        draw(plot, PICTURES)


def page(journal: Journal) -> str:
    sittings = [each for each in journal.lines if isinstance(each, Sitting)]
    batches = [each for each in journal.lines if isinstance(each, Batch)]
    starts = [each for each in journal.lines if isinstance(each, Start)]
    kills = journal.kills()
    wrong = [text for each in sittings for text in each.wrong]
    verdict = "Nothing was lost, doubled or left behind." if not wrong else f"**Found: {'; '.join(wrong)}.**"
    commits = ", ".join(dict.fromkeys(each.commit for each in sittings))
    facts = [
        ("time, in sittings", f"{journal.minutes:.0f} of {GOAL} minutes, {len(sittings)}"),
        ("rows", f"{sittings[-1].rows:,}"),
        ("batches", f"{len(batches):,}"),
        ("a batch: median, slowest of a hundred", _batch(batches)),
        ("drivers that were started after the first of a sitting", str(len(starts))),
        (
            "of these after an error that the run itself reported",
            str(sum(": " in each.why for each in starts)),
        ),
        ("longest wait for a batch", f"{_longest_wait(batches):.0f} s"),
        ("library's commit", commits),
        ("machine", f"{os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}"),
    ]
    return "\n".join(
        [
            HEAD,
            verdict + "\n",
            _table(("what", "figure"), facts),
            _table(
                ("victim", "what it is", "kills"), [(v, VICTIMS[v], str(n)) for v, n in kills.most_common()]
            ),
            "## What it holds\n",
            BESIDE,
            _table(("what", "first third", "last third"), _held(journal)),
            *(f"![{each.title}](img/{each.name}.svg)\n" for each in plots(journal)),
        ]
    )


def _batch(batches: list[Batch]) -> str:
    taken = [each.seconds for each in batches]
    return f"{seconds(median(taken))}, {seconds(percentile(taken, 0.99))}"


def _longest_wait(batches: list[Batch]) -> float:
    return 60 * max((b.minute - a.minute for a, b in pairwise(batches)), default=0.0)


def _samples(journal: Journal) -> list[Sample]:
    return [each for each in journal.lines if isinstance(each, Sample)]


def _held(journal: Journal) -> list[tuple[str, str, str]]:
    samples = _samples(journal)
    rows = []
    for what in samples[0].memory:
        first, last = thirds([float(each.memory[what]) for each in samples], WARM_UP)
        rows.append((f"memory: {what}", size(first), size(last)))
    for what, values in (
        ("open files of the driver", [float(each.open_files) for each in samples]),
        ("objects in the store", [float(each.objects) for each in samples]),
    ):
        first, last = thirds(values, WARM_UP)
        rows.append((what, f"{first:.0f}", f"{last:.0f}"))
    first, last = thirds([float(each.objects_bytes) for each in samples], WARM_UP)
    rows.append(("bytes in the store", size(first), size(last)))
    return rows


def plots(journal: Journal) -> list[Plot]:
    samples = _samples(journal)
    at = [each.minute for each in samples]
    names = list(samples[0].memory)
    batches = [each for each in journal.lines if isinstance(each, Batch)]
    return [
        Plot(
            "long-run-memory", "Memory of its processes", "lines", at,
            {name: [each.memory[name] / 2**20 for each in samples] for name in names}, "minute", "MiB",
        ),
        Plot(
            "long-run-held", "What it holds otherwise", "lines", at,
            {"open files of the driver": [each.open_files for each in samples], "objects in the store": [each.objects for each in samples]},
            "minute", "",
        ),
        Plot(
            "long-run-batches", "A batch", "lines", [each.minute for each in batches],
            {"seconds": [each.seconds for each in batches]}, "minute", "seconds",
        ),
    ]  # fmt: skip


def _table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"
