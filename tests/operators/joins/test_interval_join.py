"""When rows of an interval join leave, what they leave behind, and what its function may do."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from stateflow.errors import UserCodeError
from stateflow.operators.joins.waiting_rows import WaitingRows
from stateflow.pipelines.ready.joins import IntervalJoin, interval_join
from stateflow.pipelines.ready.operators import KeyedRows
from stateflow.pipelines.rows.row_type import row_type
from tests.operators.ready.driving import END, SECOND, Driven
from tests.refusals.refusal import refused

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


def declared(how: str, least: int, most: int, out: Any = OUT) -> IntervalJoin:
    within = timedelta(microseconds=least), timedelta(microseconds=most)
    return interval_join(
        KeyedRows("paid", row_type(LEFT_ROWS), ("ad", "site"), ()),
        KeyedRows("paid", row_type(RIGHT_ROWS), ("name", "place"), ()),
        LEFT_ROWS if how in ("semi", "anti") else out,
        times=("ts", "ts"), within=within, how=how,
    )  # fmt: skip


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
    with refused(UserCodeError, "join 'paid'", "('a', 1)", "ValueError: no such page"):
        driven.both(at(2), seen(2), None)


def lacking(left: Any, right: Any) -> Shown:
    return {"ad": left.ad, "pages": right.page}  # type: ignore[return-value]


def test_a_dict_of_the_function_that_lacks_a_column_is_refused() -> None:
    driven = Driven(declared("inner", 0, 0, lacking))
    with refused(UserCodeError, "join 'paid'", "'pages': '2'", "('a', 1)", "lacks 'page'"):
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


@pytest.mark.slow
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
