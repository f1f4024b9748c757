"""What comes after a deduplication takes its rows, although they come when the watermark has reached them."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

import stateflow as sf
import stateflow.pipelines.ready.aggregates as aggregate
from stateflow.pipelines.held_back import comes_when_reached
from stateflow.pipelines.ready import windows
from stateflow.pipelines.ready.operators import (
    Deduplicate,
    KeyedRows,
    ReadyOperator,
    deduplicate,
    window_aggregate,
)
from stateflow.pipelines.rows.row_type import row_type
from tests.operators.ready.driving import END, Driven

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SECOND = 1_000_000
GAP = 5 * SECOND


@dataclass
class Event:
    id: str
    shop: str
    amount: int
    ts: datetime


@dataclass
class PerWindow:
    shop: str
    n: int
    total: int
    window_end: datetime


SCHEMA = pa.schema(
    [("id", pa.string()), ("shop", pa.string()), ("amount", pa.int64()), ("ts", pa.timestamp("us", "UTC"))]
)
AGGREGATES = {"n": aggregate.count(), "total": aggregate.sum("amount")}


def once(within: int) -> Deduplicate:
    keyed = KeyedRows("once", row_type(Event), ("id",), ())
    return deduplicate(keyed, time="ts", within=within, keep="first")


def windowed(window: windows.Window, lateness: int = 0) -> ReadyOperator:
    keyed = KeyedRows("windows", row_type(Event), ("shop",), ())
    return window_aggregate(
        keyed, row_type(PerWindow), AGGREGATES, window=window, time="ts", lateness=lateness, emit="final"
    )


def events(chance: random.Random, count: int = 200) -> list[dict[str, Any]]:
    """Twice each, some seconds apart."""
    rows = []
    for number in range(count):
        row = {"id": f"e{number}", "shop": chance.choice("ab"), "amount": number}
        at = number // 2 * SECOND
        rows += [{**row, "ts": at}, {**row, "ts": at + chance.randrange(3) * SECOND}]
    rows.sort(key=lambda row: int(row["ts"]) + chance.randrange(6) * SECOND)
    return rows


def firsts(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        if row["id"] not in found or row["ts"] < found[row["id"]]["ts"]:
            found[row["id"]] = row
    return list(found.values())


def tumbling(rows: list[dict[str, Any]]) -> list[Any]:
    by_window: dict[Any, list[int]] = defaultdict(list)
    for row in rows:
        end = row["ts"] // (10 * SECOND) * 10 * SECOND + 10 * SECOND
        by_window[row["shop"], end].append(row["amount"])
    return sorted((shop, len(mine), sum(mine), end) for (shop, end), mine in by_window.items())


def hopping(rows: list[dict[str, Any]]) -> list[Any]:
    earlier = [{**row, "ts": row["ts"] - 5 * SECOND} for row in rows]
    moved = [(shop, n, total, end + 5 * SECOND) for shop, n, total, end in tumbling(earlier)]
    return sorted(tumbling(rows) + moved)


def sessions(rows: list[dict[str, Any]]) -> list[Any]:
    open_ones: dict[str, list[Any]] = {}
    out = []
    for row in sorted(rows, key=lambda row: int(row["ts"])):
        mine = open_ones.get(row["shop"])
        if mine is None or row["ts"] > mine[3]:
            mine = open_ones[row["shop"]] = [row["shop"], 0, 0, 0]
            out.append(mine)
        mine[1], mine[2], mine[3] = mine[1] + 1, mine[2] + row["amount"], row["ts"] + GAP
    return sorted(map(tuple, out))


def found(driven: Driven) -> list[Any]:
    return sorted(
        (r["shop"], r["n"], r["total"], (r["window_end"] - EPOCH) // timedelta(microseconds=1))
        for r in driven.rows
    )


KINDS: dict[str, tuple[Callable[[], ReadyOperator], Callable[[list[dict[str, Any]]], list[Any]]]] = {
    "tumbling": (lambda: windowed(windows.tumbling("10 seconds")), tumbling),
    "with lateness": (lambda: windowed(windows.tumbling("10 seconds"), 3 * SECOND), tumbling),
    "hopping": (lambda: windowed(windows.hopping("10 seconds", every="5 seconds")), hopping),
    "sessions": (lambda: windowed(windows.session("5 seconds")), sessions),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(8))
def test_windows_over_single_rows_are_those_of_the_whole_input(seed: int, kind: str) -> None:
    chance = random.Random(f"{seed}{kind}")
    declared, expected = KINDS[kind]
    rows, first = events(chance), Driven(once(60 * SECOND), chance.randrange(1, 4))
    then = Driven(declared(), chance.randrange(1, 4), waited=True)
    places = sorted(chance.randrange(len(rows)) for _ in range(chance.randrange(1, 12)))
    newest: int | None = None
    for begin, end in zip([0, *places], [*places, len(rows)], strict=True):
        mark = None if newest is None else newest - 10 * SECOND
        part = rows[begin:end]
        both(first, then, pa.Table.from_pylist(part, SCHEMA) if part else None, mark)
        newest = max([row["ts"] for row in part] + ([newest] if newest is not None else []), default=None)
        if chance.random() < 0.3:
            then.rescale(chance.randrange(1, 5))
    both(first, then, None, END)
    assert first.counters.get("late_rows", 0) == 0
    assert then.counters.get("late_rows", 0) == 0
    assert found(then) == expected(firsts(rows))


def both(first: Driven, then: Driven, rows: pa.Table | None, mark: int | None) -> None:
    """A batch of the two operators."""
    out = first.batch(rows, mark)
    then.batch(pa.Table.from_pylist(out, SCHEMA) if out else None, mark)


def test_a_row_behind_the_batch_before_is_late_all_the_same() -> None:
    then = Driven(windowed(windows.tumbling("10 seconds")), waited=True)
    row = {"id": "a", "shop": "a", "amount": 1, "ts": 5 * SECOND}
    then.batch(None, 20 * SECOND)
    then.batch(pa.Table.from_pylist([row], SCHEMA), 40 * SECOND)
    assert then.rows == []
    assert then.counters == {"late_rows": 1}


def flow_of(keep: str, within: str | None = "1 day") -> sf.Flow:
    flow = sf.Flow("flow")
    rows = flow.source("in", sf.delta("/in"), Event, event_time="ts", watermark="1 minute")
    single = rows.deduplicate("once", by="id", within=within, keep=keep)
    more = single.transform(lambda frame: frame, type=Event).union(rows)
    out = (
        more.key_by("shop")
        .window(sf.tumbling("1 hour"))
        .aggregate("hours", PerWindow, n=sf.count(), total=sf.sum("amount"))
    )
    out.append("out", sf.delta("/out"))
    return flow


def test_an_operator_knows_of_a_deduplication_before_it() -> None:
    told = {node.uid: comes_when_reached(node) for node in flow_of("first").operators}
    assert told == {"once": False, "hours": True}


def test_the_last_of_each_key_holds_a_window_back_by_as_long_as_it_waits() -> None:
    told = {node.uid: (comes_when_reached(node), node.held_back) for node in flow_of("last").operators}
    assert told == {"once": (False, 0), "hours": (True, 86_400 * 1_000_000)}


def test_the_newest_of_the_last_rows_is_told_by_their_time() -> None:
    flow = sf.Flow("flow")
    rows = flow.source("in", sf.delta("/in"), Event, event_time="ts", watermark="1 minute")
    last = rows.deduplicate("once", by="id", within="1 day", keep="last").key_by("shop")
    last.latest("newest").upsert("out", sf.delta("/out"))
    assert [node.uid for node in flow.operators] == ["once", "newest"]
