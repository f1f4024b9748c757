"""Rows of a window as bytes: what goes in comes out, with the columns that it was kept with."""

from __future__ import annotations

import msgspec
import pytest

from stateflow.operators.ready.aggregates.row_frames import framed, framed_rows, heading, runs_of_rows

TODAY = ("n", "text")


def rows(count: int, width: int = 1) -> list[bytes]:
    return [msgspec.msgpack.encode((n, "é" * (n % 5 * width))) for n in range(count)]


@pytest.mark.parametrize("count", [0, 1, 8191, 8192, 20_000])
@pytest.mark.parametrize("before", [b"", heading(TODAY)])
def test_rows_are_framed_together_as_one_by_one(count: int, before: bytes) -> None:
    made = framed_rows(rows(count), before)
    assert made.to_pylist() == [before + framed(row) for row in rows(count)]


def test_rows_with_the_same_columns_come_together() -> None:
    one, other = rows(3), rows(2, width=900)
    blob = b"".join(
        [
            *map(framed, one),
            heading(TODAY),
            *map(framed, other),
            heading(("old",)),
            *map(framed, one),
            heading(("old",)),
            *map(framed, other),
            heading(TODAY),
            framed(one[0]),
        ]
    )
    runs = [
        (TODAY, [*one, *other]),
        (("old",), [*one, *other]),
        (TODAY, [one[0]]),
    ]
    assert runs_of_rows([blob], TODAY) == (runs, [11])
    assert runs_of_rows([b""], TODAY) == ([], [0])
    # Rows without columns before them have today's, also behind a blob that ends with others.
    old = heading(("old",)) + framed(one[0])
    assert runs_of_rows([old, framed(one[1])], TODAY) == ([(("old",), [one[0]]), (TODAY, [one[1]])], [1, 1])
