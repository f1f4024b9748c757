"""A keyed operator's task, driven without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import stateflow as sf
from stateflow.config.options import load
from stateflow.format.records import Shard
from stateflow.operators.context import Moment
from stateflow.pipelines.processes.operator_spec import MAIN, OperatorSpec
from stateflow.pipelines.rows.row_type import row_type
from stateflow.spark.task import sorted_rows
from stateflow.spark.task.acks import Ack
from stateflow.spark.task.carried import carried
from stateflow.spark.task.row_work import RowTask
from stateflow.spark.task.storage import TaskStorage
from stateflow.spark.task.subtask import worker
from stateflow.state.backends.choice import open_backend
from tests.storage.scratch_folders import in_scratch


class Event(msgspec.Struct):
    user: int
    amount: float


class Total(msgspec.Struct):
    user: int
    total: float


class Sum(sf.KeyedProcess[int, Event, Total]):
    total = sf.ValueState(float, default=0.0)

    def process(self, key: int, rows: Iterator[Event], ctx: sf.Context) -> Iterator[Total]:
        for row in rows:
            self.total.value += row.amount
        yield Total(key, self.total.value)


class Acks:
    def __init__(self) -> None:
        self.acks: list[Ack] = []

    def add(self, bodies: list[bytes]) -> None:
        self.acks += [msgspec.msgpack.decode(body, type=Ack) for body in bodies]


def task(folder: Path, process: type[Any], shard: Shard, slot: int = 1) -> RowTask:
    spec = OperatorSpec(
        "sum", process, process, ("user",), ("int",), (row_type(Event),), row_type(Total), {}, {"total": 1}
    )
    storage = TaskStorage(
        str(folder / "root"), "job", 1, slot, str(folder / "cache"), 1 << 30, str(folder / "scratch")
    )
    schema = pa.schema([("user", pa.int64()), ("total", pa.float64())])
    opened = open_backend(load(folder=folder))
    return RowTask(
        spec=spec,
        moment=Moment(slot, 1, 1, None),
        storage=storage,
        shards=((shard,),),
        open_shard=opened,
        outputs={MAIN: schema},
    )


def batch(*users: int) -> pa.RecordBatch:
    columns = {
        "_sf_group": pa.array([0] * len(users), pa.int32()),
        "_sf_key0": pa.array(users, pa.int64()),
        "_sf_late": pa.array([False] * len(users)),
        "user": pa.array(users, pa.int64()),
        "amount": pa.array([1.0] * len(users)),
    }
    return pa.record_batch(list(columns.values()), names=list(columns))


def test_a_handle_goes_in_and_a_new_one_comes_out(tmp_path: Path) -> None:
    shard, totals = Shard(first=0, last=127, backend="rocksdb"), []
    for slot in (1, 2):
        acks = Acks()
        out = list(worker(task(tmp_path, Sum, shard, slot), acks)(iter([batch(1, 1, 2)])))
        totals.append(pa.Table.from_batches(out).to_pylist())
        shard = acks.acks[0].shards[0]
    assert totals == [
        [{"user": 1, "total": 2.0}, {"user": 2, "total": 1.0}],
        [{"user": 1, "total": 4.0}, {"user": 2, "total": 2.0}],
    ]
    assert not in_scratch(tmp_path / "scratch")


def test_what_failed_first_is_told_not_what_close_says_of_it(tmp_path: Path) -> None:
    class Fails(Sum):
        def process(self, key: int, rows: Iterator[Event], ctx: sf.Context) -> Iterator[Total]:
            raise ValueError("the real reason")

        def close(self) -> None:
            raise RuntimeError("nothing to close")

    acks = Acks()
    with pytest.raises(RuntimeError, match="ValueError: the real reason"):
        list(
            worker(task(tmp_path, Fails, Shard(first=0, last=127, backend="rocksdb")), acks)(iter([batch(1)]))
        )
    assert acks.acks == []
    assert not in_scratch(tmp_path / "scratch")


class Diverts(Sum):
    """Swallows nothing itself: its operator diverts keys that it fails on."""


def diverting(folder: Path, process: type[Any]) -> RowTask:
    made = task(folder, process, Shard(first=0, last=127, backend="rocksdb"))
    return replace(made, spec=replace(made.spec, on_error="dead_letter"))


def test_rows_that_cannot_be_read_are_not_taken_for_a_keys_own_failure(tmp_path: Path) -> None:
    acks = Acks()
    damaged = batch(7, 8).set_column(1, "_sf_key0", pa.array([7, None], pa.int64()))
    with pytest.raises(RuntimeError, match="null in key column"):
        list(worker(diverting(tmp_path, Diverts), acks)(iter([batch(1, 7), batch(7), damaged])))
    assert acks.acks == []


def test_rows_that_waited_on_disk_are_removed_when_user_code_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are of other keys than the one that fails, at the same place."""
    monkeypatch.setattr(sorted_rows, "BYTES_IN_MEMORY", 10)

    class Fails(Sum):
        def process(self, key: int, rows: Iterator[Event], ctx: sf.Context) -> Iterator[Total]:
            if sum(1 for _, row in zip(range(3), rows, strict=False)) == 3:
                waiting = in_scratch(tmp_path / "scratch", "*/rows.arrow")
                raise ValueError(f"beside {len(waiting)} file")
            yield Total(key, 1.0)

    def batches() -> Iterator[pa.RecordBatch]:
        for _ in range(5):
            users = pa.array([1, 2], pa.int64())
            yield pa.record_batch(
                [pa.array([5, 5], pa.int64()), users, pa.array([1.0, 1.0])], ["_sf_place", "user", "amount"]
            )

    carry = carried([("user",)], ("int",), (row_type(Event),), late=False)
    made = replace(task(tmp_path, Fails, Shard(first=0, last=127, backend="rocksdb")), carry=carry)
    with pytest.raises(RuntimeError, match="beside 1 file") as caught:
        list(worker(made, Acks())(batches()))
    assert not in_scratch(tmp_path / "scratch"), caught


def test_a_stream_that_breaks_off_is_not_the_end_of_the_input(tmp_path: Path) -> None:
    class Tolerant(Sum):
        def process(self, key: int, rows: Iterator[Event], ctx: sf.Context) -> Iterator[Total]:
            try:
                yield from super().process(key, rows, ctx)
            except Exception:
                yield Total(key, -1.0)

    def broken() -> Iterator[pa.RecordBatch]:
        yield batch(1, 7)
        yield batch(7)
        raise OSError("the connection is gone")

    acks = Acks()
    with pytest.raises(OSError, match="the connection is gone"):
        list(worker(diverting(tmp_path, Tolerant), acks)(broken()))
    assert acks.acks == []


def test_a_damaged_file_makes_no_dead_letters(tmp_path: Path) -> None:
    class Meets(Sum):
        def process(self, key: int, rows: Iterator[Event], ctx: sf.Context) -> Iterator[Total]:
            raise sf.CorruptError("000012.sst is damaged")

    acks = Acks()
    with pytest.raises(RuntimeError, match=r"CorruptError.*000012\.sst is damaged"):
        list(worker(diverting(tmp_path, Meets), acks)(iter([batch(1, 2)])))
    assert acks.acks == []


class Kept(sf.KeyedProcess[int, Event, Total]):
    """Reuses one list for all keys, as a careful user might to spare allocations."""

    total = sf.ValueState(list[float], default=list)

    def open(self, ctx: sf.Context) -> None:
        self.buffer: list[float] = []

    def process(self, key: int, rows: Iterator[Event], ctx: sf.Context) -> Iterator[Total]:
        before = self.total.value
        self.buffer.clear()
        self.buffer.extend([*before, float(key)])
        self.total.value = self.buffer
        yield Total(key, sum(before))
        list(rows)


def test_a_value_is_what_it_was_when_its_key_ended(tmp_path: Path) -> None:
    shard, totals = Shard(first=0, last=127, backend="rocksdb"), []
    for slot in (1, 2):
        acks = Acks()
        out = list(worker(task(tmp_path, Kept, shard, slot), acks)(iter([batch(1, 2, 3)])))
        totals.append([row["total"] for row in pa.Table.from_batches(out).to_pylist()])
        shard = acks.acks[0].shards[0]
    assert totals == [[0.0, 0.0, 0.0], [1.0, 2.0, 3.0]]
