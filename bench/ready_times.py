"""Questions whose answer hangs on event times: sessions, copies within a while, pairs of two inputs within a while.

Each as a pipeline, in Spark, and by other means over the whole input, with which both are compared row for row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import stateflow as sf
from bench.generate import FIRST_TIME, BatchSpec, Dataset, dataset
from bench.operators import CHANNELS, ONE_FILE, TimedEvent

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from bench.sides import Outcome

GAP = 2_999_500
"""Microseconds between two sessions. Rows are whole milliseconds apart, so that none is just so far from another: what
belongs to it then differs from engine to engine. A session has twenty rows on average."""
COPY_AFTER = 5 * 60_000
"""Milliseconds after a row comes its copy."""
MINUTES = 10
WHILE = f"{MINUTES} minutes"
"""How long a row is remembered for its copies, and for its partners."""
PEOPLE = 1_000_000
"""Of the pairs: six of ten rows have a partner."""
_INSTANT = pa.timestamp("us", "UTC")


@dataclass
class Channel:
    channel: int
    amount: float
    ts: datetime


@dataclass
class Window:
    channel: int
    window_start: datetime
    n: int
    total: float


@dataclass
class Copied:
    event: int
    amount: float
    ts: datetime


@dataclass
class Pair:
    user: int
    left_amount: float
    right_amount: float
    left_ts: datetime
    right_ts: datetime


def channels(frame: Any, count: int = CHANNELS) -> Any:
    """Users as so many channels; with 0 each is one of its own."""
    channel = f"user % {count}" if count else "user"
    return frame.selectExpr(f"{channel} as channel", "amount", "ts")


def with_copies(frame: Any) -> Any:
    """Gives each row the number that it shares with one other row."""
    number = f"(unix_micros(ts) - {FIRST_TIME}) div 1000"
    event = f"{number} div {2 * COPY_AFTER} * {COPY_AFTER} + {number} % {COPY_AFTER}"
    return frame.selectExpr(f"{event} as event", "amount", "ts")


def _timed(flow: sf.Flow, uid: str, input: str) -> sf.Stream:
    source = sf.delta(input, options=ONE_FILE)
    return flow.source(uid, source, TimedEvent, event_time="ts", watermark="0 seconds")


@sf.pipeline("ready-sessions")
def sessions(flow: sf.Flow, *, input: str, output: str) -> None:
    keyed = _timed(flow, "events", input).transform(channels, type=Channel).key_by("channel")
    window = keyed.window(sf.session(f"{GAP} microseconds"))
    window.aggregate("sessions", Window, n=sf.count(), total=sf.sum("amount")).append(
        "output", sf.delta(output)
    )


@sf.pipeline("ready-dedup")
def dedup(flow: sf.Flow, *, input: str, output: str) -> None:
    events = _timed(flow, "events", input).transform(with_copies, type=Copied)
    events.deduplicate("dedup", by="event", within=WHILE).append("output", sf.delta(output))


@sf.pipeline("ready-joins")
def joins(flow: sf.Flow, *, input: str, right: str, output: str) -> None:
    asked, answered = (
        _timed(flow, uid, path).key_by("user") for uid, path in (("left", input), ("right", right))
    )
    asked.join("pairs", answered, Pair, within=("0 minutes", WHILE)).append("output", sf.delta(output))


def inputs(side: str, batches: Sequence[int], keys: int) -> tuple[Dataset, ...]:
    """The tables of a side, which have so many rows in each batch together."""
    if side.endswith("joins"):
        specs = [BatchSpec(rows // 2, PEOPLE) for rows in batches]
        return tuple(dataset(specs, seed=seed, with_time=True) for seed in (1, 2))
    return (dataset([BatchSpec(rows, keys) for rows in batches], with_time=True),)


def outcome_of(side: str, spark: SparkSession, data: tuple[Dataset, ...], work: Path) -> Outcome:
    from bench import sides

    if side.startswith("spark_"):
        return sides.peer(spark, _asked(side, spark, data), work, sides.appended(work), mode="append")
    names = ("input", "right")[: len(data)]
    parameters = {name: str(table.path) for name, table in zip(names, data, strict=True)}
    pipeline = {"sessions": sessions, "dedup": dedup, "joins": joins}[side]
    return sides.stateflow_run(spark, pipeline, {**parameters, "output": str(work / "output")}, work)


def _asked(side: str, spark: SparkSession, data: tuple[Dataset, ...]) -> Any:
    """The same in Spark."""
    from pyspark.sql import functions as F

    from bench import sides

    first, *others = (sides.source(spark, table) for table in data)
    if side == "spark_sessions":
        rows = channels(first.withWatermark("ts", "0 seconds"))
        session = F.session_window("ts", f"{GAP} microseconds").alias("session")
        found = rows.groupBy("channel", session).agg(F.count("*").alias("n"), F.sum("amount").alias("total"))
        return found.selectExpr("channel", "session.start as window_start", "n", "total")
    if side == "spark_dedup":
        return with_copies(first.withWatermark("ts", WHILE)).dropDuplicatesWithinWatermark(["event"])
    for name, frame in (("asked", first), ("answered", others[0])):
        frame.withWatermark("ts", "0 seconds").createOrReplaceTempView(name)
    return spark.sql(
        "select asked.user, asked.amount as left_amount, answered.amount as right_amount, asked.ts as left_ts, "
        "answered.ts as right_ts from asked join answered on asked.user = answered.user "
        f"and answered.ts between asked.ts and asked.ts + interval {WHILE}"
    )


def check(side: str, output: Path, data: tuple[Dataset, ...]) -> None:
    """The output has the rows that it is to have, and no others."""
    from bench import sides

    kind = side.removeprefix("spark_")
    expected = {"sessions": _sessions, "dedup": _firsts, "joins": _pairs}[kind](*data)
    found = sides.added_rows(output).select(expected.column_names).cast(expected.schema)
    order = [(name, "ascending") for name in expected.column_names]
    if not found.sort_by(order).equals(expected.sort_by(order)):
        raise AssertionError(
            f"{side} put out {len(found)} rows, which are not the {len(expected)} rows that the input makes"
        )


def _rows(data: Dataset) -> pa.Table:
    return pa.concat_tables(pq.read_table(path) for path in sorted(data.path.glob("*.parquet")))


def _sessions(data: Dataset) -> pa.Table:
    rows = _rows(data)
    channel = (rows["user"].to_numpy() % CHANNELS).astype(np.int16)
    order = np.argsort(channel, kind="stable")
    channel, at = channel[order], rows["ts"].cast(pa.int64()).to_numpy()[order]
    new = np.flatnonzero((np.diff(channel) != 0) | (np.diff(at) > GAP)) + 1
    starts, ends = np.append(0, new), np.append(new, len(at))
    found = pa.table(
        {
            "channel": channel[starts].astype(np.int64),
            "window_start": pa.array(at[starts]).cast(_INSTANT),
            "n": ends - starts,
            "total": np.add.reduceat(rows["amount"].to_numpy()[order], starts),
        }
    )
    # The watermark ends where the last row is, and has not passed what came last.
    return found.filter(pa.array(at[ends - 1] + GAP <= at.max()))


def _firsts(data: Dataset) -> pa.Table:
    rows = _rows(data)
    number = np.arange(len(rows))
    first = number % (2 * COPY_AFTER) < COPY_AFTER
    event = number // (2 * COPY_AFTER) * COPY_AFTER + number % COPY_AFTER
    return pa.table({"event": event, "amount": rows["amount"], "ts": rows["ts"]}).filter(pa.array(first))


def _pairs(left: Dataset, right: Dataset) -> pa.Table:
    import duckdb

    with duckdb.connect() as database:
        for name, data in (("asked", left), ("answered", right)):
            rows = _rows(data)
            # As a number: for instants with a zone DuckDB wants an extension.
            at = rows.schema.get_field_index("ts")
            database.register(name, rows.set_column(at, "ts", rows["ts"].cast(pa.int64())))
        found = database.sql(
            "select asked.user, asked.amount as left_amount, answered.amount as right_amount, asked.ts as left_ts, "
            "answered.ts as right_ts from asked join answered on asked.user = answered.user "
            f"and answered.ts between asked.ts and asked.ts + {MINUTES * 60_000_000}"
        ).to_arrow_table()
    instants = [pa.field(f.name, _INSTANT if f.name.endswith("_ts") else f.type) for f in found.schema]
    return found.cast(pa.schema(instants))
