"""Keys per second of columnar state: `python -m bench.columns`.

Per type of key: a get and a put of distinct keys in no order, into an empty shard, then over what is stored; and what it
costs to find and delete what is due in a timed state. CPU time of one thread, real RocksDB.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from stateflow.format.records import FileRef, Shard
from stateflow.spark.task.subtask import spare_the_collector
from stateflow.state.backends.base import Backend, Snapshot
from stateflow.state.backends.rocksdb import rocksdb_backend
from stateflow.state.columns.layout import ColumnLayout
from stateflow.state.columns.state import ColumnState
from stateflow.state.keys.arrow_types import INSTANT

GROUPS = 128
BATCHES = 3
START = 1_700_000_000_000_000
MINUTE = 60_000_000
NUMBERS = {"n": int, "total": float}


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.columns")
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--entries", type=int, default=4_000_000, help="of the timed state")
    options = parser.parse_args(arguments)
    spare_the_collector()
    for name, key, columns, values in _cases(options.keys):
        _keys(name, key, columns, values)
    _due(options.entries, options.entries // 4)


def _cases(count: int) -> Iterator[tuple[str, list[tuple[str, str]], list[Any], Mapping[str, Any]]]:
    numbers = np.random.default_rng(1).permutation(count)
    ints, texts = pa.array(numbers), pa.array([f"user-{number:08d}" for number in numbers.tolist()])
    instants = pa.array(START + numbers * 1_000_003).cast(INSTANT)
    yield "int", [("a", "int")], [ints], NUMBERS
    yield "str", [("a", "str")], [texts], NUMBERS
    yield "datetime", [("a", "datetime")], [instants], NUMBERS
    yield (
        "int, int",
        [("a", "int"), ("b", "int")],
        [pa.array(numbers // 100), pa.array(numbers % 100)],
        NUMBERS,
    )
    yield "int, datetime", [("a", "int"), ("b", "datetime")], [pa.array(numbers % 1000), instants], NUMBERS
    yield "str, int", [("a", "str"), ("b", "int")], [texts, ints], NUMBERS
    yield "int, with texts as values", [("a", "int")], [ints], {"n": int, "name": str}


class _Shelf:
    """A shard that goes from batch to batch."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="stateflow-columns-"))
        self._files: tuple[FileRef, ...] = ()
        self._count = 0

    def opened(self) -> Backend:
        self._count += 1
        shard = Shard(0, GROUPS - 1, "rocksdb", self._files)
        return rocksdb_backend()(shard, self.folder / f"open-{self._count}", lambda ref: Path(ref.path))

    def seal(self, backend: Backend) -> None:
        snapshot: Snapshot = backend.snapshot()
        files = list(snapshot.kept)
        for file in snapshot.new:
            if file.data is not None:
                files.append(FileRef(file.name, len(file.data), "", data=file.data))
                continue
            assert file.path is not None
            kept = self.folder / f"{self._count}-{file.name}"
            shutil.copyfile(file.path, kept)
            files.append(FileRef(file.name, kept.stat().st_size, "", path=str(kept)))
        backend.close()
        self._files = tuple(files)

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def _timed(work: Callable[[], object]) -> tuple[float, Any]:
    began = time.thread_time()
    made = work()
    return time.thread_time() - began, made


def _keys(name: str, key: list[tuple[str, str]], columns: list[Any], values: Mapping[str, Any]) -> None:
    keys = pa.table(columns, names=[part for part, _ in key])
    count = keys.num_rows
    cells = {
        int: pa.array(np.arange(count)),
        float: pa.array(np.arange(count) / 2),
        str: pa.array(["text"] * count),
    }
    table = pa.table({column: cells[hint] for column, hint in values.items()})
    shelf = _Shelf()
    try:
        for batch in range(BATCHES):
            state = _state(key, ColumnLayout(values))
            backend = shelf.opened()
            state.attach(backend, range(GROUPS))
            got, _ = _timed(lambda state=state: state.get(keys))
            put, _ = _timed(lambda state=state: state.put(keys, table))
            shelf.seal(backend)
            rate = count / (got + put)
            print(f"{name:28} batch {batch}: get {got:5.2f} s, put {put:5.2f} s, {rate:10,.0f} keys/s")
    finally:
        shelf.remove()


def _due(entries: int, closing: int) -> None:
    shelf, state = _Shelf(), _state([("a", "int")], ColumnLayout(NUMBERS, timed=True))
    try:
        for begin in range(0, entries, closing):
            backend = shelf.opened()
            state.attach(backend, range(GROUPS))
            numbers = np.arange(begin, begin + closing)
            at = np.full(closing, START + begin // closing * MINUTE)
            state.put(pa.array(numbers), pa.table({"n": numbers, "total": numbers / 2}), at=at)
            shelf.seal(backend)
        backend = shelf.opened()
        state.attach(backend, range(GROUPS))
        nothing, _ = _timed(lambda: list(state.due(START - 1)))
        read, found = _timed(lambda: sum(block.num_rows for block in state.due(START)))
        gone, _ = _timed(lambda: state.delete_due(START))
        backend.close()
        print(f"nothing due in {entries:,} entries: {nothing * 1000:.1f} ms")
        print(f"closing {found:,} entries: {found / (read + gone):,.0f} entries/s")
    finally:
        shelf.remove()


def _state(key: list[tuple[str, str]], layout: ColumnLayout) -> ColumnState:
    return ColumnState(key, msgspec.structs.replace(layout.schema(), id=1), GROUPS, "bench")


if __name__ == "__main__":
    main(sys.argv[1:])
