"""A topic as a sink, exactly once, beside Spark's own writer, which writes messages again when it fails: in turn, in one session, to one
broker."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench.measurement import Measurement, Results, Section, Workplace, at_most, median
from bench.sink_beside import STEPS, rows_and_ratios

SIDES = ("in_turn",)
COLUMNS = (
    "id",
    "concat('user-', id % 5000) AS user",
    "id * 0.37 AS amount",
    "timestamp_micros(1767323045000000 + id) AS at",
)


@dataclass(frozen=True, slots=True)
class Size:
    rows: int
    warm_up: int
    measured: int


def run(side: str, size: Size, workplace: Workplace) -> dict[str, Any]:
    import stateflow as sf
    from bench import sides
    from stateflow.testing.sink_log import SinkLog, make_sink
    from tests.connectors.kafka_server import Topics
    from tests.spark.kafka_broker import broker, connector_jars

    spent: dict[str, list[float]] = {name: [] for name in STEPS}

    def timed(name: str, act: Callable[[], Any]) -> Any:
        began = time.monotonic()
        outcome = act()
        spent[name].append(time.monotonic() - began)
        return outcome

    with broker(workplace.folder / "broker") as address:
        topics = Topics(address)
        for name in ("ours", "theirs"):
            topics.make(name, 2)
        spark = sides.session(**{"spark.jars": ",".join(connector_jars())})
        read = str(workplace.folder / "rows")
        spark.range(0, size.rows, 1, 2).selectExpr(*COLUMNS).write.parquet(read)
        log = SinkLog(spark, workplace.folder / "root", job=str(uuid.uuid4()))
        sink = make_sink("out", "append", sf.kafka("ours", bootstrap=address), {"keys": "user"})
        sink.open(spark, spark.read.parquet(read).schema)

        def theirs() -> None:
            # Their user makes the messages.
            made = spark.read.parquet(read).selectExpr("user AS key", "to_json(struct(*)) AS value")
            writer = made.write.format("kafka").option("kafka.bootstrap.servers", address)
            writer.option("topic", "theirs").save()

        for number in range(size.warm_up + size.measured):
            workplace.say(f"batch {number + 1}")
            prepared = timed("prepare", lambda: log.prepare(sink, spark.read.parquet(read)))
            timed("commit", lambda prepared=prepared: log.commit(prepared))
            timed("spark", theirs)
    return {name: each[size.warm_up :] for name, each in spent.items()}


def section(results: Results, size: Size) -> Section:
    rows, ratios = rows_and_ratios(
        results, "of it the commit, by the driver alone", "Spark's writer, at least once"
    )
    text = (
        f"{size.rows:,} rows of four columns as JSON into two partitions of a topic, with a key. The broker runs on the same machine. Both "
        f"write in turn; the ratio of a pair is {min(ratios):.2f} to {max(ratios):.2f}."
    )
    target = at_most(
        "a batch into Kafka, exactly once, takes at most 1.5 times as long as Spark's writer",
        median(ratios),
        1.5,
    )
    return Section(text, ("side", "median", "range"), rows, [target])


MEASUREMENT = Measurement(
    "kafka_sink",
    "A batch into Kafka",
    SIDES,
    {"full": Size(1_000_000, 2, 8), "quick": Size(200_000, 2, 4)},
    run,
    section,
    repeats=1,
    minutes={"full": 1.5, "quick": 0.8},
    named_only=True,
)
