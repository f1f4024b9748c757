"""Windows and waits that would be over only after the last instant there is: a job that is drained closes them, too. Windows that
would have begun before the first one come out as well.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

import stateflow as sf
from stateflow.format.instants import BEGIN_OF_TIME
from tests.operators.ready.driving import END, SECOND, Driven

LAST = datetime.max.replace(tzinfo=UTC)
DAY = datetime(9999, 12, 31, tzinfo=UTC)
NOON = DAY + timedelta(hours=12)
ROWS = "k long, ts timestamp, v long"


class Sizes(sf.WindowProcess[int, Any, Any]):
    def process(self, key: int, window: Any, rows: list[Any], ctx: Any) -> list[dict[str, Any]]:
        return [{"k": key, "window_start": window.start, "window_end": window.end, "n": len(rows)}]


def windows(window: Any, emit: str = "final", **options: Any) -> Callable[[sf.Stream], sf.Stream]:
    output = "k long, window_start timestamp, window_end timestamp, n long"

    def declare(rows: sf.Stream) -> sf.Stream:
        cut = rows.key_by("k").window(window, **options)
        if emit == "process":
            return cut.process("op", Sizes, output=output)
        return cut.aggregate("op", output, emit=emit, n=sf.count())

    return declare


def table(*rows: dict[str, Any]) -> pa.Table:
    columns = {"k": pa.int64(), "ts": pa.timestamp("us", tz="UTC"), "v": pa.int64()}
    return pa.Table.from_pylist(list(rows), pa.schema(columns))


def drained(declare: Callable[..., sf.Stream], *batches: tuple[pa.Table, ...]) -> list[dict[str, Any]]:
    """What a job puts out at its end. Then nothing is left that it would wait for."""
    flow = sf.Flow("flow")
    inputs = [
        flow.source(uid, sf.delta(f"/{uid}"), ROWS, event_time="ts", watermark="1 second")
        for uid in ("left", "right")[: len(batches[0])]
    ]
    declare(*inputs)
    driven = Driven.of(flow.operators[0], 2)
    nothing = tuple(each.slice(0, 0) for each in batches[0])
    run = driven.both if len(nothing) == 2 else driven.batch
    for batch in batches:
        assert run(*batch, None) == []
    out = run(*nothing, END)
    assert driven.entries() == 0
    driven.close()
    return out


WINDOWS: list[tuple[Any, list[tuple[datetime, datetime]]]] = [
    (sf.tumbling("1 day"), [(DAY, LAST)]),
    (sf.cumulative("1 day", "6 hours"), [(DAY, DAY + timedelta(hours=18)), (DAY, LAST)]),
    (sf.hopping("2 days", "1 day"), [(DAY - timedelta(days=1), LAST), (DAY, LAST)]),
    (sf.session("1 day"), [(NOON, LAST)]),
    (sf.count_window(2), [(NOON, NOON)]),
]


@pytest.mark.parametrize("lateness", ["0 seconds", "2 days"])
@pytest.mark.parametrize(
    ("window", "spans", "emit"),
    [
        *((*each, emit) for each in WINDOWS for emit in ("final", "process")),
        *((*each, "on_time") for each in WINDOWS[:3]),
    ],
)
def test_a_window_of_the_last_day_comes_out(window: Any, spans: Any, emit: str, lateness: str) -> None:
    out = drained(windows(window, emit, lateness=lateness), (table({"k": 1, "ts": NOON, "v": 1}),))
    found = [(row["k"], row["window_start"], row["window_end"], row["n"]) for row in out]
    assert sorted(found) == [(1, *span, 1) for span in spans]


FIRST = datetime.min.replace(tzinfo=UTC)
BEFORE_ALL = BEGIN_OF_TIME - 600 * SECOND


def after_first(days: int) -> datetime:
    return FIRST + timedelta(days=days)


FIRST_WINDOWS: list[tuple[Any, list[tuple[datetime, datetime]]]] = [
    (sf.tumbling("7 days"), [(FIRST, after_first(3))]),
    (sf.cumulative("7 days", "1 day"), [(FIRST, after_first(n)) for n in (1, 2, 3)]),
    (sf.hopping("2 days", "1 day"), [(FIRST, after_first(1)), (FIRST, after_first(2))]),
    (sf.session("1 day"), [(FIRST, after_first(1))]),
    (sf.count_window(1), [(FIRST, FIRST)]),
]


@pytest.mark.parametrize(
    ("window", "spans", "emit"),
    [
        *((*each, emit) for each in FIRST_WINDOWS for emit in ("final", "process")),
        *((*each, emit) for each in FIRST_WINDOWS[:3] for emit in ("changes", "on_time")),
    ],
)
def test_a_window_of_the_first_day_comes_out(window: Any, spans: Any, emit: str) -> None:
    """The watermark of its batch is before the first instant, which no datetime can be."""
    flow = sf.Flow("flow")
    rows = flow.source("left", sf.delta("/left"), ROWS, event_time="ts", watermark="10 minutes")
    windows(window, emit)(rows)
    driven = Driven.of(flow.operators[0])
    out = driven.batch(table({"k": 1, "ts": FIRST, "v": 1}), BEFORE_ALL)
    out += driven.batch(table(), END)
    found = [(row["k"], row["window_start"], row["window_end"], row["n"]) for row in out]
    assert sorted(found) == [(1, *span, 1) for span in spans]
    driven.close()


def test_a_pair_in_a_window_of_the_first_day_comes_out() -> None:
    output = "k long, window_start timestamp, window_end timestamp, left_v long, right_v long"
    row = table({"k": 1, "ts": FIRST, "v": 1})
    [pair] = drained(
        lambda one, other: (
            one.key_by("k").window(sf.tumbling("7 days")).join("op", other.key_by("k"), output)
        ),
        (row, row),
    )
    assert (pair["window_start"], pair["window_end"]) == (FIRST, after_first(3))


JOINED = "k long, left_v long, right_v long"
JOINS: dict[str, Callable[[sf.KeyedStream, sf.KeyedStream], sf.Stream]] = {
    "interval": lambda left, right: left.join("op", right, JOINED, within=("0 days", "2 days"), how="full"),
    "earlier": lambda left, right: left.join("op", right, JOINED, within=("-2 days", "-1 days"), how="full"),
    "windows": lambda left, right: left.window(sf.tumbling("1 day"), lateness="2 days").join(
        "op", right, JOINED, how="full"
    ),
    "sessions": lambda left, right: left.window(sf.session("1 day"), lateness="2 days").join(
        "op", right, JOINED, how="full"
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", JOINS)
def test_a_row_of_the_last_day_without_a_partner_comes_out(way: str) -> None:
    left, right = table({"k": 1, "ts": NOON, "v": 1}), table({"k": 2, "ts": NOON, "v": 2})
    out = drained(lambda one, other: JOINS[way](one.key_by("k"), other.key_by("k")), (left, right))
    assert sorted((row["k"], row["left_v"], row["right_v"]) for row in out) == [(1, 1, None), (2, None, 2)]


def test_versions_that_are_kept_beyond_the_end_of_time_go() -> None:
    left, right = table(), table({"k": 1, "ts": NOON, "v": 2})
    out = drained(
        lambda one, other: one.key_by("k").join_asof("op", other.key_by("k"), JOINED, keep="2 days"), (left, right)
    )  # fmt: skip
    assert out == []


def test_windows_that_begin_apart_stay_apart_where_both_end_with_time() -> None:
    flow = sf.Flow("flow")
    rows = flow.source("left", sf.delta("/left"), ROWS, event_time="ts", watermark="1 second")
    windows(sf.hopping("2 days", "1 day"), "changes")(rows)
    driven = Driven.of(flow.operators[0])
    out = driven.batch(table({"k": 1, "ts": NOON, "v": 1}), None)
    assert sorted(row["window_start"] for row in out) == [DAY - timedelta(days=1), DAY]
    assert {row["window_end"] for row in out} == {LAST}
    driven.close()
