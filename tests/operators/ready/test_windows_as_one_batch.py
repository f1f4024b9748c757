"""Windows, running aggregates and deduplication give what a computation over the whole input gives, however it is cut."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

import stateflow.pipelines.ready.aggregates as aggregate
from stateflow.pipelines.ready import windows
from stateflow.pipelines.ready.operators import KeyedRows, ReadyOperator, running_aggregate, window_aggregate
from stateflow.pipelines.rows.row_type import row_type
from tests.operators.ready.driving import END, Driven

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SECOND = 1_000_000


@dataclass
class Event:
    user: int
    shop: str
    amount: float
    quantity: int
    name: str
    paid: bool
    day: int
    ts: datetime


@dataclass
class Total:
    user: int
    shop: str
    n: int
    amounts: int
    total: float
    quantity: int
    least: float
    most: str
    average: float
    spread: float
    opened: str
    closed: float
    paid: int
    letters: str


@dataclass
class PerWindow(Total):
    window_start: datetime
    window_end: datetime


def with_letters(letters: set[str], name: str) -> set[str]:
    return letters | set(name)


def in_order(letters: set[str]) -> str:
    return "".join(sorted(letters))


AGGREGATES = {
    "n": aggregate.count(),
    "amounts": aggregate.count("amount"),
    "total": aggregate.sum("amount"),
    "quantity": aggregate.sum("quantity"),
    "least": aggregate.min("amount"),
    "most": aggregate.max("name"),
    "average": aggregate.mean("quantity"),
    "spread": aggregate.stddev("amount"),
    "opened": aggregate.first("name"),
    "closed": aggregate.last("amount"),
    "paid": aggregate.sum("quantity", where="paid"),
    "letters": aggregate.aggregate(
        "name", create=set, add=with_letters, merge=set.union, result=in_order, state=set[str], output=str
    ),
}


def keyed(order_by: tuple[str, ...] = ("ts", "-day")) -> KeyedRows:
    return KeyedRows("op", row_type(Event), ("user", "shop"), order_by)


def events(seed: int, count: int = 300) -> list[dict[str, Any]]:
    """In an order that is roughly that of time. Amounts are quarters, so that their sums are exact."""
    chance = random.Random(seed)
    out = []
    for number in range(count):
        at = number * SECOND // 2 + chance.randrange(-20, 20) * SECOND + chance.choice((0, 0, 1, SECOND - 1))
        out.append(
            {
                "user": chance.randrange(4),
                "shop": chance.choice("ab"),
                "amount": None if chance.random() < 0.3 else chance.randrange(-40, 40) / 4,
                "quantity": chance.randrange(-5, 5),
                "name": chance.choice(("", "é", "ab", "b", None)),
                "paid": chance.choice((True, False, None)),
                "day": chance.randrange(3),
                "ts": max(at, 0),
            }
        )
    return out


SCHEMA = pa.schema(
    [
        ("user", pa.int64()), ("shop", pa.string()), ("amount", pa.float64()), ("quantity", pa.int64()),
        ("name", pa.string()), ("paid", pa.bool_()), ("day", pa.int64()), ("ts", pa.timestamp("us", "UTC")),
    ]
)  # fmt: skip


def table(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, SCHEMA)


def expected(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The aggregates of some rows, by hand."""

    def values(column: str) -> list[Any]:
        return [row[column] for row in rows if row[column] is not None]

    def placed(column: str, last: bool) -> Any:
        filled = [row for row in rows if row[column] is not None]
        chosen = sorted(filled, key=lambda row: (row["ts"], -row["day"], row[column]))
        return chosen[-1 if last else 0][column] if chosen else None

    amounts = values("amount")
    mean = sum(amounts) / len(amounts) if amounts else 0.0
    squares = sum((a - mean) ** 2 for a in amounts)
    paid = [row["quantity"] for row in rows if row["paid"]]
    return {
        "n": len(rows),
        "amounts": len(amounts),
        "total": sum(amounts) if amounts else None,
        "quantity": sum(values("quantity")),
        "least": min(amounts, default=None),
        "most": max(values("name"), default=None),
        "average": sum(values("quantity")) / len(rows),
        "spread": (squares / (len(amounts) - 1)) ** 0.5 if len(amounts) > 1 else None,
        "opened": placed("name", False),
        "closed": placed("amount", True),
        "paid": sum(paid) if paid else None,
        "letters": in_order({letter for name in values("name") for letter in name}),
    }


def rounded(row: dict[str, Any]) -> dict[str, Any]:
    """A deviation is computed in another order of rows, and may differ in its last digits."""
    spread = row["spread"]
    return {**row, "spread": None if spread is None else round(spread, 9)}


def by_key(rows: list[dict[str, Any]]) -> dict[Any, list[dict[str, Any]]]:
    out: dict[Any, list[dict[str, Any]]] = {}
    for row in rows:
        out.setdefault((row["user"], row["shop"]), []).append(row)
    return out


def cut(rows: list[dict[str, Any]], chance: random.Random) -> list[list[dict[str, Any]]]:
    places = sorted(chance.randrange(len(rows)) for _ in range(chance.randrange(12)))
    return [rows[a:b] for a, b in zip([0, *places], [*places, len(rows)], strict=True)]


class Run:
    """Batches of random size, with shards that split and join. The watermark follows the rows of the batches before."""

    def __init__(self, declared: ReadyOperator, seed: int, delay: int) -> None:
        self.chance = random.Random(seed)
        self.driven = Driven(declared, self.chance.randrange(1, 4))
        self.late: list[dict[str, Any]] = []
        self.marks: list[int | None] = []
        self._delay = delay

    def over(self, rows: list[dict[str, Any]]) -> Driven:
        newest: int | None = None
        for part in cut(rows, self.chance):
            mark = None if newest is None else newest - self._delay
            self.marks.append(mark)
            self.driven.batch(table(part) if part else None, mark, self.chance.randrange(1, 4))
            for row in part:
                row["mark"] = mark
            newest = max([row["ts"] for row in part] + ([newest] if newest is not None else []), default=None)
            if self.chance.random() < 0.3:
                self.driven.rescale(self.chance.randrange(1, 5))
        self.driven.batch(None, END)
        return self.driven


SEEDS = range(10)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_last_row_of_a_running_aggregate_is_the_aggregate_of_all_rows(seed: int) -> None:
    rows = events(seed)
    driven = Run(running_aggregate(keyed(), Total, AGGREGATES), seed, 0).over(rows)
    last = {(row["user"], row["shop"]): row for row in driven.rows}
    assert {key: rounded(row) for key, row in last.items()} == {
        key: rounded({"user": key[0], "shop": key[1], **expected(mine)}) for key, mine in by_key(rows).items()
    }
    for batch in driven.output:
        keys = [(row["user"], row["shop"]) for row in batch]
        assert len(keys) == len(set(keys)), "a batch puts out one row per key"


def windows_of(window: Any, at: int) -> list[tuple[int, int]]:
    """The windows that a time is in, by definition: every window that there can be is looked at."""
    match window:
        case windows.Sliding(size, every, offset):
            first = (at - size - offset) // every
            spans = [
                (n * every + offset, n * every + offset + size)
                for n in range(first, first + size // every + 3)
            ]
        case windows.Cumulative(size, every, offset):
            start = (at - offset) // size * size + offset
            spans = [(start, start + length) for length in range(every, size + 1, every)]
    return [(start, end) for start, end in spans if start <= at < end]


WINDOWS = {
    "tumbling": windows.tumbling("10 seconds"),
    "shifted": windows.tumbling("10 seconds", offset="3 seconds"),
    "hopping": windows.hopping("20 seconds", "5 seconds"),
    "uneven": windows.hopping("10 seconds", "4 seconds", offset="1 second"),
    "cumulative": windows.cumulative("20 seconds", "5 seconds", offset="7 seconds"),
}


def counted(rows: list[dict[str, Any]], window: Any, lateness: int) -> dict[Any, list[dict[str, Any]]]:
    """Per key and window the rows that come before it is closed."""
    out: dict[Any, list[dict[str, Any]]] = {}
    for row in rows:
        for start, end in windows_of(window, row["ts"]):
            if row["mark"] is None or end + lateness > row["mark"]:
                out.setdefault((row["user"], row["shop"], start, end), []).append(row)
    return out


def micros(at: datetime) -> int:
    return (at - EPOCH) // timedelta(microseconds=1)


def found(rows: list[dict[str, Any]]) -> dict[Any, dict[str, Any]]:
    return {
        (row["user"], row["shop"], micros(row["window_start"]), micros(row["window_end"])): rounded(
            {k: v for k, v in row.items() if k in AGGREGATES}
        )
        for row in rows
    }


@pytest.mark.parametrize("emit", ["final", "changes", "on_time"])
@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("seed", range(4))
def test_windows_hold_the_rows_that_came_before_they_closed(seed: int, name: str, emit: str) -> None:
    rows, window = events(seed), WINDOWS[name]
    chance = random.Random(f"{seed}{name}{emit}")
    delay, lateness = chance.choice((0, 5, 40)) * SECOND, chance.choice((0, 0, 7, 30)) * SECOND
    declared = window_aggregate(
        keyed(), PerWindow, AGGREGATES, window=window, time="ts", lateness=lateness, emit=emit
    )
    run = Run(declared, chance.randrange(1 << 30), delay)
    driven = run.over(rows)
    wanted = counted(rows, window, lateness)
    assert found(driven.rows) == {key: rounded(expected(mine)) for key, mine in wanted.items()}
    late = [row for row in rows if row["mark"] is not None
            and all(end + lateness <= row["mark"] for _, end in windows_of(window, row["ts"]))]  # fmt: skip
    assert sorted(micros(row["ts"]) for row in driven.sides.get("late", [])) == sorted(r["ts"] for r in late)
    assert driven.counters.get("late_rows", 0) == len(late)
    assert driven.entries() == 0, "a window that is closed leaves nothing behind"
    for batch, mark in zip(driven.output, [*run.marks, END], strict=True):
        check_moment(batch, mark, lateness, emit)
    if emit == "final":
        assert len(driven.rows) == len(wanted), "a window is put out once"


def check_moment(batch: list[dict[str, Any]], mark: int | None, lateness: int, emit: str) -> None:
    """When rows come out, and that no batch has two of one window."""
    keys = list(found(batch))
    assert len(keys) == len(batch)
    for *_, end in keys:
        if emit == "final":
            assert mark is not None
            assert end + lateness <= mark
        elif emit == "on_time":
            assert mark is not None
            assert end <= mark


@pytest.mark.parametrize("seed", range(4))
def test_a_window_comes_out_in_the_first_batch_whose_watermark_closes_it(seed: int) -> None:
    rows = events(seed)
    declared = window_aggregate(
        keyed(),
        PerWindow,
        AGGREGATES,
        window=WINDOWS["tumbling"],
        time="ts",
        lateness=3 * SECOND,
        emit="final",
    )
    run = Run(declared, seed, 2 * SECOND)
    driven = run.over(rows)
    marks = [*run.marks, END]
    for number, batch in enumerate(driven.output):
        before = marks[number - 1] if number else None
        for *_, end in found(batch):
            assert before is None or end + 3 * SECOND > before


def sessions(rows: list[dict[str, Any]], gap: int) -> dict[Any, list[dict[str, Any]]]:
    out: dict[Any, list[dict[str, Any]]] = {}
    for key, mine in by_key(rows).items():
        held: list[dict[str, Any]] = []
        for row in [*sorted(mine, key=lambda r: r["ts"]), None]:
            if held and (row is None or row["ts"] - held[-1]["ts"] > gap):
                out[*key, held[0]["ts"], held[-1]["ts"] + gap] = held
                held = []
            if row is not None:
                held = [*held, row]
    return out


@pytest.mark.parametrize("seed", SEEDS)
def test_sessions_are_those_of_all_rows_together(seed: int) -> None:
    rows, chance = events(seed), random.Random(seed)
    gap = chance.choice((1, 4, 8)) * SECOND
    declared = window_aggregate(
        keyed(), PerWindow, AGGREGATES, window=windows.session(timedelta(microseconds=gap)), time="ts",
        lateness=chance.choice((0, 5)) * SECOND, emit="final",
    )  # fmt: skip
    # With this delay no row is late.
    driven = Run(declared, seed, 41 * SECOND).over(rows)
    assert found(driven.rows) == {key: rounded(expected(mine)) for key, mine in sessions(rows, gap).items()}
    assert len(driven.rows) == len(found(driven.rows))
    assert driven.entries() == 0
    assert "late" not in driven.sides


@pytest.mark.parametrize("seed", range(5))
def test_no_row_of_a_session_gets_lost_when_rows_are_late(seed: int) -> None:
    rows = events(seed)
    declared = window_aggregate(
        keyed(),
        PerWindow,
        AGGREGATES,
        window=windows.session("4 seconds"),
        time="ts",
        lateness=SECOND,
        emit="final",
    )
    driven = Run(declared, seed, 0).over(rows)
    late = driven.sides.get("late", [])
    assert sum(row["n"] for row in driven.rows) + len(late) == len(rows)
    assert driven.counters.get("late_rows", 0) == len(late)
    assert driven.entries() == 0


@dataclass
class Different:
    user: int
    shop: str
    names: int
    days: int
    moments: int
    paid: int


@dataclass
class DifferentPerWindow(Different):
    window_start: datetime
    window_end: datetime


DISTINCT = {
    "names": aggregate.count_distinct("name"),
    "days": aggregate.count_distinct("day"),
    "moments": aggregate.count_distinct("ts"),
    "paid": aggregate.count_distinct("quantity", where="paid"),
}


def different(rows: list[dict[str, Any]]) -> dict[str, int]:
    return {
        "names": len({row["name"] for row in rows} - {None}),
        "days": len({row["day"] for row in rows}),
        "moments": len({row["ts"] for row in rows}),
        "paid": len({row["quantity"] for row in rows if row["paid"]}),
    }


@pytest.mark.parametrize("seed", SEEDS)
def test_each_different_value_of_a_key_counts_once(seed: int) -> None:
    rows = events(seed)
    driven = Run(running_aggregate(keyed(), Different, DISTINCT), seed, 0).over(rows)
    last = {(row.pop("user"), row.pop("shop")): row for row in driven.rows}
    assert last == {key: different(mine) for key, mine in by_key(rows).items()}


@pytest.mark.parametrize("emit", ["final", "changes", "on_time"])
@pytest.mark.parametrize("name", ["tumbling", "hopping", "cumulative"])
@pytest.mark.parametrize("seed", range(2))
def test_each_different_value_of_a_window_counts_once(seed: int, name: str, emit: str) -> None:
    rows, window, lateness = events(seed), WINDOWS[name], 7 * SECOND
    declared = window_aggregate(
        keyed(), DifferentPerWindow, DISTINCT, window=window, time="ts", lateness=lateness, emit=emit
    )
    driven = Run(declared, seed, 5 * SECOND).over(rows)
    assert {
        (
            row.pop("user"),
            row.pop("shop"),
            micros(row.pop("window_start")),
            micros(row.pop("window_end")),
        ): row
        for row in driven.rows
    } == {key: different(mine) for key, mine in counted(rows, window, lateness).items()}
    assert driven.entries() == 0


def test_a_late_row_does_not_open_a_session_again_whose_end_has_come() -> None:
    declared = window_aggregate(
        keyed(),
        PerWindow,
        AGGREGATES,
        window=windows.session("4 seconds"),
        time="ts",
        lateness=0,
        emit="final",
    )
    driven = Driven(declared)
    first, second = events(0, 2)
    driven.batch(table([{**first, "user": 1, "shop": "a", "ts": 0}]), None)
    # Its own window, which ends at seven seconds, is open still.
    ended = driven.batch(table([{**second, "user": 1, "shop": "a", "ts": 3 * SECOND}]), 4 * SECOND)
    assert [key[2:] for key in found(ended)] == [(0, 4 * SECOND)]
    assert [key[2:] for key in found(driven.batch(None, END))] == [(3 * SECOND, 7 * SECOND)]
    assert [row["n"] for row in driven.rows] == [1, 1]


ANY_WINDOW = {
    "tumbling": windows.tumbling("10 seconds"),
    "hopping": windows.hopping("10 seconds", "5 seconds"),
    "session": windows.session("4 seconds"),
    "count": windows.count_window(1),
}


@pytest.mark.parametrize("name", ANY_WINDOW)
def test_a_row_without_a_time_is_in_no_window(name: str) -> None:
    """Also before the first watermark, when no row is too old for any window."""
    declared = window_aggregate(
        keyed(), PerWindow, AGGREGATES, window=ANY_WINDOW[name], time="ts", lateness=0, emit="final"
    )
    driven = Driven(declared)
    first, second = events(0, 2)
    rows = table([{**first, "user": 1, "shop": "a"}, {**second, "user": 1, "shop": "a", "ts": 60 * SECOND}])
    without = pa.array([None, 60 * SECOND], pa.int64()).cast(rows.schema.field("ts").type)
    driven.batch(rows.set_column(rows.column_names.index("ts"), "ts", without), None)
    driven.batch(None, END)
    assert driven.rows
    assert {row["window_start"].minute for row in driven.rows} <= {0, 1}
    assert all(row["window_end"] >= EPOCH + timedelta(seconds=60) for row in driven.rows)
    assert driven.counters["late_rows"] == 1
    assert [row["name"] for row in driven.sides["late"]] == [first["name"]]


def test_a_session_that_has_grown_ends_behind_its_last_row() -> None:
    """It is found under the end that it had at first, and asked for again under its own."""
    declared = window_aggregate(
        keyed(),
        PerWindow,
        AGGREGATES,
        window=windows.session("4 seconds"),
        time="ts",
        lateness=0,
        emit="final",
    )
    driven = Driven(declared)
    first, second = events(0, 2)
    driven.batch(table([{**first, "user": 1, "shop": "a", "ts": 0}]), None)
    driven.batch(table([{**second, "user": 1, "shop": "a", "ts": 3 * SECOND}]), 2 * SECOND)
    assert driven.batch(None, 5 * SECOND) == []
    ended = driven.batch(None, 7 * SECOND)
    assert [key[2:] for key in found(ended)] == [(0, 7 * SECOND)]
    assert [row["n"] for row in driven.rows] == [2]
    assert driven.entries() == 0
