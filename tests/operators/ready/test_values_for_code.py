"""Code of users sees the same values whatever calls it: a process, an aggregate, a window, a join."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import stateflow as sf
from stateflow.operators.arrow_types import arrow_schema_of
from stateflow.pipelines.rows.row_type import row_type
from stateflow.spark.task.columns import RowReader
from stateflow.state.values.arrow.lossless import array_of
from stateflow.testing import ColumnarHarness

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SEEN: list[Any] = []
KINDS: list[tuple[str, Any]] = [
    ("timestamp_ntz", NOON),
    ("array<timestamp_ntz>", [NOON, None]),
    ("struct<at: timestamp_ntz>", {"at": NOON}),
    ("map<string, timestamp_ntz>", {"a": NOON}),
    ("array<map<string, int>>", [{"a": 1}, None, {}]),
    ("map<int, map<string, int>>", {1: {"a": 1}}),
    ("struct<of: map<binary, int>>", {"of": {b"a": 1}}),
    ("map<struct<x: int>, int>", [({"x": 1}, 2)]),
]


@dataclass
class Counted:
    k: int
    n: int


class Shown(sf.WindowProcess[int, Any, Any]):
    def process(self, key: int, window: sf.WindowBounds, rows: list[Any], ctx: sf.ColumnarContext) -> Any:
        SEEN.extend(row.v for row in rows)
        yield Counted(key, len(rows))


def seen(held: list[Any], value: Any) -> list[Any]:
    return [*held, SEEN.append(value)]


def joined(left: Any, right: Any) -> Counted:
    SEEN.extend((left.v, right.v))
    return Counted(left.k, 1)


def from_process(kind: str, value: Any) -> None:
    rows = row_type(f"v {kind}")
    (field,) = arrow_schema_of(rows)
    SEEN.extend(row.v for row in RowReader(rows, [0]).read([array_of([value], field.type)]))


def from_aggregate(kind: str, value: Any) -> None:
    @sf.pipeline("aggregate")
    def declared(flow: sf.Flow) -> None:
        own = sf.aggregate(
            "v", create=list, add=seen, merge=lambda one, other: one + other, result=len, state=list[None], output=int
        )  # fmt: skip
        rows = flow.source("in", sf.delta("/in"), f"k long, v {kind}")
        rows.key_by("k").aggregate("op", Counted, n=own)

    ColumnarHarness.of(declared.build(), "op").rows({"k": 1, "v": value})


def from_window(kind: str, value: Any) -> None:
    @sf.pipeline("window")
    def declared(flow: sf.Flow) -> None:
        rows = flow.source(
            "in", sf.delta("/in"), f"k long, v {kind}, ts timestamp", event_time="ts", watermark="0 seconds"
        )
        by = "v" if kind == "timestamp_ntz" else "ts"
        keyed = rows.key_by("k", order_by=by)
        keyed.window(sf.tumbling("1 day")).process("op", Shown, output=Counted)

    harness = ColumnarHarness.of(declared.build(), "op")
    harness.rows({"k": 1, "v": value, "ts": NOON})
    assert harness.advance(NOON + timedelta(days=2)) == [Counted(1, 1)]


def from_join(kind: str, value: Any) -> None:
    @sf.pipeline("join")
    def declared(flow: sf.Flow) -> None:
        left, right = (
            flow.source(
                name, sf.delta(f"/{name}"), f"k long, v {kind}, ts timestamp", event_time="ts", watermark="0 seconds"
            ).key_by("k")
            for name in ("left", "right")
        )  # fmt: skip
        left.join("op", right, joined, within=("0 days", "0 days"))

    row = {"k": 1, "v": value, "ts": NOON}
    ColumnarHarness.of(declared.build(), "op").both([row], [row])


GIVERS: list[Any] = [from_process, from_aggregate, from_window]
CASES = [
    *((give, *kind) for give in GIVERS for kind in KINDS),
    # A join keeps no lists, records and maps.
    (from_join, *KINDS[0]),
]


@pytest.mark.parametrize(
    ("give", "kind", "value"), CASES, ids=[f"{f.__name__} {kind}" for f, kind, _ in CASES]
)
def test_user_code_gets_the_values_that_were_given_whatever_calls_it(
    give: Any, kind: str, value: Any
) -> None:
    """A time without a zone is one of UTC, and a map a dict: so they can also be put out and stored."""
    SEEN.clear()
    give(kind, value)
    assert SEEN, "the code was called"
    for found in SEEN:
        assert repr(found) == repr(value), "also the types within"


class Recorded(sf.WindowProcess[int, Any, Any]):
    """Puts a time without a zone out again."""

    def process(self, key: int, window: sf.WindowBounds, rows: list[Any], ctx: sf.ColumnarContext) -> Any:
        return [(key, row.v) for row in rows]


def windows_of_times() -> ColumnarHarness:
    @sf.pipeline("same")
    def declared(flow: sf.Flow) -> None:
        rows = flow.source(
            "in", sf.delta("/in"), "k long, v timestamp_ntz, ts timestamp", event_time="ts", watermark="0 seconds"
        )  # fmt: skip
        keyed = rows.key_by("k").window(sf.tumbling("1 day"))
        keyed.process("op", Recorded, output="k long, v timestamp_ntz")

    return ColumnarHarness.of(declared.build(), "op")


def test_a_window_puts_out_the_time_without_a_zone_that_it_was_given() -> None:
    harness = windows_of_times()
    harness.rows({"k": 1, "v": NOON, "ts": NOON}, {"k": 1, "v": None, "ts": NOON})
    out = [row["v"] for row in harness.advance(NOON + timedelta(days=2))]
    assert sorted(out, key=bool) == [None, NOON.replace(tzinfo=None)]


def test_rows_of_open_windows_that_have_such_a_time_as_text_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    before = windows_of_times()
    with monkeypatch.context() as patch:
        patch.setattr(
            "stateflow.operators.ready.windows.window_code.values_of", lambda column: column.to_pylist()
        )
        before.rows({"k": 1, "v": NOON, "ts": NOON}, {"k": 1, "v": None, "ts": NOON})
    out = [row["v"] for row in before.advance(NOON + timedelta(days=2))]
    assert sorted(out, key=bool) == [None, NOON.replace(tzinfo=None)]
