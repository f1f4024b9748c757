"""A keyed operator's task, driven without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import stateflow as sf
from stateflow.checkpoint.records import Shard
from stateflow.config import load
from stateflow.operators.context import Moment
from stateflow.operators.spec import OperatorSpec
from stateflow.rows import row_type
from stateflow.spark.acks import Ack
from stateflow.spark.place import TaskPlace
from stateflow.spark.worker import KeyedTask, keyed_worker
from stateflow.state.backends import open_backend


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


def task(folder: Path, process: type[Any], shard: Shard, slot: int = 1) -> KeyedTask:
    spec = OperatorSpec(
        "sum", process, process, ("user",), ("int",), (row_type(Event),), row_type(Total), {}, {"total": 1}
    )
    place = TaskPlace(
        str(folder / "root"), "job", 1, slot, str(folder / "cache"), 1 << 30, str(folder / "scratch")
    )
    schema = pa.schema([("user", pa.int64()), ("total", pa.float64())])
    opened = open_backend(load(folder=folder))
    return KeyedTask(spec, Moment(slot, 1, 1, None), place, ((shard,),), opened, schema)


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
        out = list(keyed_worker(task(tmp_path, Sum, shard, slot), acks)(iter([batch(1, 1, 2)])))
        totals.append(pa.Table.from_batches(out).to_pylist())
        shard = acks.acks[0].shards[0]
    assert totals == [
        [{"user": 1, "total": 2.0}, {"user": 2, "total": 1.0}],
        [{"user": 1, "total": 4.0}, {"user": 2, "total": 2.0}],
    ]
    assert not list((tmp_path / "scratch").glob("task-*"))


def test_what_failed_first_is_told_not_what_close_says_of_it(tmp_path: Path) -> None:
    class Fails(Sum):
        def process(self, key: int, rows: Iterator[Event], ctx: sf.Context) -> Iterator[Total]:
            raise ValueError("the real reason")

        def close(self) -> None:
            raise RuntimeError("nothing to close")

    acks = Acks()
    with pytest.raises(RuntimeError, match="ValueError: the real reason"):
        list(
            keyed_worker(task(tmp_path, Fails, Shard(first=0, last=127, backend="rocksdb")), acks)(
                iter([batch(1)])
            )
        )
    assert acks.acks == []
    assert not list((tmp_path / "scratch").glob("task-*"))
