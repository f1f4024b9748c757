"""A window join gives what DuckDB gives for the whole input, row for row, however it is cut into batches."""

from __future__ import annotations

import random
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import stateflow as sf
from stateflow.pipelines.ready.joins import HOWS, WindowJoin, window_join
from stateflow.pipelines.ready.operators import KeyedRows
from stateflow.pipelines.ready.windows import Session, Sliding, Window
from stateflow.pipelines.rows.row_type import row_type
from tests.operators.joins.driving import run
from tests.operators.ready.driving import SECOND, Driven

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
    on = in_windows(left, window, lateness, LEFT), in_windows(right, window, lateness, RIGHT)
    assert out_of(driven) == by_sql(how, *on, "l.w = r.w")
    closed = [r for r in (*left, *right) if r["mark"] is not None and last(r, window) <= r["mark"] - lateness]
    assert driven.counters.get("late_rows", 0) == len(closed)
    assert driven.entries() == 0


def last(row: dict[str, Any], window: Sliding) -> int:
    return int(row["ts"] - row["ts"] % window.every + window.size)


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


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("seed", range(2))
def test_rows_of_the_same_session_come_out_together_however_the_input_is_cut(seed: int, how: str) -> None:
    chance = random.Random(f"session{seed}{how}")
    left, right = (
        [
            {**row, "ts": row["ts"] * chance.choice((1, 3))}
            for row in rows(chance, chance.randrange(1, 60), name)
        ]
        for name in ("a", "b")
    )
    declared_join = declared(how, Session(GAP), chance.choice((0, 5)) * SECOND)
    # With this delay no row is late.
    driven = run(declared_join, left, right, (LEFT, RIGHT), chance, 200 * SECOND)
    assert out_of(driven) == by_sql(how, *in_sessions(left, right, (LEFT, RIGHT)), "l.s = r.s")
    assert driven.counters.get("late_rows", 0) == 0
    assert driven.entries() == 0


def not_late(given: list[dict[str, Any]], late: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    gone = {row[name] for row in late}
    return [row for row in given if row[name] not in gone]


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize(("seed", "late"), [(0, "lenient"), (0, "strict"), (1, "strict"), (2, "strict")])
def test_strict_windows_join_as_if_the_rows_that_were_not_late_had_come_at_once(
    seed: int, how: str, late: str
) -> None:
    chance = random.Random(f"strict{seed}{how}")
    left, right = rows(chance, 60, "a"), rows(chance, 60, "b")
    window, lateness = Sliding(9 * SECOND, 3 * SECOND), chance.choice((0, 5)) * SECOND
    driven = run(declared(how, window, lateness, late), left, right, (LEFT, RIGHT), chance, 0)
    kept = [
        not_late(given, driven.sides.get(f"late_{side}", []), name)
        for given, side, name in ((left, "left", "a"), (right, "right", "b"))
    ]
    partly = [
        row
        for row in (*kept[0], *kept[1])
        if row["mark"] is not None
        and row["ts"] - row["ts"] % window.every + window.every <= row["mark"] - lateness
    ]
    assert driven.counters.get("partly_late_rows", 0) == len(partly)
    if late == "strict":
        assert not partly
        kept = [[{**row, "mark": None} for row in side] for side in kept]
    on = in_windows(kept[0], window, lateness, LEFT), in_windows(kept[1], window, lateness, RIGHT)
    assert out_of(driven) == by_sql(how, *on, "l.w = r.w")


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize(("seed", "late"), [(0, "lenient"), (0, "strict"), (1, "strict")])
def test_strict_sessions_join_as_if_the_rows_that_were_not_late_had_come_at_once(
    seed: int, how: str, late: str
) -> None:
    chance = random.Random(f"strictly{seed}{how}")
    left, right = ([{**row, "ts": row["ts"] * 3} for row in rows(chance, 60, name)] for name in ("a", "b"))
    lateness, delay = chance.choice((0, 5)) * SECOND, chance.choice((0, 10, 60)) * SECOND
    driven = run(declared(how, Session(GAP), lateness, late), left, right, (LEFT, RIGHT), chance, delay)
    kept = [
        not_late(given, driven.sides.get(f"late_{side}", []), name)
        for given, side, name in ((left, "left", "a"), (right, "right", "b"))
    ]
    partly = driven.counters.get("partly_late_rows", 0)
    assert not (partly and late == "strict")
    assert driven.counters.get("late_rows", 0) == len(left) + len(right) - len(kept[0]) - len(kept[1])
    if partly:
        return  # a session is in parts then
    assert out_of(driven) == by_sql(how, *in_sessions(*kept, (LEFT, RIGHT)), "l.s = r.s")
    assert driven.entries() == 0


@pytest.mark.parametrize("seed", [0, 3, 4, 5, 8])
def test_no_row_of_a_session_join_gets_lost_when_rows_are_late(seed: int) -> None:
    chance = random.Random(f"late{seed}")
    left, right = ([{**row, "ts": row["ts"] * 3} for row in rows(chance, 60, name)] for name in ("a", "b"))
    driven = run(declared("full", Session(GAP), SECOND), left, right, (LEFT, RIGHT), chance, 0)
    late = {side: driven.sides.get(f"late_{side}", []) for side in ("left", "right")}
    for name, given, side in (("a", left, "left"), ("b", right, "right")):
        out = {row[name] for row in driven.rows if row[name] is not None}
        came_late = [row[name] for row in late[side]]
        assert len(came_late) == len(set(came_late))
        assert sorted(map(str, (*out, *came_late))) == sorted(str(row[name]) for row in given)
    assert driven.counters.get("late_rows", 0) == sum(map(len, late.values())) > 0
    # A row is late only when its own session, that of itself alone, is closed.
    by_number = {**{row["a"]: row for row in left}, **{row["b"]: row for row in right}}
    for row in (*late["left"], *late["right"]):
        given = by_number[row.get("a", row.get("b"))]
        assert given["ts"] + GAP <= given["mark"] - SECOND
    assert driven.entries() == 0


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
    with pytest.raises(
        sf.UsageError, match=r"windows of a count are those of one input: .*sf.session\(\) windows"
    ):
        declared("inner", sf.count_window(3), 0)
