"""An interval join gives what DuckDB gives for the whole input, row for row, however it is cut into batches."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from stateflow.errors import UserCodeError
from stateflow.operators.joins.waiting_rows import WaitingRows
from stateflow.pipelines.ready.joins import HOWS, IntervalJoin, interval_join
from stateflow.pipelines.ready.operators import KeyedRows
from stateflow.pipelines.rows.row_type import row_type
from tests.operators.joins.driving import is_late, run
from tests.operators.ready.driving import END, SECOND, Driven

INSTANT = pa.timestamp("us", "UTC")
LEFT = pa.schema(
    [("ad", pa.string()), ("site", pa.int32()), ("price", pa.decimal128(9, 2)), ("note", pa.string()), ("ts", INSTANT)]
)  # fmt: skip
RIGHT = pa.schema(
    [
        ("name", pa.string()), ("place", pa.int32()), ("is_new", pa.bool_()), ("day", pa.date32()), ("score", pa.float32()),
        ("page", pa.string()), ("raw", pa.binary()), ("ts", INSTANT),
    ]
)  # fmt: skip
LEFT_ROWS = "ad string, site int, price decimal(9,2), note string, ts timestamp"
RIGHT_ROWS = (
    "name string, place int, is_new boolean, day date, score float, page string, raw binary, ts timestamp"
)
OUT = (
    "ad string, site int, right_name string, price decimal(9,2), note string, left_ts timestamp, is_new boolean, day date, "
    "score float, page string, raw binary, right_ts timestamp"
)
SELECTED = "ad, site, name, price, note, l.ts as left_ts, is_new, day, score, page, raw, r.ts as right_ts"


def declared(how: str, least: int, most: int, out: Any = OUT) -> IntervalJoin:
    within = timedelta(microseconds=least), timedelta(microseconds=most)
    return interval_join(
        KeyedRows("paid", row_type(LEFT_ROWS), ("ad", "site"), ()),
        KeyedRows("paid", row_type(RIGHT_ROWS), ("name", "place"), ()),
        LEFT_ROWS if how in ("semi", "anti") else out,
        times=("ts", "ts"), within=within, how=how,
    )  # fmt: skip


def moment(chance: random.Random, number: int) -> int | None:
    return None if chance.random() < 0.02 else max(0, number // 2 + chance.randrange(-8, 8)) * SECOND


def clicks(chance: random.Random, count: int) -> list[dict[str, Any]]:
    return [
        {
            "ad": chance.choice(("a", "b", "", None)),
            "site": chance.choice((1, 2, 2, None)) if chance.random() < 0.2 else 1,
            "price": chance.choice((None, Decimal("1.50"), Decimal("-20.25"))),
            "note": chance.choice((None, "", "äö", "long" * 9)),
            "ts": moment(chance, number),
        }
        for number in range(count)
    ]


def views(chance: random.Random, count: int) -> list[dict[str, Any]]:
    return [
        {
            "name": chance.choice(("a", "b", "", None)),
            "place": chance.choice((1, 1, 2)),
            "is_new": chance.choice((None, True, False)),
            "day": chance.choice((None, date(1969, 7, 20), date(2026, 1, 2))),
            "score": chance.choice((None, 0.5, -3.25)),
            "page": chance.choice((None, "/", "/a")),
            "raw": chance.choice((None, b"", b"\x00\xff")),
            "ts": moment(chance, number),
        }
        for number in range(count)
    ]


def in_time(rows: list[dict[str, Any]], schema: Any) -> pa.Table:
    return pa.Table.from_pylist([row for row in rows if not is_late(row)], schema)


def wanted(left: pa.Table, right: pa.Table, how: str, least: int, most: int) -> list[str]:
    words = {"full": "full outer"}.get(how, how)
    columns = "l.*" if how in ("semi", "anti") else SELECTED
    apart = f"epoch_us(r.ts) - epoch_us(l.ts) between {least} and {most}"
    with duckdb.connect() as engine:
        engine.execute("set timezone = 'UTC'")
        engine.register("lefts", left)
        engine.register("rights", right)
        found = engine.sql(
            f"select {columns} from lefts l {words} join rights r on ad = name and site = place and {apart}"
        )
        return sorted(repr(tuple(row.values())) for row in _typed(found.to_arrow_table()).to_pylist())


def _typed(table: pa.Table) -> pa.Table:
    return table.cast(
        pa.schema(
            [pa.field(f.name, INSTANT if pa.types.is_timestamp(f.type) else f.type) for f in table.schema]
        )
    )


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("seed", range(4))
def test_what_comes_out_is_what_an_sql_engine_gives_for_the_whole_input(seed: int, how: str) -> None:
    chance = random.Random(f"{seed}{how}")
    left, right = clicks(chance, chance.randrange(1, 80)), views(chance, chance.randrange(1, 80))
    least = chance.choice((-600, -10, 0, 3)) * SECOND
    most = least + chance.choice((0, 1, 10, 700)) * SECOND
    delay = chance.choice((0, 4, 40)) * SECOND
    driven = run(declared(how, least, most), left, right, (LEFT, RIGHT), chance, delay)
    found = sorted(repr(tuple(row.values())) for row in driven.rows)
    assert found == wanted(in_time(left, LEFT), in_time(right, RIGHT), how, least, most)
    late = {"late_left": left, "late_right": right}
    for name, rows in late.items():
        assert len(driven.sides.get(name, [])) == sum(map(is_late, rows))
    assert driven.counters.get("late_rows", 0) == sum(map(is_late, [*left, *right]))
    assert driven.entries() == 0, "when the watermark has passed everything, nothing waits"


def at(*seconds: float) -> pa.Table:
    rows = [{"ad": "a", "site": 1, "note": f"{s:g}", "ts": int(s * SECOND)} for s in seconds]
    return pa.Table.from_pylist(rows, LEFT)


def seen(*seconds: float) -> pa.Table:
    rows = [{"name": "a", "place": 1, "page": f"{s:g}", "ts": int(s * SECOND)} for s in seconds]
    return pa.Table.from_pylist(rows, RIGHT)


def test_a_row_leaves_with_the_watermark_after_which_no_partner_can_come_and_not_later() -> None:
    driven = Driven(declared("full", -10 * SECOND, 0))
    driven.both(at(100, 120), seen(95, 130), None)
    assert [(row["note"], row["page"]) for row in driven.rows] == [("100", "95")]
    assert driven.both(at(), seen(), 120 * SECOND - 1) == []
    assert [row["note"] for row in driven.both(at(), seen(), 120 * SECOND)] == ["120"]
    assert driven.both(at(), seen(), 140 * SECOND - 1) == []
    assert driven.entries() == 2, "the block of the right row, and when it is due"
    assert [row["page"] for row in driven.both(at(), seen(), 140 * SECOND)] == ["130"]
    assert driven.entries() == 0


def test_a_row_that_comes_after_a_later_one_of_its_block_still_leaves_first() -> None:
    driven = Driven(declared("left", -600 * SECOND, 0))
    driven.both(at(130), seen(), None)
    driven.both(at(120), seen(), 100 * SECOND)
    assert [row["note"] for row in driven.both(at(), seen(), 120 * SECOND)] == ["120"]


@dataclass
class Shown:
    ad: str
    page: str


def joined(left: Any, right: Any) -> Shown:
    if right.page == "2":
        raise ValueError("no such page")
    return Shown(left.ad, right.page)


def test_an_error_of_the_function_names_the_join_and_the_key() -> None:
    driven = Driven(declared("inner", 0, 0, joined))
    with pytest.raises(
        UserCodeError, match=r"join 'paid' failed on key \('a', 1\): ValueError: no such page"
    ):
        driven.both(at(2), seen(2), None)


@pytest.mark.parametrize("how", ["inner", "semi"])
def test_a_block_of_rows_that_nobody_asks_for_any_more_is_deleted_unread(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    driven = Driven(declared(how, -10 * SECOND, 0))
    driven.both(at(121, 127), seen(125), None)
    monkeypatch.setattr(WaitingRows, "read", lambda *arguments: pytest.fail("read"))
    assert driven.both(at(), seen(), 140 * SECOND) == []
    assert driven.entries() == 0


def test_a_row_of_a_semi_join_leaves_with_the_batch_that_brings_its_partner() -> None:
    driven = Driven(declared("semi", -10 * SECOND, 0))
    driven.both(at(100), seen(), None)
    assert [row["note"] for row in driven.both(at(), seen(95), None)] == ["100"]
    assert driven.entries() == 3, "the block of the right row, when it is due, and when the left one was"
    assert driven.both(at(), seen(96), None) == []


def test_a_row_of_an_inner_join_waits_until_no_partner_can_come() -> None:
    driven = Driven(declared("inner", -10 * SECOND, 0))
    driven.both(at(121), seen(125, 129), None)
    driven.both(at(), seen(), 134 * SECOND)
    assert [(row["note"], row["page"]) for row in driven.both(at(135), seen(), 134 * SECOND)] == [("135", "125"), ("135", "129")]  # fmt: skip
    driven.both(at(), seen(), 138 * SECOND)
    assert [row["page"] for row in driven.both(at(139), seen(), 138 * SECOND)] == ["129"]
    driven.both(at(), seen(), 139 * SECOND)
    assert driven.entries() == 0


HORIZON = 13
"""Seconds in which the rows of the next test lie."""


@pytest.mark.parametrize("left_first", [True, False])
@pytest.mark.parametrize("bounds", [(-5, 0), (0, 5), (-5, -2), (2, 5), (-3, 4), (0, 0), (-1, 0), (0, 1)])
def test_two_rows_within_the_bounds_meet_whichever_came_first_and_however_far_the_watermark_is(
    bounds: tuple[int, int], left_first: bool
) -> None:
    """A key for every two instants, one row of each input: the first waits, the second comes behind some watermark."""
    least, most = (bound * SECOND for bound in bounds)
    instants = [(one, other) for one in range(HORIZON) for other in range(HORIZON)]
    lefts = [{"ad": f"{one}/{other}", "site": 1, "ts": one * SECOND} for one, other in instants]
    rights = [{"name": f"{one}/{other}", "place": 1, "ts": other * SECOND} for one, other in instants]
    nobody = LEFT.empty_table(), RIGHT.empty_table()
    for watermark in (None, 0, 3, 4, 5, 6, 9):
        driven = Driven(declared("full", least, most))
        mark = None if watermark is None else watermark * SECOND
        sides = [pa.Table.from_pylist(lefts, LEFT), pa.Table.from_pylist(rights, RIGHT)]
        if left_first:
            driven.both(sides[0], nobody[1], None)
            driven.both(nobody[0], sides[1], mark)
        else:
            driven.both(nobody[0], sides[1], None)
            driven.both(sides[0], nobody[1], mark)
        driven.both(*nobody, END)
        out, alone = [], []
        for one, other in instants:
            is_late = watermark is not None and (other if left_first else one) <= watermark
            key = f"{one}/{other}"
            if is_late:
                alone.append((key, None) if left_first else (None, key))
            elif bounds[0] <= other - one <= bounds[1]:
                out.append((key, key))
            else:
                alone += [(key, None), (None, key)]
        found = [(row["left_ts"] and row["ad"], row["right_ts"] and row["right_name"]) for row in driven.rows]
        assert sorted(map(repr, found)) == sorted(map(repr, out + alone)), f"watermark {watermark}"
