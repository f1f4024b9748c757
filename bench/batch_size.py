"""Batches that a run makes for a target of time: how soon they take it on a backlog, and whether they swing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import stateflow as sf
from bench.generate import BatchSpec, dataset
from bench.measurement import Measurement, Plot, Results, Section, Workplace, at_most, median, seconds

SIDES = ("backlog",)
SETTLED = 8
"""Batches after which it ought to be near the target."""


@dataclass
class Order:
    user: int
    amount: float


@dataclass
class Total:
    user: int
    total: float


class Sums(sf.KeyedProcess[int, Order, Total]):
    total = sf.ValueState(float, default=0.0)

    def process(self, key: int, rows: Iterator[Order], ctx: sf.Context) -> Iterator[Total]:
        self.total.value += sum(row.amount for row in rows)
        yield Total(key, self.total.value)


@sf.pipeline("batch-size")
def sums(flow: sf.Flow, *, input: str, output: str) -> None:
    orders = flow.source("orders", sf.delta(input), Order)
    orders.key_by("user").process("sums", Sums).append("output", sf.delta(output))


@dataclass(frozen=True, slots=True)
class Size:
    commits: int
    rows: int
    """Of each commit, which is one file: a batch takes whole files."""
    keys: int
    target: float


def run(side: str, size: Size, workplace: Workplace) -> dict[str, Any]:
    from bench import sides

    data = dataset([BatchSpec(size.rows, size.keys)] * size.commits)
    session = sides.session()
    parameters = {"input": str(data.path), "output": str(workplace.folder / "output")}
    options = {"target_batch_duration": f"{size.target} seconds"}
    outcome = sides.stateflow_run(session, sums, parameters, workplace.folder, options=options)
    batches = [(report.rows, report.duration) for report in outcome.reports if not report.input_free]
    if sum(rows for rows, _ in batches) != size.commits * size.rows:
        raise AssertionError("not all rows were read")
    return {"batches": batches}


def section(results: Results, size: Size) -> Section:
    batches = results.first("backlog")["batches"]
    rows, took = [count for count, _ in batches], [duration for _, duration in batches]
    # The last batch takes what is left.
    settled = took[SETTLED:-1] or took[-1:]
    reached = next((n + 1 for n, each in enumerate(took) if each >= 0.8 * size.target), len(took))
    table = [
        ["batches", f"{len(batches)}"],
        ["the first batch", f"{rows[0]:,} rows, {seconds(took[0])}"],
        ["the first that took four fifths of the target", f"batch {reached}"],
        [f"the median batch after {SETTLED}", f"{seconds(median(settled))}"],
        ["the shortest and the longest of them", f"{seconds(min(settled))}, {seconds(max(settled))}"],
    ]
    text = (
        f"A backlog of {size.commits * size.rows:,} rows in {size.commits} files of a Delta table, {size.keys:,} keys, read with "
        f"`target_batch_duration = {size.target:g} seconds` by an operator that sums by key. Nothing else is set."
    )
    off = abs(median(settled) / size.target - 1)
    targets = [
        at_most(f"the median batch after {SETTLED} is within a fifth of the target", off, 0.2, lambda share: f"{share:.0%} off"),
        at_most("the longest of them: one and a half times the target", max(settled) / size.target, 1.5),
    ]  # fmt: skip
    plot = Plot(
        "batch-size", "Batches on a backlog, with a target of time", "lines", list(range(1, len(took) + 1)),
        {"seconds": took, "the target": [size.target] * len(took), "100,000 rows": [count / 100_000 for count in rows]}, "batch", "",
    )  # fmt: skip
    return Section(text, ("", ""), table, targets, [plot])


MEASUREMENT = Measurement(
    "batch-size",
    "Batches of the right size",
    SIDES,
    {"full": Size(400, 25_000, 1_000_000, 2.0), "quick": Size(12, 2_000, 1_000, 5.0)},
    run,
    section,
    repeats=1,
    minutes={"full": 4, "quick": 1},
    named_only=True,
)
