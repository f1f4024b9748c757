"""The sides: each takes the same table batch by batch, keeps running totals and appends them to a Delta table."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import mkdtemp
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import stateflow as sf
from bench import operators
from bench.clock import Timed, cpu_of_tree, timed
from bench.generate import Dataset
from bench.operators import ONE_FILE, OUTPUT
from stateflow.config.options import load
from stateflow.format.keygroups import default_assignment
from stateflow.pipelines.rows.row_type import row_type
from stateflow.spark.loop import BatchReport
from stateflow.spark.runner import RunReport, RunRequest, run
from stateflow.spark.session.build import build_session
from stateflow.spark.session.sent_modules import SentModules
from stateflow.spark.shuffle.exchange import PLACE, KeyedInput, carried_by, exchanged
from stateflow.spark.task.key_columns import KeyColumns
from stateflow.spark.task.sorted_rows import SortedRows

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.driver.memory": "4g",
    "spark.locality.wait": "3000ms",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # The newest, which is off by default: with those before, a join reads through all rows of a key.
    "spark.sql.streaming.join.stateFormatV4.enabled": "true",
    "spark.sql.streaming.join.stateFormatVersion": "4",
    "spark.sql.streaming.numRecentProgressUpdates": "10",
}
"""One session for all: the state store's settings concern Spark's operators only."""


@dataclass
class Outcome:
    """A side's result on a table."""

    timed: Timed
    reports: list[BatchReport] = field(default_factory=list)
    """Only from this library."""
    run: RunReport | None = None


def session(master: str = "local[2]", **conf: str) -> SparkSession:
    return build_session("bench", master=master, conf={**SETTINGS, **conf})


def stateflow_run(
    spark: SparkSession,
    pipeline: sf.Pipeline,
    parameters: Mapping[str, Any],
    work: Path,
    *,
    each: Callable[[BatchReport], None] = lambda report: None,
    options: Mapping[str, Any] = {},
) -> Outcome:
    """This library with its default options: durable records, exactly once."""
    reports: list[BatchReport] = []

    def listener(report: BatchReport) -> None:
        reports.append(report)
        each(report)

    code = {"checkpoint_dir": str(work / "root"), "cache_dir": str(work / "cache"), **options}
    request = RunRequest(
        pipeline,
        load(code=code, env={}, folder=work),
        parameters,
        sent_modules=SentModules((str(ROOT),)),
        listener=listener,
    )
    with timed(spark) as batches:
        report = run(request)
    return Outcome(batches, reports, report)


def per_batch(
    spark: SparkSession,
    pipeline: sf.Pipeline,
    parameters: Mapping[str, Any],
    work: Path,
    *,
    warm_up: int,
    batches: int,
    options: Mapping[str, Any] = {},
) -> dict[str, float]:
    """Seconds and CPU seconds from batch to batch, as the last of a job's batches took them, and the median of the seconds."""
    ends: list[tuple[float, float]] = []

    def each(report: BatchReport) -> None:
        ends.append((time.perf_counter(), cpu_of_tree(os.getpid())))

    stateflow_run(spark, pipeline, parameters, work, each=each, options=options)
    assert len(ends) == 1 + warm_up + batches, f"{len(ends)} batches"
    counted = ends[warm_up:]
    (start, spent), (end, in_all) = counted[0], counted[-1]
    took = [later - earlier for (earlier, _), (later, _) in pairwise(counted)]
    return {"wall": (end - start) / batches, "cpu": (in_all - spent) / batches, "middle": median(took)}


def process(spark: SparkSession, data: Dataset, work: Path, **arguments: Any) -> Outcome:
    """A per-key Python process with one ValueState."""
    parameters = {"input": str(data.path), "output": str(work / "output")}
    return stateflow_run(spark, operators.per_key, parameters, work, **arguments)


def process_arrow(spark: SparkSession, data: Dataset, work: Path, **arguments: Any) -> Outcome:
    parameters = {"input": str(data.path), "output": str(work / "output")}
    return stateflow_run(spark, operators.columnar, parameters, work, **arguments)


def spark_aggregation(spark: SparkSession, data: Dataset, work: Path) -> Outcome:
    """Spark's streaming aggregation: in the JVM, RocksDB with changelog."""
    sums = source(spark, data).groupBy("user").agg(F.count("*").alias("n"), F.sum("amount").alias("total"))
    return peer(spark, sums, work, appended(work), mode="update")


class Totals(StatefulProcessor):
    """The same operator for Spark's transformWithState."""

    def init(self, handle: Any) -> None:
        self.sums = handle.getValueState("sums", "n long, total double")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        n, total = self.sums.get() if self.sums.exists() else (0, 0.0)
        for row in rows:
            n += 1
            total += row.amount
        self.sums.update((n, total))
        yield Row(user=key[0], n=n, total=total)

    def close(self) -> None:
        pass


def transform_with_state(spark: SparkSession, data: Dataset, work: Path) -> Outcome:
    """Spark's stateful processor in Python, rows one by one."""
    grouped = source(spark, data).groupBy("user")
    return peer(
        spark,
        grouped.transformWithState(Totals(), OUTPUT, "update", "none"),
        work,
        appended(work),
        mode="update",
    )


def limit_sorted(spark: SparkSession, data: Dataset, work: Path) -> Outcome:
    """This library's own exchange and a Python function that passes one row per key through; no state."""
    return _limit(spark, data, work, ordered=True)


def limit_unsorted(spark: SparkSession, data: Dataset, work: Path) -> Outcome:
    """The same without the sort. It puts out as many rows as there are keys."""
    return _limit(spark, data, work, ordered=False)


def _limit(spark: SparkSession, data: Dataset, work: Path, *, ordered: bool) -> Outcome:
    rows, keys, _ = data.checks[-1]
    write = appended(work)

    def body(frame: DataFrame, batch_id: int) -> None:
        arguments = KeyedInput(frame, ("user",), (), row_type(operators.Event))
        carry = carried_by([arguments], ("int",))
        rows_moved = exchanged(
            "limit", [arguments], ("int",), 128, default_assignment(2, 128), ordered=ordered, carry=carry
        )
        key = KeyColumns("limit", ("user",), [rows_moved.columns.index("user")])
        through = first_of_each_key(key) if ordered else share_of_rows(keys / rows)
        write(rows_moved.mapInArrow(through, OUTPUT), batch_id)

    return peer(spark, source(spark, data), work, body, mode="append")


def first_of_each_key(key: KeyColumns) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def through(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        last = None
        for batch, starts in SortedRows(key, lambda: Path(mkdtemp())).of(batches):
            (users,) = key.of(batch)
            goes_on = users[0] == last
            last = users[-1]
            yield _passed(batch.take(starts[1:] if goes_on else starts))

    return through


def share_of_rows(share: float) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def through(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield _passed(batch.slice(0, round(batch.num_rows * share)))

    return through


def _passed(batch: pa.RecordBatch) -> pa.RecordBatch:
    columns = [batch["user"], batch[PLACE], batch["amount"]]
    return pa.RecordBatch.from_arrays(columns, names=["user", "n", "total"])


def stateless(spark: SparkSession, data: Dataset, work: Path) -> Outcome:
    """A foreachBatch that only computes its rows, and writes them nowhere."""

    def body(frame: DataFrame, batch_id: int) -> None:
        frame.write.format("noop").mode("overwrite").save()

    return peer(spark, source(spark, data), work, body, mode="append")


def source(spark: SparkSession, data: Dataset) -> DataFrame:
    return spark.readStream.format("delta").options(**ONE_FILE).load(str(data.path))


def appended(work: Path) -> Callable[[DataFrame, int], None]:
    """Exactly once, as far as Spark can: the table skips a transaction version that it has already."""

    def body(frame: DataFrame, batch_id: int) -> None:
        writer = frame.write.format("delta").mode("append")
        writer.option("txnAppId", "bench").option("txnVersion", batch_id).save(str(work / "output"))

    return body


def peer(
    spark: SparkSession,
    frame: DataFrame,
    work: Path,
    body: Callable[[DataFrame, int], None],
    *,
    mode: str,
    checkpoint: Path | None = None,
) -> Outcome:
    kept = checkpoint or work / "spark-checkpoint"
    writer = frame.writeStream.outputMode(mode).option("checkpointLocation", str(kept))
    with timed(spark) as batches:
        query: StreamingQuery = writer.trigger(availableNow=True).foreachBatch(body).start()
        query.awaitTermination()
    return Outcome(batches)


def check_totals(output: Path, data: Dataset) -> None:
    """Compares the last total of every user in a Delta table with what the input holds."""
    last = added_rows(output).group_by("user").aggregate([("n", "max"), ("total", "max")])
    rows, amount = sum(last["n_max"].to_pylist()), sum(last["total_max"].to_pylist())
    if (rows, amount) != (data.rows, data.amount):
        raise AssertionError(
            f"the output counts {rows} rows worth {amount}, the input has {data.rows} worth {data.amount}"
        )


def added_rows(output: Path) -> pa.Table:
    """The rows of a Delta table that only took appends."""
    added = []
    for commit in sorted((output / "_delta_log").glob("*.json")):
        for line in commit.read_text().splitlines():
            action = json.loads(line)
            if "add" in action:
                added.append(str(output / action["add"]["path"]))
    return pa.concat_tables(pq.read_table(path) for path in added)


SIDES: Mapping[str, Callable[..., Outcome]] = {
    "process": process,
    "process_arrow": process_arrow,
    "spark_aggregation": spark_aggregation,
    "transform_with_state": transform_with_state,
    "limit_sorted": limit_sorted,
    "limit_unsorted": limit_unsorted,
}
STATEFUL = ("process", "process_arrow", "spark_aggregation", "transform_with_state")
