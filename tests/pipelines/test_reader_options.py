"""Options of sources: Spark ignores what it does not know, so a misspelt one is refused before it does nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

import stateflow as sf
from stateflow.pipelines.inputs.reader_options import READERS


@dataclass
class Order:
    user: int
    broken: str | None = None


@pytest.mark.parametrize(
    ("format", "options", "message"),
    [
        ("json", {"mod": "PERMISSIVE"}, r"reader of json has no option 'mod': did you mean mode\?"),
        ("json", {"header": "true"}, "reader of json has no option 'header'"),
        ("csv", {"seperator": ";"}, r"reader of csv has no option 'seperator'"),
        ("csv", {"Delimeter": ";"}, r"did you mean delimiter\?"),
        ("csv", {"inferSchema": "true"}, "does nothing, because the row class gives the columns"),
        ("csv", {"mode": "FAIL_FAST"}, "option 'mode' is 'FAIL_FAST': say one of PERMISSIVE, DROPMALFORMED, FAILFAST"),
        ("parquet", {"maxFilePerTrigger": 1}, r"did you mean maxFilesPerTrigger\?"),
        ("text", {"path": "/other"}, "has no option 'path'"),
        ("json", {"multiLine": "ture"}, "option 'multiLine' is 'ture': say 'true' or 'false'"),
        ("json", {"maxFilesPerTrigger": "abc"}, "option 'maxFilesPerTrigger' is 'abc': say a number, 1 or more"),
        ("csv", {"MaxFilesPerTrigger": 0}, "option 'MaxFilesPerTrigger' is '0': say a number, 1 or more"),
        ("csv", {"header": "yes"}, "option 'header' is 'yes': say 'true' or 'false'"),
        ("orc", {"maxBytesPerTrigger": "ten"}, "say a size, such as '512m' or '10g'"),
        ("orc", {"maxFileAge": "a week"}, "say a time, such as '36h' or '7d'"),
        ("parquet", {"cleanSource": "remove"}, "say one of off, archive, delete"),
    ],
)  # fmt: skip
def test_an_option_of_files_that_nobody_would_look_at_is_refused(
    format: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(sf.UsageError, match=message):
        sf.files("/in", format, options=options)


def test_an_option_of_a_table_that_nobody_would_look_at_is_refused() -> None:
    with pytest.raises(sf.UsageError, match=r"no option 'startingVersions': did you mean startingVersion\?"):
        sf.delta("/in", options={"startingVersions": "3"})
    sf.delta("/in", options={"STARTINGVERSION": 3, "Delta.AppendOnly": "true", "fs.s3a.endpoint": "x"})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingVersion": "newest"}, "say the number of a version, or 'latest'"),
        ({"skipChangeCommits": "1"}, "option 'skipChangeCommits' is '1': say 'true' or 'false'"),
        ({"maxFilesPerTrigger": "1.5"}, "say a number, 1 or more"),
    ],
)  # fmt: skip
def test_a_misspelt_value_of_an_option_of_a_table_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(sf.UsageError, match=message):
        sf.delta("/in", options=options)


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


def test_one_bound_of_a_batch_is_enough() -> None:
    with pytest.raises(sf.UsageError, match="per_batch and maxFilesPerTrigger are the same"):
        sf.files("/in", "json", per_batch=1, options={"MaxFilesPerTrigger": 2})


def test_a_sink_refuses_options_for_reading_its_table() -> None:
    def build(target: Any) -> None:
        flow = sf.Flow("orders")
        flow.source("in", sf.delta("/in")).append("out", target)

    with pytest.raises(
        sf.UsageError, match=r"sink 'out' \(append\): option 'maxFilesPerTrigger' .* is for reading it"
    ):
        build(sf.delta("/out", options={"maxFilesPerTrigger": 1}))
    build(sf.delta("/out", options={"DELTA.appendOnly": "true"}))


def test_properties_in_any_case_are_for_the_table_and_not_for_its_reader() -> None:
    table = sf.delta("/out", options={"DELTA.appendOnly": "true", "startingVersion": 2})
    assert table.properties == {"DELTA.appendOnly": "true"}
    assert table.read_with == ("startingVersion",)


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


def test_a_column_for_what_does_not_fit_has_to_be_one_of_the_row_class() -> None:
    for name in ("brokn", "user"):
        with pytest.raises(
            sf.UsageError, match=rf"columnNameOfCorruptRecord is '{name}', and Order has no such column"
        ):
            sf.Flow("orders").source(
                "in", sf.files("/in", "json", options={"columnNameOfCorruptRecord": name}), Order
            )
