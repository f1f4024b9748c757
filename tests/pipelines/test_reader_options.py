"""Options of sources: Spark ignores what it does not know, so a misspelt one is refused before it does nothing."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

import stateflow as sf
from stateflow.pipelines.inputs.reader_options import READERS


@dataclass
class Order:
    user: int
    broken: str | None = None


def test_options_of_a_table_are_taken_in_any_case_with_its_properties() -> None:
    sf.delta("/in", options={"STARTINGVERSION": 3, "Delta.AppendOnly": "true", "fs.s3a.endpoint": "x"})


def test_values_are_taken_in_the_forms_that_a_refusal_names() -> None:
    sf.files("/in", "json", options={"multiLine": True, "maxFilesPerTrigger": 100, "maxFileAge": "36h"})
    sf.files(
        "/in", "json", options={"maxBytesPerTrigger": "512m", "cleanSource": "ARCHIVE", "maxFileAge": "7d"}
    )
    sf.delta(
        "/in", options={"startingVersion": "latest", "failOnDataLoss": False, "maxBytesPerTrigger": "10g"}
    )


def test_options_are_taken_in_any_case_and_those_of_hadoop_as_they_are() -> None:
    sf.files("/in", "csv", options={"DELIMITER": ";", "Mode": "permissive", "fs.s3a.endpoint": "x"})


def test_a_sink_takes_properties_of_its_table() -> None:
    flow = sf.Flow("orders")
    flow.source("in", sf.delta("/in")).append("out", sf.delta("/out", options={"DELTA.appendOnly": "true"}))


def test_properties_in_any_case_are_for_the_table_and_not_for_its_reader() -> None:
    table = sf.delta("/out", options={"DELTA.appendOnly": "true", "startingVersion": 2})
    assert table.properties == {"DELTA.appendOnly": "true"}
    assert [*table.reader_options] == ["startingVersion"]


def test_every_format_has_its_options() -> None:
    assert set(READERS) == {
        "avro",
        "csv",
        "json",
        "orc",
        "parquet",
        "text",
        "delta",
        "kafka",
        "kafka avro",
        "kafka json",
        "kafka protobuf",
    }


@pytest.mark.parametrize(
    ("format", "options", "mode"),
    [
        ("json", {}, "FAILFAST"),
        ("csv", {}, "FAILFAST"),
        ("parquet", {}, None),
        ("json", {"COLUMNNAMEOFCORRUPTRECORD": "broken"}, None),
    ],
)
def test_rows_that_do_not_fit_fail_unless_they_have_a_column(
    format: str, options: dict[str, str], mode: str | None
) -> None:
    source = sf.files("/in", format, options=options)
    flow = sf.Flow("orders")
    flow.source("in", source, Order)
    assert flow.sources[0].factory.reader_options.get("mode") == mode
