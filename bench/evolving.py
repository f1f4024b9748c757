"""What a release that changes the type of a big state costs: at its start, and with the first batch over old entries.

The same batch runs over two shards with the same keys, in turns: one whose entries an earlier release has written, and one
whose entries have the new type. Both are whole tasks without Spark, over real RocksDB files.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec
import numpy as np
import pyarrow as pa

import stateflow as sf
from bench.expiry import GROUPS, Subtask, batch_of, in_a_task
from bench.measurement import Measurement, Results, Section, Workplace, at_most, median, seconds
from bench.measurement import size as bytes_
from bench.operators import Event, Total
from stateflow.compatibility.flows import compare
from stateflow.compatibility.states import resolve_states
from stateflow.format.records import OperatorState, Owner, Record, StateSchema
from stateflow.pipelines.flow import Flow
from stateflow.pipelines.pipeline import Pipeline

SIDES = ("pairs",)


@dataclass(frozen=True, slots=True)
class Size:
    keys: int
    """In one subtask."""
    touched: int
    """Keys that a batch has rows of."""
    pairs: int


class Seen(msgspec.Struct):
    n: int
    sum: int


class SeenNow(msgspec.Struct):
    n: int
    total: Annotated[float, sf.field(aliases=["sum"])]
    note: str = "-"


class Before(sf.KeyedProcess[int, Event, Total]):
    seen = sf.ValueState(Seen)

    def process(self, key: int, rows: Iterator[Event], ctx: sf.Context) -> Iterator[Total]:
        for row in rows:
            before = self.seen.value or Seen(0, 0)
            self.seen.value = Seen(before.n + 1, before.sum + int(row.amount))
        yield Total(key, 1, 0.0)


class Now(sf.KeyedProcess[int, Event, Total]):
    seen = sf.ValueState(SeenNow)

    def process(self, key: int, rows: Iterator[Event], ctx: sf.Context) -> Iterator[Total]:
        for row in rows:
            before = self.seen.value or SeenNow(0, 0.0)
            self.seen.value = SeenNow(before.n + 1, before.total + row.amount)
        yield Total(key, 1, 0.0)


@dataclass
class Job(Subtask):
    """A job of one subtask, whose next release may have another type of state."""

    states: dict[str, StateSchema] = field(default_factory=dict)

    def evolved(self) -> dict[str, StateSchema]:
        return {name: schema for name, schema in self.states.items() if schema.evolved}

    def release(self, process: type[Any]) -> float:
        """Other code from now on; gives the seconds that a start takes to compare it and to find the states."""
        before = OperatorState(
            key=(("user", "int"),), max_parallelism=GROUPS, assignment=((0, GROUPS - 1),), shards=(self.shards,),
            states=self.states, next_state_id=9,
        )  # fmt: skip
        record = Record(
            kind="checkpoint", job="j", slot=self.slot + 1, epoch=1, writer="w", owner=Owner(run="r"),
            operators={"op": before},
        )  # fmt: skip
        flow = flow_of(process)
        began = time.perf_counter()
        if not compare(flow, "job", record).compatible:
            raise AssertionError("the release does not fit")
        self.states, _ = resolve_states(flow.operators[0], before, self.slot + 1)
        self.process = process
        return time.perf_counter() - began


def flow_of(process: type[Any]) -> Flow:
    def declare(flow: Flow) -> None:
        rows = flow.source("in", sf.delta("/nowhere"), Event)
        rows.key_by("user").process("op", process).collect("out", sf.memory("evolving"))

    return Pipeline("job", declare).build()


def run(side: str, size: Size, workplace: Workplace) -> dict[str, Any]:
    in_a_task()
    everybody = np.arange(size.keys, dtype=np.int64) * 7919 % (1 << 50)
    jobs = {
        name: Job(process, False, workplace.folder / name)
        for name, process in {"old": Before, "new": Now}.items()
    }
    for name, job in jobs.items():
        job.folder.mkdir(parents=True)
        job.states, _ = resolve_states(flow_of(job.process).operators[0], None)
        workplace.say(f"{name}: {size.keys:,} keys")
        for part in np.array_split(everybody, max(1, size.keys // 500_000)):
            job.batch(batch_of(part, 1))
    unchanged = jobs["new"].release(Now)
    start = jobs["old"].release(Now) - unchanged
    kept = {name: job.shards for name, job in jobs.items()}
    written = jobs["old"].batch([]).metrics.get("uploaded_bytes", 0)
    spent: dict[str, list[float]] = {"old": [], "new": [], "old again": [], "new again": []}
    for pair in range(size.pairs):
        users = np.random.default_rng(pair).choice(everybody, size.touched, replace=False)
        rows = batch_of(users, pair)
        order = list(jobs.items()) if pair % 2 else list(jobs.items())[::-1]
        for name, job in order:
            job.shards = kept[name]
            _timed(job, rows, spent[name])
        for name, job in order:
            _timed(job, rows, spent[f"{name} again"])
        workplace.say(f"pair {pair}: {', '.join(f'{k} {v[-1]:.2f} s' for k, v in spent.items())}")
    return {"start": start, "written": written, "state": sum(s.bytes for s in kept["old"]), "cpu": spent}


def _timed(job: Job, rows: list[pa.RecordBatch], spent: list[float]) -> None:
    job.batch(rows)
    spent.append(job.cpu)


def section(results: Results, size: Size) -> Section:
    trials = results.of("pairs")

    def ratio(one: str, other: str) -> float:
        return median(
            [a / b for trial in trials for a, b in zip(trial["cpu"][one], trial["cpu"][other], strict=True)]
        )

    first, steady = ratio("old", "new"), ratio("old again", "new again")
    start = median([trial["start"] for trial in trials])
    written = max(trial["written"] for trial in trials)
    rows = [
        ["keys", f"{size.keys:,}"],
        ["state", bytes_(trials[0]["state"])],
        ["bytes that the first batch without rows writes", f"{written:,.0f}"],
        ["a start takes longer by", seconds(max(start, 0.0))],
        [
            f"first batch that touches {size.touched:,} old entries, CPU of one on new entries",
            f"{first:.3f}x",
        ],
        ["the next batch on the same keys", f"{steady:.3f}x"],
    ]
    text = (
        "A field of a state's type is added, another is renamed and becomes a float. Entries are converted as they are read, and written anew "
        "with their next change. One subtask, a task as Spark runs it but without Spark; CPU seconds of pairs that run in turn."
    )
    targets = [
        at_most("a release rewrites nothing when it begins", written, 0, bytes_),
        at_most("it begins at most 300 ms later", start, 0.3, seconds),
        at_most("the first batch over old entries takes at most 1.15 times as long", first, 1.15),
    ]
    return Section(text, ("what", "measured"), rows, targets)


MEASUREMENT = Measurement(
    "evolving",
    "A release that changes a big state",
    SIDES,
    {"full": Size(1_000_000, 200_000, 3), "quick": Size(100_000, 20_000, 2)},
    run,
    section,
    repeats=1,
    minutes={"full": 0.6, "quick": 0.1},
)
