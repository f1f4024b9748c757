"""What a Delta table asks of its rows: an upsert and an append refuse what breaks it before the decision, in a sentence."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from stateflow.errors import DisagreementError, IncompatibleError
from stateflow.pipelines.inputs.tables import delta
from stateflow.spark.internals.delta_log import TableShape
from stateflow.spark.sinks.delta_append import DeltaAppend
from stateflow.spark.sinks.delta_upsert import DeltaUpsert
from stateflow.spark.sinks.table_rules import may_break
from stateflow.testing.sink_log import SinkLog
from tests.refusals.refusal import refused
from tests.spark.sink_places import contents


def made(spark: SparkSession, path: Path, columns: str, more: str = "") -> None:
    spark.sql(f"CREATE TABLE delta.`{path}` ({columns}) USING delta {more}")


def generating(spark: SparkSession, path: Path, **more: Any) -> None:
    table = DeltaTable.createIfNotExists(spark).location(str(path)).addColumn("k", "BIGINT")
    table.addColumn("v", "STRING").addColumn("g", "BIGINT", generatedAlwaysAs="k * 2", **more).execute()


def upserting(spark: SparkSession, path: Path, schema: str, **options: Any) -> DeltaUpsert:
    sink = DeltaUpsert(delta(str(path)), {"keys": ["k"], **options})
    sink.open(spark, spark.createDataFrame([], schema).schema)
    return sink


@dataclass(frozen=True)
class AskedOf:
    """A table, a row that it takes and one that it refuses, and what the refusal names."""

    columns: str
    rows: str
    taken: tuple[Any, ...]
    broken: tuple[Any, ...]
    names: tuple[str, ...]


ASKED = {
    "varchar": AskedOf("k BIGINT, v VARCHAR(3)", "k long, v string", (1, "abc"), (2, "abcd"), ("'v'", "varchar(3)")),
    "char": AskedOf("k BIGINT, v CHAR(3)", "k long, v string", (1, "abc"), (2, "ab  "), ("'v'", "char(3)")),
    "texts within": AskedOf(
        "k BIGINT, s STRUCT<a: CHAR(2), l: ARRAY<VARCHAR(2)>, m: MAP<VARCHAR(2), INT>>",
        "k long, s struct<a:string,l:array<string>,m:map<string,int>>",
        (1, ("ab", ["ab", None], {"ab": 1})), (2, ("ab", ["ab"], {"abc": 1})), ("'s'", "map<varchar(2),int>"),
    ),
    "not null within": AskedOf(
        "k BIGINT, s STRUCT<a: INT, q: STRUCT<z: INT NOT NULL>>", "k long, s struct<a:int,q:struct<z:int>>",
        (1, (None, (1,))), (2, (1, None)), ("NOT NULL column 's.q.z'",),
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("asked", ASKED.values(), ids=list(ASKED))
def test_an_upsert_refuses_what_its_table_would_refuse_before_the_decision(
    spark: SparkSession, path: Path, log: SinkLog, asked: AskedOf
) -> None:
    made(spark, path, asked.columns)
    sink = upserting(spark, path, asked.rows, order_by="k", delete_when="k > 9")
    log.deliver(sink, spark.createDataFrame([asked.taken], asked.rows))
    with refused(IncompatibleError, "1 of the rows", *asked.names, "no row was written"):
        log.prepare(sink, spark.createDataFrame([asked.taken, asked.broken], asked.rows))
    log.slot -= 1
    # What deletes breaks nothing, and the next batch comes in.
    gone = (10, *asked.broken[1:])
    log.deliver(sink, spark.createDataFrame([gone, (3, *asked.taken[1:])], asked.rows))
    assert contents(spark, path, "k") == [1, 3]


@pytest.mark.slow
def test_an_upsert_refuses_other_values_than_the_table_generates(
    spark: SparkSession, path: Path, log: SinkLog
) -> None:
    generating(spark, path)
    sink = upserting(spark, path, "k long, g long")
    log.deliver(sink, spark.createDataFrame([(1, 2)], "k long, g long"))
    with refused(IncompatibleError, "1 of the rows", "'g'", "k * 2"):
        log.prepare(sink, spark.createDataFrame([(2, 5), (3, 6)], "k long, g long"))
    log.slot -= 1
    spark.sql(f"ALTER TABLE delta.`{path}` ADD CONSTRAINT few CHECK (g < 10)")
    lacking = upserting(spark, path, "k long, v string")
    log.deliver(lacking, spark.createDataFrame([(4, "a")], "k long, v string"))
    with refused(IncompatibleError, "broken the constraint 'few'"):
        log.prepare(lacking, spark.createDataFrame([(5, "a")], "k long, v string"))
    assert contents(spark, path, "k", "g") == [(1, 2), (4, 8)]


@pytest.mark.slow
def test_a_generated_column_whose_origin_the_output_lacks_is_to_be_left_out(
    spark: SparkSession, path: Path, log: SinkLog
) -> None:
    generating(spark, path)
    spark.sql(f"INSERT INTO delta.`{path}` (k, v) VALUES (1, 'a')")
    with refused(IncompatibleError, "'g'", "k * 2", "write them", "leave 'g' out"):
        upserting(spark, path, "v string, g long", keys=["v"])
    log.deliver(upserting(spark, path, "v string", keys=["v"]), spark.createDataFrame([("a",)], "v string"))
    assert contents(spark, path) == [(1, "a", 2)]


@pytest.mark.slow
def test_a_generated_column_that_may_not_be_null_needs_its_origin(
    spark: SparkSession, path: Path, log: SinkLog
) -> None:
    generating(spark, path, nullable=False)
    with refused(IncompatibleError, "NOT NULL column 'g'", "write them", "drop NOT NULL"):
        upserting(spark, path, "v string", keys=["v"])
    spark.sql(f"ALTER TABLE delta.`{path}` ALTER COLUMN g DROP NOT NULL")
    log.deliver(upserting(spark, path, "v string", keys=["v"]), spark.createDataFrame([("a",)], "v string"))
    assert contents(spark, path) == [(None, "a", None)]


def test_only_a_table_that_asks_something_of_its_rows_costs_a_look_at_them() -> None:
    def shape(kind: Any, **more: Any) -> TableShape:
        return TableShape("t", StructType([StructField("v", kind, **more)]), (), {}, (), "x")

    nulls = {"V": 1}
    assert not may_break(nulls, shape(StringType()))
    assert not may_break(nulls, shape(StructType([StructField("a", StringType())])))
    for other in (
        shape(StringType(), metadata={"__CHAR_VARCHAR_TYPE_STRING": "varchar(3)"}),
        shape(StringType(), metadata={"delta.generationExpression": "k"}),
        shape(StringType(), metadata={"delta.invariants": "{}"}),
        shape(StructType([StructField("a", StringType(), nullable=False)])),
    ):
        assert may_break(nulls, other)
    # What the rows lack, they cannot break.
    assert not may_break({"w": 0}, shape(StringType(), metadata={"__CHAR_VARCHAR_TYPE_STRING": "char(3)"}))


@pytest.mark.slow
def test_an_append_refuses_a_row_that_its_table_refuses_in_a_sentence(
    spark: SparkSession, path: Path, log: SinkLog
) -> None:
    made(spark, path, "k BIGINT, v VARCHAR(3)")
    sink = DeltaAppend(delta(str(path)))
    long = spark.createDataFrame([(1, "abcdef")], "k long, v string")
    sink.open(spark, long.schema)
    with refused(IncompatibleError, str(path), "refuses rows of", "abcdef", "alter the table") as caught:
        log.prepare(sink, long)
    assert "\n" not in str(caught.value)
    assert "org.apache" not in str(caught.value)
    log.slot -= 1
    spark.sql(f"ALTER TABLE delta.`{path}` ALTER COLUMN v TYPE VARCHAR(6)")
    log.deliver(sink, long)
    assert contents(spark, path) == [(1, "abcdef")]


@pytest.mark.slow
def test_a_record_that_its_table_has_always_refused_says_nothing_of_a_change(
    spark: SparkSession, path: Path, log: SinkLog
) -> None:
    """Earlier versions have decided such records. They do not say what the table was like, either."""
    made(spark, path, "k BIGINT, v STRING")
    frame = spark.createDataFrame([(1, "abc")], "k long, v string")
    prepared = log.prepare(upserting(spark, path, "k long, v string"), frame)
    spark.sql(f"ALTER TABLE delta.`{path}` ADD CONSTRAINT short CHECK (length(v) < 3)")
    with refused(DisagreementError, "has got since", "short", "put the table back"):
        log.commit(prepared)
    payload = {name: value for name, value in prepared.payload.items() if name != "fingerprint"}
    earlier = msgspec.structs.replace(prepared, payload=payload)
    with refused(DisagreementError, "short", "alter the table", "stateflow abandon") as caught:
        log.commit(earlier)
    assert "since" not in str(caught.value)
    spark.sql(f"ALTER TABLE delta.`{path}` DROP CONSTRAINT short")
    assert log.commit(earlier) == "committed"
    assert contents(spark, path) == [(1, "abc")]


@pytest.mark.slow
def test_delta_s_own_merge_takes_rows_for_a_struct_with_a_field_that_may_not_be_null(
    spark: SparkSession, path: Path, log: SinkLog
) -> None:
    made(
        spark,
        path,
        "k BIGINT, s STRUCT<a: STRING NOT NULL>",
        "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')",
    )
    schema = "k int, s struct<a:string>"
    sink = upserting(spark, path, schema, order_by="k", delete_when="k > 9")
    log.deliver(sink, spark.createDataFrame([(1, ("a",)), (2, ("a",))], schema))
    log.deliver(sink, spark.createDataFrame([(2, ("b",)), (3, ("c",)), (10, (None,)), (11, None)], schema))
    assert [(k, s.a) for k, s in contents(spark, path)] == [(1, "a"), (2, "b"), (3, "c")]


@pytest.mark.slow
def test_a_key_of_char_is_the_same_with_and_without_blanks(
    spark: SparkSession, path: Path, log: SinkLog
) -> None:
    made(spark, path, "k CHAR(5), v INT")
    schema = "k string, v int"
    sink = upserting(spark, path, schema, order_by="v")
    # Delta keeps what another writer gives it without blanks, and shows it with them.
    spark.createDataFrame([("cd", 1)], schema).write.format("delta").mode("append").save(str(path))
    log.deliver(sink, spark.createDataFrame([("ab", 1), ("ab ", 2), ("cd", 2)], schema))
    log.deliver(sink, spark.createDataFrame([("ab", 3)], schema))
    assert contents(spark, path) == [("ab   ", 3), ("cd   ", 2)]
    unordered = upserting(spark, path, schema)
    with refused(IncompatibleError, "2 rows of one batch", "'ab   '"):
        log.prepare(unordered, spark.createDataFrame([("ab", 1), ("ab ", 2)], schema))


@pytest.mark.slow
def test_a_key_with_char_in_a_struct_or_a_list_is_filled_up_too(
    spark: SparkSession, path: Path, log: SinkLog
) -> None:
    made(spark, path, "k STRUCT<a: CHAR(3), n: INT>, l ARRAY<CHAR(2)>, v INT")
    schema = "k struct<a:string,n:int>, l array<string>, v int"
    sink = upserting(spark, path, schema, keys=["k", "l"])
    for v in (1, 2):
        log.deliver(sink, spark.createDataFrame([(("a", 1), ["x", None], v), (("b", 1), [], 1)], schema))
    assert contents(spark, path, "v") == [1, 2]
