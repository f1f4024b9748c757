"""A window join gives what DuckDB gives for the whole input, row for row, however it is cut into batches."""

from __future__ import annotations

import random
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import stateflow as sf
from stateflow.pipelines.joins import HOWS, WindowJoin, window_join
from stateflow.pipelines.ready import KeyedRows
from stateflow.pipelines.rows import row_type
from stateflow.pipelines.windows import Sliding, Window
from tests.operators.joins.driving import SECOND, DrivenJoin, run

INSTANT = pa.timestamp("us", "UTC")
LEFT = pa.schema([("k", pa.string()), ("a", pa.int64()), ("ts", INSTANT)])
RIGHT = pa.schema([("k", pa.string()), ("b", pa.string()), ("ts", INSTANT)])
LEFT_ROWS, RIGHT_ROWS = "k string, a bigint, ts timestamp", "k string, b string, ts timestamp"
OUT = "k string, window_end timestamp, a bigint, left_ts timestamp, b string, right_ts timestamp"
ALONE = "k string, window_end timestamp, a bigint, left_ts timestamp"
LEFTS = KeyedRows("together", row_type(LEFT_ROWS), ("k",), ())
RIGHTS = KeyedRows("together", row_type(RIGHT_ROWS), ("k",), ())


def declared(how: str, window: Window, lateness: int) -> WindowJoin:
    return window_join(
        LEFTS, RIGHTS, ALONE if how in ("semi", "anti") else OUT, times=("ts", "ts"), window=window, lateness=lateness, how=how
    )  # fmt: skip


def rows(chance: random.Random, count: int, name: str) -> list[dict[str, Any]]:
    return [
        {
            "k": chance.choice(("x", "y", None)),
            name: n if name == "a" else str(n),
            "ts": (n // 2 + chance.randrange(15)) * SECOND,
        }
        for n in range(count)
    ]


def in_windows(rows: list[dict[str, Any]], window: Sliding, lateness: int, schema: Any) -> pa.Table:
    """Each row in each of its windows that was open when it came."""
    made = [
        {**row, "w": end}
        for row in rows
        for end in range(
            row["ts"] - row["ts"] % window.every + window.every, row["ts"] + window.size + 1, window.every
        )
        if row["mark"] is None or end > row["mark"] - lateness
    ]
    return pa.Table.from_pylist(made, schema.append(pa.field("w", pa.int64())))


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("seed", range(3))
def test_rows_of_the_same_window_come_out_together_however_the_input_is_cut(seed: int, how: str) -> None:
    chance = random.Random(f"{seed}{how}")
    left, right = rows(chance, chance.randrange(1, 60), "a"), rows(chance, chance.randrange(1, 60), "b")
    size, every = chance.choice(((10, 10), (9, 3), (1, 1)))
    window, lateness = Sliding(size * SECOND, every * SECOND), chance.choice((0, 5)) * SECOND
    driven = run(
        declared(how, window, lateness),
        left,
        right,
        (LEFT, RIGHT),
        chance,
        chance.choice((0, 4, 30)) * SECOND,
    )
    selected = "coalesce(l.k, r.k), coalesce(l.w, r.w), a, epoch_us(l.ts), b, epoch_us(r.ts)"
    if how in ("semi", "anti"):
        selected = "l.k, l.w, a, epoch_us(l.ts)"
    with duckdb.connect() as engine:
        engine.register("lefts", in_windows(left, window, lateness, LEFT))
        engine.register("rights", in_windows(right, window, lateness, RIGHT))
        word = {"full": "full outer"}.get(how, how)
        found = engine.sql(
            f"select {selected} from lefts l {word} join rights r on l.k = r.k and l.w = r.w"
        ).fetchall()
    assert sorted(map(plain, (row.values() for row in driven.rows))) == sorted(map(repr, map(list, found)))
    closed = [r for r in (*left, *right) if r["mark"] is not None and last(r, window) <= r["mark"] - lateness]
    assert driven.counters.get("late_rows", 0) == len(closed)
    assert driven.entries() == 0


def last(row: dict[str, Any], window: Sliding) -> int:
    return int(row["ts"] - row["ts"] % window.every + window.size)


def plain(row: Any) -> str:
    return repr([round(each.timestamp() * 1e6) if hasattr(each, "timestamp") else each for each in row])


def test_a_pair_comes_out_when_the_watermark_has_closed_its_window() -> None:
    driven = DrivenJoin(declared("inner", Sliding(10 * SECOND, 10 * SECOND), 5 * SECOND))
    left = pa.Table.from_pylist([{"k": "x", "a": 1, "ts": 3 * SECOND}], LEFT)
    right = pa.Table.from_pylist([{"k": "x", "b": "b", "ts": 9 * SECOND}], RIGHT)
    assert driven.both(left, RIGHT.empty_table(), None) == []
    assert driven.both(LEFT.empty_table(), right, 14 * SECOND) == []
    assert driven.both(LEFT.empty_table(), RIGHT.empty_table(), 15 * SECOND - 1) == []
    assert len(driven.both(LEFT.empty_table(), RIGHT.empty_table(), 15 * SECOND)) == 1


def test_sessions_of_two_inputs_are_refused() -> None:
    with pytest.raises(
        sf.UsageError, match=r"join 'together': the sessions of two inputs grow together .* within="
    ):
        declared("inner", sf.session("1 minute"), 0)
