"""Texts and bytes inside of ready-made operators: one Arrow array of theirs may hold more than 2 GiB."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import stateflow as sf
from stateflow.operators import arrow_types, columnar
from stateflow.operators.arrow_types import narrow_pieces
from stateflow.operators.joins.row_blocks import RowBlocks, Rows
from stateflow.pipelines.changes import OPERATION
from stateflow.state.columns.state import ColumnState
from stateflow.testing import ColumnarHarness
from tests.long_form import BEFORE_A_RELEASE

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
ROWS = "user string, sku string, raw binary, n long, ts timestamp"
OUT = "user string, window_start timestamp, first_sku string, last_raw binary, most string, kinds long"


def rows_of(flow: Any, name: str = "in", columns: str = ROWS) -> Any:
    return flow.source(name, sf.delta(f"/{name}"), columns, event_time="ts", watermark="0 seconds")


def keyed(flow: Any) -> Any:
    return rows_of(flow).key_by("user", order_by="ts")


def windowed(flow: Any, window: Any, emit: str = "final") -> Any:
    return keyed(flow).window(window).aggregate(
        "op", OUT, emit=emit, first_sku=sf.first("sku"), last_raw=sf.last("raw"), most=sf.max("sku"),
        kinds=sf.count_distinct("sku"),
    )  # fmt: skip


def hopping(flow: Any) -> Any:
    return keyed(flow).window(sf.hopping(DAY, HOUR)).aggregate(
        "op", "user string, window_start timestamp, first_sku string, about long", first_sku=sf.first("sku"),
        about=sf.count_distinct("sku", approximate=True),
    )  # fmt: skip


def running(flow: Any) -> Any:
    return keyed(flow).aggregate(
        "op", "user string, first_sku string, all_skus array<string>, often array<string>, middle double",
        first_sku=sf.first("sku"), all_skus=sf.collect("sku", limit=3), often=sf.top_values("sku", 2),
        middle=sf.quantile("n", 0.5),
    )  # fmt: skip


def joined(flow: Any, window: Any = None) -> Any:
    rows = rows_of(flow).key_by("user")
    left = rows if window is None else rows.window(window)
    right = rows_of(flow, "right", "user string, name string, ts timestamp").key_by("user")
    how = {"within": ("-1 hour", "1 hour")} if window is None else {}
    return left.join("op", right, "user string, sku string, raw binary, name string", how="left", **how)


ONE_INPUT: dict[str, Callable[[Any], Any]] = {
    "tumbling windows": lambda flow: windowed(flow, sf.tumbling(HOUR)),
    "windows on every change": lambda flow: windowed(flow, sf.tumbling(HOUR), "changes"),
    "windows in panes": hopping,
    "sessions": lambda flow: keyed(flow).window(sf.session(HOUR)).aggregate(
        "op", "user string, window_start timestamp, first_sku string", first_sku=sf.first("sku")
    ),
    "totals": running,
    "latest": lambda flow: keyed(flow).latest("op"),
    "top": lambda flow: keyed(flow).top("op", 2, by="sku"),
    "deduplicated": lambda flow: rows_of(flow).deduplicate("op", by=("user", "sku"), within=HOUR),
}  # fmt: skip
TWO_INPUTS: dict[str, Callable[[Any], Any]] = {
    "interval join": joined,
    "window join": lambda flow: joined(flow, sf.tumbling(HOUR)),
    "session join": lambda flow: joined(flow, sf.session(HOUR)),
}


def harness(declare: Callable[[Any], Any]) -> ColumnarHarness:
    @sf.pipeline("wide")
    def pipeline(flow: Any) -> None:
        declare(flow)

    return ColumnarHarness.of(pipeline.build(), "op")


@pytest.mark.parametrize("what", [*ONE_INPUT, *TWO_INPUTS])
def test_no_column_of_texts_is_narrow_on_its_way_through_an_operator(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    narrow: list[str] = []

    def look(where: str, table: Any) -> None:
        for name, kind in zip(table.schema.names, table.schema.types, strict=True):
            if kind in (pa.string(), pa.binary()) and name != OPERATION:
                narrow.append(f"{where} {name}")

    put = ColumnState.put

    def watched(self: ColumnState, keys: Any, values: Any = None, **how: Any) -> None:
        for where, table in (("key", keys), ("value", values), ("by", how.get("by"))):
            if table is not None:
                look(where, table)
        put(self, keys, values, **how)

    def pieces(table: pa.Table) -> Any:
        look("output", table)
        return narrow_pieces(table)

    monkeypatch.setattr(ColumnState, "put", watched)
    monkeypatch.setattr(columnar, "narrow_pieces", pieces)
    came: list[dict[str, Any]] = [
        {"user": user, "sku": sku, "raw": sku.encode(), "n": 1, "ts": NOON + place * timedelta(minutes=1)}
        for place, (user, sku) in enumerate([("ann", "tea"), ("bob", "oil"), ("ann", "rum")])
    ]
    run = harness({**ONE_INPUT, **TWO_INPUTS}[what])
    out: list[Any] = []
    for _ in range(2):
        if what in ONE_INPUT:
            out += run.rows(*came)
        else:
            out += run.both(came, [{"user": "ann", "name": "Ann", "ts": NOON}])
    out += run.advance(NOON + 3 * DAY)
    assert out
    assert narrow == []


def test_a_table_that_is_too_large_for_one_is_put_out_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_types, "PIECE_BYTES", 1000)
    texts = [f"{number:>20}" for number in range(1000)]
    pieces = list(narrow_pieces(pa.table({"text": pa.array(texts, pa.large_string())})))
    assert [text for piece in pieces for text in piece["text"].to_pylist()] == texts
    assert len(pieces) > 20
    # Arrow casts a slice only if the array that it is of would fit.
    assert all(piece["text"].chunk(0).offset == 0 for piece in pieces)


def as_it_is(values: Any) -> tuple[Any, Any]:
    return values, pa.binary()


def in_lists(values: Any) -> tuple[Any, Any]:
    return pa.ListArray.from_arrays(range(len(values) + 1), values), pa.list_(pa.binary())


def in_records(values: Any) -> tuple[Any, Any]:
    return pa.StructArray.from_arrays([values], ["a"]), pa.struct([("a", pa.binary())])


@pytest.mark.parametrize("within", [as_it_is, in_lists, in_records])
def test_a_slice_from_behind_two_gib_of_bytes_is_put_out(within: Callable[[Any], tuple[Any, Any]]) -> None:
    """Bytes that nobody reads take no memory."""
    count, size = 3000, 1 << 20
    raw = np.zeros(count * size, dtype=np.uint8)
    raw[-size:] = 7
    bounds = pa.py_buffer(np.arange(count + 1, dtype=np.int64) * size)
    values = pa.Array.from_buffers(pa.large_binary(), count, [None, bounds, pa.py_buffer(raw)])
    column, kind = within(values)
    [piece] = narrow_pieces(pa.table({"x": column}).slice(count - 2))
    narrow = piece.cast(pa.schema([("x", kind)]))
    there, _ = within(pa.array([bytes(size), bytes([7]) * size]))
    assert narrow["x"].to_pylist() == there.to_pylist()


@BEFORE_A_RELEASE
@pytest.mark.slow
def test_an_operator_takes_a_table_with_more_than_two_gib_of_texts() -> None:
    count, times = 20_000, 99
    text = pa.array(["x" * 1100] * count)
    numbers = pa.array(np.arange(count))
    table = pa.table(
        {
            name: pa.chunked_array([column] * times)
            for name, column in (("k", numbers), ("o", numbers), ("s", text))
        }
    )
    assert table.nbytes > 1 << 31
    run = harness(
        lambda flow: (
            flow.source("in", sf.delta("/in"), "k long, o long, s string")
            .key_by("k", order_by="o")
            .latest("op")
        )
    )
    assert len(run.rows(table)) == count


def test_rows_of_a_join_are_kept_in_wide_blocks() -> None:
    rows = Rows(
        np.zeros(2, dtype=np.int64), np.zeros(2, dtype=bool), pa.table({"s": ["a", "b"], "n": [1, 2]})
    )
    written = RowBlocks([("s", "string"), ("n", "long")]).write(rows, np.array([1, 2]))
    assert (written.rows.type, written.texts.type) == (pa.large_binary(), pa.large_binary())


@BEFORE_A_RELEASE
@pytest.mark.slow
def test_rows_of_a_join_are_kept_in_more_than_four_gib() -> None:
    count, width = 1_100_000, 500
    layout = RowBlocks([(f"c{number}", "double") for number in range(width)])
    zeros = pa.array(np.zeros(count))
    rows = Rows(
        np.zeros(count, dtype=np.int64), np.zeros(count, dtype=bool),
        pa.table({f"c{number}": zeros for number in range(width)}),
    )  # fmt: skip
    ends = np.arange(1000, count + 1, 1000)
    lengths = pc.binary_length(layout.write(rows, ends).rows)
    assert pc.sum(lengths).as_py() > 1 << 32
    assert lengths.unique().to_pylist() == [lengths[0].as_py()]
