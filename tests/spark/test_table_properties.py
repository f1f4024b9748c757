"""What a Delta table's properties say, in whatever letters they were set."""

from __future__ import annotations

import pytest
from pyspark.sql.types import LongType, StructType

from stateflow.spark.inputs.foreign_changes import sentence_on_properties, unlike_properties
from stateflow.spark.internals.delta_log import TableShape
from stateflow.spark.sinks.delta_rewrite import NEEDS_MERGE, is_plain


def shaped(**properties: str) -> TableShape:
    named = {f"delta.{name}": value for name, value in properties.items()}
    return TableShape("id", StructType().add("id", LongType()), (), named, (), "print")


@pytest.mark.parametrize(
    ("value", "on"),
    [("true", True), ("TRUE", True), ("True", True), ("false", False), ("FALSE", False), ("yes", True)],
)
def test_a_property_is_true_in_any_case_as_delta_reads_it(value: str, on: bool) -> None:
    assert shaped(appendOnly=value).is_on("delta.appendOnly") is on
    for name in NEEDS_MERGE:
        assert is_plain(shaped(**{name.removeprefix("delta."): value}), ["id"]) is not on


def test_a_property_that_is_not_set_is_not_on() -> None:
    assert not shaped().is_on("delta.appendOnly")
    assert is_plain(shaped(), ["id"])


def test_constraints_have_their_names_whatever_the_case_of_the_prefix() -> None:
    shape = TableShape(
        "id", StructType(), (), {"Delta.Constraints.Least": "id > 0", "delta.x": "1"}, (), "print"
    )
    assert shape.constraints == {"Least": "id > 0"}


def test_properties_that_a_table_does_not_have_are_told_with_the_statement_that_sets_them() -> None:
    there = {"delta.enableChangeDataFeed": "TRUE", "delta.checkpointInterval": "10"}
    assert unlike_properties({"DELTA.enableChangeDataFeed": "true"}, there) == {}
    unlike = unlike_properties({"delta.checkpointInterval": "100", "delta.appendOnly": "true"}, there)
    assert unlike == {"delta.checkpointInterval": "100", "delta.appendOnly": "true"}
    assert sentence_on_properties("out", "Delta table /t", "delta.`/t`", unlike).startswith(
        "sink 'out' gives Delta table /t properties that it does not have (delta.checkpointInterval, delta.appendOnly): they count when"
    )
    assert (
        "ALTER TABLE delta.`/t` SET TBLPROPERTIES ('delta.checkpointInterval' = '100', 'delta.appendOnly' = 'true')"
        in sentence_on_properties("out", "Delta table /t", "delta.`/t`", unlike)
    )
