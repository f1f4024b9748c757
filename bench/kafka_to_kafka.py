"""From a topic into a topic: this library and Flink's SQL, both exactly once, and Spark's own streaming, which writes messages again when
it fails. Each reads the same messages, from the first to the last of today, in a process that has done the same before."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import stateflow as sf
from bench.measurement import Measurement, Results, Section, Workplace, at_most, median, seconds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SIDES = ("ours", "flink", "spark")
NAMES = {
    "ours": "this library, exactly once",
    "flink": "Flink's SQL, exactly once",
    "spark": "Spark's streaming, at least once",
}
COLUMNS = "id bigint, user string, amount double"
ASKED = ("id", "user", "amount * 1.19 AS gross")
KEPT = "id % 2 = 0"
"""Half of the messages go on, with a new value."""
FLINK_KAFKA = "org.apache.flink:flink-sql-connector-kafka:5.0.0-2.2"


@dataclass(frozen=True, slots=True)
class Size:
    rows: int
    passes: int
    """Behind the first, which counts for none."""


def asked(frame: DataFrame) -> DataFrame:
    return frame.where(KEPT).selectExpr(*ASKED)


@sf.pipeline("passing_on")
def passing_on(flow: sf.Flow, *, address: str, output: str) -> None:
    rows = flow.source("rows", sf.kafka("rows", bootstrap=address, value="json"), COLUMNS)
    passed = rows.transform(asked, type="id bigint, user string, gross double")
    passed.append("out", sf.kafka(output, bootstrap=address), keys="user")


def run(side: str, size: Size, workplace: Workplace) -> dict[str, Any]:
    from bench import sides
    from tests.connectors.kafka_server import Topics
    from tests.spark.kafka_broker import broker, connector_jars

    with broker(workplace.folder / "broker") as address:
        topics = Topics(address)
        outputs = [f"out-{number}" for number in range(size.passes + 1)]
        for name in ("rows", *outputs):
            topics.make(name, 2)
        spark = sides.session(**{"spark.jars": ",".join(connector_jars())})
        made = spark.range(0, size.rows, 1, 2).selectExpr(
            "id", "concat('user-', id % 5000) AS user", "id * 0.37 AS amount"
        )
        messages = made.selectExpr("user AS key", "to_json(struct(*)) AS value")
        messages.write.format("kafka").option("kafka.bootstrap.servers", address).option(
            "topic", "rows"
        ).save()
        if side == "flink":
            spark.stop()
            spent = _flink(address, outputs, workplace.folder)
        else:
            one = {"ours": _ours, "spark": _spark}[side]
            spent = [
                _timed(lambda name=name: one(spark, address, name, workplace.folder / name))
                for name in outputs
            ]
        found = len(topics.read(outputs[-1]))
        if found != size.rows // 2:
            sys.exit(f"{NAMES[side]}: {found} messages instead of {size.rows // 2}")
    return {"seconds": spent[1:], "first": spent[0]}


def _timed(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def _ours(spark: SparkSession, address: str, output: str, work: Path) -> None:
    from bench import sides

    work.mkdir()
    sides.stateflow_run(spark, passing_on, {"address": address, "output": output}, work)


def _spark(spark: SparkSession, address: str, output: str, work: Path) -> None:
    of_kafka = {"kafka.bootstrap.servers": address}
    rows = (
        spark.readStream.format("kafka")
        .options(**of_kafka, subscribe="rows", startingOffsets="earliest")
        .load()
    )
    passed = asked(rows.selectExpr(f"from_json(cast(value AS string), '{COLUMNS}') AS o").select("o.*"))
    values = passed.selectExpr("user AS key", "to_json(struct(*)) AS value")
    writer = values.writeStream.format("kafka").options(
        **of_kafka, topic=output, checkpointLocation=str(work)
    )
    writer.trigger(availableNow=True).start().awaitTermination()


def _flink(address: str, outputs: list[str], folder: Path) -> list[float]:
    from bench.peers.environments import asked, flink_jars

    common = f"'connector' = 'kafka', 'properties.bootstrap.servers' = '{address}'"
    read = (
        f"create table `rows` (id bigint, `user` string, amount double) with ({common}, 'topic' = 'rows', "
        "'scan.startup.mode' = 'earliest-offset', 'scan.bounded.mode' = 'latest-offset', 'format' = 'json')"
    )

    def written(output: str) -> str:
        return (
            f"create table passed (id bigint, `user` string, gross double) with ({common}, 'topic' = '{output}', 'key.format' = 'raw', "
            "'key.fields' = 'user', 'value.format' = 'json', 'sink.delivery-guarantee' = 'exactly-once', "
            f"'sink.transactional-id-prefix' = '{output}', 'properties.transaction.timeout.ms' = '600000')"
        )

    passes = [
        {
            "tables": [
                read,
                written(output),
            ],
            "checkpoints": str(folder / f"flink-{output}"),
            "asked": "inserted",
        }
        for output in outputs
    ]
    request = {
        "query": "insert into passed select id, `user`, amount * 1.19 from `rows` where mod(id, 2) = 0",
        "keys": [],
        "settings": {},
        "jars": flink_jars(FLINK_KAFKA),
        "passes": passes,
    }
    spent: list[float] = asked("flink", "flink_query.py", request, folder)
    return spent


def section(results: Results, size: Size) -> Section:
    spent = {side: [each for trial in results.of(side) for each in trial["seconds"]] for side in SIDES}
    first = {side: median([trial["first"] for trial in results.of(side)]) for side in SIDES}
    rows = [
        [
            NAMES[side],
            seconds(median(each)),
            f"{seconds(min(each))} to {seconds(max(each))}",
            seconds(first[side]),
        ]
        for side, each in spent.items()
    ]
    text = (
        f"{size.rows:,} messages in JSON in two partitions of a topic; half of them, with another value and a key, go into another topic. The broker runs "
        "on the same machine. A time is that of a whole run, from its start to its end, in a process that has done the same once before: with "
        "the planning of the job and, for the first two, with its checkpoints and transactions."
    )
    ours = median(spent["ours"])
    targets = [
        at_most(
            "from topic to topic, exactly once, takes at most as long as Flink",
            ours / median(spent["flink"]),
            1.0,
        ),
        at_most("and at most 1.5 times as long as Spark's streaming", ours / median(spent["spark"]), 1.5),
    ]
    return Section(text, ("side", "median", "range", "the first run of its process"), rows, targets)


MEASUREMENT = Measurement(
    "kafka_to_kafka",
    "From a topic into a topic",
    SIDES,
    {"full": Size(1_000_000, 3), "quick": Size(200_000, 1)},
    run,
    section,
    repeats=2,
    minutes={"full": 3.0, "quick": 1.5},
    named_only=True,
)
