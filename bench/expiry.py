"""What a ttl costs a subtask, and whether the store keeps its size: without Spark, over real RocksDB shards.

    python -m bench.expiry cost [--side totals|dedup] [--keys 200000] [--batches 12]
    python -m bench.expiry size [--keys 20000] [--batches 200]      draws docs/img/expiry.svg

`cost` runs the same batches without a ttl, with one that hides, and with one that frees, in turns, and compares CPU
seconds. `size` writes new keys with every batch, of which each lives for ten batches: a tenth expires with every batch.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from pyspark import TaskContext

import stateflow as sf
from bench.measurement import Measurement, Plot, Results, Section, Workplace, at_most
from bench.operators import Event, Total
from bench.plots import draw
from stateflow.config.options import load
from stateflow.format.records import Shard, StateSchema
from stateflow.operators.binding import schemas
from stateflow.operators.context import Moment
from stateflow.pipelines.processes.operator_spec import MAIN, OperatorSpec
from stateflow.pipelines.rows.row_type import row_type
from stateflow.spark.task.acks import Ack
from stateflow.spark.task.row_work import RowTask
from stateflow.spark.task.storage import TaskStorage
from stateflow.spark.task.subtask import worker
from stateflow.state.backends.choice import open_backend
from stateflow.state.keys.hashing import key_groups_of

GROUPS = 128
ARROW_ROWS = 20_000
LIFE = 10
"""Batches that an entry lives; a batch is a second of processing time."""
SECOND = 10**6
IMAGES = Path(__file__).parents[1] / "docs" / "img"


def totals(ttl: Any) -> type[Any]:
    class Totals(sf.KeyedProcess[int, Event, Total]):
        sums = sf.ValueState(tuple[int, float], default=(0, 0.0), ttl=ttl)

        def process(self, key: int, rows: Iterator[Event], ctx: sf.Context) -> Iterator[Total]:
            n, total = self.sums.value
            for row in rows:
                n += 1
                total += row.amount
            self.sums.value = (n, total)
            yield Total(key, n, total)

    return Totals


def dedup(ttl: Any) -> type[Any]:
    class Dedup(sf.KeyedProcess[int, Event, Total]):
        seen = sf.ValueState(bool, ttl=ttl)

        def process(self, key: int, rows: Iterator[Event], ctx: sf.Context) -> Iterator[Total]:
            if not self.seen.exists():
                yield Total(key, 1, next(rows).amount)
            self.seen.value = True

    return Dedup


PROCESSES = {"totals": totals, "dedup": dedup}


class _Acks:
    ack: Ack

    def add(self, bodies: list[bytes]) -> None:
        self.ack = msgspec.msgpack.decode(bodies[0], type=Ack)


@dataclass
class Subtask:
    """A job of one subtask."""

    process: type[Any]
    indexed: bool
    folder: Path
    slot: int = 0
    cpu: float = 0.0
    shards: tuple[Shard, ...] = (Shard(first=0, last=GROUPS - 1, backend="rocksdb"),)

    def batch(self, rows: list[pa.RecordBatch]) -> Ack:
        self.slot += 1
        spec = OperatorSpec(
            "op", self.process, self.process, ("user",), ("int",), (row_type(Event),), row_type(Total), {},
            dict.fromkeys(schemas(self.process, "op"), 1), indexes=self._indexes(), evolved=self.evolved(),
        )  # fmt: skip
        storage = TaskStorage(
            str(self.folder / "root"), "job", 1, self.slot, str(self.folder / "cache"), 1 << 40,
            str(self.folder / "scratch"),
        )  # fmt: skip
        backend = open_backend(load(code={}, env={}, folder=self.folder))
        output = pa.schema([("user", pa.int64()), ("n", pa.int64()), ("total", pa.float64())])
        moment = Moment(self.slot, round(self.slot * SECOND), 1, None)
        acks = _Acks()
        task = RowTask(
            spec=spec, moment=moment, storage=storage, shards=(self.shards,), open_shard=backend,
            outputs={MAIN: output},
        )  # fmt: skip
        began = time.thread_time()
        for _ in worker(task, acks)(iter(rows)):
            pass
        self.cpu = time.thread_time() - began
        self.shards = acks.ack.shards
        return acks.ack

    def evolved(self) -> dict[str, StateSchema]:
        """The states whose type has changed since they were first written."""
        return {}

    def _indexes(self) -> dict[str, Any]:
        if not self.indexed:
            return {}
        return {
            name: msgspec.structs.replace(schema, id=1, expiry_index=2)
            for name, schema in schemas(self.process, "op").items()
        }

    @property
    def bytes(self) -> int:
        return sum(shard.bytes for shard in self.shards)


def batch_of(users: Any, seed: int) -> list[pa.RecordBatch]:
    """The rows as the exchange hands them to the subtask."""
    group = key_groups_of(("int",), [pa.array(users)], GROUPS)
    order = np.lexsort((users, group))
    users, group = users[order], group[order]
    amount = np.random.default_rng(seed).integers(0, 100, len(users)).astype(np.float64)
    columns = {
        "_sf_group": group.astype(np.int32),
        "_sf_key0": users,
        "_sf_late": np.zeros(len(users), bool),
        "user": users,
        "amount": amount,
    }
    table = pa.table({name: pa.array(values) for name, values in columns.items()})
    return table.to_batches(max_chunksize=ARROW_ROWS)


def users_of(side: str, number: int, keys: int) -> Any:
    """Running totals: the same keys with every batch, two rows each. Deduplication: new keys, and some of the last batch."""
    if side == "totals":
        return np.repeat(np.arange(keys, dtype=np.int64), 2)
    again = np.arange(keys // 10, dtype=np.int64) + keys * max(number - 1, 0)
    return np.concatenate([np.arange(keys, dtype=np.int64) + keys * number, again]) * 7919 % (1 << 50)


def cost(side: str, keys: int, batches: int) -> None:
    work = Path(tempfile.mkdtemp(prefix="expiry-"))
    try:
        spent = spent_by(side, keys, batches, work, lambda text: print(text, flush=True))
    finally:
        shutil.rmtree(work, ignore_errors=True)
    for kind in ("hides", "frees"):
        every, late = ratios_of(spent, kind)
        print(
            f"{side}: a batch with a ttl that {kind} takes {every:.3f} of one without a ttl, {late:.3f} once entries expire"
        )


def ratios_of(spent: Mapping[str, Sequence[float]], kind: str) -> tuple[float, float]:
    """CPU of a batch with a ttl, as a part of that of one without: of all batches, and of those once entries expire."""
    ratios = [a / b for a, b in zip(spent[kind], spent["no ttl"], strict=True)][2:]
    return statistics.median(ratios), statistics.median(ratios[LIFE:] or ratios)


def spent_by(
    side: str, keys: int, batches: int, work: Path, say: Callable[[str], None]
) -> dict[str, list[float]]:
    """CPU seconds of each batch, by what its ttl does. The kinds run in turns."""
    make = PROCESSES[side]
    kinds = {
        "no ttl": Subtask(make(None), False, work / "none"),
        "hides": Subtask(make(f"{LIFE} s"), False, work / "hides"),
        "frees": Subtask(make(f"{LIFE} s"), True, work / "frees"),
    }
    spent: dict[str, list[float]] = {kind: [] for kind in kinds}
    for number in range(batches):
        rows = batch_of(users_of(side, number, keys), number)
        turns = list(kinds.items())
        for kind, subtask in turns if number % 2 else reversed(turns):
            subtask.folder.mkdir(parents=True, exist_ok=True)
            subtask.batch(rows)
            spent[kind].append(subtask.cpu)
        say(f"{number} { ({k: f'{s.cpu:.2f} s, {s.bytes / 1e6:.1f} MB' for k, s in kinds.items()}) }")
    return spent


def size(keys: int, batches: int) -> None:
    work = Path(tempfile.mkdtemp(prefix="expiry-"))
    kinds = {
        "a ttl that hides": Subtask(dedup(f"{LIFE} s"), False, work / "hides"),
        "a ttl that frees": Subtask(dedup(f"{LIFE} s"), True, work / "frees"),
    }
    sizes: dict[str, list[float]] = {kind: [] for kind in kinds}
    try:
        for number in range(batches):
            rows = batch_of(users_of("dedup", number, keys), number)
            for kind, subtask in kinds.items():
                subtask.folder.mkdir(exist_ok=True)
                subtask.batch(rows)
                sizes[kind].append(subtask.bytes / 1e6)
        freed = sizes["a ttl that frees"]
        print(
            f"after {LIFE * 2} batches {freed[2 * LIFE - 1]:.1f} MB, the largest afterwards {max(freed[2 * LIFE :]):.1f} MB, "
            f"at the end {freed[-1]:.1f} MB; without freeing {sizes['a ttl that hides'][-1]:.1f} MB"
        )
        title = f"A state of which a tenth expires with every batch ({keys:,} new keys a batch)"
        print(
            draw(Plot("expiry", title, "lines", range(1, batches + 1), sizes, "batch", "MB stored"), IMAGES)
        )
    finally:
        shutil.rmtree(work, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Size:
    keys: int
    batches: int


def measured(side: str, size: Size, workplace: Workplace) -> dict[str, Any]:
    in_a_task()
    return {"spent": spent_by(side, size.keys, size.batches, workplace.folder, workplace.say)}


def section(results: Results, size: Size) -> Section:
    rows, targets = [], []
    for side, what in {"totals": "keys that come back", "dedup": "keys that are all new"}.items():
        (every, late) = ratios_of(results.first(side)["spent"], "frees")
        rows.append([what, f"{every:.3f}x", f"{late:.3f}x"])
        targets.append(at_most(f"a ttl makes batches at most 5 % longer: {what}", every, 1.05))
    text = (
        f"CPU of a task's batches with a ttl that frees, as a part of that of the same batches without a ttl. {size.keys:,} keys a "
        f"batch, {size.batches} batches, an entry lives for {LIFE}. `python -m bench.expiry size` draws how the store keeps its size."
    )
    return Section(text, ("batches of", "all batches", "once entries expire"), rows, targets)


MEASUREMENT = Measurement(
    "expiry",
    "State that expires",
    tuple(sorted(PROCESSES)),
    {"full": Size(50_000, 24), "quick": Size(5_000, 14)},
    measured,
    section,
    repeats=1,
    minutes={"full": 0.7, "quick": 0.1},
)


def in_a_task() -> None:
    """Tells code that runs in a task that it does."""
    context = TaskContext._getOrCreate()
    context._partitionId, context._taskAttemptId = 0, 0


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.expiry")
    parser.add_argument("what", choices=("cost", "size"))
    parser.add_argument("--side", choices=sorted(PROCESSES), default="dedup")
    parser.add_argument("--keys", type=int, default=0)
    parser.add_argument("--batches", type=int, default=0)
    options = parser.parse_args(arguments)
    in_a_task()
    if options.what == "cost":
        cost(options.side, options.keys or 200_000, options.batches or 24)
    else:
        size(options.keys or 20_000, options.batches or 200)


if __name__ == "__main__":
    main()
