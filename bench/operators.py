"""The one computation that every side does: a running count and sum per user. Typed, as a user would write it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

import stateflow as sf

OUTPUT = "user long, n long, total double"
ONE_FILE = {"startingVersion": "0", "maxFilesPerTrigger": "1"}
"""How every side reads: the table's commits in order, one file per micro-batch."""
WINDOW = timedelta(seconds=10)
WINDOW_MICROS = 10_000_000
CHANNELS = 1000


class Event(msgspec.Struct):
    user: int
    amount: float


class Total(msgspec.Struct):
    user: int
    n: int
    total: float


class TimedEvent(msgspec.Struct):
    user: int
    amount: float
    ts: datetime


class ChannelEvent(msgspec.Struct):
    channel: int
    start: datetime
    amount: float
    ts: datetime


class Window(msgspec.Struct):
    channel: int
    start: datetime
    n: int
    total: float


class RunningTotal(sf.KeyedProcess[int, Event, Total]):
    sums = sf.ValueState(tuple[int, float], default=(0, 0.0))

    def process(self, key: int, rows: Iterator[Event], ctx: sf.Context) -> Iterator[Total]:
        n, total = self.sums.value
        for row in rows:
            n += 1
            total += row.amount
        self.sums.value = (n, total)
        yield Total(key, n, total)


class TumblingWindow(sf.KeyedProcess[tuple[int, datetime], ChannelEvent, Window]):
    """A window as one writes it by hand: its start is a part of the key, and a timer ends it."""

    sums = sf.ValueState(tuple[int, float], default=(0, 0.0))
    end = sf.Timer("event")

    def process(self, key: Any, rows: Iterator[ChannelEvent], ctx: sf.Context) -> None:
        n, total = self.sums.value
        for row in rows:
            n += 1
            total += row.amount
        self.sums.value = (n, total)
        self.end.set(key.start + WINDOW)

    @end.fires
    def ended(self, key: Any, at: datetime, ctx: sf.Context) -> Iterator[Window]:
        n, total = self.sums.value
        self.sums.clear()
        yield Window(key.channel, key.start, n, total)


class Nothing(sf.KeyedProcess[int, Event, Total]):
    sums = sf.ValueState(tuple[int, float], default=(0, 0.0))

    def process(self, key: int, rows: Iterator[Event], ctx: sf.Context) -> None:
        return None


class Kept(sf.KeyedProcess[int, Event, Total]):
    total = sf.ValueState(bytes)

    def process(self, key: int, rows: Iterator[Event], ctx: sf.Context) -> None:
        return None


def running_total(table: Any, state: Any, ctx: Any) -> Any:
    """The same computation on whole Arrow tables."""
    found = table.group_by("user").aggregate([("amount", "count"), ("amount", "sum")])
    before = state.get(found["user"])
    sums = pa.table(
        {
            "n": pc.add(found["amount_count"], pc.fill_null(before["n"], 0)),
            "total": pc.add(found["amount_sum"], pc.fill_null(before["total"], 0.0)),
        }
    )
    state.put(found["user"], sums)
    return pa.table({"user": found["user"], "n": sums["n"], "total": sums["total"]})


@sf.pipeline("process")
def per_key(flow: sf.Flow, *, input: str, output: str = "") -> None:
    events = flow.source("events", sf.delta(input, options=ONE_FILE), Event)
    totals = events.key_by("user").process("totals", RunningTotal)
    if output:
        totals.append("output", sf.delta(output))


@sf.pipeline("process_timed")
def per_key_timed(flow: sf.Flow, *, input: str, output: str) -> None:
    """`per_key`, whose rows also have a timestamp that nobody reads."""
    events = flow.source("events", sf.delta(input, options=ONE_FILE), TimedEvent)
    events.key_by("user").process("totals", RunningTotal).append("output", sf.delta(output))


@sf.pipeline("windows")
def windows_by_hand(flow: sf.Flow, *, input: str, output: str) -> None:
    events = flow.source(
        "events", sf.delta(input, options=ONE_FILE), TimedEvent, event_time="ts", watermark="0 seconds"
    )
    in_windows = events.transform(with_windows, type=ChannelEvent)
    in_windows.key_by("channel", "start").process("windows", TumblingWindow).append(
        "output", sf.delta(output)
    )


def with_windows(frame: Any) -> Any:
    from pyspark.sql import functions as F

    start = F.window("ts", "10 seconds").start.alias("start")
    return frame.select((F.col("user") % CHANNELS).alias("channel"), start, "amount", "ts")


@sf.pipeline("process_arrow")
def columnar(flow: sf.Flow, *, input: str, output: str = "") -> None:
    events = flow.source("events", sf.delta(input, options=ONE_FILE), Event)
    totals = events.key_by("user").process_arrow(
        "totals", running_total, state={"n": int, "total": float}, output=Total
    )
    if output:
        totals.append("output", sf.delta(output))


@sf.pipeline("nothing")
def nothing(flow: sf.Flow, *, input: str) -> None:
    flow.source("events", sf.delta(input, options=ONE_FILE), Event).key_by("user").process("nothing", Nothing)


@sf.pipeline("bench")
def blobs(flow: sf.Flow, *, input: str) -> None:
    """The pipeline for state that `made_state` has made of bytes."""
    flow.source("events", sf.delta(input, options=ONE_FILE), Event).key_by("user").process("totals", Kept)
