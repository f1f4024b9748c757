"""Drawn pairs of operators: one behind the other gives the same in one batch and in several, and no row is late on the way.

A few pairs are played with the system tests; `STATEFLOW_LONG=1` plays forty. `STATEFLOW_PAIRS_SEED=7` draws others.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import stateflow as sf
from stateflow.testing import FlowHarness

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SEED = int(os.environ.get("STATEFLOW_PAIRS_SEED", "3"))
COUNT, IN_A_FLOW = (40, 20) if os.environ.get("STATEFLOW_LONG") else (4, 4)
CLOSE = ("-3 minutes", "4 minutes")


@dataclass
class One:
    k: int
    a: int
    ts: datetime


@dataclass
class Two:
    k: int
    b: int
    at: datetime


@dataclass
class Row:
    """What every first operator puts out: under these names, or with the end of its window in place of `ts`."""

    k: int
    a: int
    ts: datetime


@dataclass
class Window:
    k: int
    a: int
    window_end: datetime


def time_of(row: Any) -> datetime:
    at: datetime = row.ts if hasattr(row, "ts") else row.window_end
    return at


class Numbered(sf.KeyedProcess[int, Any, Row]):
    """The instants of a key, numbered in their order."""

    due = sf.Timer("event", many=True)
    number = sf.ValueState(int, default=0)

    def process(self, key: int, rows: Iterator[Any], ctx: sf.Context) -> Iterator[Row]:
        for row in rows:
            if ctx.watermark is not None and time_of(row) <= ctx.watermark:
                yield Row(key, -1, time_of(row))
            self.due.set(time_of(row))

    @due.fires
    def fire(self, key: int, at: datetime, ctx: sf.Context) -> Iterator[Row]:
        self.number.value += 1
        yield Row(key, self.number.value, at)


class Total(sf.WindowProcess[int, One, Window]):
    def process(self, key: int, window: Any, rows: list[One], ctx: Any) -> Iterator[Window]:
        yield Window(key, sum(row.a for row in rows), window.end)


def kept(table: pa.Table, state: Any, ctx: Any) -> None:
    times = table["ts" if "ts" in table.column_names else "window_end"]
    state.put(table["k"], pa.table({"a": table["a"]}), at=times)


def due(state: Any, ctx: Any) -> Iterator[pa.Table]:
    if ctx.watermark is not None:
        for table in state.due(ctx.watermark):
            yield pa.table({"k": table["k"], "a": table["a"], "ts": table["at"]})
        state.delete_due(ctx.watermark)


def squares(keys: list[int]) -> list[dict[str, int]]:
    return [{"square": key * key} for key in keys]


WINDOWS = {
    "tumbling": sf.tumbling("5 minutes"),
    "hopping": sf.hopping("6 minutes", "3 minutes"),
    "session": sf.session("2 minutes"),
}
First = Callable[[str, Any, Any], Any]
FIRST: dict[str, First] = {
    **{
        name: (
            lambda uid, one, two, window=window: (
                one.key_by("k").window(window, lateness="1 minute").aggregate(uid, Window, a=sf.sum("a"))
            )
        )
        for name, window in WINDOWS.items()
    },
    "window code": lambda uid, one, two: (
        one.key_by("k").window(WINDOWS["session"]).process(uid, Total, output=Window)
    ),
    "first rows": lambda uid, one, two: one.deduplicate(uid, by=["k", "a"], within="4 minutes"),
    "last rows": lambda uid, one, two: one.deduplicate(uid, by=["k", "a"], within="4 minutes", keep="last"),
    "join": lambda uid, one, two: one.key_by("k").join(uid, two.key_by("k"), Row, within=CLOSE),
    "left join": lambda uid, one, two: (
        one.key_by("k").join(uid, two.key_by("k"), Row, within=CLOSE, how="left")
    ),
    "as-of": lambda uid, one, two: one.key_by("k").join_asof(uid, two.key_by("k"), Row, keep="9 minutes"),
    "enrich": lambda uid, one, two: (
        one.key_by("k").enrich(uid, squares, "k bigint, a bigint, ts timestamp, square bigint")
    ),
    "timers": lambda uid, one, two: one.key_by("k").process(uid, Numbered, output=Row),
    "tables": lambda uid, one, two: (
        one.key_by("k").process_arrow(uid, kept, state=sf.columns({"a": int}, timed=True), output=Row, on_due=due)
    ),
}  # fmt: skip


def behind(uid: str, kind: str, rows: Any, time: str, two: Any) -> Any:
    keyed, right = rows.key_by("k"), two.key_by("k")
    pair = f"k bigint, a bigint, {time} timestamp, b bigint"
    counts = {"n": sf.count(), "total": sf.sum("a")}
    match kind:
        case "tumbling" | "hopping" | "session":
            ends = "k bigint, window_end timestamp, n bigint, total bigint"
            return keyed.window(WINDOWS[kind], time=time).aggregate(uid, ends, **counts)
        case "first rows" | "last rows":
            keep = kind.removesuffix(" rows")
            return rows.deduplicate(uid, by=["k", "a"], within="3 minutes", keep=keep, time=time)
        case "join" | "left join":
            how = "left" if kind == "left join" else "inner"
            return keyed.join(uid, right, pair, within=CLOSE, how=how, time=time, right_time="at")
        case "as-of":
            return keyed.join_asof(uid, right, pair, keep="9 minutes", time=time, right_time="at")
        case "enrich":
            return keyed.enrich(uid, squares, f"k bigint, a bigint, {time} timestamp, square bigint")
        case "timers":
            return keyed.process(uid, Numbered, output=Row)
        case "tables":
            state = sf.columns({"a": int}, timed=True)
            return keyed.process_arrow(uid, kept, state=state, output=Row, on_due=due)
        case "changes":
            return keyed.aggregate(uid, "k bigint, n bigint, total bigint", **counts)
    raise AssertionError(kind)


SECOND = (*WINDOWS, "first rows", "last rows", "join", "left join", "as-of", "enrich", "timers", "tables", "changes")  # fmt: skip
DRAWN = random.Random(SEED).sample(sorted({*product(FIRST, SECOND)} - {("enrich", "enrich")}), COUNT)


def pipeline_of(pairs: tuple[tuple[str, str], ...]) -> Any:
    @sf.pipeline("pairs")
    def pairs_of(flow: sf.Flow, *, one: str, two: str) -> None:
        left = flow.source(
            "one", sf.files(one, "json", per_batch=1), One, event_time="ts", watermark="1 minute"
        )
        right = flow.source(
            "two", sf.files(two, "json", per_batch=1), Two, event_time="at", watermark="1 minute"
        )
        right.collect("twos", sf.memory("twos"))
        firsts: dict[str, Any] = {}
        for first, second in pairs:
            uid = first.replace(" ", "-")
            if first not in firsts:
                firsts[first] = FIRST[first](uid, left, right)
            time = "ts" if firsts[first].rows.field("ts") else "window_end"
            uid = f"{first}--{second}".replace(" ", "-")
            behind(uid, second, firsts[first], time, right).collect(f"{uid}-out", sf.memory(uid))

    return pairs_of


def given_rows(chance: random.Random) -> tuple[list[One], list[Two]]:
    """Out of order by less than a minute; no two of a source have one time, so that nothing is left to chance."""

    def times() -> list[datetime]:
        return [NOON + timedelta(seconds=at) for at in chance.sample(range(1500), 40)]

    def coming(rows: list[Any]) -> list[Any]:
        return sorted(
            rows, key=lambda row: vars(row).get("ts", vars(row).get("at")).timestamp() + chance.uniform(0, 55)
        )

    return (
        coming([One(chance.randrange(3), chance.randrange(5), at) for at in times()]),
        coming([Two(chance.randrange(3), n, at) for n, at in enumerate(times())]),
    )  # fmt: skip


def played(pairs: Any, folder: Path, batches: int) -> tuple[dict[str, Counter[str]], list[Any]]:
    harness = FlowHarness(pipeline_of(pairs), folder)
    for sink in harness.flow.sinks:
        sink.target.clear()
    ones, twos = given_rows(random.Random(SEED))
    # Cut at the same times, as a run would find them; neither source then holds the other back for ever.
    for begin, end in pairwise(range(0, 41, 40 // batches)):
        harness.add("one", *ones[begin:end])
        harness.add("two", *twos[begin:end])
    reports = [harness.run(), harness.run(final=True)]
    found = {}
    for sink in harness.flow.sinks:
        rows = harness.table(sink.uid)
        if sink.uid.endswith("--changes-out"):
            rows = list({row["k"]: row for row in rows}.values())
        found[sink.uid] = Counter(repr(sorted(row.items())) for row in rows)
    return found, [late for report in reports for late in report.lost]


@pytest.mark.system
@pytest.mark.parametrize(
    "pairs",
    [tuple(DRAWN[at : at + IN_A_FLOW]) for at in range(0, COUNT, IN_A_FLOW)],
    ids=lambda pairs: f"{'-'.join(pairs[0])}-and-so-on",
)
def test_a_pair_gives_the_same_however_batches_are_cut(
    spark: SparkSession, tmp_path: Path, pairs: tuple[tuple[str, str], ...]
) -> None:
    at_once, _ = played(pairs, tmp_path / "at-once", 1)
    in_batches, late = played(pairs, tmp_path / "in-batches", 4)
    assert [sink for sink, rows in at_once.items() if not rows] == []
    assert {sink: (rows - in_batches[sink], in_batches[sink] - rows) for sink, rows in at_once.items() if rows != in_batches[sink]} == {}  # fmt: skip
    assert late == []
    assert [row for rows in in_batches.values() for row in rows if "('a', -1)" in row] == []
