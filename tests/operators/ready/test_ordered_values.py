"""Values as numbers in their order, and rows in the order of such numbers."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow.operators.ready.grouping.ordered_values import codes, in_order, largest, ranks, smallest

NUMBERS = st.integers(-3, 3) | st.integers(-(1 << 63), (1 << 63) - 1) | st.sampled_from([-(1 << 40), 1 << 40])


@given(st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), max_size=20), st.integers(1, 3))
def test_rows_come_by_the_first_code_then_the_next_and_those_alike_as_they_were(
    rows: list[tuple[int, int, int]], width: int
) -> None:
    order, begins = in_order([np.array([row[k] for row in rows], dtype=np.int64) for k in range(width)])
    expected = sorted(range(len(rows)), key=lambda place: rows[place][:width])
    assert order.tolist() == expected
    alike = [rows[place][:width] for place in expected]
    assert begins.tolist() == [k == 0 or alike[k] != alike[k - 1] for k in range(len(rows))]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([5, -3, None, 5, 1 << 40, -3]),
        pa.array([-(1 << 63), (1 << 63) - 1, 0, None]),
        pa.array([(1 << 63) - 1, (1 << 63) - 2]),
        pa.array([-(1 << 63), None, 1 - (1 << 63)]),
        pa.array([float("nan"), None, -0.0, 0.0, float("-inf")]),
        pa.array(["b", "a", None, "", "b"]),
        pa.array([True, None, False]),
        pa.array([datetime(9999, 1, 1, tzinfo=UTC), None, datetime(1, 1, 1, tzinfo=UTC)], pa.timestamp("us", "UTC")),
        pa.array([None, None], pa.int64()),
        pa.array([], pa.int64()),
    ],
    ids=str,
)  # fmt: skip
def test_codes_tell_which_value_is_lower_as_ranks_do(column: Any) -> None:
    assert (
        np.unique(codes(column), return_inverse=True)[1].tolist()
        == np.unique(ranks(column), return_inverse=True)[1].tolist()
    )


NAN = float("nan")


@pytest.mark.parametrize(
    ("values", "least", "most"),
    [
        ([[1.5, -2.0], [NAN, 3.0, NAN], [NAN, NAN]], [-2.0, 3.0, NAN], [1.5, NAN, NAN]),
        ([[math.inf, NAN], [-math.inf]], [math.inf, -math.inf], [NAN, -math.inf]),
        ([[0.5] * 100 + [NAN]] * 3, [0.5] * 3, [NAN] * 3),
    ],
)
@pytest.mark.filterwarnings("error")
def test_nan_is_above_all_numbers_and_no_warning(
    values: list[list[float]], least: list[float], most: list[float]
) -> None:
    numbers = np.array([value for group in values for value in group])
    ids = np.repeat(np.arange(len(values)), [len(group) for group in values])
    for found, wanted in (
        (smallest(numbers, ids, len(values)), least),
        (largest(numbers, ids, len(values)), most),
    ):
        np.testing.assert_array_equal(found, wanted)
