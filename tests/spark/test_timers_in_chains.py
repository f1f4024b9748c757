"""User code with timers behind windows: it goes by the watermark that its rows are behind, so how batches are cut changes nothing."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import stateflow as sf
from stateflow.testing import FlowHarness

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
PATIENCE = timedelta(seconds=90)
MINUTE = timedelta(minutes=1)


@dataclass
class Event:
    k: int
    ts: datetime


@dataclass
class PerMinute:
    k: int
    window_start: datetime
    window_end: datetime
    n: int


@dataclass
class Silence:
    k: int
    at: datetime
    late: bool


class Watch(sf.KeyedProcess[int, PerMinute, Silence]):
    """A key that had no window for so long. A window that is behind the watermark would be none that it can count on."""

    seen = sf.Timer("event", many=True)
    silence = sf.Timer("event")

    def process(self, key: int, rows: Iterator[PerMinute], ctx: sf.Context) -> Iterator[Silence]:
        for row in rows:
            if ctx.watermark is not None and row.window_start <= ctx.watermark:
                yield Silence(key, row.window_start, True)
            self.seen.set(row.window_end)

    @seen.fires
    def window(self, key: int, at: datetime, ctx: sf.Context) -> None:
        self.silence.set(at + PATIENCE)

    @silence.fires
    def silent(self, key: int, at: datetime, ctx: sf.Context) -> Iterator[Silence]:
        assert ctx.watermark is not None
        assert ctx.watermark >= at
        yield Silence(key, at, False)


def noted(table: pa.Table, state: Any, ctx: Any) -> pa.Table | None:
    """The same by tables: an entry of each window, at the time that it is looked at."""
    ends = table["window_end"].to_pylist()
    times = pa.array([end + PATIENCE for end in ends], pa.timestamp("us", "UTC"))
    state.put(table["k"], pa.table({"n": table["n"]}), at=times)
    behind = [
        ctx.watermark is not None and start <= ctx.watermark for start in table["window_start"].to_pylist()
    ]
    found = pa.table({"k": table["k"], "at": table["window_start"], "late": behind})
    return found.filter(found["late"])


def looked_at(state: Any, ctx: Any) -> Iterator[pa.Table]:
    if ctx.watermark is None:
        return
    for due in state.due(ctx.watermark):
        yield pa.table({"k": due["k"], "at": due["at"], "late": [False] * due.num_rows})
    state.delete_due(ctx.watermark)


@sf.pipeline("timers")
def timers(flow: sf.Flow, *, input: str, silences: str, quarters: str, looks: str, per_look: str) -> None:
    source = sf.files(input, "json", per_batch=1)
    events = flow.source("events", source, Event, event_time="ts", watermark="10 seconds")
    cut = events.key_by("k").window(sf.tumbling("1 minute"), lateness="3 minutes")
    minutes = cut.aggregate("minutes", PerMinute, n=sf.count())

    silent = minutes.key_by("k").process("watch", Watch)
    silent.append("silences", sf.delta(silences))
    per_quarter = silent.key_by("k").window(sf.tumbling("15 minutes"), time="at")
    counts = "k long, window_start timestamp, n long"
    per_quarter.aggregate("quarters", counts, n=sf.count()).append("quarters-out", sf.delta(quarters))

    state = sf.columns({"n": int}, timed=True)
    looked = minutes.key_by("k").process_arrow("look", noted, state=state, output=Silence, on_due=looked_at)
    looked.append("looks", sf.delta(looks))
    per_look_ = looked.key_by("k").window(sf.tumbling("5 minutes"), time="at")
    per_look_.aggregate("per-look", counts, n=sf.count()).append("per-look-out", sf.delta(per_look))


def events_of(chance: random.Random) -> list[Event]:
    """In the order in which they come, which is not that of their times, and with holes."""
    seconds = sorted([*chance.sample(range(1800), 60), 1799])
    rows = [Event(chance.randrange(3), NOON + timedelta(seconds=at)) for at in seconds if at % 400 < 250]
    return sorted(rows, key=lambda row: row.ts + timedelta(seconds=chance.uniform(0, 9)))


def plainly(rows: list[Event]) -> dict[str, list[tuple[Any, ...]]]:
    ends: dict[int, set[datetime]] = defaultdict(set)
    for row in rows:
        ends[row.k].add(row.ts.replace(second=0) + MINUTE)
    silences, looks = [], []
    for k, all_of_key in ends.items():
        mine = sorted(all_of_key)
        silences += [(k, end + PATIENCE) for end, after in pairwise(mine) if after > end + PATIENCE]
        silences.append((k, mine[-1] + PATIENCE))
        looks += [(k, end + PATIENCE) for end in mine]
    return {
        "silences": sorted(silences),
        "quarters-out": counted(silences, 15),
        "looks": sorted(looks),
        "per-look-out": counted(looks, 5),
    }


def counted(rows: list[tuple[int, datetime]], minutes: int) -> list[tuple[int, datetime, int]]:
    counts: dict[tuple[int, datetime], int] = defaultdict(int)
    for k, at in rows:
        counts[k, at.replace(minute=at.minute // minutes * minutes, second=0)] += 1
    return sorted((k, start, n) for (k, start), n in counts.items())


@pytest.mark.slow
@pytest.mark.parametrize("batches", [1, 4])
def test_what_timers_behind_windows_give_is_what_one_computation_gives(
    spark: SparkSession, tmp_path: Path, batches: int
) -> None:
    rows = events_of(random.Random(11))
    harness = FlowHarness(timers, tmp_path)
    cuts = sorted(random.Random(batches).sample(range(1, len(rows)), batches - 1))
    for begin, end in pairwise([0, *cuts, len(rows)]):
        harness.add("events", *(asdict(row) for row in rows[begin:end]))
    harness.run()
    harness.run(final=True)
    found = {
        sink: sorted(
            (row["k"], row.get("at") or row["window_start"], *([row["n"]] if "n" in row else []))
            for row in harness.table(sink)
        )
        for sink in ("silences", "quarters-out", "looks", "per-look-out")
    }
    assert [row for sink in ("silences", "looks") for row in harness.table(sink) if row["late"]] == []
    assert found == plainly(rows)
