"""Arrow columns to Python rows and back, without a Spark session."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Annotated, Any, NamedTuple

import msgspec
import pyarrow as pa
import pytest

from stateflow.errors import UsageError
from stateflow.operators.output import RowWriter
from stateflow.operators.python_values import values_of
from stateflow.pipelines.rows.row_type import RowType, row_type
from stateflow.spark.task.columns import RowReader
from tests.refusals.refusal import refused

NOON = datetime(2026, 1, 1, 12, 0, 0, 123456, tzinfo=UTC)
UTC_MICROS = pa.timestamp("us", "UTC")


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int64(), [1, -(1 << 63), (1 << 63) - 1]),
        (pa.int32(), [1, 2]),
        (pa.float64(), [1.5, float("inf")]),
        (pa.bool_(), [True, False]),
        (pa.string(), ["a", "é", ""]),
        (pa.binary(), [b"\0", b""]),
        (pa.date32(), [date(2026, 1, 1), date(1900, 12, 31)]),
        (UTC_MICROS, [NOON, datetime(1900, 1, 1, tzinfo=UTC)]),
        (pa.decimal128(38, 18), [Decimal("1.100000000000000000")]),
        (pa.list_(pa.int64()), [[1, 2], []]),
        (pa.struct([("a", pa.int64())]), [{"a": 1}]),
    ],
)
def test_values_come_out_as_python_has_them_with_nulls_and_without(kind: Any, values: list[Any]) -> None:
    assert values_of(pa.array(values, kind)) == values
    assert values_of(pa.array([*values, None], kind)) == [*values, None]
    assert values_of(pa.array([None], kind)) == [None]
    assert values_of(pa.array([], kind)) == []
    assert values_of(pa.array([None, *values, None], kind).slice(1, len(values))) == values
    assert values_of(pa.chunked_array([pa.array(values, kind), pa.array([None], kind)])) == [*values, None]
    assert all(
        type(one) is type(other) for one, other in zip(values_of(pa.array(values, kind)), values, strict=True)
    )


INT_MAP = pa.map_(pa.string(), pa.int32())


@pytest.mark.parametrize(
    ("kind", "given", "values"),
    [
        (INT_MAP, [[("a", 1), ("b", None)], []], [{"a": 1, "b": None}, {}]),
        (pa.list_(INT_MAP), [[[("a", 1)], None], []], [[{"a": 1}, None], []]),
        (
            pa.struct([("m", INT_MAP), ("l", pa.list_(pa.date32()))]),
            [([("a", 1)], None)],
            [{"m": {"a": 1}, "l": None}],
        ),
        (pa.struct([]), [{}], [{}]),
        (pa.map_(pa.list_(pa.int8()), INT_MAP), [[([1], [("a", 1)])]], [[([1], {"a": 1})]]),
        (pa.list_(pa.timestamp("us")), [[NOON, None]], [[NOON, None]]),
        (pa.large_list(pa.int64()), [[1]], [[1]]),
    ],
    ids=str,
)
def test_what_is_inside_of_a_value_comes_out_as_it_does_alone(kind: Any, given: Any, values: Any) -> None:
    assert repr(values_of(pa.array(given, kind))) == repr(values)
    assert values_of(pa.array([*given, None], kind)) == [*values, None]
    assert values_of(pa.array([None, *given, *given, None], kind).slice(1 + len(given), len(given))) == values
    assert values_of(pa.array([None], kind)) == [None]
    assert values_of(pa.array([], kind)) == []


def test_a_timestamp_that_no_datetime_can_hold_is_told_with_the_way_around_it() -> None:
    for micros in ([1 << 60], [None, 1 << 60]):
        with refused(UsageError, "outside of the years 1 to 9999", "select unix_micros of it"):
            values_of(pa.array(micros, pa.int64()).cast(UTC_MICROS))


def test_a_date_that_no_python_date_can_hold_is_told_with_the_way_around_it() -> None:
    first, last = ((of - date(1970, 1, 1)).days for of in (date.min, date.max))
    held = pa.array([first, None, last], pa.int32()).view(pa.date32())
    assert values_of(held) == [date.min, None, date.max]
    for days in ([last + 1], [None, last + 1], [0, first - 1]):
        with refused(UsageError, "a date lies outside", "the years 1 to 9999", "select unix_date of it"):
            values_of(pa.array(days, pa.int32()).view(pa.date32()))


@pytest.mark.parametrize(
    "kind", [pa.timestamp("ns", "UTC"), pa.timestamp("ms"), pa.timestamp("us", "Asia/Tokyo")]
)
def test_timestamps_of_other_units_and_zones_are_instants_in_utc(kind: Any) -> None:
    whole = NOON.replace(microsecond=123000)
    [value] = values_of(pa.array([whole], kind))
    assert (value, value.tzinfo) == (whole, UTC)


@dataclass
class Inner:
    a: int
    at: datetime | None = None


class Struct(msgspec.Struct):
    x: int
    inner: Inner | None = None


@dataclass
class Row:
    user: int
    maybe: int | None
    inner: Inner
    many: list[Inner]
    named: dict[str, int]
    struct: Struct
    amount: Annotated[Decimal, "decimal(10,2)"]


SCHEMA = pa.schema(
    [
        ("user", pa.int64()),
        ("maybe", pa.int64()),
        ("inner", pa.struct([("a", pa.int64()), ("at", UTC_MICROS)])),
        ("many", pa.list_(pa.struct([("a", pa.int64()), ("at", UTC_MICROS)]))),
        ("named", pa.map_(pa.string(), pa.int64())),
        (
            "struct",
            pa.struct([("x", pa.int64()), ("inner", pa.struct([("a", pa.int64()), ("at", UTC_MICROS)]))]),
        ),
        ("amount", pa.decimal128(10, 2)),
    ]
)
ROWS = [
    Row(1, None, Inner(1, NOON), [Inner(2), Inner(3, NOON)], {"a": 1}, Struct(1, Inner(4)), Decimal("1.50")),
    Row(2, 5, Inner(1), [], {}, Struct(2), Decimal("0.00")),
]


def written(writer: RowWriter, rows: list[Any]) -> Any:
    return writer.write(writer.taken(rows))


def test_typed_rows_survive_the_way_out_and_back_in() -> None:
    rows = row_type(Row)
    batch = written(RowWriter(rows, SCHEMA, "operator 'x'"), ROWS)
    assert batch.schema == SCHEMA
    assert RowReader(rows, range(7)).read(batch) == ROWS


@dataclass
class Sale:
    user: int
    channel: str = "web"
    amount: float = 0.5
    note: str | None = "none given"
    tags: list[str] = field(default_factory=list)
    inner: Inner = field(default_factory=lambda: Inner(7))


def test_a_null_is_the_default_of_its_field_where_the_type_allows_no_none() -> None:
    schema = pa.schema(
        [("user", pa.int64()), ("channel", pa.string()), ("amount", pa.float64()), ("note", pa.string()),
         ("tags", pa.list_(pa.string())), ("inner", pa.struct([("a", pa.int64())]))]
    )  # fmt: skip
    columns = [[1, None], ["app", None], [2.0, None], ["x", None], [["a"], None], [{"a": 1}, None]]
    arrays = [pa.array(v, f.type) for v, f in zip(columns, schema, strict=True)]
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    reader = RowReader(row_type(Sale), range(6))
    assert reader.read(batch) == [
        Sale(1, "app", 2.0, "x", ["a"], Inner(1)),
        Sale(None, "web", 0.5, None, [], Inner(7)),  # type: ignore[arg-type]
    ]
    first, second = reader.read(pa.concat_batches([batch.slice(1), batch.slice(1)]))
    assert first.tags is not second.tags, "each row has a list of its own"


def test_columns_are_taken_by_the_places_that_a_reader_is_given() -> None:
    batch = pa.record_batch({"skip": [0, 0], "b": ["x", "y"], "a": [1, 2]})
    assert RowReader(row_type("a long, b string"), [2, 1]).read(batch) == [(1, "x"), (2, "y")]


def test_untyped_rows_are_named_tuples_with_dicts_for_maps_and_structs() -> None:
    rows = row_type("a long, m map<string,bigint>, s struct<x:bigint>, l array<string>")
    schema = pa.schema(
        [("a", pa.int64()), ("m", pa.map_(pa.string(), pa.int64())), ("s", pa.struct([("x", pa.int64())])),
         ("l", pa.list_(pa.string()))]
    )  # fmt: skip
    batch = written(
        RowWriter(rows, schema, "operator 'x'"), [(1, {"a": 1}, {"x": 2}, ["y"]), (2, None, None, None)]
    )
    first, second = RowReader(rows, range(4)).read(batch)
    assert (first.a, first.m, first.s, first.l) == (1, {"a": 1}, {"x": 2}, ["y"])
    assert second == (2, None, None, None)


class Pair(NamedTuple):
    a: int
    b: str


@pytest.mark.parametrize(
    "rows", [[(1, "x")], [Pair(1, "x")], [{"a": 1, "b": "x"}], [[1, "x"]], [{"b": "x", "a": 1}]]
)
def test_untyped_output_may_be_tuples_lists_or_dicts(rows: list[Any]) -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.string())])
    assert written(RowWriter(row_type("a long, b string"), schema, "x"), rows).to_pylist() == [
        {"a": 1, "b": "x"}
    ]


def test_tuples_and_dicts_may_come_in_one_batch() -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.string())])
    found = written(
        RowWriter(row_type("a long, b string"), schema, "x"),
        [{"a": 1, "b": None}, (2, "y"), {"b": "z", "a": 3}],
    )
    assert found.to_pylist() == [{"a": 1, "b": None}, {"a": 2, "b": "y"}, {"a": 3, "b": "z"}]


def writer(declared: Any, *fields: tuple[str, Any]) -> RowWriter:
    return RowWriter(row_type(declared), pa.schema(list(fields)), "operator 'x'")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (pa.int64(), "many", "'many' in column 'a', which is a int64"),
        (pa.int64(), 1 << 70, "in column 'a'"),
        (pa.int64(), 1.5, "1.5 in column 'a'"),
        (pa.string(), 5, "5 in column 'a'"),
        (pa.list_(pa.int64()), ["x"], "column 'a'"),
        (pa.decimal128(10, 2), Decimal("1e30"), "column 'a'"),
        (UTC_MICROS, "today", "'today' in column 'a'"),
    ],
)
def test_an_output_that_does_not_fit_names_operator_column_and_value(
    field: Any, value: Any, message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        written(writer("a long", ("a", field)), [(None,), (value,)])
    assert str(caught.value).startswith("operator 'x' put out ")
    assert message in str(caught.value)


def test_a_row_of_another_class_and_a_row_of_another_length_are_refused() -> None:
    @dataclass
    class One:
        a: int

    with refused(UsageError, "operator 'x'", "'no row'", "no One", "yield One(a)"):
        written(writer(One, ("a", pa.int64())), [One(1), "no row"])
    with refused(UsageError, "which is not 2 values (a, b)"):
        written(writer("a long, b long", ("a", pa.int64()), ("b", pa.int64())), [(1, 2), (1,)])
    with refused(UsageError, "which is not 2 values (a, b)"):
        written(writer("a long, b long", ("a", pa.int64()), ("b", pa.int64())), [(1, 2, 3), (1, 2, 3)])
    with refused(UsageError, "which is not 2 values (a, b)"):
        written(writer("a long, b long", ("a", pa.int64()), ("b", pa.int64())), ["xy"])
    with refused(UsageError, "put out 'c'"):
        written(writer("a long, b long", ("a", pa.int64()), ("b", pa.int64())), [{"a": 1, "c": 2}])


def test_times_of_other_zones_are_the_same_instants_and_times_without_zone_are_refused() -> None:
    there = NOON.astimezone(timezone(timedelta(hours=5)))
    batch = written(writer("a timestamp", ("a", UTC_MICROS)), [(there,), (None,)])
    assert values_of(batch.column(0)) == [NOON, None]
    with refused(UsageError, "no time zone"):
        written(writer("a timestamp", ("a", UTC_MICROS)), [(NOON,), (NOON.replace(tzinfo=None),)])


def test_no_rows_make_an_empty_batch() -> None:
    for declared in (Pair, "a long, b string"):
        out = written(writer(declared, ("a", pa.int64()), ("b", pa.string())), [])
        assert out.num_rows == 0
        assert out.schema.names == ["a", "b"]


def test_wide_rows_stay_in_order() -> None:
    names = [f"c{n}" for n in range(40)]
    rows = RowType("Row", row_type(", ".join(f"{n} long" for n in names)).fields, lambda *v: v, False)
    batch = pa.record_batch({n: [i, i + 100] for i, n in enumerate(names)})
    assert RowReader(rows, range(40)).read(batch)[1] == tuple(range(100, 140))


@dataclass
class City:
    city: str


@dataclass
class Visited:
    shop: City


def test_a_nested_value_that_does_not_fit_is_named_with_its_field() -> None:
    rows = row_type(Visited)
    batch = pa.record_batch({"shop": pa.array([{"city": None}], pa.struct({"city": pa.string()}))})
    named = r"^field 'shop' of Visited does not fit its class: .*`\$\.city`; declare what may be missing"
    with pytest.raises(UsageError, match=named):
        RowReader(rows, [0]).read(batch)
