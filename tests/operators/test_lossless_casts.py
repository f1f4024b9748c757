"""Tables of columnar code whose columns are of other types than the output's: what a cast would change without a word is refused."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import stateflow as sf
from stateflow.state.values.arrow import lossless_casts
from stateflow.state.values.arrow.lossless_casts import check_cast
from stateflow.testing import ColumnarHarness
from tests.refusals.refusal import refused

INSTANT = pa.timestamp("us", "UTC")
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
POINT = pa.struct([("x", pa.int64()), ("y", pa.int64())])


def records(*names: str) -> pa.Array:
    return pa.array([dict.fromkeys(names, 5)])


LOSSY = [
    (records("x", "yy"), POINT), (records("x"), POINT), (records("x", "y", "z"), POINT), (records("X", "y"), POINT),
    (pa.array([1e300]), pa.float32()), (pa.array([-3.5e38]), pa.float32()), (pa.array(["1e300"]), pa.float32()),
    (pa.array(["1e400"]), pa.float64()),
    (pa.array([NOON], INSTANT), pa.date32()), (pa.array([NOON.replace(tzinfo=None)], pa.timestamp("ns")), pa.date32()),
    (pa.array([5]), INSTANT), (pa.array([5]), pa.timestamp("us")), (pa.array([5], pa.int32()), pa.date32()),
    (pa.array([NOON], INSTANT), pa.int64()), (pa.array([date(2026, 1, 1)]), pa.int32()),
    (pa.array([5]), pa.bool_()), (pa.array([0.5]), pa.bool_()), (pa.array([2.345]), pa.decimal128(10, 2)),
    (pa.array([1e-60]), pa.float32()), (pa.array([-1e-60]), pa.float32()), (pa.array(["1e-400"]), pa.float64()),
    (pa.array(["-0.0001e-60"]), pa.float32()), (pa.array([Decimal("12345678901234567890.12")]), pa.float64()),
    (pa.array([Decimal("16777217")]), pa.float32()), (pa.array([Decimal("9" * 38)]), pa.float64()),
]  # fmt: skip
SAME = [
    (pa.array([{"y": 2, "x": 1}]), POINT), (pa.array([{"x": None, "y": 2}]), POINT), (pa.array([None]), POINT),
    (pa.array([5], pa.int32()), pa.int64()), (pa.array([5]), pa.float64()), (pa.array([5], pa.int32()), pa.float64()),
    (pa.array(["tea"]), pa.large_string()), (pa.array(["tea"], pa.large_string()), pa.string()),
    (pa.array([b"tea"], pa.large_binary()), pa.binary()), (pa.array(["1.5"]), pa.float64()),
    (pa.array([1.5]), pa.float32()), (pa.array([float("inf")]), pa.float32()), (pa.array(["-Infinity"]), pa.float32()),
    (pa.array([float("nan")]), pa.float32()), (pa.array([1.5], pa.float32()), pa.float64()),
    (pa.array([Decimal("1.50")]), pa.decimal128(38, 18)), (pa.array([Decimal(5)]), pa.int64()),
    (pa.array([Decimal("1.5")]), pa.float32()), (pa.array([1.1]), pa.decimal128(10, 2)), (pa.array([5]), pa.decimal128(38, 2)),
    (pa.array([date(2026, 1, 1)]), INSTANT), (pa.array([NOON.replace(tzinfo=None)]), INSTANT),
    (pa.array([NOON], pa.timestamp("ms", "UTC")), INSTANT), (pa.array([date(2026, 1, 1)], pa.date64()), pa.date32()),
    (pa.array([0.0, -0.0][1:]), pa.float32()), (pa.array([0.1]), pa.float32()), (pa.array([1e-40]), pa.float32()),
    (pa.array(["0"]), pa.float32()), (pa.array(["-0.00e5"]), pa.float32()), (pa.array(["0E-10"]), pa.float64()), (pa.array([False]), pa.float32()),
    (pa.array([Decimal("1.1")], pa.decimal128(38, 18)), pa.float64()), (pa.array([Decimal("0.1")]), pa.float32()),
    (pa.array([Decimal("0.00")]), pa.float32()), (pa.array([Decimal("1e20")], pa.decimal128(38, 2)), pa.float32()),
    (pa.array([606.8]), pa.decimal128(10, 2)), (pa.array([-606.8]), pa.decimal128(38, 18)), (pa.array([94.8356], pa.float32()), pa.decimal128(10, 4)),
    (pa.array([Decimal("46980911.48")]), pa.float64()), (pa.array([Decimal("94.8356")]), pa.float32()),
]  # fmt: skip


def inside(array: pa.Array, wanted: Any) -> list[tuple[pa.Array, Any]]:
    """The value bare, and in everything that can have it."""
    kind = array.type
    ways = [
        (kind, wanted, lambda value: value),
        (pa.list_(kind), pa.list_(wanted), lambda value: [value]),
        (pa.large_list(kind), pa.list_(wanted), lambda value: [value]),
        (pa.list_(kind, 1), pa.list_(wanted), lambda value: [value]),
        (pa.map_(pa.string(), kind), pa.map_(pa.string(), wanted), lambda value: [("a", value)]),
        (pa.struct([("a", kind)]), pa.struct([("a", wanted)]), lambda value: {"a": value}),
        (
            pa.struct([("a", pa.list_(pa.map_(pa.string(), pa.list_(kind))))]),
            pa.struct([("a", pa.list_(pa.map_(pa.string(), pa.list_(wanted))))]),
            lambda value: {"a": [[("a", [value])]]},
        ),
    ]
    [value] = array.to_pylist()
    return [(pa.array([within(value)], held), of) for held, of, within in ways]


@pytest.mark.parametrize(("array", "wanted"), [each for lossy in LOSSY for each in inside(*lossy)])
def test_what_a_cast_would_change_is_refused_wherever_it_is(array: pa.Array, wanted: Any) -> None:
    nothing = pa.nulls(1, array.type)
    for column in (array, pa.concat_arrays([nothing, array, nothing])[1:]):
        with pytest.raises((TypeError, ValueError)) as caught:
            check_cast(pa.chunked_array([nothing, column]), wanted)
        assert not isinstance(caught.value, pa.ArrowException)


@pytest.mark.parametrize(("array", "wanted"), [each for same in SAME for each in inside(*same)])
def test_what_stays_the_same_is_taken(array: pa.Array, wanted: Any) -> None:
    check_cast(pa.chunked_array([pa.nulls(1, array.type), array]), wanted)
    check_cast(pa.chunked_array([], array.type), wanted)


@pytest.mark.parametrize("way", range(len(inside(pa.array([1e300]), pa.float32()))))
def test_a_value_outside_of_a_slice_is_none_of_its_own(way: int) -> None:
    (large, wanted), (small, _) = (inside(pa.array([n]), pa.float32())[way] for n in (1e300, 1.5))
    among = pa.concat_arrays([large, small, large])
    check_cast(pa.chunked_array([among[1:2]]), wanted)
    with refused(ValueError, "1e+300", "double"):
        check_cast(pa.chunked_array([among[1:]]), wanted)


def test_a_column_of_few_values_is_looked_at_by_them() -> None:
    with refused(ValueError, "1e+300", "double"):
        check_cast(pa.chunked_array([pa.array([1.5, 1e300]).dictionary_encode()]), pa.float32())


def test_a_key_of_a_map_is_looked_at() -> None:
    column = pa.chunked_array([pa.array([[(1e300, "a")]], pa.map_(pa.float64(), pa.string()))])
    with refused(ValueError, "1e+300", "double"):
        check_cast(column, pa.map_(pa.float32(), pa.string()))


def test_a_column_of_the_same_type_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lossless_casts, "pc", None)
    check_cast(pa.chunked_array([pa.array([1e300])]), pa.float64())
    check_cast(pa.chunked_array([records("x", "y")]), POINT)


LARGE = sf.Output("large", "user long, x date")


def put_out(column: pa.Array, kind: str, *, to_side: bool = False) -> list[Any]:
    """What columnar code puts out that has this column for a column of this type."""

    def code(rows: pa.Table, state: Any, ctx: sf.ColumnarContext) -> Any:
        table = pa.table({"user": rows["user"], "x": column})
        return ("large", table) if to_side else table

    harness = ColumnarHarness(
        code, "user long", key="user", state={"n": int}, output=f"user long, x {kind}", outputs=[LARGE]
    )
    harness.rows({"user": 1})
    return [row["x"] for row in harness.output]


def test_a_table_is_refused_with_operator_and_column_and_the_next_step_works() -> None:
    with refused(sf.UsageError, "operator 'code'", "'x'", "x, yy", "x, y;", "or None"):
        put_out(records("x", "yy"), "struct<x:long,y:long>")
    assert put_out(pa.array([{"x": 5, "y": None}]), "struct<x:long,y:long>") == [{"x": 5, "y": None}]

    with refused(sf.UsageError, "operator 'code'", "'x'", "1e+300", "double"):
        put_out(pa.array([1e300]), "float")
    assert put_out(pa.array([1e300]), "double") == [1e300]
    with refused(sf.UsageError, "'1e400'", "string"):
        put_out(pa.array(["1e400"]), "double")
    assert put_out(pa.array(["1e400"]), "string") == ["1e400"]

    with refused(sf.UsageError, "'x'", "1e-60", "double"):
        put_out(pa.array([1e-60]), "float")
    assert put_out(pa.array([1e-60]), "double") == [1e-60]
    exact = Decimal("12345678901234567890.12")
    with refused(sf.UsageError, "'x'", f"{exact}", "decimal(22,2)", ".cast(pa.string()).cast(pa.float64())"):
        put_out(pa.array([exact]), "double")
    assert put_out(pa.array([exact]), "decimal(22,2)") == [exact]
    assert put_out(pa.array([exact]).cast(pa.string()).cast(pa.float64()), "double") == [float(exact)]

    noon = pa.array([NOON], INSTANT)
    with refused(sf.UsageError, "operator 'code'", "'x'", ".cast(pa.date32())", "as timestamp"):
        put_out(noon, "date")
    assert put_out(noon.cast(pa.date32()), "date") == [NOON.date()]
    assert put_out(noon, "timestamp") == [NOON]
    with refused(sf.UsageError, "operator 'code', side output 'large'", "'x'", ".cast(pa.date32())"):
        put_out(noon, "date", to_side=True)


@pytest.mark.parametrize("size", [(10, 2), (18, 6), (38, 18)])
def test_money_is_the_same_number_as_a_decimal_and_as_a_float(size: tuple[int, int]) -> None:
    chance = random.Random(7)
    money = [Decimal(chance.randrange(-(10**9), 10**9)).scaleb(-2) for _ in range(2000)]
    floats, decimals = list(map(float, money)), f"array<decimal({size[0]},{size[1]})>"
    assert put_out(pa.array([money], pa.list_(pa.decimal128(*size))), "array<double>") == [floats]
    assert put_out(pa.array([floats]), decimals) == [money]
    rounded = pc.round(pa.array([chance.uniform(-(10**6), 10**6) for _ in range(2000)]), ndigits=2)
    assert put_out(pa.array([rounded.to_pylist()]), decimals) == [
        [Decimal(f"{each}") for each in rounded.to_pylist()]
    ]


def test_a_time_is_no_number_and_a_number_no_bool_until_the_code_says_so() -> None:
    noon = pa.array([NOON], INSTANT)
    with refused(sf.UsageError, "'x'", ".cast(pa.timestamp('s'))", ".cast(pa.int64())"):
        put_out(noon, "long")
    assert put_out(noon.cast(pa.timestamp("s")).cast(pa.int64()), "long") == [int(NOON.timestamp())]
    with refused(sf.UsageError, "'x'", ".cast(pa.bool_())"):
        put_out(pa.array([5]), "boolean")
    assert put_out(pa.array([5]).cast(pa.bool_()), "boolean") == [True]
    with refused(sf.UsageError, "'x'", "2.345", "ndigits=2", "double"):
        put_out(pa.array([2.345]), "decimal(10,2)")
    assert put_out(pc.round(pa.array([2.346]), ndigits=2), "decimal(10,2)") == [Decimal("2.35")]


def test_a_table_that_the_harness_is_given_is_held_against_its_columns_alike() -> None:
    harness = ColumnarHarness(
        lambda rows, state, ctx: rows,
        "user long, x struct<a:long>",
        key="user",
        state={"n": int},
        output="user long, x struct<a:long>",
    )
    with refused(sf.UsageError, "'x'", "aa"):
        harness.rows(pa.table({"user": [1], "x": [{"aa": 5}]}))


def test_a_decimal_that_the_harness_is_given_for_a_double_is_the_nearest_one() -> None:
    harness = ColumnarHarness(
        lambda rows, state, ctx: rows,
        "user long, x double",
        key="user",
        state={"n": int},
        output="user long, x double",
    )
    harness.rows(pa.table({"user": [1], "x": [Decimal("46980911.48")]}))
    assert harness.output == [{"user": 1, "x": 46980911.48}]


@pytest.mark.parametrize("kind", [pa.int8(), pa.int32(), pa.int64(), pa.uint32()])
def test_a_number_is_no_time_until_the_code_says_which(kind: Any) -> None:
    number = pa.array([100], kind)
    with refused(sf.UsageError, "'x'", ".cast(pa.int64())", "pa.timestamp('s', 'UTC')"):
        put_out(number, "timestamp")
    assert put_out(number.cast(pa.int64()).cast(pa.timestamp("s", "UTC")), "timestamp") == [
        datetime(1970, 1, 1, 0, 1, 40, tzinfo=UTC)
    ]
    with refused(sf.UsageError, "'x'", ".cast(pa.int32())", ".cast(pa.date32())"):
        put_out(number, "date")
    assert put_out(number.cast(pa.int32()).cast(pa.date32()), "date") == [date(1970, 4, 11)]


def test_what_arrow_refuses_itself_is_still_refused_so() -> None:
    with refused(sf.UsageError, "operator 'code'", "does not fit its output", "1.5"):
        put_out(pa.array([1.5]), "long")
    with refused(sf.UsageError, "operator 'code'", "does not fit its output", "'tea'"):
        put_out(pa.array(["tea"]), "float")


def test_a_record_that_is_null_may_hold_anything() -> None:
    record = pa.StructArray.from_arrays([pa.array([1e300])], ["a"], mask=pa.array([True]))
    assert put_out(record, "struct<a:float>") == [None]


@pytest.mark.parametrize("views", [pa.list_view, pa.large_list_view])
def test_views_of_lists_which_arrow_does_not_cast_whole_are_refused(views: Any) -> None:
    column = pa.chunked_array([pa.array([[1.5, 2.5], [3.5]], views(pa.float64()))])
    with refused(TypeError, "views of lists", "pa.array(column.to_pylist())"):
        check_cast(column, pa.list_(pa.float64()))
    check_cast(pa.chunked_array([pa.array(column.to_pylist())]), pa.list_(pa.float64()))
