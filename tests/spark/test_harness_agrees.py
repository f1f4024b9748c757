"""The harness and a run on Spark, given the same rows: lateness, timers, sides and outputs of one column."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pytest

import stateflow as sf
from stateflow.testing import KeyedHarness
from tests.spark.pipelines import Workbench, at

pytestmark = pytest.mark.usefixtures("own_classes")

SEED, BATCHES, ROWS, USERS = 20_260_101, 5, 14, 5
DELAY = timedelta(minutes=2)
EVENT = "user long, n long, ts timestamp"


@dataclass
class Event:
    user: int
    n: int
    ts: datetime


LATE = sf.output("behind", Event)
EVEN = sf.output("even", "n long")


class Telling(sf.KeyedProcess[int, Event, str]):
    """Tells all that it sees, in the order in which it sees it."""

    total = sf.ValueState(int, default=0)
    quiet = sf.Timer("event")

    def process(self, key: int, rows: Iterator[Event], ctx: sf.Context) -> Iterator[str]:
        for row in rows:
            self.total.value += row.n
            self.quiet.set(row.ts + timedelta(minutes=1))
            if ctx.late:
                ctx.emit(LATE, row)
            if row.n % 2 == 0:
                ctx.emit(EVEN, row.n)
            yield f"{key} row {row.n} late={ctx.late} total={self.total.value} at {ctx.watermark}"

    @quiet.fires
    def fired(self, key: int, when: datetime, ctx: sf.Context) -> list[str]:
        return [f"{key} timer {when} total={self.total.value} late={ctx.late} at {ctx.watermark}"]


class Listing(sf.KeyedProcess[int, Event, list[int]]):
    def process(self, key: int, rows: Iterator[Event], ctx: sf.Context) -> Iterator[Any]:
        numbers = [row.n for row in rows]
        yield [key, *numbers]
        yield ([key],)
        yield {"numbers": [key, -1]}
        yield None


class Careless(sf.KeyedProcess[int, Event, str]):
    def process(self, key: int, rows: Iterator[Event], ctx: sf.Context) -> str:
        return f"user {key}"


def batches() -> list[list[Event]]:
    """Times are whole minutes, so that many rows are exactly at the watermark and many timers at one instant."""
    chance = random.Random(SEED)
    return [
        [
            Event(chance.randrange(USERS), ROWS * batch + n, at(3 * batch + chance.randrange(-4, 5)))
            for n in range(ROWS)
        ]
        for batch in range(BATCHES)
    ]


def by_key(told: Iterable[str]) -> dict[str, list[str]]:
    """Keys come in no order of their own; what is told of one key does."""
    found = defaultdict(list)
    for sentence in told:
        found[sentence.split()[0]].append(sentence)
    return dict(found)


@pytest.mark.slow
def test_the_harness_puts_out_what_a_run_puts_out(bench: Workbench) -> None:
    tables = {name: sf.memory(f"agrees-{name}") for name in ("told", "behind", "even", "lists")}
    for table in tables.values():
        table.clear()

    @sf.pipeline("agrees")
    def telling(flow: sf.Flow) -> None:
        events = flow.source("in", bench.source("in", EVENT), Event, event_time="ts", watermark=DELAY)
        keyed = events.key_by("user", order_by="n")
        out = keyed.process("telling", Telling, output="told string", outputs=[LATE, EVEN])
        out.collect("told", tables["told"])
        out.side(LATE).collect("behind", tables["behind"])
        out.side(EVEN).collect("even", tables["even"])
        keyed.process("listing", Listing, output="numbers array<long>").collect("lists", tables["lists"])

    harness = KeyedHarness(Telling, event_time="ts", output="told string", outputs=[LATE, EVEN])
    lists = KeyedHarness(Listing, output="numbers array<long>")
    newest = None
    for rows in batches():
        bench.rows("in", rows)
        # A batch has one watermark: rows are judged by it, and then timers fire up to it.
        harness.watermark = None if newest is None else newest - DELAY
        harness.rows(*rows)
        lists.rows(*rows)
        newest = max(row.ts for row in rows) if newest is None else max(newest, *(row.ts for row in rows))
    assert newest is not None
    harness.advance(newest - DELAY)
    bench.run(telling)

    told = [row["told"] for row in tables["told"].rows]
    assert by_key(told) == by_key(harness.output)
    assert sorted(row["n"] for row in tables["even"].rows) == sorted(harness.side(EVEN))
    behind = [(row["user"], row["n"], row["ts"]) for row in tables["behind"].rows]
    assert sorted(behind) == sorted((row.user, row.n, row.ts) for row in harness.side(LATE))
    bare = [
        row[0] if isinstance(row, tuple) else row["numbers"] if isinstance(row, dict) else row
        for row in lists.output
    ]
    assert sorted(map(repr, (row["numbers"] for row in tables["lists"].rows))) == sorted(map(repr, bare))
    # The rows are worth the comparison: some are late, some of them exactly at the watermark, and timers fire.
    assert 0 < len(behind) < BATCHES * ROWS
    marks = {
        row.n: sentence.split(" at ")[1]
        for row in harness.side(LATE)
        for sentence in told
        if f" row {row.n} " in sentence
    }
    assert any(marks[n] == str(ts) for _, n, ts in behind)
    assert sum(" timer " in sentence for sentence in told) > USERS


def test_a_run_refuses_one_row_in_the_place_of_many_as_the_harness_does(bench: Workbench) -> None:
    table = sf.memory("agrees-careless")
    table.clear()

    @sf.pipeline("careless")
    def careless(flow: sf.Flow) -> None:
        events = flow.source("in", bench.source("in", EVENT), Event)
        events.key_by("user").process("Careless", Careless, output="told string").collect("told", table)

    event = Event(1, 1, at(0))
    bench.rows("in", [event])
    with pytest.raises(sf.UsageError) as refused:
        bench.run(careless)
    with pytest.raises(sf.UsageError) as expected:
        KeyedHarness(Careless, output="told string").rows(event)
    assert str(refused.value) == str(expected.value)
    assert table.rows == []
