"""What tests read of Delta tables by hand is what Spark reads there; what they cannot read, they leave to Spark."""

from __future__ import annotations

import json
import shutil
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.spark import by_hand

ALL = "b byte, h short, i int, n long, f float, d double, o boolean, s string, day date, p string, q int"


def as_spark_reads(spark: SparkSession, path: Path) -> list[str]:
    return sorted(repr(tuple(row)) for row in spark.read.format("delta").load(str(path)).collect())


def as_read_by_hand(path: Path) -> list[str]:
    found = by_hand.rows(path)
    assert found is not None
    return sorted(map(repr, found))


@pytest.mark.slow
def test_every_row_of_every_type_is_there_and_no_deleted_one(spark: SparkSession, path: Path) -> None:
    rows = [
        (1, 2, 3, 4, 0.1, 0.1, True, "é", date(1969, 12, 31), "a b/%", 1),
        (None, None, None, None, None, float("nan"), None, "", None, None, None),
        (-1, -2, -3, -(2**62), -0.0, float("inf"), False, "x\ny", date(2400, 2, 29), "z", -5),
    ]
    frame = spark.createDataFrame(rows, ALL)
    frame.write.format("delta").partitionBy("p", "q").save(str(path))
    spark.sql(f"ALTER TABLE delta.`{path}` ADD COLUMNS (more int)")
    frame.write.format("delta").mode("append").save(str(path))
    spark.sql(f"DELETE FROM delta.`{path}` WHERE q = -5")
    spark.sql(f"UPDATE delta.`{path}` SET more = 7, s = 'changed' WHERE i = 3")
    found = as_read_by_hand(path)
    assert len(found) == 4
    assert found == as_spark_reads(spark, path)
    assert sorted(by_hand.rows(path, ["more"]) or [], key=str) == [(7,), (7,), (None,), (None,)]


@pytest.mark.parametrize("told", [{"size": 1}, {"stats": '{"numRecords":7}'}])
def test_what_a_reader_goes_by_has_to_be_right(path: Path, told: dict[str, object]) -> None:
    by_hand.append(path, [(1,)], {"n": "long"})
    assert by_hand.rows(path) == [(1,)]
    commit = path / "_delta_log" / f"{0:020d}.json"
    *before, last = commit.read_text().splitlines()
    changed = json.dumps({"add": json.loads(last)["add"] | told})
    commit.write_text("\n".join([*before, changed]) + "\n")
    with pytest.raises(AssertionError):
        by_hand.rows(path)


def test_a_file_of_another_type_than_the_tables_is_no_file_of_it(path: Path) -> None:
    by_hand.append(path, [(1,)], {"n": "long"})
    by_hand.append(path, [(1,)], {"n": "int"})
    with pytest.raises(AssertionError):
        by_hand.rows(path)


@pytest.mark.parametrize(
    "property", ["'delta.enableDeletionVectors' = 'true'", "'delta.columnMapping.mode' = 'name'"]
)
def test_what_takes_more_is_left_to_spark(spark: SparkSession, path: Path, property: str) -> None:
    spark.sql(f"CREATE TABLE delta.`{path}` (n long) USING delta TBLPROPERTIES ({property})")
    assert by_hand.rows(path) is None


def test_other_types_and_a_log_that_begins_later_are_left_to_spark(path: Path) -> None:
    by_hand.append(path, [(1, None)], {"n": "long", "at": "timestamp"})
    by_hand.append(path, [(2, None)], {"n": "long", "at": "timestamp"})
    assert by_hand.rows(path, ["n"]) == [(1,), (2,)]
    assert by_hand.rows(path) is None
    assert by_hand.rows(path, ["N"]) is None
    (path / "_delta_log" / f"{0:020d}.json").unlink()
    assert by_hand.rows(path, ["n"]) is None


def said(actions: list[dict[str, Any]]) -> list[Any]:
    """What readers go by."""
    [info] = [each["commitInfo"] for each in actions if "commitInfo" in each]
    files = [
        (kind, file["path"], file["dataChange"], file["size"], file.get("extendedFileMetadata"))
        for each in actions
        for kind, file in each.items()
        if kind in ("add", "remove")
    ]
    return [info["operation"], info["operationParameters"], sorted(files)]


@pytest.mark.slow
def test_a_table_goes_back_by_the_same_commit_as_by_delta(spark: SparkSession, path: Path) -> None:
    """One that takes a file out and brings another one back."""
    for number in range(3):
        by_hand.append(path, [(number,)], {"n": "long"})
    by_hand.go_back(path, 0)
    by_hand.append(path, [(3,)], {"n": "long"})
    twin = path.with_name("twin")
    shutil.copytree(path, twin)
    spark.sql(f"RESTORE TABLE delta.`{path}` TO VERSION AS OF 1")
    by_hand.go_back(twin, 1)
    ours, deltas = (
        [json.loads(line) for line in (table / "_delta_log" / f"{5:020d}.json").read_text().splitlines()]
        for table in (twin, path)
    )
    assert said(ours) == said(deltas)
    assert as_read_by_hand(path) == as_read_by_hand(twin) == as_spark_reads(spark, twin) == ["(0,)", "(1,)"]
