"""A frame is checked before it runs: what it reads, and that a run could be resumed."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from stateflow.errors import UsageError
from stateflow.format.source_offsets import SourceLeaves
from stateflow.spark.sources.leaves import by_source, check_frame, with_places
from tests.refusals.refusal import refused
from tests.spark.replay import append_file, append_version, files, table


@pytest.fixture(scope="module")
def data(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("leaves")
    append_file(spark, path / "files", 0)
    append_version(path / "events", 0)
    spark.range(3).write.format("delta").mode("overwrite").option("path", str(path / "named")).saveAsTable(
        "named"
    )
    return path


def stream(spark: SparkSession, data: Path) -> DataFrame:
    return files(data / "files")(spark)


def test_the_streams_are_listed_in_plan_order(spark: SparkSession, data: Path) -> None:
    ticks = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", 1)
        .load()
        .select(F.col("value").alias("id"))
    )
    static = spark.range(5)
    frame = stream(spark, data).join(static, "id").union(table(data / "events")(spark))
    frame = frame.union(spark.readStream.table("named").filter("id > 1")).union(ticks)

    leaves = check_frame(frame)

    assert [(leaf.kind, leaf.format) for leaf in leaves] == [
        ("file", "parquet"),
        ("delta", "delta"),
        ("delta", "delta"),
        ("other", "rate-micro-batch"),
    ]
    assert [leaf.target for leaf in leaves[:3]] == [
        str(data / "files"),
        str(data / "events"),
        "spark_catalog.default.named",
    ]
    assert leaves[1].options["maxfilespertrigger"] == "1"
    placed = with_places([SourceLeaves("a", 1), SourceLeaves("b", 3)], leaves)
    assert [(leaf.uid, leaf.number, leaf.place) for leaf in placed] == [
        ("a", 0, 0),
        ("b", 1, 0),
        ("b", 2, 1),
        ("b", 3, 2),
    ]
    assert {uid: len(own) for uid, own in by_source(placed).items()} == {"a": 1, "b": 3}
    with refused(UsageError, "2 streams", "has 4"):
        with_places([SourceLeaves("a", 2)], leaves)


def test_sources_that_cannot_be_read_again_need_at_least_once(spark: SparkSession) -> None:
    rate = spark.readStream.format("rate").load()
    socket = spark.readStream.format("socket").option("host", "localhost").option("port", "1").load()

    for frame, name in ((rate, "rate"), (socket, "socket")):
        with refused(UsageError, f"a {name} source", "cannot be read again", 'delivery="at_least_once"'):
            check_frame(frame)
        assert len(check_frame(frame, exactly_once=False)) == 1


@pytest.mark.parametrize(
    ("operator", "name"),
    [
        (lambda df: df.groupBy("id").count(), "a streaming aggregation"),
        (lambda df: df.dropDuplicates(), "dropDuplicates"),
        (lambda df: df.distinct(), "distinct"),
        (
            lambda df: df.withColumn("t", F.current_timestamp()).withWatermark("t", "1 minute")
            .dropDuplicatesWithinWatermark(["id"]),
            "dropDuplicatesWithinWatermark",
        ),
        (
            lambda df: df.groupBy("id").applyInPandasWithState(
                lambda *a: iter(()), "id long", "id long", "append", "NoTimeout"
            ),
            "applyInPandasWithState",
        ),
        (lambda df: df.limit(3), "limit"),
    ],
)  # fmt: skip
def test_operators_that_keep_state_in_spark_are_refused(
    spark: SparkSession, data: Path, operator: object, name: str
) -> None:
    with pytest.raises(UsageError, match=f"{name}.* keeps state in Spark's own checkpoint"):
        check_frame(operator(stream(spark, data)))  # type: ignore[operator]


def test_a_join_of_two_streams_is_refused_and_one_with_a_table_is_fine(
    spark: SparkSession, data: Path
) -> None:
    with refused(UsageError, "a join of two streams"):
        check_frame(stream(spark, data).join(table(data / "events")(spark), "id"))
    assert len(check_frame(stream(spark, data).join(spark.range(3), "id"))) == 1


def test_a_stream_that_is_used_twice_is_refused(spark: SparkSession, data: Path) -> None:
    once = stream(spark, data)
    with refused(UsageError, "is used twice in one frame"):
        check_frame(once.union(once))
    assert len(check_frame(stream(spark, data).union(stream(spark, data)))) == 2


def test_a_frame_without_a_stream_is_refused(spark: SparkSession) -> None:
    with refused(UsageError, "is not a stream"):
        check_frame(spark.range(3))


def test_a_schema_log_in_the_disposable_folder_is_refused(spark: SparkSession, data: Path) -> None:
    with refused(UsageError, "sets schematrackinglocation"):
        check_frame(table(data / "events", schemaTrackingLocation="/tmp/log")(spark))
