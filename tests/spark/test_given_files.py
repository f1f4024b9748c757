"""Rows of a test in files of any options: what comes out of a run is what the test gave, or the test is refused."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import pytest
from pyspark.sql import SparkSession

import stateflow as sf
from stateflow.pipelines.pipeline import Pipeline
from stateflow.testing import FlowHarness
from tests.refusals.refusal import refused

MORNING = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@dataclass
class Row:
    id: int
    name: str | None
    amount: float | None
    day: date
    ts: datetime


ROWS = (
    Row(1, "jam; tea, \"milk\" 'x' #1", 1.5, date(2026, 2, 3), MORNING),
    Row(2, "  grün ", None, date(2026, 12, 31), MORNING + timedelta(days=10)),
    Row(3, None, -2.25, date(1999, 1, 2), MORNING + timedelta(seconds=50)),
)


def reading(format: str, options: dict[str, Any], rows: Any = Row) -> Pipeline:
    @sf.pipeline("given")
    def given(flow: sf.Flow, *, input: str, output: str) -> None:
        flow.source("in", sf.files(input, format, options=options), rows).append("out", sf.delta(output))

    return given


def by_id(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: int(row["id"]))


WRITTEN: list[tuple[str, dict[str, Any]]] = [
    ("csv", {"sep": ";"}),
    ("csv", {"Delimiter": "|", "quote": "'"}),
    ("csv", {"header": False}),
    ("csv", {"header": "true", "comment": "2", "nullValue": "NA"}),
    ("csv", {"encoding": "ISO-8859-1", "dateFormat": "dd.MM.yyyy", "timestampFormat": "dd.MM.yyyy HH:mm:ss"}),
    ("csv", {"timestampFormat": "yyyy-MM-dd HH:mm:ss", "timeZone": "Asia/Tokyo", "escape": '"', "multiLine": True}),
    ("csv", {"pathGlobFilter": "orders-*.csv", "lineSep": "\r"}),
    ("json", {"timestampFormat": "dd/MM/yyyy HH:mm:ss"}),
    ("json", {"MultiLine": "true", "charset": "UTF-16LE"}),
    ("json", {"lineSep": "|||", "encoding": "UTF-16BE", "pathGlobFilter": "*.json"}),
    ("json", {"columnNameOfCorruptRecord": "broken"}),
    ("parquet", {"mergeSchema": "true"}),
    ("orc", {"pathGlobFilter": "*.orc"}),
]  # fmt: skip


@dataclass
class BrokenRow(Row):
    broken: str | None = None


@sf.pipeline("written")
def written(flow: sf.Flow, *, input: str) -> None:
    for number, (format, options) in enumerate(WRITTEN):
        rows = BrokenRow if "columnNameOfCorruptRecord" in options else Row
        source = flow.source(f"in{number}", sf.files(f"{input}/{number}", format, options=options), rows)
        source.collect(f"out{number}", sf.memory(f"written-{number}"))


@pytest.mark.slow
def test_a_file_is_written_as_its_source_reads_it(spark: SparkSession, tmp_path: Path) -> None:
    harness = FlowHarness(written, tmp_path)
    for number in range(len(WRITTEN)):
        sf.memory(f"written-{number}").clear()
        harness.add(f"in{number}", *(vars(row) for row in ROWS))
    harness.run()
    for number, options in enumerate(WRITTEN):
        rows = [{name: row[name] for name in vars(ROWS[0])} for row in harness.table(f"out{number}")]
        assert by_id(rows) == [vars(row) for row in ROWS], options


@dataclass
class Renamed:
    id: int
    label: Annotated[str, sf.field(aliases=["name"])]


@pytest.mark.slow
def test_rows_of_a_class_whose_fields_had_other_names(spark: SparkSession, tmp_path: Path) -> None:
    harness = FlowHarness(reading("json", {"multiLine": True}, Renamed), tmp_path)
    harness.add("in", Renamed(1, "new"), Renamed(2, "newer"))
    harness.add("in", '[{"id": 3,', '"name": "old"}]')
    harness.run()
    assert by_id(harness.table("out")) == [
        {"id": 1, "label": "new"},
        {"id": 2, "label": "newer"},
        {"id": 3, "label": "old"},
    ]


@dataclass
class Line:
    id: str


@pytest.mark.slow
def test_texts_are_written_as_the_options_read_them(spark: SparkSession, tmp_path: Path) -> None:
    whole = FlowHarness(reading("text", {"wholetext": "true"}, Line), tmp_path / "whole")
    whole.add("in", Line("1\nb"), Line("2"), "3\n\nc\n")
    whole.run()
    assert by_id([{"id": row["id"][0]} for row in whole.table("out")]) == [
        {"id": "1"},
        {"id": "2"},
        {"id": "3"},
    ]
    assert {row["id"] for row in whole.table("out")} == {"1\nb", "2", "3\n\nc\n"}

    lines = FlowHarness(reading("csv", {"lineSep": ";", "encoding": "ISO-8859-1"}, Line), tmp_path / "lines")
    lines.add("in", Line("1"), "ü2")
    lines.run()
    assert {row["id"] for row in lines.table("out")} == {"1", "ü2"}


REFUSED: list[tuple[str, dict[str, Any], Any, str]] = [
    (
        "csv",
        {"nullValue": "NA"},
        Row(1, "NA", 1.0, date(2026, 1, 1), MORNING),
        "source 'in' reads csv files with nullValue='NA': name='NA' of a row is read as None by these options: give the test rows",
    ),
    (
        "json",
        {"timestampFormat": "dd/MM/yyyy HH:mm"},
        ROWS[0],
        "is read as datetime.datetime(2026, 1, 2, 3, 4, tzinfo=",
    ),
    ("csv", {"ignoreLeadingWhiteSpace": True}, ROWS[1], "name='  grün ' of a row is read as 'grün ' by these options"),
    ("csv", {}, Row(1, "a\nb", 1.0, date(2026, 1, 1), MORNING), "the rows cannot be read again"),
    ("csv", {"encoding": "ISO-8859-1"}, Row(1, "€", 1.0, date(2026, 1, 1), MORNING), "name='€' of a row is read as '?'"),
    ("csv", {"pathGlobFilter": "order[0-9].csv"}, ROWS[0], "the harness makes no names for pathGlobFilter"),
]  # fmt: skip


@pytest.mark.parametrize(("format", "options", "row", "message"), REFUSED)
def test_rows_that_no_such_file_can_hold_are_refused(
    spark: SparkSession, tmp_path: Path, format: str, options: dict[str, Any], row: Row, message: str
) -> None:
    harness = FlowHarness(reading(format, options), tmp_path)
    with pytest.raises(sf.UsageError) as caught:
        harness.add("in", row)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "input").glob("*")), "nothing of it is read by a later run"


def test_lines_that_fit_no_file_of_rows_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    several = FlowHarness(reading("json", {"multiLine": True}), tmp_path / "a")
    with refused(sf.UsageError, "a file is one value", "apart"):
        several.add("in", ROWS[0], "{}")
    marked = FlowHarness(reading("json", {"encoding": "UTF-16", "multiLine": True}), tmp_path / "b")
    with refused(sf.UsageError, "UTF-16 ", "UTF-16LE"):
        marked.add("in", "{}")
    broken = FlowHarness(reading("json", {"columnNameOfCorruptRecord": "broken"}, BrokenRow), tmp_path / "c")
    with refused(sf.UsageError, "column 'broken'", "leave it out"):
        broken.add("in", {**vars(ROWS[0]), "broken": "{"})
