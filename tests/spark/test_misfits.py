"""Files whose rows do not fit the row class: the file and the value are named, and nothing is a null without a word."""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import stateflow as sf
from stateflow.errors import IncompatibleError
from stateflow.pipelines.rows.row_type import row_type
from stateflow.spark.task.failures import translated
from tests.refusals.refusal import refused
from tests.spark.failing_decision import fail_once
from tests.spark.pipelines import Workbench


@dataclass
class Order:
    user: int
    amount: int
    note: str | None = None


@dataclass
class Annotating(Order):
    notes: str | None = None


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


def refusal_of(spark: SparkSession, file: Path, type: Any) -> str:
    """What reading this file says. That a batch with such a file fails, two tests of runs show."""
    source = sf.files(str(file), file.name.split(".")[1]).declared("orders", row_type(type))
    with pytest.raises((PySparkException, Py4JJavaError)) as told:
        source.there(spark).collect()
    problem = translated(told.value)
    assert isinstance(problem, sf.IncompatibleError)
    return str(problem)


def names_file_and_value(said: str, file: str, message: str) -> None:
    assert re.match(rf"(source 'orders': )?the file file:.*{file} has a row that does not fit", said)
    assert re.search(message, said)
    assert "mend or move the file and run again, or let such rows come in a column of their own" in said
    assert "PERMISSIVE" not in said
    assert "SQLSTATE" not in said


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", '{"user": 1, "amount": 2}\n{"user": 1, "amount": 12.25}\n', r"field name 'amount' and the value 12\.25"),
        ("a.csv", "user,amount,note\n1,2,x\n1,abc,y\n", 'For input string: "abc"'),
    ],
    ids=["fraction", "word"],
)  # fmt: skip
def test_a_value_that_does_not_fit_fails_the_batch_with_file_and_value(
    bench: Workbench, tmp_path: Path, name: str, text: str, message: str
) -> None:
    pipeline = reading(bench, Order, name.partition(".")[2])
    (tmp_path / "in" / name).write_text(text)
    with pytest.raises(sf.IncompatibleError) as told:
        bench.run(pipeline)
    names_file_and_value(str(told.value), name, message)
    assert bench.records("misfits")[-1].kind == "checkpoint"
    assert rows() == []
    (tmp_path / "in" / name).unlink()
    bench.run(pipeline)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", '{"user": 1, "amount": 2}\n{"user": 1, "amo', "JSON|Unexpected end-of-input"),
        ("a.json", f'{{"user": 1, "amount": {2**63}}}\n', "amount|out of range"),
        ("a.csv", "user,amount,note\n1,2,x\n1\n", "Malformed CSV record: 1$|Malformed CSV record: 1;"),
    ],
    ids=["half a line", "too large", "short line"],
)
def test_so_do_half_a_line_a_number_that_is_too_large_and_a_short_line(
    spark: SparkSession, tmp_path: Path, name: str, text: str, message: str
) -> None:
    (tmp_path / name).write_text(text)
    names_file_and_value(refusal_of(spark, tmp_path / name, Order), name, message)


def test_a_misspelt_field_fails_the_batch_and_a_column_that_is_null_does_not(
    bench: Workbench, tmp_path: Path
) -> None:
    pipeline = reading(bench, Misspelt)
    (tmp_path / "in" / "a b.json").write_text('{"user": 1, "amount": 2}\n')
    with refused(
        sf.IncompatibleError,
        "source 'orders'",
        "'amout' of Misspelt",
        "a%20b.json has 'amount'",
        "call the field 'amount'",
        "`Annotated[..., sf.field(",
        "aliases=['amount'])]`",
        "no row was written",
    ):
        bench.run(pipeline)
    assert rows() == []
    (tmp_path / "in" / "a b.json").write_text('{"user": 1, "amout": null}\n')
    (warning,) = bench.run(pipeline).warnings
    assert rows() == [(1, None, None)]
    assert "1 rows have no value in 'amout', which Misspelt declares without `| None` or a default" in warning


def test_a_field_that_the_files_lack_is_counted_in_a_warning(bench: Workbench, tmp_path: Path) -> None:
    pipeline = reading(bench, Order, maxFilesPerTrigger="1")
    for k in range(2):
        (tmp_path / "in" / f"{k}.json").write_text('{"user": 1}\n{"user": 2}\n')
    (warning,) = bench.run(pipeline).warnings
    assert warning.startswith("source 'orders': 4 rows have no 'amount' at all, a field of Order: no line of")
    assert warning.endswith(
        "correct its name, or, if 'amount' may be missing, declare it as `| None` or with a default"
    )


def test_an_optional_field_that_may_be_misspelt_is_a_warning(bench: Workbench, tmp_path: Path) -> None:
    pipeline = reading(bench, Order)
    (tmp_path / "in" / "a.json").write_text('{"user": 1, "amount": 1, "notes": "x"}\n')
    (warning,) = bench.run(pipeline).warnings
    assert "1 rows have no 'note' at all" in warning
    assert "they have 'notes', which Order lacks" in warning
    # The field may be missing as it is, so that this would be no advice.
    assert "| None" not in warning
    assert warning.endswith("or, if 'notes' is something else, declare it in Order, too")
    (tmp_path / "in" / "b.json").write_text('{"user": 1, "amount": 1, "notes": "x"}\n')
    assert bench.run(reading(bench, Annotating)).warnings == ()


def test_a_misspelt_column_of_files_with_a_schema_fails_the_batch(
    bench: Workbench, spark: SparkSession, tmp_path: Path
) -> None:
    pipeline = reading(bench, Misspelt, "parquet")
    frame = spark.createDataFrame([(1, 2, "x")], "user long, amount long, note string")
    frame.write.format("parquet").mode("append").save(str(tmp_path / "in"))
    with refused(sf.IncompatibleError, "'amout' of Misspelt", "has 'amount'"):
        bench.run(pipeline)


def test_columns_of_a_source_of_ones_own_are_looked_at_in_large_batches(
    bench: Workbench, spark: SparkSession, tmp_path: Path
) -> None:
    out = sf.memory("misfits")
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


def test_files_of_a_delta_table_are_not_read_as_files(
    bench: Workbench, spark: SparkSession, tmp_path: Path
) -> None:
    """Its folder has the files of every version that was not vacuumed."""
    pipeline = reading(bench, Order, "parquet")
    spark.range(1).write.format("delta").mode("append").save(str(tmp_path / "in"))
    with refused(sf.UsageError, "source 'orders'", "in is a Delta table", "sf.delta("):
        bench.run(pipeline)


@dataclass
class Part:
    price: Annotated[Decimal | None, "decimal(10,2)"] = None


@dataclass
class Priced:
    user: int
    price: Annotated[Decimal | None, "decimal(10,2)"] = None
    ts: datetime | None = None
    day: date | None = None
    parts: list[Part] | None = None
    broken: str | None = None


@dataclass
class Cells:
    user: int
    price: Annotated[Decimal | None, "decimal(10,2)"] = None
    ts: datetime | None = None
    day: date | None = None


TAKEN_FOR_ANOTHER = [
    ("price", "1.234", r"the value 1\.234 for 'price', a decimal\(10,2\), which has room for 8 digits before"),
    ("price", '"1,5"', "the value 1,5 for 'price'"),
    ("price", "1.234e-1", "the value 1.234e-1 for 'price'"),
    ("price", "123456789", "the value 123456789 for 'price'"),
    ("ts", "1767225600000", r"'ts' is a time in the year 57971, .*\(1767225600000 seconds since 1970: .*divide milliseconds by 1000"),
    ("ts", "1767225600000000", "'ts' is a time in the year -"),
    ("day", '"+12026-01-01"', r"the value \+12026-01-01 for 'day', a date, which is written like 2026-01-31"),
    ("day", '"20260101"', "the value 20260101 for 'day', a date"),
    ("day", '"2026-02-30"', "the value 2026-02-30 for 'day', a date"),
    ("day", '"2026-01-05T09:10:00"', "the value 2026-01-05T09:10:00 for 'day', a date, .* with no time of day behind it"),
    ("day", "19000", "the value 19000 for 'day', a date"),
    ("parts", '[{"price": 1.5}, {"price": "1,5"}]', r"the value 1,5 for 'parts\.price'"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("zipped", "field", "value", "message"),
    [
        *((False, *case) for case in TAKEN_FOR_ANOTHER),
        # In a zipped file the values are looked at alike: one of each type.
        *((True, *case) for case in {case[0]: case for case in TAKEN_FOR_ANOTHER}.values()),
    ],
)
def test_a_value_that_spark_takes_for_another_fails_the_batch(
    spark: SparkSession, tmp_path: Path, field: str, value: str, message: str, zipped: bool
) -> None:
    line = f'{{"user": 1, "{field}": {value}}}\n'.encode()
    file = tmp_path / ("a.json.gz" if zipped else "a.json")
    file.write_bytes(gzip.compress(line) if zipped else line)
    said = refusal_of(spark, file, Priced)
    assert re.match(
        rf"the file file:.*{file.name} has a row that does not fit the row class: .*{message}", said
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [("price", "1.234"), ("price", '"1,5"'), ("ts", "12026-01-01T00:00:00Z"), ("day", "20260101")],
)
def test_so_does_one_in_csv(spark: SparkSession, tmp_path: Path, field: str, value: str) -> None:
    cells = [value if name == field else "" for name in ("price", "ts", "day")]
    (tmp_path / "a.csv").write_text(f"user,price,ts,day\n1,{','.join(cells)}\n")
    assert "a.csv has a row that does not fit the row class" in refusal_of(spark, tmp_path / "a.csv", Cells)


@dataclass
class Named:
    user: int
    name: str | None = None


@dataclass
class NamedOrBroken(Named):
    broken: str | None = None


def in_latin_1(bench: Workbench, type: Any, **options: str) -> sf.Pipeline:
    pipeline = reading(bench, type, "csv", **options)
    text = "user,name\n1,Müller\n2,Möller\n3,Meier\n"
    (bench.folder / "in" / "a.csv").write_bytes(text.encode("latin-1"))
    return pipeline


def test_half_a_record_of_csv_is_told_of_line_breaks_in_quotes_first(
    bench: Workbench, spark: SparkSession, tmp_path: Path
) -> None:
    """With a column for such rows, `2,rest",x` would be a row that fits."""
    file = tmp_path / "a.csv"
    file.write_text('user,amount,note\n1,2,"half\nrest"\n')
    said = refusal_of(spark, file, Order)
    names_file_and_value(said, "a.csv", 'Malformed CSV record: rest"; if its records have line breaks')
    assert said.index("'multiLine': 'true'") < said.index("'columnNameOfCorruptRecord'")
    pipeline = reading(bench, Order, "csv", multiLine="true")
    file.rename(tmp_path / "in" / "a.csv")
    bench.run(pipeline)
    assert rows() == [(1, 2, "half\nrest")]


def test_letters_that_are_no_utf_8_fail_the_batch_until_the_encoding_is_said(bench: Workbench) -> None:
    """Spark reads both names as M\ufffdller, which would be one key."""
    with pytest.raises(sf.IncompatibleError) as told:
        bench.run(in_latin_1(bench, Named))
    names_file_and_value(
        str(told.value),
        "a.csv",
        r"M\ufffdller for 'name' has \ufffd, .*say .* options={'encoding': 'ISO-8859-1'} or",
    )
    assert rows() == []
    bench.run(in_latin_1(bench, Named, encoding="ISO-8859-1"))
    assert [row[1] for row in rows()] == ["Müller", "Möller", "Meier"]


def test_such_a_row_of_csv_goes_to_those_that_do_not_fit(bench: Workbench) -> None:
    bench.run(in_latin_1(bench, NamedOrBroken, columnNameOfCorruptRecord="broken"))
    assert rows() == [
        *((user, None, f'{{"user":{user},"name":"M\ufffdller"}}') for user in (1, 2)),
        (3, "Meier", None),
    ]


@dataclass
class Said:
    user: int
    name: str


DOUBLED = 'user,name\n1,"q""q"\n2,plain\n3,""\n4,\n'


def test_doubled_quotes_fail_the_batch_until_they_are_said(bench: Workbench, tmp_path: Path) -> None:
    """Spark, which expects a backslash there, leaves all four quotes in the text."""
    pipeline = reading(bench, Said, "csv")
    (tmp_path / "in" / "a.csv").write_text(DOUBLED)
    with pytest.raises(sf.IncompatibleError) as told:
        bench.run(pipeline)
    names_file_and_value(str(told.value), "a.csv", "for 'name' begins with a quote and has doubled ones")
    assert "options={'escape': '\"'}" in str(told.value)
    assert r"{'escape': '\\'}" in str(told.value)
    bench.run(reading(bench, Said, "csv", escape='"', nullValue="\x01"))
    assert rows() == [(1, 'q"q'), (2, "plain"), (3, ""), (4, None)]


def test_whoever_says_the_escape_gets_the_text_as_it_is(bench: Workbench, tmp_path: Path) -> None:
    pipeline = reading(bench, Said, "csv", escape="\\")
    (tmp_path / "in" / "a.csv").write_text('user,name\n1,"\\"\\"is\\"\\" empty"\n')
    bench.run(pipeline)
    assert rows() == [(1, '""is"" empty')]


def test_a_doubled_quote_that_looks_like_half_a_record_has_its_way_out(
    bench: Workbench, tmp_path: Path
) -> None:
    pipeline = reading(bench, Said, "csv")
    (tmp_path / "in" / "a.csv").write_text('user,name\n2,"3"" pipe, long"\n')
    with refused(
        sf.IncompatibleError,
        "Malformed CSV record",
        "is doubled",
        "{'escape': '\"'}",
    ):
        bench.run(pipeline)
    bench.run(reading(bench, Said, "csv", escape='"'))
    assert rows() == [(2, '3" pipe, long')]


def test_lines_of_text_that_are_no_utf_8_fail_the_batch_until_the_file_is_converted(
    bench: Workbench, tmp_path: Path
) -> None:
    out, file = sf.memory("misfits"), tmp_path / "in" / "a.txt"
    out.clear()

    @sf.pipeline("misfits")
    def misfits(flow: sf.Flow) -> None:
        flow.source("lines", sf.files(str(file.parent), "text")).collect("out", out)

    file.parent.mkdir()
    file.write_bytes("Meier\nMüller\n".encode("latin-1"))
    with pytest.raises(sf.IncompatibleError, match=r"a\.txt.*M\ufffdller is no UTF-8.*iconv"):
        bench.run(misfits)
    assert rows() == []
    file.write_text("Meier\nMüller\n", encoding="utf-8")
    bench.run(misfits)
    assert rows() == [("Meier",), ("Müller",)]


def test_who_says_utf_8_may_have_the_character_that_stands_for_others(
    spark: SparkSession, tmp_path: Path
) -> None:
    for name in ("encoding", "charset"):
        bench = Workbench(spark, tmp_path / name)
        bench.folder.mkdir()
        pipeline = reading(bench, Named, "csv", **{name: "UTF-8"})
        (bench.folder / "in" / "a.csv").write_text("user,name\n1,M\ufffdller\n", encoding="utf-8")
        bench.run(pipeline)
        assert rows() == [(1, "M\ufffdller")]


def test_a_time_beyond_every_clock_fails_the_batch_in_files_with_types(
    bench: Workbench, spark: SparkSession, tmp_path: Path
) -> None:
    pipeline = reading(bench, Cells, "parquet")
    columns = "id as user, 1.5bd as price, timestamp_seconds(1767225600000) as ts, date'2026-01-01' as day"
    frame = spark.range(1).selectExpr(*columns.split(", "))
    frame.write.mode("append").parquet(str(tmp_path / "in"))
    with pytest.raises(sf.IncompatibleError, match="'ts' is a time in the year 57971"):
        bench.run(pipeline)


def test_what_fits_is_what_stands_in_the_file(spark: SparkSession, tmp_path: Path) -> None:
    texts = ["1.5", '"1.50"', "1.5000", "15e-1", "-0.05", "12345678.99", "null", '" 7"', "0"]
    days = ["2026-01-31", "2026-1-31", " 2026-01-31 ", "2026-01-31 00:00:00", "2026-01-31T00:00:00.000Z"]
    bench = Workbench(spark, tmp_path)
    pipeline = reading(bench, Priced)
    lines = [
        f'{{"user": {k}, "price": {text}, "parts": [{{"price": {text}}}, null]}}'
        for k, text in enumerate(texts)
    ]
    lines += [json.dumps({"user": -1, "day": text}) for text in days]
    (tmp_path / "in" / "a.json").write_text("\n".join(lines))
    bench.run(pipeline)
    found = {user: (price, parts) for user, price, _, day, parts, _ in rows() if day is None}
    right = [None if text == "null" else Decimal(text.strip('" ')) for text in texts]
    assert [found[k][0] for k in range(len(texts))] == right
    assert [found[k][1][0]["price"] for k in range(len(texts))] == right
    # A day and its midnight are that day.
    assert [row[3] for row in rows() if row[0] == -1] == [date(2026, 1, 31)] * len(days)


@pytest.mark.parametrize(
    ("key", "fits", "value", "wrong"),
    [
        (int, "7", 7, "7.5"),
        (Annotated[Decimal, "decimal(10,2)"], "1.50", Decimal("1.50"), "1.239"),
        (date, "2026-1-31", date(2026, 1, 31), "20260131"),
        (bool, "true", True, "perhaps"),
    ],
)
def test_keys_of_an_object_are_of_their_type_or_fail_the_batch(
    spark: SparkSession, tmp_path: Path, key: Any, fits: str, value: Any, wrong: str
) -> None:
    hints = {"user": int, "per": dict[key, list[Part]]}
    bench, keyed = Workbench(spark, tmp_path), dataclass(type("Keyed", (), {"__annotations__": hints}))
    pipeline = reading(bench, keyed)
    file = tmp_path / "in" / "a.json"
    file.write_text(json.dumps({"user": 1, "per": {fits: [{"price": 2}]}}) + '\n{"user": 2}\n')
    bench.run(pipeline)
    (_, per), nothing = rows()
    assert nothing == (2, None)
    assert [(found, [dict(part) for part in parts]) for found, parts in per] == [(value, [{"price": 2}])]
    file = tmp_path / "in" / "b.json"
    file.write_text(json.dumps({"user": 1, "per": {fits: [], wrong: []}}) + "\n")
    with refused(sf.IncompatibleError, "b.json", f"the key {wrong} of 'per' is no "):
        bench.run(pipeline)
    file.write_text(json.dumps({"user": 1, "per": {fits: [{"price": "1,5"}]}}) + "\n")
    with refused(sf.IncompatibleError, "b.json", "the value 1,5 for 'per.price'"):
        bench.run(pipeline)


def test_a_number_that_is_hardly_a_time_is_told(bench: Workbench, tmp_path: Path) -> None:
    pipeline = reading(bench, Priced)
    folder = tmp_path / "in"
    (folder / "a.json").write_text(
        '{"user": 1, "ts": 1767225600}\n{"user": 1, "ts": "2026-01-05T09:10:00"}\n{"user": 1}\n'
    )
    assert bench.run(pipeline).warnings == ()
    (folder / "b.json").write_text('{"user": 1, "ts": 3}\n{"user": 1, "ts": 1767225600}\n')
    (warning,) = bench.run(pipeline).warnings
    assert "source 'orders': rows have a time of early 1970 in 'ts', as a small number has" in warning


def test_a_locale_says_how_numbers_are_written(bench: Workbench, tmp_path: Path) -> None:
    pipeline = reading(bench, Cells, "csv", locale="de-DE", sep=";")
    (tmp_path / "in" / "a.csv").write_text("user;price;ts;day\n1;1,5;;\n")
    bench.run(pipeline)
    assert [row[1] for row in rows()] == [Decimal("1.50")]


def test_such_a_row_goes_where_the_user_has_rows_that_do_not_fit(bench: Workbench, tmp_path: Path) -> None:
    pipeline = reading(bench, Priced, columnNameOfCorruptRecord="broken")
    lines = ['{"user": 1, "price": "1,5"}', '{"user": 2, "price": 1.5}', '{"user": 3, "price": [']
    (tmp_path / "in" / "a.json").write_text("\n".join(lines))
    assert bench.run(pipeline).warnings == (), "rows that do not fit lack nothing"
    found = {row["broken"]: (row["user"], row["price"]) for row in sf.memory("misfits").rows}
    assert found == {
        '{"user":1,"price":"1,5"}': (1, None),
        None: (2, Decimal("1.50")),
        '{"user": 3, "price": [': (None, None),
    }


def test_a_line_that_is_no_text_comes_there_in_base64(bench: Workbench, tmp_path: Path) -> None:
    pipeline = reading(bench, NamedOrBroken, columnNameOfCorruptRecord="broken")
    (tmp_path / "in" / "a.json").write_bytes(b'\xff\xfe\nno json\n{"user": 2}\n')
    bench.run(pipeline)
    assert {(row["user"], row["broken"]) for row in sf.memory("misfits").rows} == {
        (None, "base64://4="),
        (None, "no json"),
        (2, None),
    }


def test_it_is_a_null_or_no_row_for_those_who_say_so(spark: SparkSession, tmp_path: Path) -> None:
    for mode, right in (("PERMISSIVE", [(1, None), (None, None)]), ("DROPMALFORMED", [])):
        bench = Workbench(spark, tmp_path / mode)
        bench.folder.mkdir()
        pipeline = reading(bench, Priced, mode=mode)
        (bench.folder / "in" / "a.json").write_text('{"user": 1, "price": "1,5"}\n{"user": 1.5}\n')
        bench.run(pipeline)
        assert sorted((tuple(row.values())[:2] for row in sf.memory("misfits").rows), key=str) == right


def test_an_event_time_beyond_every_clock_fails_the_batch_of_any_source(
    bench: Workbench, spark: SparkSession, tmp_path: Path
) -> None:
    out = sf.memory("misfits")
    out.clear()

    def parsed(spark: SparkSession) -> Any:
        return spark.readStream.text(str(tmp_path / "in")).selectExpr(
            "timestamp_seconds(cast(value as long)) as ts"
        )

    @sf.pipeline("misfits")
    def misfits(flow: sf.Flow) -> None:
        flow.source("orders", parsed, event_time="ts", watermark="1 minute").collect("out", out)

    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("1767225600000\n")
    with refused(sf.IncompatibleError, "source 'orders'", "the year 9999", "1767225600000 seconds"):  # fmt: skip
        bench.run(misfits)
    assert rows() == []


@dataclass
class Item:
    sku: str
    count: int
    note: str | None = None


@dataclass
class Basket:
    user: int
    first: Item | None = None
    items: list[Item] | None = None
    by_name: dict[str, Item] | None = None


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ({"first": {"sku": "a", "cuont": 2}}, "first.count"),
        ({"items": [{"sku": "a", "cuont": 2}]}, "items.count"),
        ({"by_name": {"x": {"sku": "a", "cuont": 2}}}, "by_name.count"),
    ],
)
def test_a_misspelt_field_of_a_class_inside_fails_the_batch(
    bench: Workbench, tmp_path: Path, line: dict[str, Any], path: str
) -> None:
    pipeline = reading(bench, Basket)
    (tmp_path / "in" / "a.json").write_text(json.dumps({"user": 1, **line}) + "\n")
    with refused(sf.IncompatibleError, f"'{path}' of Item", "a.json has 'cuont'"):  # fmt: skip
        bench.run(pipeline)
    assert rows() == []


def test_a_misspelt_field_of_some_elements_is_counted(bench: Workbench, tmp_path: Path) -> None:
    pipeline = reading(bench, Basket)
    items = [{"sku": "a", "count": 1}, {"sku": "b", "cuont": 2}]
    (tmp_path / "in" / "a.json").write_text(json.dumps({"user": 1, "items": items}) + "\n")
    (warning,) = bench.run(pipeline).warnings
    assert "source 'orders': 1 rows have no value in 'items.count', which Basket declares" in warning


@pytest.mark.slow
@pytest.mark.parametrize("format", ["json", "parquet", "orc"])
def test_a_field_that_is_misspelt_in_one_file_of_a_batch_names_the_file(
    bench: Workbench, spark: SparkSession, tmp_path: Path, format: str
) -> None:
    pipeline = reading(bench, Order, format)
    for name in ("amount", "amuont"):
        frame = spark.createDataFrame([(1, 2, "x")], f"user long, {name} long, note string").coalesce(1)
        frame.write.format(format).mode("append").save(str(tmp_path / "in"))
    with refused(sf.IncompatibleError, "no row of file:", "'amount' of Order", "it has 'amuont'") as told:  # fmt: skip
        bench.run(pipeline)
    name = str(told.value).partition("file:")[2].split()[0].rpartition("/")[2]
    found = spark.read.format(format).load(str(tmp_path / "in" / name))
    assert "amuont" in found.columns
    assert rows() == []


def test_a_file_that_lacks_a_field_is_named_and_nulls_are_counted_in_all_batches(
    bench: Workbench, tmp_path: Path
) -> None:
    pipeline = reading(bench, Order)
    (tmp_path / "in" / "a.json").write_text('{"user": 1, "amount": 1}\n{"user": 2, "amount": null}\n')
    (tmp_path / "in" / "b.json").write_text('{"user": 3}\n{"user": 4}\n')
    (warning,) = bench.run(pipeline).warnings
    assert "3 rows have no value in 'amount' (file:" in warning
    assert "/b.json has no such field), which Order declares without `| None`" in warning
    assert sorted(row[0] for row in rows()) == [1, 2, 3, 4]


@dataclass
class Dated:
    id: int
    day: str


def test_a_column_of_partition_folders_is_no_field_that_the_files_lack(
    bench: Workbench, tmp_path: Path
) -> None:
    pipeline = reading(bench, Dated)
    for number, day in enumerate(("2026-01-01", "__HIVE_DEFAULT_PARTITION__", "007")):
        folder = tmp_path / "in" / f"day={day}"
        folder.mkdir(parents=True)
        (folder / "a.json").write_text(f'{{"id": {number}}}\n')
    (warning,) = bench.run(pipeline).warnings
    assert "source 'orders': 1 rows have no value in 'day', which Dated declares" in warning
    assert sorted(rows()) == [(0, "2026-01-01"), (1, None), (2, "007")]


def test_a_column_of_parquet_of_another_type_is_named_with_both_types(
    bench: Workbench, spark: SparkSession, tmp_path: Path
) -> None:
    pipeline = reading(bench, Order, "parquet")
    rows = spark.createDataFrame([(1, 2.5)], "user long, amount double")
    rows.write.mode("append").parquet(str(tmp_path / "in"))
    with refused(IncompatibleError, ".parquet has column 'amount' as double", "as bigint"):
        bench.run(pipeline)


@dataclass
class Hashed:
    user: Annotated[Decimal, "decimal(20,0)"]
    amount: int


def test_a_column_of_parquet_of_unsigned_numbers_is_declared_as_the_error_says(
    bench: Workbench, tmp_path: Path
) -> None:
    pipeline = reading(bench, Order, "parquet")
    columns = {"user": pa.array([1, 2**64 - 1], pa.uint64()), "amount": [5, 6]}
    pq.write_table(pa.table(columns), tmp_path / "in" / "hashed.parquet")
    with refused(IncompatibleError, "unsigned 64-bit numbers", "Annotated[Decimal, 'decimal(20,0)']"):
        bench.run(pipeline)
    bench.run(reading(bench, Hashed, "parquet"))
    assert rows() == [(Decimal(1), 5), (Decimal(2**64 - 1), 6)]


def test_rows_of_a_batch_that_is_tried_again_are_counted_once(
    bench: Workbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = reading(bench, Order)
    (tmp_path / "in" / "a.json").write_text('{"user": 1}\n{"user": 2, "amount": 1}\n')
    failed = fail_once(monkeypatch, slot=3)
    (warning,) = bench.run(pipeline, tolerable_failed_batches=1, failure_backoff="1 ms").warnings
    assert failed == [3]
    assert "1 rows have no value in 'amount'" in warning


def test_cells_without_a_value_are_counted(bench: Workbench, tmp_path: Path) -> None:
    pipeline = reading(bench, Order, "csv")
    (tmp_path / "in" / "a.csv").write_text("user,amount,note\n1,2,\n1,,y\n")
    (warning,) = bench.run(pipeline).warnings
    assert "1 rows have no value in 'amount'" in warning
