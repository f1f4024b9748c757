"""How long the first batch takes on a host that has no file of the state: a pod, a new machine. It reads parts of files, or whole ones."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import stateflow as sf
from bench.generate import BatchSpec, commit
from bench.measurement import Measurement, Results, Section, Workplace, at_most, seconds
from bench.measurement import size as bytes_
from bench.operators import ONE_FILE, Event

DELAY = 0.02
"""Seconds until the store answers."""
RATE = 200e6
"""Bytes that the line carries in a second."""
VALUE = 8_000
SHARDS = 8
NAMES = {"few": "2,000 rows", "many": "400,000 rows"}
GOAL = 1.2
FETCHES = {"auto": "parts", "whole": "whole files"}
AS_WHOLE = {"few": 0.5, "many": 1.1}
"""How many times as long as with whole files a batch may take that reads parts."""


@dataclass
class Count:
    user: int
    n: int


class Documents(sf.KeyedProcess[int, Event, Count]):
    """A large value for each key, which nothing compresses."""

    document = sf.ValueState(bytes)

    def process(self, key: int, rows: Iterator[Event], ctx: sf.Context) -> Iterator[Count]:
        n = sum(1 for _ in rows)
        if self.document.value is None:
            self.document.value = random.Random(key).randbytes(VALUE)
        yield Count(key, n)


@sf.pipeline("documents")
def documents(flow: sf.Flow, *, input: str, output: str) -> None:
    events = flow.source("events", sf.delta(input, options=ONE_FILE), Event)
    events.key_by("user").process("documents", Documents).append("output", sf.delta(output))


@dataclass(frozen=True, slots=True)
class Size:
    keys: int
    rows: dict[str, int]
    repeats: int


def run(side: str, size: Size, workplace: Workplace) -> dict[str, Any]:
    from bench import sides
    from bench.slow_objects import slow_objects

    table = workplace.folder / "input"
    parameters = {"input": str(table), "output": str(workplace.folder / "output")}
    session = sides.session()

    def batch(**options: Any) -> Any:
        outcome = sides.stateflow_run(
            session, documents, parameters, workplace.folder, options={"parallelism": SHARDS, **options}
        )
        (report,) = outcome.reports
        return report

    commit(table, 0, [BatchSpec(size.keys, size.keys, "distinct")], first=0, seed=1)
    workplace.say(f"making {size.keys:,} documents of {VALUE:,} bytes")
    batch()
    took = []
    with slow_objects(workplace.folder / "root", workplace.folder, DELAY, RATE) as (url, storage):
        for number in range(1, size.repeats + 1):
            for turn, fetch in enumerate(FETCHES):
                version = number * len(FETCHES) - 1 + turn
                commit(table, version, [BatchSpec(size.rows[side], size.keys)], first=version, seed=1)
                cache = workplace.folder / f"cache-{version}"
                cold = batch(
                    checkpoint_dir=url,
                    storage_options=storage,
                    cache_dir=str(cache),
                    cache_size="100 GB",
                    rocksdb_fetch=fetch,
                )
                shutil.rmtree(cache / "state", ignore_errors=True)
                metrics = cold.statistics["metrics"]
                took.append({"fetch": fetch, "wall": cold.duration, "fetched": metrics["fetched_bytes"]})
                workplace.say(f"{FETCHES[fetch]}: {bytes_(took[-1]['fetched'])} in {cold.duration:.1f} s")
    return {"took": took}


def ratio(took: dict[str, Any]) -> float:
    """What the batch took to what the line needs for its bytes."""
    return float(took["wall"] / (DELAY + took["fetched"] / RATE))


def middle(batches: list[dict[str, Any]], fetch: str) -> dict[str, Any]:
    """The batch of the median time."""
    chosen = sorted((took for took in batches if took["fetch"] == fetch), key=itemgetter("wall"))
    return chosen[len(chosen) // 2]


def section(results: Results, size: Size) -> Section:
    rows, targets = [], []
    for side, name in NAMES.items():
        batches = [took for trial in results.of(side) for took in trial["took"]]
        parts, whole = (middle(batches, fetch) for fetch in FETCHES)
        rows += [
            [name, FETCHES[it["fetch"]], bytes_(it["fetched"]), seconds(it["wall"]), f"{ratio(it):.2f}x"]
            for it in (parts, whole)
        ]
        of_whole = parts["wall"] / whole["wall"]
        targets += [
            at_most(f"{name}: 1.2 times what the line takes for whole files", ratio(whole), GOAL),
            at_most(f"{name}: {AS_WHOLE[side]:g} times what whole files take", of_whole, AS_WHOLE[side]),
        ]
    text = (
        f"A job whose {SHARDS} shards lie in an S3 server {DELAY * 1000:.0f} ms away, behind a line of {bytes_(RATE)} a second, goes on where "
        "nothing of it is cached: its first batch, from its plan to its record and its commit, with rows for all shards. Spark is up. The batches read "
        "parts of files where that is there sooner, and whole files (`rocksdb_fetch`), in turn."
    )
    return Section(text, ("batch", "reads", "fetched", "took", "to the line's own time"), rows, targets)


MEASUREMENT = Measurement(
    "cold_start",
    "Starts from nothing",
    tuple(NAMES),
    {
        "full": Size(400_000, {"few": 2_000, "many": 400_000}, 3),
        "quick": Size(5_000, {"few": 200, "many": 2_000}, 1),
    },
    run,
    section,
    repeats=1,
    minutes={"full": 9, "quick": 1},
    named_only=True,
)
