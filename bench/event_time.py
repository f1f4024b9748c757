"""What event time costs: rows with a timestamp beside rows without, and windows written by hand beside Spark's own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.generate import FIRST_TIME, BatchSpec, Dataset, dataset
from bench.measurement import (
    Measurement,
    Plot,
    Results,
    Section,
    Workplace,
    at_least,
    at_most,
    median,
    seconds,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from bench.sides import Outcome

SIDES = ("totals", "totals_with_time", "windows_by_hand", "spark_windows")
NAMES = {
    "totals": "running totals, rows without a timestamp",
    "totals_with_time": "running totals, rows with a timestamp",
    "windows_by_hand": "windows by hand: key, value, timer",
    "spark_windows": "Spark's window() aggregation (JVM)",
}


@dataclass(frozen=True, slots=True)
class Size:
    rows: int
    keys: int
    warm_up: int
    measured: int


def run(side: str, size: Size, workplace: Workplace) -> dict[str, Any]:
    from bench import sides

    data = dataset([BatchSpec(size.rows, size.keys)] * (size.warm_up + size.measured), with_time=True)
    spark, work = sides.session(), workplace.folder
    outcome = outcome_of(side, spark, data, work)
    if side.startswith("totals"):
        sides.check_totals(work / "output", data)
    else:
        check_windows(work / "output", data)
    if outcome.timed.rows != [size.rows] * (size.warm_up + size.measured):
        raise AssertionError(f"{side} cut the input into batches of {outcome.timed.rows} rows")
    return {
        "rows": size.rows,
        "seconds": outcome.timed.seconds,
        "steady": outcome.timed.seconds[size.warm_up :],
        "cpu": outcome.timed.cpu[size.warm_up :],
        "phases": [report.statistics["metrics"] for report in outcome.reports[size.warm_up :]],
    }


def outcome_of(side: str, spark: SparkSession, data: Dataset, work: Path, **arguments: Any) -> Outcome:
    from bench import operators, sides

    if side == "spark_windows":
        return spark_windows(spark, data, work)
    pipeline = {
        "totals": operators.per_key,
        "totals_with_time": operators.per_key_timed,
        "windows_by_hand": operators.windows_by_hand,
    }[side]
    parameters = {"input": str(data.path), "output": str(work / "output")}
    return sides.stateflow_run(spark, pipeline, parameters, work, **arguments)


def spark_windows(spark: SparkSession, data: Dataset, work: Path, length: int = 10) -> Outcome:
    """The same windows in the JVM: RocksDB with changelog, put out when the watermark has passed them. Each has `length`
    seconds, and one begins every ten seconds."""
    from pyspark.sql import functions as F

    from bench import operators, sides

    events = sides.source(spark, data).withWatermark("ts", "0 seconds")
    channel = (F.col("user") % operators.CHANNELS).alias("channel")
    windows = events.groupBy(channel, F.window("ts", f"{length} seconds", "10 seconds")).agg(
        F.count("*").alias("n"), F.sum("amount").alias("total")
    )
    named = windows.select("channel", F.col("window.start").alias("start"), "n", "total")
    return sides.peer(spark, named, work, sides.appended(work), mode="append")


def check_windows(output: Path, data: Dataset, length: int = 10) -> None:
    """Every window that the last row has passed is there once, with all of its rows. Windows are `length` seconds long, and one
    begins every ten seconds."""
    import pyarrow.compute as pc

    from bench import operators, sides

    table = sides.added_rows(output)
    every = operators.WINDOW.seconds * 1000
    ended = (data.rows - 1) // every
    expected = sum(min(end * every, length * 1000) for end in range(1, ended + 1))
    starts = pc.unique(table["start"])
    rows = sum(table["n"].to_pylist())
    distinct = table.group_by(["channel", "start"]).aggregate([])
    if (rows, len(starts), len(distinct)) != (expected, ended, len(table)):
        raise AssertionError(
            f"{len(starts)} windows with {rows} rows were put out in {len(table)} rows of {len(distinct)} keys; the input has "
            f"{ended} windows with {expected} rows from {FIRST_TIME} on"
        )


def section(results: Results, size: Size) -> Section:
    def speed(trial: Any) -> float:
        return float(trial["rows"] / median(trial["steady"]))

    rate = {side: results.median(side, speed) for side in SIDES}
    cpu = {side: results.median(side, lambda trial: median(trial["cpu"])) for side in SIDES}
    neighbours = ("totals", "totals", "spark_windows", "spark_windows")
    rows = [
        [
            NAMES[side],
            seconds(size.rows / rate[side]),
            f"{rate[side]:,.0f}",
            f"{rate[side] / rate[beside]:.2f}x",
            seconds(cpu[side]),
            f"{cpu[side] / cpu[beside]:.2f}x",
        ]
        for side, beside in zip(SIDES, neighbours, strict=True)
    ]
    targets = [
        at_most(
            "a timestamp in every row: running totals at most 1.1 times as long",
            rate["totals"] / rate["totals_with_time"],
            1.1,
        ),
        at_least(
            "windows written by hand: 0.9 times Spark's windows",
            rate["windows_by_hand"] / rate["spark_windows"],
            0.9,
        ),
    ]
    windows = size.rows // 10_000
    text = (
        f"Batches of {size.rows:,} rows, a millisecond apart, exactly once into Delta. The running totals are those of the "
        f"throughput over {size.keys:,} keys; nobody reads the timestamp. The windows are of ten seconds and a thousand "
        f"channels: {windows * 1000:,} windows of ten rows begin in every batch, and as many end. By hand, channel and start of the window are the key, "
        "with a value and an event-time timer; Spark's are its own aggregation with its RocksDB state store."
    )
    plot = Plot(
        "event-time",
        "Rows per second with event time, exactly once into Delta",
        "bars",
        [NAMES[side] for side in SIDES],
        {"rows per second": [rate[side] for side in SIDES]},
        "",
        "rows per second",
    )
    header = ("side", "a batch", "rows/s", "of the other's", "CPU of a batch", "of the other's")
    return Section(text, header, rows, targets, [plot])


MEASUREMENT = Measurement(
    "event-time",
    "Timestamps and windows",
    SIDES,
    {"full": Size(1_000_000, 500_000, 2, 4), "quick": Size(200_000, 100_000, 2, 3)},
    run,
    section,
    repeats=2,
    minutes={"full": 2.1, "quick": 1.2},
)
