"""Files whose rows do not fit the row class: the file and the value are named, and nothing is a null without a word."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import stateflow as sf
from tests.spark.pipelines import Workbench


@dataclass
class Order:
    user: int
    amount: int
    note: str | None = None


@dataclass
class Misspelt:
    user: int
    amout: int
    note: str | None = None


def reading(bench: Workbench, type: Any, format: str = "json", **options: str) -> sf.Pipeline:
    out = sf.memory("misfits")
    out.clear()
    (bench.folder / "in").mkdir(exist_ok=True)

    @sf.pipeline("misfits")
    def misfits(flow: sf.Flow) -> None:
        source = sf.files(str(bench.folder / "in"), format, options=options)
        flow.source("orders", source, type).collect("out", out)

    return misfits


def rows() -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in sf.memory("misfits").rows)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", '{"user": 1, "amount": 2}\n{"user": 1, "amount": 12.25}\n', r"field name 'amount' and the value 12\.25"),
        ("a.json", '{"user": 1, "amount": 2}\n{"user": 1, "amo', "JSON|Unexpected end-of-input"),
        ("a.json", f'{{"user": 1, "amount": {2**63}}}\n', "amount|out of range"),
        ("a.csv", "user,amount,note\n1,2,x\n1,abc,y\n", 'For input string: "abc"'),
        ("a.csv", "user,amount,note\n1,2,x\n1\n", "Malformed CSV record: 1$|Malformed CSV record: 1;"),
    ],
    ids=["fraction", "half a line", "too large", "word", "short line"],
)  # fmt: skip
def test_a_value_that_does_not_fit_fails_the_batch_with_file_and_value(
    spark: SparkSession, tmp_path: Path, name: str, text: str, message: str
) -> None:
    bench = Workbench(spark, tmp_path)
    pipeline = reading(bench, Order, name.partition(".")[2])
    (tmp_path / "in" / name).write_text(text)
    with pytest.raises(
        sf.IncompatibleError, match=rf"the file file:.*{name} has a row that does not fit"
    ) as told:
        bench.run(pipeline)
    assert told.match(message)
    assert told.match("mend or move the file and run again, or let such rows come in a column of their own")
    assert "PERMISSIVE" not in str(told.value)
    assert "SQLSTATE" not in str(told.value)
    assert bench.records("misfits")[-1].kind == "checkpoint"
    assert rows() == []
    (tmp_path / "in" / name).unlink()
    bench.run(pipeline)


def test_nulls_in_the_place_of_what_does_not_fit_are_there_for_those_who_say_so(
    spark: SparkSession, tmp_path: Path
) -> None:
    bench = Workbench(spark, tmp_path)
    pipeline = reading(bench, Order, mode="PERMISSIVE")
    (tmp_path / "in" / "a.json").write_text('{"user": 1, "amount": 12.25}\n')
    bench.run(pipeline)
    assert rows() == [(1, None, None)]


def test_a_misspelt_field_fails_the_batch_and_a_column_that_is_null_does_not(
    spark: SparkSession, tmp_path: Path
) -> None:
    bench = Workbench(spark, tmp_path)
    pipeline = reading(bench, Misspelt)
    (tmp_path / "in" / "a b.json").write_text('{"user": 1, "amount": 2}\n')
    with pytest.raises(
        sf.IncompatibleError,
        match=r"source 'orders': no row of the batch has the field 'amout' of Misspelt, and \S*a%20b\.json has 'amount', which Misspelt "
        r"lacks: call the field 'amount', or give it sf\.field\(aliases=\['amount'\]\), or, .*nothing was written",
    ):
        bench.run(pipeline)
    assert rows() == []
    (tmp_path / "in" / "a b.json").write_text('{"user": 1, "amout": null}\n')
    report = bench.run(pipeline)
    assert (rows(), report.warnings) == ([(1, None, None)], ())


def test_a_field_that_the_files_lack_is_counted_in_a_warning(spark: SparkSession, tmp_path: Path) -> None:
    bench = Workbench(spark, tmp_path)
    pipeline = reading(bench, Order, maxFilesPerTrigger="1")
    for k in range(2):
        (tmp_path / "in" / f"{k}.json").write_text('{"user": 1}\n{"user": 2}\n')
    (warning,) = bench.run(pipeline).warnings
    assert warning.startswith("source 'orders': 4 rows have no 'amount' at all, a field of Order: no line of")
    assert warning.endswith(
        "correct its name, or, if 'amount' may be missing, declare it as `| None` or with a default"
    )


def test_an_optional_field_that_may_be_misspelt_is_a_warning(spark: SparkSession, tmp_path: Path) -> None:
    bench = Workbench(spark, tmp_path)
    pipeline = reading(bench, Order)
    (tmp_path / "in" / "a.json").write_text('{"user": 1, "amount": 1, "notes": "x"}\n')
    (warning,) = bench.run(pipeline).warnings
    assert "1 rows have no 'note' at all" in warning
    assert "they have 'notes', which Order lacks" in warning


@pytest.mark.parametrize("format", ["parquet", "orc"])
def test_a_misspelt_column_of_files_with_a_schema_fails_the_batch(
    spark: SparkSession, tmp_path: Path, format: str
) -> None:
    bench = Workbench(spark, tmp_path)
    pipeline = reading(bench, Misspelt, format)
    frame = spark.createDataFrame([(1, 2, "x")], "user long, amount long, note string")
    frame.write.format(format).mode("append").save(str(tmp_path / "in"))
    with pytest.raises(sf.IncompatibleError, match=r"has the field 'amout' of Misspelt, and .* has 'amount'"):
        bench.run(pipeline)


def test_columns_of_a_source_of_ones_own_are_looked_at_in_large_batches(
    spark: SparkSession, tmp_path: Path
) -> None:
    bench, out = Workbench(spark, tmp_path), sf.memory("misfits")
    out.clear()

    def parsed(spark: SparkSession) -> Any:
        lines = spark.readStream.text(str(tmp_path / "in"))
        return lines.selectExpr("from_json(value, 'user long, amout long, note string') as o").select("o.*")

    @sf.pipeline("misfits")
    def misfits(flow: sf.Flow) -> None:
        flow.source("orders", parsed, Misspelt).collect("out", out)

    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text(
        "".join(json.dumps({"user": n, "amount": n}) + "\n" for n in range(120))
    )
    (warning,) = bench.run(misfits).warnings
    assert "120 rows have no 'amout' at all, a field of Misspelt: it is null in each of them" in warning


def test_files_of_a_delta_table_are_not_read_as_files(spark: SparkSession, tmp_path: Path) -> None:
    """Its folder has the files of every version that was not vacuumed."""
    bench = Workbench(spark, tmp_path)
    pipeline = reading(bench, Order, "parquet")
    spark.range(1).write.format("delta").mode("append").save(str(tmp_path / "in"))
    with pytest.raises(
        sf.UsageError, match=r"source 'orders': .*in is a Delta table, .* read it with sf\.delta\("
    ):
        bench.run(pipeline)
