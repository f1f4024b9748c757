"""Decimals as floats and floats as decimals: the nearest one, as Python has it, whatever else Arrow's own cast makes of them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from stateflow.state.values.arrow.digits import cast_by_digits, doubles

SIZES = [(10, 2), (18, 6), (38, 18), (38, 0), (38, 37), (38, 38), (9, 9)]
MANY = 2000


def random_decimals(precision: int, scale: int) -> list[Decimal | None]:
    """Of all lengths, with nulls among them."""
    chance = random.Random(f"{precision} {scale}")
    found: list[Decimal | None] = [None, Decimal(0)]
    for _ in range(MANY):
        number = chance.randrange(10 ** chance.randrange(1, precision + 1)) * chance.choice((-1, 1))
        found.append(Decimal(f"{number}E-{scale}"))
    return found


def narrow(value: Decimal) -> float:
    """The nearest float of 32 bits, whose last bit decides between two that are as near."""
    rough = np.float32(float(value))
    near = (np.nextafter(rough, np.float32(-np.inf)), rough, np.nextafter(rough, np.float32(np.inf)))
    far = {each: abs(Fraction(float(each)) - Fraction(value)) for each in near}
    return float(min(near, key=lambda each: (far[each], each.view(np.uint32) & 1)))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("kind", "nearest"), [(pa.float64(), float), (pa.float32(), narrow)])
def test_a_decimal_becomes_the_nearest_float(
    size: tuple[int, int], kind: Any, nearest: Callable[[Decimal], float]
) -> None:
    values = random_decimals(*size)
    array, wanted = (
        pa.array(values, pa.decimal128(*size)),
        [None if value is None else nearest(value) for value in values],
    )
    assert cast_by_digits(array, kind).to_pylist() == wanted
    assert cast_by_digits(pa.chunked_array([array[:9], array[9:]]), kind).to_pylist() == wanted
    rows = pa.array([{"n": 1, "a": [[("x", values)]]}, None], shape(array.type))
    assert cast_by_digits(rows, shape(kind)).to_pylist() == [{"n": 1, "a": [[("x", wanted)]]}, None]


def shape(kind: Any) -> Any:
    return pa.struct({"n": pa.int64(), "a": pa.list_(pa.map_(pa.string(), pa.list_(kind)))})


@pytest.mark.parametrize("size", SIZES)
def test_a_number_becomes_the_nearest_double(size: tuple[int, int]) -> None:
    values = random_decimals(*size)
    array = pa.array(values, pa.decimal128(*size))
    assert doubles(array).to_pylist() == [None if value is None else float(value) for value in values]
    assert [doubles(each).as_py() for each in array[:9]] == doubles(array[:9]).to_pylist()
    assert doubles(pa.array([2**63 - 1, None])).to_pylist() == [float(2**63 - 1), None]
    assert doubles(pa.array([0.1], pa.float32())).to_pylist() == [float(np.float32(0.1))]


@pytest.mark.parametrize("size", [(10, 2), (18, 6), (38, 18)])
@pytest.mark.parametrize(("make", "kind"), [(float, pa.float64()), (np.float32, pa.float32())])
def test_a_float_becomes_the_decimal_that_it_is_written_as(
    size: tuple[int, int], make: Callable[[float], Any], kind: Any
) -> None:
    chance = random.Random(7)
    digits = min(size[1], 15 if make is float else 3)
    floats = [make(round(chance.uniform(-1000, 1000), digits)) for _ in range(MANY)]
    wanted = [Decimal(str(each)) for each in floats]
    array = pa.array(np.array(floats))
    assert array.type == kind
    assert cast_by_digits(array, pa.decimal128(*size)).to_pylist() == wanted
    lists = pa.ListArray.from_arrays([0, MANY], array)
    assert cast_by_digits(lists, pa.list_(pa.decimal128(*size))).to_pylist() == [wanted]


@pytest.mark.parametrize("text", ["1e22", "-1.5e-7", "-0", "1e-18", "5"])
def test_an_exponent_is_understood(text: str) -> None:
    [found] = cast_by_digits(pa.array([float(text)]), pa.decimal256(60, 18)).to_pylist()
    assert found == Decimal(text)
    [back] = cast_by_digits(pa.array([found]), pa.float64()).to_pylist()
    assert back == float(text)


def test_what_no_decimal_is_equal_to_is_rounded_or_refused_by_arrow() -> None:
    money = pa.decimal128(10, 2)
    assert cast_by_digits(pa.array([2.345, None]), money).to_pylist() == [Decimal("2.35"), None]
    for number in (1e9, math.nan, math.inf):
        with pytest.raises(pa.ArrowInvalid, match="Cannot convert"):
            cast_by_digits(pa.array([1.5, number]), money)


def test_other_types_are_cast_as_arrow_does() -> None:
    few = pa.array([Decimal("1.1"), None]).dictionary_encode()
    assert cast_by_digits(few, pa.float64()).to_pylist() == [1.1, None]
    assert cast_by_digits(pa.array(["a"]).dictionary_encode(), pa.string()).to_pylist() == ["a"]
    pair = pa.array([{"a": 1, "b": Decimal("1.1")}])
    wanted = pa.struct({"b": pa.float64(), "a": pa.int8()})
    assert cast_by_digits(pair, wanted).to_pylist() == [{"a": 1, "b": 1.1}]
    with pytest.raises(pa.ArrowInvalid, match="300"):
        cast_by_digits(pa.array([{"a": 300, "b": Decimal("1.1")}]), wanted)


def behind_a_null(hidden: Any, shown: Any, kind: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Arrays with a value that only Arrow sees, each with a type of such parts, and with the values that it has in that type."""
    parts, mask, offsets = pa.array([hidden, 606.8]), pa.array([True, False]), pa.array([0, 1, 2])
    record, record_kind = pa.StructArray.from_arrays([parts], ["x"], mask=mask), pa.struct({"x": kind})
    yield record, record_kind, [None, {"x": shown}]
    within = pa.StructArray.from_arrays([record], ["y"])
    yield within, pa.struct({"y": record_kind}), [{"y": None}, {"y": {"x": shown}}]
    for lists in (pa.ListArray, pa.LargeListArray):
        yield lists.from_arrays(offsets, parts, mask=mask), pa.list_(kind), [None, [shown]]
    yield pa.FixedSizeListArray.from_arrays(parts, 1, mask=mask), pa.list_(kind), [None, [shown]]
    yield pa.array([[hidden], [606.8]])[1:], pa.large_list(kind), [[shown]]
    pairs = pa.MapArray.from_arrays(offsets, ["a", "b"], parts, mask=mask)
    yield pairs, pa.map_(pa.string(), kind), [None, [("b", shown)]]
    yield pa.DictionaryArray.from_arrays(pa.array([None, 1]), parts), kind, [None, shown]


@pytest.mark.parametrize("hidden", [1e-30, 1 / 3000, math.nan, 1e300])
def test_what_lies_behind_a_null_changes_no_other_value(hidden: float) -> None:
    for array, kind, wanted in behind_a_null(hidden, Decimal("606.8"), pa.decimal128(38, 18)):
        assert cast_by_digits(array, kind).to_pylist() == wanted
        assert cast_by_digits(pa.chunked_array([array, array]), kind).to_pylist() == wanted * 2


def test_a_value_without_an_equal_decimal_leaves_its_neighbours_exact() -> None:
    floats = pa.array([1e-30, 606.8, None, 1e-7])
    found = cast_by_digits(floats, pa.decimal128(38, 18)).to_pylist()
    assert found == [0, Decimal("606.8"), None, Decimal("1e-7")]
