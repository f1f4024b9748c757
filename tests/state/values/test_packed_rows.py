"""Rows as MessagePack arrays, against msgspec, which wrote them before and reads them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow.state.keys.arrow_types import ARROW
from stateflow.state.values.arrow.packed_rows import packed_rows

EDGES = sorted({sign * (1 << bits) + near for bits in range(63) for sign in (1, -1) for near in (-1, 0, 1)})
SECONDS = [0, -1, (1 << 32) - 1, 1 << 32, (1 << 34) - 1, 1 << 34]
LONG = ["", "é", "a" * 31, "a" * 32, "b" * 255, "b" * 256, "c" * 65_535, "c" * 65_536]
VALUES: dict[str, list[Any]] = {
    "bool": [True, False],
    "int": [*EDGES, (1 << 63) - 1, -(1 << 63)],
    "float": [0.0, -0.0, 1.5, float("inf"), float("-inf")],
    "datetime": [
        datetime.min.replace(tzinfo=UTC),
        datetime.max.replace(tzinfo=UTC),
        *(datetime.fromtimestamp(second, UTC).replace(microsecond=m) for second in SECONDS for m in (0, 7)),
    ],
    "str": LONG,
    "bytes": [text.encode() for text in LONG],
}
ANY: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "int": st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-300, 300),
    "float": st.floats(allow_nan=False),
    "datetime": st.datetimes(timezones=st.just(UTC)),
    "str": st.text(max_size=40),
    "bytes": st.binary(max_size=40),
}


def by_msgspec(head: bytes, rows: list[tuple[Any, ...]]) -> list[bytes]:
    return [head + b"".join(map(msgspec.msgpack.encode, row)) for row in rows]


def by_columns(head: bytes, names: list[str], rows: list[tuple[Any, ...]]) -> list[bytes]:
    columns = [pa.array([row[place] for row in rows], ARROW[name]) for place, name in enumerate(names)]
    return packed_rows(head, columns, len(rows))


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("nulls", [(), (None,)])
def test_each_value_is_written_as_msgspec_writes_it(name: str, nulls: tuple[None, ...]) -> None:
    rows = [(value,) for value in (*VALUES[name], *nulls)]
    assert by_columns(b"\x0b\x91", [name], rows) == by_msgspec(b"\x0b\x91", rows)


@given(st.data())
def test_rows_of_any_columns_are_written_as_msgspec_writes_them(data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(list(ANY)), min_size=1, max_size=6))
    row = st.tuples(*(st.none() | ANY[name] for name in names))
    rows = data.draw(st.lists(row, max_size=8))
    assert by_columns(b"\x0b", names, rows) == by_msgspec(b"\x0b", rows)


def test_parts_of_arrays_are_written_as_their_own_values() -> None:
    columns = [pa.array(["a", None, "ccc", "d"]).slice(1, 2), pa.array([1, 2, None, 4]).slice(1, 2)]
    assert packed_rows(b"", columns, 2) == by_msgspec(b"", [(None, 2), ("ccc", None)])


def test_an_instant_that_no_datetime_can_hold_is_refused() -> None:
    late = pa.array([1 << 62]).view(ARROW["datetime"])
    with pytest.raises(ValueError, match="outside of the years 1 to 9999"):
        packed_rows(b"", [late], 1)
