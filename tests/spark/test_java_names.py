"""Names of Java's are looked up once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from py4j.protocol import Py4JError

from stateflow.spark.internals.delta_log import DeltaLog
from stateflow.spark.internals.java_names import java_names
from stateflow.spark.internals.plans import parts_of_union
from stateflow.spark.shuffle.unmeasured import stays_small

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

LOOKED_UP = "r\n"
"""How a command of Py4J begins that asks what a name stands for."""


@pytest.fixture
def lookups(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """What Py4J has looked up since the last question. Only names of Spark's and Delta's own count: PySpark asks for Scala's, too."""
    client: Any = spark.sparkContext._gateway._gateway_client  # type: ignore[union-attr]
    asked: list[str] = []
    send = client.send_command

    def noting(command: str, *arguments: Any, **options: Any) -> Any:
        if command.startswith(LOOKED_UP):
            asked.append(command)
        return send(command, *arguments, **options)

    monkeypatch.setattr(client, "send_command", noting)

    def since() -> list[str]:
        out = list(asked)
        asked.clear()
        return out

    return since


def test_a_second_commit_looks_up_no_name(
    spark: SparkSession, tmp_path: Path, lookups: Callable[[], list[str]]
) -> None:
    path = str(tmp_path / "table")
    spark.range(3).write.format("delta").save(path)
    rows = spark.range(2)
    seen = []
    for epoch in range(2):
        log = DeltaLog(spark, path)
        txn = log.begin()
        txn.shape()
        txn.slot_of("somebody")
        txn.files()
        lookups()
        txn.commit(txn.write(rows), "somebody", epoch, {"numAddedFiles": 1})
        seen.append(lookups())
    assert seen[1] == []
    assert spark.read.format("delta").load(path).count() == 7


def test_a_second_log_looks_up_no_name(
    spark: SparkSession, tmp_path: Path, lookups: Callable[[], list[str]]
) -> None:
    path = str(tmp_path / "table")
    spark.range(3).write.format("delta").save(path)
    DeltaLog(spark, path)
    lookups()
    assert DeltaLog(spark, path).version() == 0
    assert lookups() == []


def test_looking_into_a_batch_looks_up_no_name(spark: SparkSession, lookups: Callable[[], list[str]]) -> None:
    batch = spark.range(3)
    for _ in range(2):
        lookups()
        assert parts_of_union(batch) == []
        assert stays_small(batch)
    assert lookups() == []


def test_methods_constructors_and_scalas_modules_are_found(spark: SparkSession) -> None:
    names = java_names(spark)
    assert names.java.lang.Math.max(2, 3) == 3
    assert names.java.lang.Integer.MAX_VALUE == 2**31 - 1
    kept = names.java.util.ArrayList()
    kept.add("a")
    assert list(kept) == ["a"]
    nothing = getattr(getattr(names.scala, "None$"), "MODULE$")
    assert nothing.isEmpty()
    assert names is java_names(spark.newSession())


def test_what_is_not_there_is_an_error_at_every_use(spark: SparkSession) -> None:
    names = java_names(spark)
    for _ in range(2):
        with pytest.raises(Py4JError, match="nothing"):
            names.java.lang.Math.nothing()
        with pytest.raises(Py4JError):
            names.java.lang.Nothing()


def test_a_field_that_changes_is_read_anew(spark: SparkSession) -> None:
    names = java_names(spark)
    fields = names.java.lang.Integer
    assert "MAX_VALUE" not in vars(fields)
    assert fields.MAX_VALUE == 2**31 - 1
    assert "MAX_VALUE" not in vars(fields)
