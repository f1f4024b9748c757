"""`sf.files` through Spark."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

import stateflow as sf
from stateflow.pipelines.rows.row_type import row_type
from tests.refusals.refusal import refused
from tests.spark.pipelines import Workbench


@dataclass
class Order:
    user: int
    amount: float
    ts: datetime


class Count(sf.KeyedProcess):
    def process(self, user, rows, ctx):
        for row in rows:
            yield user, row.amount, row.ts, ctx.checkpoint_id


OUTPUT = "user long, amount double, ts timestamp, batch long"


@sf.pipeline("files")
def counted(flow: sf.Flow, *, input: str, format: str, batch: int) -> None:
    rows = flow.source("in", sf.files(input, format, per_batch=batch), Order)
    rows.key_by("user").process("count", Count, output=OUTPUT).collect("out", sf.memory("files"))


def test_new_files_are_read_once_by_the_columns_of_the_row_class(bench: Workbench, tmp_path: Path) -> None:
    out, folder = sf.memory("files"), tmp_path / "in"
    out.clear()
    folder.mkdir()
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    for user in (1, 2, 3):
        line = f'{{"ts": "{noon.isoformat()}", "user": {user}, "amount": 2.5, "more": 1}}\n'
        (folder / f"{user}.json").write_text(line)
    given = {"input": str(folder), "format": "json", "batch": "2"}
    bench.run(counted, given)
    assert sorted((r["user"], r["amount"], r["ts"].astimezone(UTC)) for r in out.rows) == [
        (user, 2.5, noon) for user in (1, 2, 3)
    ]
    assert len({row["batch"] for row in out.rows}) == 2
    (folder / "4.json").write_text('{"user": 4, "amount": 1.0}\n')
    bench.run(counted, given)
    assert sorted(row["user"] for row in out.rows) == [1, 2, 3, 4]


@dataclass
class Sale:
    user: int
    channel: str = "web"
    note: str | None = "none given"


class Channels(sf.KeyedProcess[int, Sale, Sale]):
    def process(self, user, rows, ctx):
        yield from rows


@sf.pipeline("defaults")
def with_defaults(flow: sf.Flow, *, input: str) -> None:
    keyed = flow.source("in", sf.files(input, "json"), Sale).key_by("user")
    keyed.process("each", Channels).collect("rows", sf.memory("default-rows"))
    web = sf.count("channel", where="channel = 'web'")
    keyed.aggregate("sum", "user long, web long", web=web).collect("sums", sf.memory("default-sums"))


def test_a_column_that_the_files_lack_is_the_default_of_its_field(bench: Workbench, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    rows, sums = sf.memory("default-rows"), sf.memory("default-sums")
    rows.clear()
    sums.clear()
    folder.mkdir()
    (folder / "1.json").write_text('{"user": 1}\n{"user": 2, "channel": "app", "note": "x"}\n')
    bench.run(with_defaults, {"input": str(folder)})
    put_out = sorted((r["user"], r["channel"], r["note"]) for r in rows.rows)
    assert put_out == [(1, "web", None), (2, "app", "x")]
    assert sorted((r["user"], r["web"]) for r in sums.rows) == [(1, 1), (2, 0)]


@dataclass
class Renamed:
    user: int
    takings: Annotated[float | None, sf.field(aliases=["turnover", "revenue"])]
    note: Annotated[str | None, sf.field(aliases=["user"])] = None


@pytest.mark.slow
@pytest.mark.parametrize("format", ["json", "parquet"])
def test_a_column_is_read_under_its_former_names(spark: SparkSession, tmp_path: Path, format: str) -> None:
    for k, name in enumerate(("revenue", "turnover", "takings")):
        spark.createDataFrame([(k, k + 0.5)], f"user long, {name} double").write.format(format).mode(
            "append"
        ).save(str(tmp_path / "in"))
    source = sf.files(str(tmp_path / "in"), format).declared("in", row_type(Renamed))
    rows = source.there(spark).orderBy("user")
    assert rows.columns == source.streaming(spark).columns == ["user", "takings", "note"]
    assert [tuple(row) for row in rows.collect()] == [(0, 0.5, None), (1, 1.5, None), (2, 2.5, None)]


@dataclass
class RenamedPart:
    cents: Annotated[int | None, sf.field(aliases=["price", "amount"])]


@dataclass
class RenamedItem:
    label: Annotated[str | None, sf.field(aliases=["name"])]
    parts: Annotated[list[RenamedPart] | None, sf.field(aliases=["pieces"])] = None


@dataclass
class RenamedInside:
    user: int
    first: RenamedItem | None = None
    by: dict[str, list[RenamedItem]] | None = None


@pytest.mark.parametrize("format", ["json", "parquet", "orc"])
def test_so_is_a_field_of_a_class_inside(spark: SparkSession, tmp_path: Path, format: str) -> None:
    def item(label: str, parts: str, part: str) -> str:
        return f"struct<{label}:string,{parts}:array<struct<{part}:long>>>"

    both = {"a": [("y", None), None]}
    ways = [
        item("name", "pieces", "amount"),
        item("label", "parts", "price"),
        item("label", "pieces", "cents"),
    ]
    for k, type in enumerate(ways):
        row, schema = (k, ("x", [(k,), None]), both), f"user long, first {type}, by map<string,array<{type}>>"
        spark.createDataFrame([row], schema).write.format(format).mode("append").save(str(tmp_path / "in"))
    bare = spark.createDataFrame([(3, None, None)], schema)
    bare.write.format(format).mode("append").save(str(tmp_path / "in"))
    source = sf.files(str(tmp_path / "in"), format).declared("in", row_type(RenamedInside))
    found = source.there(spark).orderBy("user")
    assert found.schema.simpleString() == source.streaming(spark).schema.simpleString()
    by = {"a": [Row(label="y", parts=None), None]}
    right = [(k, Row(label="x", parts=[Row(cents=k), None]), by) for k in range(3)]
    assert [tuple(row) for row in found.collect()] == [*right, (3, None, None)]


def test_columns_of_csv_files_are_told_by_their_header(bench: Workbench, tmp_path: Path) -> None:
    out, folder = sf.memory("files"), tmp_path / "in"
    out.clear()
    folder.mkdir()
    (folder / "1.csv").write_text("user,amount,ts\n1,2.5,2026-01-01T12:00:00Z\n")
    given = {"input": str(folder), "format": "csv", "batch": "1"}
    bench.run(counted, given)
    assert [(row["user"], row["amount"]) for row in out.rows] == [(1, 2.5)]
    (folder / "2.csv").write_text("amount,user,ts\n7,1,2026-01-01T12:00:00Z\n")
    with refused(sf.StateflowError, "2.csv", "Expected: user but found: amount"):
        bench.run(counted, given, tolerable_failed_batches=0)
    (folder / "2.csv").unlink()
    bench.run(counted, given)


def test_a_file_that_goes_between_plan_and_reading_is_named_and_the_next_run_does_without(
    bench: Workbench, tmp_path: Path
) -> None:
    out, folder = sf.memory("files"), tmp_path / "in"
    out.clear()
    folder.mkdir()
    calls = 0

    def lose(frame: DataFrame) -> DataFrame:
        nonlocal calls
        calls += 1
        if calls == 2:  # the first call learns the columns, the second is the batch's
            (folder / "2.json").unlink()
        return frame

    @sf.pipeline("losing")
    def losing(flow: sf.Flow) -> None:
        rows = flow.source("in", sf.files(str(folder), "json"), Order).transform(lose, Order)
        rows.key_by("user").process("count", Count, output=OUTPUT).collect("out", out)

    for name, user in (("1", 1), ("2", 2)):
        (folder / f"{name}.json").write_text(
            f'{{"user": {user}, "amount": 1.0, "ts": "2026-01-01T12:00:00Z"}}\n'
        )
    with refused(sf.StateflowError, "2.json is gone", "run again"):
        bench.run(losing, tolerable_failed_batches=0)
    bench.run(losing)
    assert [row["user"] for row in out.rows] == [1]


@dataclass
class Reading:
    user: int
    amount: int
    broken: str | None = None


@sf.pipeline("broken")
def kept(flow: sf.Flow, *, input: str) -> None:
    """As the page of sources says it."""
    files = sf.files(input, "json", options={"columnNameOfCorruptRecord": "broken"})
    readings = flow.source("in", files, Reading)
    fits = "broken is null and user is not null"
    readings.transform(lambda rows: rows.where(f"not ({fits})")).collect("bad", sf.memory("broken-lines"))
    good = readings.transform(lambda rows: rows.where(fits), type=Reading)
    good.key_by("user").aggregate("sum", "user long, amount long", amount=sf.sum("amount")).collect(
        "good", sf.memory("whole-lines")
    )


def test_lines_that_do_not_fit_can_be_kept(bench: Workbench, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    bad = [
        '{"user": 1, "amount": "abc"}',
        "no JSON",
        '{"user": 1, "amount": 1.5}',
        f'{{"user": 1, "amount": {2**63}}}',
    ]
    (folder / "1.json").write_text(
        "\n".join(['{"user": 1, "amount": 2}', '{"amount": 4}', *bad, '{"user": 1, "amount": 3}', ""])
    )
    bench.run(kept, {"input": str(folder)})
    put_aside = [(row["broken"], row["user"], row["amount"]) for row in sf.memory("broken-lines").rows]
    assert sorted(text for text, _, _ in put_aside if text is not None) == sorted(bad)
    assert [row for row in put_aside if row[0] is None] == [(None, None, 4)]
    assert [(row["user"], row["amount"]) for row in sf.memory("whole-lines").rows] == [(1, 5)]


DAYS = {
    "2026-01-05": "2026-01-05", "2026-1-5": "2026-01-05", "2026-01-05T12:00:00Z": "2026-01-05", "2026-01-05 12:00": "2026-01-05",
    "2026": "2026-01-01", "2026-02": "2026-02-01",
    "20260105": None, "01052026": None, "1767225600": None, "1767225600000": None, "01/05/2026": None, "20260105T120000": None,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("format", ["json", "csv"])
@pytest.mark.parametrize("kind", ["date", "timestamp"])
def test_digits_alone_are_no_day(spark: SparkSession, tmp_path: Path, format: str, kind: str) -> None:
    """Spark took them for days since 1970: 20260105 was in the year 57440."""

    def read(*texts: str, **options: str) -> list[str]:
        lines = [f'{{"day": "{text}"}}' for text in texts] if format == "json" else ["day", *texts]
        (tmp_path / f"1.{format}").write_text("\n".join(lines) + "\n")
        source = sf.files(str(tmp_path), format, options=options).declared("in", row_type(f"day {kind}"))
        return [row[0] for row in source.there(spark).selectExpr("cast(to_date(day) as string)").collect()]

    # What has a time of day is a time, and no date; and so is a year or a month.
    times = ("2026-01-05T12:00:00Z", "2026-01-05 12:00", "2026", "2026-02")
    right = [text for text, day in DAYS.items() if day and not (kind == "date" and text in times)]
    assert read(*right) == [DAYS[text] for text in right]
    assert read(*DAYS, mode="DROPMALFORMED") == [DAYS[text] for text in right]
    refused = r"MALFORMED_RECORD|CANNOT_PARSE|FAILED_READ_FILE|the value .* for 'day', a date"
    with pytest.raises(Exception, match=refused):
        read("20260105")
    assert read("20260105", dateFormat="yyyyMMdd", timestampFormat="yyyyMMdd") == ["2026-01-05"]


def test_half_a_surrogate_pair_is_a_question_mark(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "1.json").write_text('{"name": "a\\ud83d"}\n')
    source = sf.files(str(tmp_path), "json").declared("in", row_type("name string"))
    assert source.there(spark).collect()[0]["name"] == "a?"


@dataclass
class Visit:
    day: date
    broken: str | None = None


def test_a_day_that_is_none_is_a_bad_row(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "1.json").write_text('{"day": "20260105"}\n{"day": "2026-01-05"}\n')

    @sf.pipeline("visits")
    def visits(flow: sf.Flow, *, keep: bool) -> None:
        options = {"columnNameOfCorruptRecord": "broken"} if keep else {}
        rows = flow.source("in", sf.files(str(folder), "json", options=options), Visit)
        rows.collect("out", sf.memory("visits"))

    bench, out = Workbench(spark, tmp_path), sf.memory("visits")
    out.clear()
    with refused(sf.IncompatibleError, "1.json", "20260105", "'day'"):
        bench.run(visits, {"keep": "false"}, tolerable_failed_batches=0)
    assert out.rows == []
    bench.run(visits, {"keep": "true"})
    assert sorted((str(row["day"]), row["broken"]) for row in out.rows) == [
        ("2026-01-05", None),
        ("None", '{"day":"20260105"}'),
    ]
