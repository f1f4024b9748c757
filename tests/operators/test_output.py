"""What user code puts out: one column takes bare values of every type, several take rows."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, NamedTuple

import pytest
from pyspark.sql import Row

from stateflow.errors import UsageError
from stateflow.operators.arrow_types import arrow_schema_of
from stateflow.operators.output import RowWriter, returned
from stateflow.pipelines.rows.row_type import row_type
from tests.refusals.refusal import refused

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Point(NamedTuple):
    x: int
    y: int


@dataclass
class Spot:
    x: int
    y: int


class Price(NamedTuple):
    price: float
    cost: float


class NetPrice(Price):
    """A subclass of a named tuple."""


def writer_of(output: Any) -> RowWriter:
    declared = row_type(output)
    return RowWriter(declared, arrow_schema_of(declared), "operator 'x'")


def written(output: Any, *rows: Any) -> list[Any]:
    writer = writer_of(output)
    batch = writer.write(writer.taken(rows))
    return [row["value"] for row in batch.to_pylist()]


def test_a_named_tuple_of_the_columns_is_taken_by_its_names() -> None:
    swapped = writer_of("cost double, price double")
    for row in (
        Price(10.0, 1.0),
        Price(10.0, 1.0),
        NetPrice(10.0, 1.0),
        Row(price=10.0, cost=1.0),
        Row("price", "cost")(10.0, 1.0),
    ):
        assert swapped.taken([row]) == [(1.0, 10.0)]
        assert writer_of("price double, cost double").taken([row]) == [(10.0, 1.0)]
    assert swapped.taken([(10.0, 1.0), tuple(Price(10.0, 1.0)), Row(10.0, 1.0)]) == [(10.0, 1.0)] * 3


@pytest.mark.parametrize(
    "columns", ["cost double, total double", "price double", "price double, cost double, k long"]
)
@pytest.mark.parametrize("row", [Price(10.0, 1.0), Row(price=10.0, cost=1.0)])
def test_a_named_tuple_of_other_names_is_refused(columns: str, row: Any) -> None:
    names = ", ".join(row_type(columns).names)
    with refused(UsageError, f"operator 'x' put out {row!r}", names) as told:
        writer_of(columns).taken([row])
    if names != "price":
        assert f"price, cost, and its columns are {names}: yield a plain tuple, tuple(row)" in str(told.value)


def test_a_row_of_spark_with_fewer_values_than_names_is_refused() -> None:
    with refused(UsageError, "Row(price=10.0)", "not 2 values (price, cost)"):
        writer_of("price double, cost double").taken([Row("price", "cost")(10.0)])


def test_a_named_tuple_of_one_value_is_taken_by_its_name_too() -> None:
    assert written("value double", Row(value=1.0)) == [1.0]
    with refused(UsageError, "a named tuple of price", "its columns are value", "tuple(row)"):
        written("value double", Row(price=1.0))


def test_a_row_without_a_class_goes_by_its_columns_whatever_python_calls_them() -> None:
    """A named tuple can have no value called `class`."""
    row = row_type("id long, class string, _at long").make(1, "a", 2)
    assert row._fields == ("id", "_1", "_2")
    assert writer_of("id long, class string, _at long").taken([row]) == [(1, "a", 2)]
    assert writer_of("_at long, id long, class string").taken([row]) == [(2, 1, "a")]
    with refused(UsageError, "a named tuple of id, class, _at", "its columns are id, kind, _at"):
        writer_of("id long, kind string, _at long").taken([row])


@pytest.mark.parametrize(
    "row",
    [
        {30.0, 3.0},
        frozenset({30.0, 3.0}),
        {1.0: 2, 2.0: 3}.keys(),
        range(2),
        iter([1.0, 2.0]),
        "ab",
        b"ab",
        5,
        None,
    ],
)
def test_what_is_neither_tuple_list_nor_dict_is_no_row(row: Any) -> None:
    with refused(UsageError, "operator 'x' put out", "not 2 values (a, b)", "a tuple, a list or a dict"):
        writer_of("a double, b double").taken([row])


def test_a_dict_that_lacks_a_column_is_refused() -> None:
    columns = writer_of("k long, n long, m long")
    assert columns.taken([{"m": None, "k": 1, "n": 2}]) == [(1, 2, None)]
    with refused(UsageError, "operator 'x' put out {'k': 1}", "lacks 'n', 'm'", "None where there is none"):
        columns.taken([{"k": 1}])
    with refused(UsageError, "lacks 'value'"):
        written("value double", {})


@pytest.mark.parametrize(
    ("kind", "value", "stored"),
    [
        ("boolean", True, True),
        ("tinyint", 1, 1),
        ("long", 1, 1),
        ("double", 2.5, 2.5),
        ("double", 2, 2.0),
        ("string", "abc", "abc"),
        ("string", "", ""),
        ("string", "x", "x"),
        ("binary", b"abc", b"abc"),
        ("date", date(2026, 1, 1), date(2026, 1, 1)),
        ("timestamp", NOON, NOON),
        ("decimal(10,2)", Decimal("1.50"), Decimal("1.50")),
        ("array<long>", [1, 2], [1, 2]),
        ("array<long>", [1], [1]),
        ("array<long>", [], []),
        ("array<array<long>>", [[1, 2]], [[1, 2]]),
        ("map<string,double>", {"a": 1.0}, [("a", 1.0)]),
        ("map<string,double>", {"value": 1.0}, [("value", 1.0)]),
        ("map<string,double>", {}, []),
        ("struct<x:long,y:long>", {"x": 1, "y": 2}, {"x": 1, "y": 2}),
        ("struct<x:long,y:long>", Point(1, 2), {"x": 1, "y": 2}),
        ("struct<x:long,y:long>", Spot(1, 2), {"x": 1, "y": 2}),
        ("array<struct<x:long,y:long>>", [Spot(1, 2)], [{"x": 1, "y": 2}]),
    ],
)
def test_a_single_column_takes_the_value_itself_or_a_row_of_one(kind: str, value: Any, stored: Any) -> None:
    assert written(f"value {kind}", value, (value,), {"value": value}, None, (None,)) == [
        stored, stored, stored, None, None,
    ]  # fmt: skip


def test_a_list_of_one_is_a_row_where_the_column_is_no_array() -> None:
    assert written("value double", [2.5], 3.5) == [2.5, 3.5]


@pytest.mark.parametrize(
    ("kind", "row", "message"),
    [
        ("double", (1.0, 2.0), r"which is not one value \(value\): put out the value itself"),
        ("double", (), "which is not one value"),
        ("double", "abc", "put out 'abc' in column 'value', which is a double"),
        ("double", {"price": 1.0}, "put out 'price', which it does not have: its columns are value"),
        ("array<long>", (1, 2), "which is not one value"),
        ("struct<x:long>", 5, "put out 5 in column 'value'"),
        ("long", 1.5, "it has a fraction"),
        ("timestamp", NOON.replace(tzinfo=None), "it has no time zone"),
    ],
)
def test_what_is_no_value_of_the_column_is_refused(kind: str, row: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        written(f"value {kind}", row)


def test_of_nested_values_the_one_that_does_not_fit_is_named() -> None:
    with refused(UsageError, "Spot(x='bad', y=2)", "column 'value'"):
        written("value struct<x:long,y:long>", Spot(1, 2), Spot("bad", 2))  # type: ignore[arg-type]


@pytest.mark.parametrize("rows", [[1], (1,), range(1), {1}, iter([1]), (n for n in [1])])
def test_many_rows_are_taken_as_they_come(rows: Any) -> None:
    assert list(returned("x", rows)) in ([1], [0])


@pytest.mark.parametrize(
    "row", ["abc", "", b"abc", {"a": 1}, Point(1, 2), Row(x=1, y=2), Spot(1, 2), 5, 2.5, NOON]
)
def test_one_row_is_not_taken_apart(row: Any) -> None:
    with refused(UsageError, "operator 'x'", "one value and not many rows"):
        returned("x", row)


def refusal(work: Any, rows: list[Any]) -> str:
    try:
        work(rows)
    except UsageError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("kind", ["long", "double", "boolean", "string", "timestamp", "int", "date"])
def test_a_check_refuses_what_a_write_refuses_and_nothing_else(kind: str) -> None:
    writer = writer_of(f"value {kind}")
    values = [
        None, True, 0, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 1.0, 1.5, float("nan"), float("inf"), "a", "ä", "\ud800",
        "", b"a", NOON, NOON.replace(tzinfo=None), NOON.replace(tzinfo=timezone(timedelta(hours=2))), date(2026, 1, 1),
        datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC), Decimal("1"), Decimal("1.5"),
    ]  # fmt: skip
    refused = 0
    for one in values:
        for rows in ([one], [one, None], [one, values[1]]):
            taken = writer.taken(rows)
            assert refusal(writer.check, taken) == refusal(writer.write, taken)
            refused += bool(refusal(writer.check, taken))
    assert 0 < refused < 3 * len(values)
