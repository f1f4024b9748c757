"""What user code puts out: one column takes bare values of every type, several take rows."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, NamedTuple

import pytest

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


def written(output: Any, *rows: Any) -> list[Any]:
    declared = row_type(output)
    writer = RowWriter(declared, arrow_schema_of(declared), "operator 'x'")
    batch = writer.write(writer.taken(rows))
    return [row["value"] for row in batch.to_pylist()]


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


@pytest.mark.parametrize("row", ["abc", "", b"abc", {"a": 1}, Point(1, 2), Spot(1, 2), 5, 2.5, NOON])
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
    declared = row_type(f"value {kind}")
    writer = RowWriter(declared, arrow_schema_of(declared), "operator 'x'")
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
