"""Ready-made operators beside what Spark's JVM does for the same question."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import stateflow as sf
from bench import ready_times
from bench.event_time import check_windows, spark_windows
from bench.generate import BatchSpec, Dataset, Keys, dataset
from bench.measurement import Measurement, Plot, Results, Section, Workplace, at_least, median, seconds
from bench.operators import CHANNELS, ONE_FILE, TimedEvent
from bench.ready_times import Channel, Window, channels

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from bench.sides import Outcome

TIMES = {
    "few": 1.5, "zipf": 2.0, "many": 2.5, "windows": 2.0, "hopping": 2.0, "sessions": 2.0, "dedup": 2.0, "joins": 2.0,
}  # fmt: skip
"""The sides of this library, and how many times as fast as Spark's each is to be."""
PEERS = {side: f"spark_{side}" for side in TIMES}
SIDES = tuple(name for pair in PEERS.items() for name in pair)
ON_TIMES = ("sessions", "dedup", "joins")
LONG = ("joins",)
"""Sides that are measured at once: a batch of Spark's join takes most of a minute."""
LENGTHS = {"windows": 10, "hopping": 60}
"""Of windows, in seconds. One begins every ten seconds."""
NAMES = {
    "few": "running aggregate, 1,000 keys",
    "spark_few": "Spark's aggregation (JVM), 1,000 keys",
    "zipf": "running aggregate, as many keys as half a batch, some frequent (Zipf)",
    "spark_zipf": "Spark's aggregation (JVM), some keys frequent (Zipf)",
    "many": "running aggregate, as many keys as half a batch",
    "spark_many": "Spark's aggregation (JVM), as many keys as half a batch",
    "windows": "windows of ten seconds, 1,000 keys",
    "spark_windows": "Spark's window() aggregation (JVM)",
    "hopping": "windows of a minute every ten seconds, 1,000 keys",
    "spark_hopping": "Spark's window() aggregation (JVM), a minute every ten seconds",
    "sessions": "sessions with three seconds between them, 1,000 keys",
    "spark_sessions": "Spark's session_window() aggregation (JVM)",
    "dedup": "deduplication within ten minutes, half of the rows copies",
    "spark_dedup": "Spark's dropDuplicatesWithinWatermark (JVM)",
    "joins": "join of two inputs within ten minutes",
    "spark_joins": "Spark's stream-stream join (JVM)",
}


@dataclass
class Total:
    channel: int
    n: int
    total: float


def _events(flow: sf.Flow, input: str, count: int, **time: Any) -> sf.KeyedStream:
    events = flow.source("events", sf.delta(input, options=ONE_FILE), TimedEvent, **time)
    return events.transform(lambda frame: channels(frame, count), type=Channel).key_by("channel")


@sf.pipeline("ready-totals")
def totals(flow: sf.Flow, *, input: str, output: str, count: int) -> None:
    total = _events(flow, input, count).aggregate("totals", Total, n=sf.count(), total=sf.sum("amount"))
    total.changes_as_rows(op="op").append("output", sf.delta(output))


@sf.pipeline("ready-windows")
def windows(flow: sf.Flow, *, input: str, output: str, count: int, length: int = 10) -> None:
    keyed = _events(flow, input, count, event_time="ts", watermark="0 seconds")
    window = sf.hopping(f"{length} seconds", "10 seconds")
    ended = keyed.window(window).aggregate("windows", Window, n=sf.count(), total=sf.sum("amount"))
    named = ended.transform(lambda frame: frame.withColumnRenamed("window_start", "start"))
    named.append("output", sf.delta(output))


@dataclass(frozen=True, slots=True)
class Size:
    """Small batches first: it takes Java's compiler many turns of the driver's code until a batch is as fast as it is for the rest
    of a run."""

    rows: int
    """Of a measured batch."""
    keys: int
    few: int
    """Rows of a batch before."""
    warm_up: int
    measured: int
    settling: int = 0
    """Batches as large as the measured ones before them: Java compiles loops anew that run longer than before."""

    def batches(self, side: str) -> list[int]:
        settling = 0 if side.endswith(LONG) else self.settling
        return [self.few] * self.warm_up + [self.rows] * (settling + self.measured)


def run(side: str, size: Size, workplace: Workplace) -> dict[str, Any]:
    from bench import sides

    spark, work, batches = sides.session(), workplace.folder, size.batches(side)
    if side.endswith(ON_TIMES):
        tables = ready_times.inputs(side, batches, size.keys)
        outcome = ready_times.outcome_of(side, spark, tables, work)
        ready_times.check(side, work / "output", tables)
    else:
        kind: Keys = "zipf" if side.endswith("zipf") else "uniform"
        data = dataset([BatchSpec(rows, size.keys, kind) for rows in batches], with_time=True)
        outcome = outcome_of(side, spark, data, work)
        if side.endswith(("windows", "hopping")):
            check_windows(work / "output", data, LENGTHS[side.removeprefix("spark_")])
        else:
            check_totals(work / "output", data)
    if outcome.timed.rows != batches:
        raise AssertionError(f"{side} cut the input into batches of {outcome.timed.rows} rows")
    return {
        "rows": size.rows,
        "seconds": outcome.timed.seconds,
        "steady": outcome.timed.seconds[-size.measured :],
        "cpu": outcome.timed.cpu[-size.measured :],
        "phases": [
            report.statistics["metrics"]
            for report in outcome.reports[len(batches) - size.measured : len(batches)]
        ],
    }


def outcome_of(side: str, spark: SparkSession, data: Dataset, work: Path) -> Outcome:
    from bench import sides

    length = LENGTHS.get(side.removeprefix("spark_"))
    if side.startswith("spark") and length is not None:
        return spark_windows(spark, data, work, length)
    count = 0 if side.endswith(("many", "zipf")) else CHANNELS
    if side.startswith("spark"):
        from pyspark.sql import functions as F

        grouped = channels(sides.source(spark, data), count).groupBy("channel")
        sums = grouped.agg(F.count("*").alias("n"), F.sum("amount").alias("total"))
        return sides.peer(spark, sums, work, sides.appended(work), mode="update")
    parameters = {"input": str(data.path), "output": str(work / "output"), "count": count}
    if length is not None:
        return sides.stateflow_run(spark, windows, {**parameters, "length": length}, work)
    return sides.stateflow_run(spark, totals, parameters, work)


def check_totals(output: Path, data: Dataset) -> None:
    """The last total of every key, which amounts make larger and larger, has all rows."""
    from bench import sides

    last = sides.added_rows(output).group_by("channel").aggregate([("n", "max"), ("total", "max")])
    rows, amount = sum(last["n_max"].to_pylist()), sum(last["total_max"].to_pylist())
    if (rows, amount) != (data.rows, data.amount):
        raise AssertionError(
            f"the output counts {rows} rows worth {amount}, the input has {data.rows} worth {data.amount}"
        )


def section(results: Results, size: Size) -> Section:
    def speed(trial: Any) -> float:
        return float(trial["rows"] / median(trial["steady"]))

    rate = {side: results.median(side, speed) for side in SIDES}
    beside = {**PEERS, **{peer: peer for peer in PEERS.values()}}
    rows = [
        [
            NAMES[side],
            seconds(size.rows / rate[side]),
            f"{rate[side]:,.0f}",
            f"{rate[side] / rate[beside[side]]:.2f}x",
        ]
        for side in SIDES
    ]
    targets = [
        at_least(f"{NAMES[side]}: {times} times Spark's", rate[side] / rate[PEERS[side]], times)
        for side, times in TIMES.items()
    ]
    settling = f" and, but for the join, {size.settling} as large" if size.settling else ""
    text = (
        f"Batches of {size.rows:,} rows, a millisecond apart, exactly once into Delta, behind {size.warm_up} smaller ones that warm both sides up{settling}. `keyed.aggregate` and "
        "`keyed.window(...).aggregate` keep a count and a sum; so does Spark, in the JVM with its RocksDB state store. Sessions "
        f"have twenty rows each. Each row has a copy five minutes later. Of the join, each input has half of the rows, of {ready_times.PEOPLE:,} users. "
        "The outputs are compared with the input."
    )
    plot = Plot(
        "ready",
        "Rows per second of ready-made operators, exactly once into Delta",
        "bars",
        [NAMES[side] for side in SIDES],
        {"rows per second": [rate[side] for side in SIDES]},
        "",
        "rows per second",
    )
    return Section(text, ("side", "a batch", "rows/s", "of Spark's"), rows, targets, [plot])


MEASUREMENT = Measurement(
    "ready",
    "Ready-made operators",
    SIDES,
    {
        "full": Size(2_000_000, 1_000_000, 250_000, 8, 3, settling=4),
        "quick": Size(200_000, 100_000, 100_000, 2, 3),
    },
    run,
    section,
    repeats=1,
    minutes={"full": 17.0, "quick": 6.0},
)
