"""When pairs of a window come out, and when a row of a session is late; with what DuckDB gives for joins of windows."""

from __future__ import annotations

from typing import Any

import duckdb
import pyarrow as pa

import stateflow as sf
from stateflow.pipelines.ready.joins import WindowJoin, window_join
from stateflow.pipelines.ready.operators import KeyedRows
from stateflow.pipelines.ready.windows import Session, Sliding, Window
from stateflow.pipelines.rows.row_type import row_type
from tests.operators.ready.driving import SECOND, Driven
from tests.refusals.refusal import refused

INSTANT = pa.timestamp("us", "UTC")
LEFT = pa.schema([("k", pa.string()), ("a", pa.int64()), ("ts", INSTANT)])
RIGHT = pa.schema([("k", pa.string()), ("b", pa.string()), ("ts", INSTANT)])
LEFT_ROWS, RIGHT_ROWS = "k string, a bigint, ts timestamp", "k string, b string, ts timestamp"
OUT = "k string, window_end timestamp, a bigint, left_ts timestamp, b string, right_ts timestamp"
ALONE = "k string, window_end timestamp, a bigint, left_ts timestamp"
LEFTS = KeyedRows("together", row_type(LEFT_ROWS), ("k",), ())
RIGHTS = KeyedRows("together", row_type(RIGHT_ROWS), ("k",), ())


def declared(how: str, window: Window, lateness: int, late: str = "lenient") -> WindowJoin:
    return window_join(
        LEFTS, RIGHTS, ALONE if how in ("semi", "anti") else OUT, times=("ts", "ts"), window=window, lateness=lateness, how=how,
        late=late,
    )  # fmt: skip


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


OF_PAIRS = "coalesce(l.k, r.k), coalesce(l.w, r.w), a, epoch_us(l.ts), b, epoch_us(r.ts)"


def by_sql(
    how: str, lefts: pa.Table, rights: pa.Table, on: str, pair: str = OF_PAIRS, alone: str = "l.k, l.w, a, epoch_us(l.ts)"
) -> list[str]:  # fmt: skip
    """What DuckDB selects of such a join."""
    columns, word = (alone, how) if how in ("semi", "anti") else (pair, {"full": "full outer"}.get(how, how))
    with duckdb.connect() as engine:
        engine.execute("set timezone = 'UTC'")
        engine.register("lefts", lefts)
        engine.register("rights", rights)
        found = engine.sql(f"select {columns} from lefts l {word} join rights r on l.k = r.k and {on}")
        return sorted(repr(list(row)) for row in found.fetchall())


def out_of(driven: Driven) -> list[str]:
    return sorted(plain(row.values()) for row in driven.rows)


def plain(row: Any) -> str:
    return repr([round(each.timestamp() * 1e6) if hasattr(each, "timestamp") else each for each in row])


def test_a_pair_comes_out_when_the_watermark_has_closed_its_window() -> None:
    driven = Driven(declared("inner", Sliding(10 * SECOND, 10 * SECOND), 5 * SECOND))
    left = pa.Table.from_pylist([{"k": "x", "a": 1, "ts": 3 * SECOND}], LEFT)
    right = pa.Table.from_pylist([{"k": "x", "b": "b", "ts": 9 * SECOND}], RIGHT)
    assert driven.both(left, RIGHT.empty_table(), None) == []
    assert driven.both(LEFT.empty_table(), right, 14 * SECOND) == []
    assert driven.both(LEFT.empty_table(), RIGHT.empty_table(), 15 * SECOND - 1) == []
    assert len(driven.both(LEFT.empty_table(), RIGHT.empty_table(), 15 * SECOND)) == 1


def of_sessions(rows: list[dict[str, Any]], schema: Any, ends: list[tuple[str, int, int]]) -> pa.Table:
    """Each row with the session that it is in, which is a row's own where it has no key."""
    made = []
    for row in rows:
        begin, end = next(
            ((b, e) for key, b, e in ends if key == row["k"] and b <= row["ts"] < e),
            (row["ts"], row["ts"] + GAP),
        )
        made.append({**row, "s": begin, "w": end})
    return pa.Table.from_pylist(
        made, schema.append(pa.field("s", pa.int64())).append(pa.field("w", pa.int64()))
    )


GAP = 3 * SECOND
SESSIONS = f"""
    select k, min(epoch_us(ts)), max(epoch_us(ts)) + {GAP} from (
        select *, sum(new) over (partition by k order by ts) as number from (
            select *, (coalesce(epoch_us(ts) - epoch_us(lag(ts) over (partition by k order by ts)), 1e9) > {GAP})::int as new
            from (select k, ts from lefts where k is not null union all select k, ts from rights where k is not null)))
    group by k, number"""


def in_sessions(
    left: list[dict[str, Any]], right: list[dict[str, Any]], schemas: tuple[Any, Any]
) -> tuple[pa.Table, pa.Table]:
    with duckdb.connect() as engine:
        for name, rows, schema in zip(("lefts", "rights"), (left, right), schemas, strict=True):
            engine.register(name, pa.Table.from_pylist(rows, schema))
        ends = engine.sql(SESSIONS).fetchall()
    return of_sessions(left, schemas[0], ends), of_sessions(right, schemas[1], ends)


def test_a_row_between_two_sessions_makes_one_of_them() -> None:
    driven = Driven(declared("inner", Session(GAP), 0))
    nobody = RIGHT.empty_table()
    two = pa.Table.from_pylist([{"k": "x", "a": 1, "ts": 0}, {"k": "x", "a": 2, "ts": 5 * SECOND}], LEFT)
    between = pa.Table.from_pylist([{"k": "x", "b": "b", "ts": 3 * SECOND}], RIGHT)
    assert driven.both(two, nobody, None) == []
    assert driven.both(LEFT.empty_table(), between, None) == []
    assert driven.both(LEFT.empty_table(), nobody, 8 * SECOND - 1) == []
    assert sorted(row["a"] for row in driven.both(LEFT.empty_table(), nobody, 8 * SECOND)) == [1, 2]
    assert driven.entries() == 0


def test_a_row_is_late_from_the_very_watermark_that_closes_its_session() -> None:
    driven = Driven(declared("left", Session(GAP), 2 * SECOND))
    rows = [{"k": "x", "a": 1, "ts": 5 * SECOND}, {"k": "y", "a": 2, "ts": 5 * SECOND + 1}]
    # Each row without a key is a session of its own, and comes out at once.
    rows += [{"k": None, "a": 3, "ts": 5 * SECOND}, {"k": None, "a": 4, "ts": 5 * SECOND + 1}]
    left = pa.Table.from_pylist(rows, LEFT)
    at_once = driven.both(left, RIGHT.empty_table(), 5 * SECOND + GAP + 2 * SECOND)
    assert [row["a"] for row in at_once] == [4]
    assert sorted(row["a"] for row in driven.sides["late_left"]) == [1, 3]
    out = driven.both(LEFT.empty_table(), RIGHT.empty_table(), 5 * SECOND + GAP + 2 * SECOND + 1)
    assert [row["a"] for row in out] == [2]


def test_windows_of_a_count_are_refused() -> None:
    with refused(sf.UsageError, "windows of a count", "sf.session() windows"):
        declared("inner", sf.count_window(3), 0)
