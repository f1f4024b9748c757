"""Tables of Iceberg and of Spark's catalog as sinks beside Delta by its path: the same rows in turn, in one session, on the local disk."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from bench.measurement import Measurement, Results, Section, Workplace, at_most, median, seconds

SIDES = ("in_turn",)
COLUMNS = (
    "id",
    "concat('user-', id % 5000) AS user",
    "id * 0.37 AS amount",
    "timestamp_micros(1767323045000000 + id) AS at",
)
SINKS = ("iceberg", "table", "delta")
INTO = {"iceberg": "Iceberg", "table": "a table of the session catalog"}
ROWS = {"operator": "rows of an operator in Python", "steps": "rows of Spark's own steps"}


@dataclass(frozen=True, slots=True)
class Size:
    rows: int
    warm_up: int
    measured: int


def run(side: str, size: Size, workplace: Workplace) -> dict[str, Any]:
    from pyiceberg.catalog import load_catalog

    import stateflow as sf
    from bench import sides
    from stateflow.spark.sinks.same_task import map_in_arrow
    from stateflow.testing.sink_log import SinkLog, make_sink

    properties = {
        "uri": f"sqlite:///{workplace.folder}/catalog.db",
        "warehouse": f"file://{workplace.folder}/warehouse",
    }
    os.environ |= {f"PYICEBERG_CATALOG__BENCH__{name.upper()}": value for name, value in properties.items()}
    load_catalog("bench", **properties).create_namespace("bench")
    spark = sides.session()
    read = str(workplace.folder / "rows")
    spark.range(0, size.rows, 1, 2).selectExpr(*COLUMNS).write.parquet(read)
    targets = {
        "iceberg": sf.iceberg("bench.rows", catalog="bench", create=True),
        "table": sf.table("default.bench_rows", create=True, location=str(workplace.folder / "table")),
        "delta": sf.delta(str(workplace.folder / "delta")),
    }
    spent: dict[str, list[float]] = {
        f"{rows} {name} {step}": [] for rows in ROWS for name in SINKS for step in ("prepare", "commit")
    }

    def timed(name: str, act: Callable[[], Any]) -> Any:
        began = time.monotonic()
        outcome = act()
        spent[name].append(time.monotonic() - began)
        return outcome

    logs, sinks = {}, {}
    for name in SINKS:
        logs[name] = SinkLog(spark, workplace.folder / f"root of {name}", job=str(uuid.uuid4()))
        sinks[name] = make_sink("out", "append", targets[name], {})
        sinks[name].open(spark, spark.read.parquet(read).schema)
    schema = spark.read.parquet(read).schema.simpleString().removeprefix("struct<").removesuffix(">")
    frames: dict[str, Callable[[], Any]] = {
        "operator": lambda: map_in_arrow(spark.read.parquet(read), _as_they_are, schema),
        "steps": lambda: spark.read.parquet(read),
    }
    for number in range(size.warm_up + size.measured):
        workplace.say(f"batch {number + 1}")
        for rows, frame in frames.items():
            for name in SINKS if number % 2 else reversed(SINKS):
                log, sink = logs[name], sinks[name]
                prepared = timed(f"{rows} {name} prepare", partial(log.prepare, sink, frame()))
                timed(f"{rows} {name} commit", partial(log.commit, prepared))
    return {name: each[size.warm_up :] for name, each in spent.items()}


def _as_they_are(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


def section(results: Results, size: Size) -> Section:
    (trial,) = results.of("in_turn")
    table, targets = [], []
    for rows, called in ROWS.items():
        spent = {
            name: [
                a + b
                for a, b in zip(trial[f"{rows} {name} prepare"], trial[f"{rows} {name} commit"], strict=True)
            ]
            for name in SINKS
        }
        for name in SINKS:
            commits = seconds(median(trial[f"{rows} {name} commit"]))
            spread = f"{seconds(min(spent[name]))} to {seconds(max(spent[name]))}"
            table.append([f"{called}, {name}", seconds(median(spent[name])), spread, commits])
        for name, into in INTO.items():
            said = f"{called} into {into} take at most 1.1 times as long as into Delta by its path"
            ratios = [ours / theirs for ours, theirs in zip(spent[name], spent["delta"], strict=True)]
            targets.append(at_most(said, median(ratios), 1.1))
    text = (
        f"{size.rows:,} rows of four columns from Parquet in two tasks. The rows of an operator are in Python already; those of Spark's own steps never "
        "leave Java on their way into Delta. The catalog is SQLite."
    )
    return Section(text, ("batch", "median", "range", "of it the commit"), table, targets)


MEASUREMENT = Measurement(
    "iceberg_sink",
    "A batch into Iceberg, and into a table by its name",
    SIDES,
    {"full": Size(1_000_000, 2, 8), "quick": Size(200_000, 2, 4)},
    run,
    section,
    repeats=1,
    minutes={"full": 1.5, "quick": 0.8},
    named_only=True,
)
