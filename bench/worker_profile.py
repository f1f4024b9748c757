"""One subtask without Spark, phase by phase: the first thing to look at when a batch is slow.

    python -m bench.worker_profile process [--rows 2000000] [--keys 1000000] [--batches 4] [--functions]

It does what a Python worker does with half of each batch: Arrow batches in, user code, state, upload, Arrow out.
Times are CPU seconds of the worker's main thread; what is indented is part of what stands above it. `--functions` adds
cProfile's view of the last batch, whose own cost falls on small functions: compare phases, not those.
"""

from __future__ import annotations

import argparse
import cProfile
import importlib
import pstats
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from bench import operators
from bench.generate import FIRST_TIME, BatchSpec, times, users
from stateflow.config.options import load
from stateflow.format.records import Shard
from stateflow.operators.arrow_types import arrow_schema_of
from stateflow.operators.binding import TIMER_IDS, schemas
from stateflow.operators.columnar import ColumnarSpec
from stateflow.operators.context import Moment
from stateflow.pipelines.processes.columnar import ALONE, FunctionOperator
from stateflow.pipelines.processes.operator_spec import MAIN, OperatorSpec
from stateflow.pipelines.rows.row_type import row_type
from stateflow.spark.task.acks import Ack
from stateflow.spark.task.carried import GROUP_AT, carried
from stateflow.spark.task.row_work import RowTask
from stateflow.spark.task.storage import TaskStorage
from stateflow.spark.task.subtask import Task, worker
from stateflow.spark.task.table_work import TableTask
from stateflow.state.backends.choice import open_backend
from stateflow.state.columns.layout import ColumnLayout
from stateflow.state.keys.hashing import key_groups_of

GROUPS = 128
ARROW_ROWS = 20_000
_KEYED = (
    ("stateflow.operators.keyed", "KeyedEngine.run", "engine"),
    ("stateflow.state.single_values", "StoredState.begin", "  state read"),
    ("stateflow.state.single_values", "StoredState.collect", "  state gathered"),
    ("stateflow.state.backends.rocksdb", "RocksBackend.get_many", "  RocksDB get_many"),
    ("stateflow.state.backends.rocksdb", "RocksBackend.write", "  RocksDB write"),
    ("stateflow.spark.task.sorted_rows", "_order", "rows sorted"),
    ("stateflow.spark.task.blocks", "Block.__init__", "keys found and rows made"),
    ("stateflow.spark.task.columns", "RowReader.read", "  rows made"),
    ("stateflow.operators.output", "RowWriter.write", "output made"),
    ("stateflow.state.backends.rocksdb", "RocksBackend.snapshot", "snapshot"),
)
PHASES: dict[str, tuple[tuple[str, str, str], ...]] = {
    "process": _KEYED,
    "process_timed": _KEYED,
    "windows": _KEYED,
    "process_arrow": (
        ("bench.operators", "running_total", "user code"),
        ("stateflow.state.columns.state", "ColumnState.get", "  state get"),
        ("stateflow.state.columns.state", "ColumnState.put", "  state put"),
        ("stateflow.state.backends.rocksdb", "RocksBackend.get_many", "  RocksDB get_many"),
        ("stateflow.state.backends.rocksdb", "RocksBackend.write", "  RocksDB write"),
        ("stateflow.state.backends.rocksdb", "RocksBackend.snapshot", "snapshot"),
    ),
}


class _Acks:
    """Stands in for Spark's accumulator."""

    ack: Ack

    def add(self, bodies: list[bytes]) -> None:
        self.ack = msgspec.msgpack.decode(bodies[0], type=Ack)


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.worker_profile")
    parser.add_argument("side", choices=sorted(PHASES))
    parser.add_argument(
        "--rows", type=int, default=2_000_000, help="of the whole batch; the subtask gets half"
    )
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--functions", action="store_true", help="cProfile of the last batch")
    options = parser.parse_args(arguments)
    spent: dict[str, float] = {}
    _watch(options.side, spent)
    # Outside of Spark this is subtask 0 of attempt 0.
    context = TaskContext._getOrCreate()
    context._partitionId, context._taskAttemptId = 0, 0
    work = Path(tempfile.mkdtemp(prefix="worker-profile-"))
    try:
        shards: tuple[tuple[Shard, ...], ...] = ((Shard(first=0, last=GROUPS // 2 - 1, backend="rocksdb"),),)
        for number in range(options.batches):
            data = list(_arrow_batches(options.side, options.rows, options.keys, number))
            acks = _Acks()
            watermark = FIRST_TIME + number * options.rows * 1000 if options.side == "windows" else None
            run = worker(_task(options.side, number + 1, watermark, shards, work), acks)
            spent.clear()
            profile = cProfile.Profile() if options.functions and number == options.batches - 1 else None
            wall, cpu, thread = time.perf_counter(), time.process_time(), time.thread_time()
            if profile:
                profile.enable()
            out = sum(batch.num_rows for batch in run(iter(data)))
            if profile:
                profile.disable()
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            thread = time.thread_time() - thread
            rows = sum(batch.num_rows for batch in data)
            shards = (acks.ack.shards,)
            _print(options.side, number, rows, out, wall, cpu, thread, spent, acks.ack)
            if profile:
                pstats.Stats(profile).sort_stats("tottime").print_stats(30)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _watch(side: str, spent: dict[str, float]) -> None:
    """Times the functions of `PHASES` from now on. Prints the name of a function that is missing."""
    for module, path, label in PHASES[side]:
        owner: Any = importlib.import_module(module)
        *outer, name = path.split(".")
        for part in outer:
            owner = getattr(owner, part)
        if not hasattr(owner, name):
            print(f"{module}.{path} is not there any more: mend bench/worker_profile.py", file=sys.stderr)
            continue
        setattr(owner, name, _timed(getattr(owner, name), label, spent))


def _timed(function: Callable[..., Any], label: str, spent: dict[str, float]) -> Callable[..., Any]:
    # By its old name, so that user code goes to the worker as a reference and comes back as this very function.
    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        began = time.thread_time()
        try:
            return function(*args, **kwargs)
        finally:
            spent[label] = spent.get(label, 0.0) + time.thread_time() - began

    return call


def _arrow_batches(side: str, rows: int, keys: int, number: int) -> Iterator[pa.RecordBatch]:
    """The rows that the exchange would hand to subtask 0 of two."""
    rng = np.random.default_rng([1, number])
    user = users(BatchSpec(rows, keys), rng, 1)
    fields = {"user": pa.array(user), "amount": pa.array(rng.integers(0, 100, rows).astype(np.float64))}
    key = {"user": "int"}
    if side in ("process_timed", "windows"):
        fields["ts"] = times(number * rows, rows)
    if side == "windows":
        micros = fields["ts"].cast(pa.int64()).to_numpy()
        start = pa.array(micros - micros % operators.WINDOW_MICROS).cast(fields["ts"].type)
        channel = pa.array(user % operators.CHANNELS)
        fields = {"channel": channel, "start": start, "amount": fields["amount"], "ts": fields["ts"]}
        key = {"channel": "int", "start": "datetime"}
    parts = [fields[name] for name in key]
    group = key_groups_of(tuple(key.values()), parts, GROUPS)
    late = pa.array(np.zeros(rows, bool))
    # Rows of a key of several parts come in the order of its hash.
    low = key_groups_of(tuple(key.values()), parts, 1 << GROUP_AT) if len(parts) > 1 else 0
    first = {"_sf_place": pa.array((group.astype(np.int64) << GROUP_AT) | low)}
    if side == "process_arrow":
        first = {"_sf_group": pa.array(group.astype(np.int32))}
    own = {"_sf_late": late} if side == "windows" else {}
    table = pa.table(
        {
            **first,
            **own,
            **fields,
        }
    ).filter(pa.array(group < GROUPS // 2))
    if side == "process_arrow":
        table = table.sort_by([(next(iter(first)), "ascending"), *((name, "ascending") for name in key)])
    yield from table.combine_chunks().to_batches(max_chunksize=ARROW_ROWS)


def _task(
    side: str, slot: int, watermark: int | None, shards: tuple[tuple[Shard, ...], ...], work: Path
) -> Task:
    storage = TaskStorage(
        str(work / "root"), "profile", 1, slot, str(work / "cache"), 10 << 30, str(work / "scratch")
    )
    moment = Moment(slot, 1, 1, watermark)
    backend = open_backend(load(code={}, env={}, folder=work))
    output = pa.schema([("user", pa.int64()), ("n", pa.int64()), ("total", pa.float64())])
    if side == "process_arrow":
        layout = ColumnLayout({"n": int, "total": float})
        operator = FunctionOperator(operators.running_total, {ALONE: layout}, 1_000_000, alone=True)
        columnar = ColumnarSpec(
            "totals", operator, (("user", "int"),), GROUPS,
            {ALONE: msgspec.structs.replace(layout.schema(), id=1)}, {MAIN: output},
        )  # fmt: skip
        carry = carried([("user",)], ("int",), [row_type(operators.Event)], late=False, place=False)
        return TableTask(
            spec=columnar, fields=(row_type(operators.Event).names,), carry=carry, moment=moment,
            storage=storage, shards=shards, open_shard=backend,
        )  # fmt: skip
    if side == "windows":
        spec = _spec(
            "windows", operators.TumblingWindow, operators.ChannelEvent, operators.Window, "channel", "start"
        )
        output = arrow_schema_of(row_type(operators.Window))
    else:
        event = operators.TimedEvent if side == "process_timed" else operators.Event
        spec = _spec("totals", operators.RunningTotal, event, operators.Total, "user")
    carry = carried([spec.key_columns], spec.key_types, spec.rows, late=side == "windows")
    return RowTask(
        spec=spec, moment=moment, storage=storage, shards=shards, open_shard=backend, outputs={MAIN: output},
        carry=carry,
    )  # fmt: skip


def _spec(uid: str, process: Any, event: Any, result: Any, *key: str) -> OperatorSpec:
    ids, following = {}, 1
    for name, schema in schemas(process, uid).items():
        ids[name] = following
        following += TIMER_IDS if schema.kind == "timer" else 1
    kinds = tuple("int" if name in ("user", "channel") else "datetime" for name in key)
    return OperatorSpec(uid, process, process, key, kinds, (row_type(event),), row_type(result), {}, ids)


def _print(
    side: str,
    number: int,
    rows: int,
    out: int,
    wall: float,
    cpu: float,
    thread: float,
    spent: dict[str, float],
    ack: Ack,
) -> None:
    print(f"batch {number}: {rows:,} rows in, {out:,} out; {rows / wall:,.0f} rows/s per core")
    print(f"  {'wall':28}{wall:8.2f} s")
    print(f"  {'CPU of the process':28}{cpu:8.2f} s")
    print(f"  {'CPU of the main thread':28}{thread:8.2f} s")
    for _, _, label in PHASES[side]:
        print(f"    {label:26}{spent.get(label, 0.0):8.2f} s")
    metrics = ack.metrics
    print(
        f"  uploaded {metrics['uploaded_bytes']:,.0f} bytes, compacted {metrics['compacted_bytes']:,.0f}, "
        f"opened in {metrics['open_s']:.2f} s, snapshot {metrics['snapshot_s']:.2f} s"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
