"""A row counts as it was when user code put it out, whatever becomes of the object afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pytest

import stateflow as sf
from stateflow.errors import UsageError, UserCodeError
from stateflow.operators.arrow_types import arrow_schema_of
from stateflow.operators.output import RowWriter
from stateflow.operators.snapshots import Copies
from stateflow.pipelines.rows.row_type import row_type
from stateflow.state.copied import snapshot
from stateflow.testing import ColumnarHarness, KeyedHarness, PartitionHarness
from tests.refusals.refusal import refused

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@dataclass
class Paid:
    user: int
    amount: float


@dataclass
class Total:
    user: int
    total: float


@dataclass
class Alone:
    total: float


class Counted(msgspec.Struct):
    user: int
    total: float


@dataclass
class Seen:
    user: int
    amounts: list[float]


@dataclass
class Inner:
    amounts: list[float] = field(default_factory=list)


@dataclass
class Nested:
    user: int
    inner: Inner


def grown_list(key: int, row: Any, amount: float) -> Any:
    row.amounts.append(amount)
    return row


def grown_total(key: int, row: Any, amount: float) -> Any:
    row.total += amount
    return row


def grown_dict(key: int, row: Any, amount: float) -> Any:
    row["total"] += amount
    return row


def grown_row_of_list(key: int, row: Any, amount: float) -> Any:
    row[1] += amount
    return row


def grown_value(key: int, row: Any, amount: float) -> Any:
    row[1].append(amount)
    return row


def grown_inner(key: int, row: Any, amount: float) -> Any:
    row.inner.amounts.append(amount)
    return row


def grown_array(key: int, row: Any, amount: float) -> Any:
    row[1][:] += amount
    return row


def grown_bytes(key: int, row: Any, amount: float) -> Any:
    row[1].append(int(amount))
    return row


def grown_map(key: int, row: Any, amount: float) -> Any:
    row[1][str(amount)] = amount
    return row


def grown_alone(key: int, row: Any, amount: float) -> Any:
    row.append(amount)
    return row


REUSED: list[tuple[Any, Callable[[], Any], Callable[..., Any], list[Any]]] = [
    (Total, lambda: Total(1, 0.0), grown_total, [(1, 1.0), (1, 3.0), (1, 6.0)]),
    (Alone, lambda: Alone(0.0), grown_total, [(1.0,), (3.0,), (6.0,)]),
    (Counted, lambda: Counted(1, 0.0), grown_total, [(1, 1.0), (1, 3.0), (1, 6.0)]),
    ("user long, total double", lambda: {"user": 1, "total": 0.0}, grown_dict, [(1, 1.0), (1, 3.0), (1, 6.0)]),
    ("user long, total double", lambda: [1, 0.0], grown_row_of_list, [(1, 1.0), (1, 3.0), (1, 6.0)]),
    (Seen, lambda: Seen(1, []), grown_list, [(1, [1.0]), (1, [1.0, 2.0]), (1, [1.0, 2.0, 3.0])]),
    ("u long, a array<double>", lambda: (1, []), grown_value, [(1, [1.0]), (1, [1.0, 2.0]), (1, [1.0, 2.0, 3.0])]),
    ("a array<double>", list, grown_alone, [([1.0],), ([1.0, 2.0],), ([1.0, 2.0, 3.0],)]),
    (
        "u long, a map<string,double>", lambda: (1, {}), grown_map,
        [(1, [("1.0", 1.0)]), (1, [("1.0", 1.0), ("2.0", 2.0)]), (1, [("1.0", 1.0), ("2.0", 2.0), ("3.0", 3.0)])],
    ),
    ("u long, a array<double>", lambda: (1, np.zeros(1)), grown_array, [(1, [1.0]), (1, [3.0]), (1, [6.0])]),
    ("u long, a binary", lambda: (1, bytearray()), grown_bytes, [(1, b"\1"), (1, b"\1\2"), (1, b"\1\2\3")]),
    (
        Nested, lambda: Nested(1, Inner()), grown_inner,
        [(1, {"amounts": [1.0]}), (1, {"amounts": [1.0, 2.0]}), (1, {"amounts": [1.0, 2.0, 3.0]})],
    ),
]  # fmt: skip
"""What the output is declared as, the object that a process puts out again and again, how it changes, the rows."""


def a_process(
    begun: Callable[[], Any], grown: Callable[..., Any], how: str
) -> type[sf.KeyedProcess[int, Paid, Any]]:
    class Reusing(sf.KeyedProcess[int, Paid, Any]):
        def process(self, key: int, rows: Iterator[Paid], ctx: sf.Context) -> Iterator[Any]:
            out = begun()
            for row in rows:
                out = grown(key, out, row.amount)
                if how == "emit":
                    ctx.emit(SIDE, out)
                else:
                    yield out

    return Reusing


SIDE: sf.Output[Any] = sf.output("side", Total)


def values_of(writer: RowWriter, rows: list[Any]) -> list[Any]:
    return [tuple(row.values()) for row in writer.write(writer.taken(rows)).to_pylist()]


def writer_of(output: Any) -> RowWriter:
    declared = row_type(output)
    return RowWriter(declared, arrow_schema_of(declared), "operator 'x'")


@pytest.mark.parametrize(("output", "begun", "grown", "rows"), REUSED)
def test_an_object_that_is_put_out_again_and_again_is_another_row_each_time(
    output: Any, begun: Any, grown: Any, rows: list[Any]
) -> None:
    """`taken` is what a run does with the rows of a generator; the harness shows copies of them."""
    reused, writer = begun(), writer_of(output)
    batch = writer.write(writer.taken(grown(1, reused, amount) for amount in (1.0, 2.0, 3.0)))
    assert [tuple(row.values()) for row in batch.to_pylist()] == rows

    harness = KeyedHarness(a_process(begun, grown, "yield"), output=output)
    shown = harness.rows(Paid(1, 1.0), Paid(1, 2.0), Paid(1, 3.0))
    assert values_of(writer, shown) == rows


@pytest.mark.parametrize("on_error", ["fail", "dead_letter"])
def test_a_row_that_is_emitted_to_the_side_counts_as_it_was(on_error: str) -> None:
    process = a_process(lambda: Total(1, 0.0), grown_total, "emit")
    harness = KeyedHarness(process, output="user long", outputs=[SIDE], on_error=on_error)
    harness.rows(Paid(1, 1.0), Paid(1, 2.0), Paid(1, 3.0))
    assert harness.side(SIDE) == [Total(1, 1.0), Total(1, 3.0), Total(1, 6.0)]


class PassesOn(sf.KeyedProcess[int, Paid, Paid]):
    def process(self, key: int, rows: Iterator[Paid], ctx: sf.Context) -> Iterator[Paid]:
        for row in rows:
            yield row
            row.amount = 0.0


class PassesOnParts(sf.PartitionProcess[Paid, Paid]):
    def process(self, rows: Iterator[Paid], ctx: sf.Context) -> Iterator[Paid]:
        for row in rows:
            yield row
            row.amount = 0.0


def test_a_row_that_is_passed_on_and_then_changed_counts_as_it_was() -> None:
    assert KeyedHarness(PassesOn).rows(Paid(1, 1.0), Paid(1, 2.0)) == [Paid(1, 1.0), Paid(1, 2.0)]
    assert PartitionHarness(PassesOnParts).rows(Paid(1, 1.0), Paid(1, 2.0)) == [Paid(1, 1.0), Paid(1, 2.0)]


class Timed(sf.KeyedProcess[int, Paid, Total]):
    at = sf.Timer("event")

    def process(self, key: int, rows: Iterator[Paid], ctx: sf.Context) -> None:
        for row in rows:
            self.at.set(NOON + timedelta(seconds=row.amount))

    @at.fires
    def fires(self, key: int, at: datetime, ctx: sf.Context) -> Iterator[Total]:
        out = Total(key, 0.0)
        for _ in range(2):
            out.total += 1.0
            yield out


class Visited(sf.KeyedProcess[int, Paid, Total]):
    rate = sf.BroadcastState(str, float)
    seen = sf.ValueState(float)

    def process(self, key: int, rows: Iterator[Paid], ctx: sf.Context) -> None:
        self.seen.value = sum(row.amount for row in rows)

    def process_broadcast(self, name: str, rows: Iterator[Any], ctx: sf.Context) -> None:
        ctx.for_each_key(self.seen, self.again)

    def again(self, key: int, ctx: sf.Context) -> Iterator[Total]:
        out = Total(key, 0.0)
        for _ in range(2):
            out.total += 1.0
            yield out


@pytest.mark.parametrize("on_error", ["fail", "dead_letter"])
def test_what_timers_and_visits_put_out_counts_as_it_was(on_error: str) -> None:
    timed = KeyedHarness(Timed, on_error=on_error)
    timed.rows(Paid(1, 1.0))
    assert timed.advance(NOON + timedelta(hours=1)) == [Total(1, 1.0), Total(1, 2.0)]
    visited = KeyedHarness(Visited, on_error=on_error)
    visited.rows(Paid(1, 1.0))
    assert visited.broadcast("rates", 1) == [Total(1, 1.0), Total(1, 2.0)]


@dataclass
class Stamped:
    user: int
    amount: float
    ts: datetime


class Window(sf.WindowProcess[int, Stamped, Total]):
    def process(self, key: int, window: Any, rows: list[Stamped], ctx: Any) -> Iterator[Total]:
        out = Total(key, 0.0)
        for row in rows:
            out.total += 1.0 / row.amount
            yield out


def test_what_the_code_of_a_window_puts_out_counts_as_it_was_and_nothing_of_a_window_that_fails() -> None:
    @sf.pipeline("windows")
    def windows(flow: sf.Flow) -> None:
        source = flow.source("rows", sf.delta("/rows"), Stamped, event_time="ts", watermark="1 minute")
        windowed = source.key_by("user").window(sf.tumbling("1 hour"))
        totals = windowed.process("op", Window, on_error="dead_letter")
        totals.collect("out", sf.memory("snapshots"))

    harness = ColumnarHarness.of(windows.build(), "op")
    seconds = [NOON + timedelta(seconds=second) for second in range(2)]
    harness.rows(
        *(Stamped(1, 1.0, at) for at in seconds), Stamped(2, 1.0, seconds[0]), Stamped(2, 0.0, seconds[1])
    )
    assert [row.total for row in harness.advance(NOON + timedelta(days=1))] == [1.0, 2.0]


class Point(NamedTuple):
    x: float
    tags: list[str]


@pytest.mark.parametrize(
    "value",
    [
        None,
        1,
        "a",
        NOON,
        (1, "a"),
        [1, 2],
        [[1], [2]],
        {"a": [1]},
        Point(1.0, ["a"]),
        Inner([1.0]),
        Counted(1, 2.0),
    ],
)
def test_a_snapshot_is_equal_and_of_the_same_type(value: Any) -> None:
    assert snapshot(value) == value
    assert type(snapshot(value)) is type(value)


def test_what_cannot_change_is_not_copied() -> None:
    text, pair = "abc" * 100, (1, "a")
    assert snapshot(text) is text
    assert snapshot(pair) is pair
    row = (1, "a")
    assert writer_of("a long, b string").values(row) is row


class Wrong(sf.KeyedProcess[int, Paid, Total]):
    def process(self, key: int, rows: Iterator[Paid], ctx: sf.Context) -> Iterator[Any]:
        yield from rows


class Broken(sf.KeyedProcess[int, Paid, Total]):
    def process(self, key: int, rows: Iterator[Paid], ctx: sf.Context) -> Iterator[Any]:
        for row in rows:
            yield Total(key, row.total)  # type: ignore[attr-defined]


def test_a_row_of_another_class_is_told_from_an_error_of_the_code() -> None:
    with refused(UsageError, "Paid(user=1, amount=2.0)", "no Total", "yield Total(user, total)"):
        KeyedHarness(Wrong).rows(Paid(1, 2.0))
    with pytest.raises(UserCodeError, match="'Paid' object has no attribute 'total'"):
        KeyedHarness(Broken).rows(Paid(1, 2.0))


def test_copies_check_what_a_run_would_refuse() -> None:
    with refused(UsageError, "has a fraction"):
        Copies(writer_of("a long, b string")).check([(1.5, "x")])
    assert pa.types.is_nested(arrow_schema_of(row_type(Seen)).field(1).type)
