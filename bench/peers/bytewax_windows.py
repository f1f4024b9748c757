"""Runs in the Python peers' environment: windows of ten seconds with Bytewax, a count and a sum for each channel.

The argument is JSON: `input` (a folder of CSV files: channel, amount, at in milliseconds), `output` (a CSV file), `threads`.
"""

from __future__ import annotations

import csv
import json
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import bytewax.operators as op
import bytewax.operators.windowing as windowing
from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.operators.windowing import EventClock, TumblingWindower
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.testing import cluster_main

START = datetime(1970, 1, 1, tzinfo=UTC)
ROWS_AT_ONCE = 1000
SKEW = timedelta(hours=1)
"""How far one reader may be ahead of the other: rows that come later than so are dropped."""


class OneFile(StatefulSourcePartition):
    def __init__(self, path: Path) -> None:
        self._rows = csv.reader(path.open())
        next(self._rows)

    def next_batch(self) -> list[tuple[str, float, datetime]]:
        batch = []
        for channel, amount, at in self._rows:
            batch.append((channel, float(amount), START + timedelta(milliseconds=int(at))))
            if len(batch) == ROWS_AT_ONCE:
                return batch
        if not batch:
            raise StopIteration
        return batch

    def snapshot(self) -> None:
        return None


class Files(FixedPartitionedSource):
    def __init__(self, folder: Path) -> None:
        self._files = {file.name: file for file in folder.glob("*.csv")}

    def list_parts(self) -> list[str]:
        return sorted(self._files)

    def build_part(self, step_id: str, for_part: str, resume_state: object) -> OneFile:
        return OneFile(self._files[for_part])


class Lines(StatelessSinkPartition):
    def __init__(self, path: Path) -> None:
        self._file = path.open("w")

    def write_batch(self, items: list[str]) -> None:
        self._file.writelines(items)

    def close(self) -> None:
        self._file.close()


class Written(DynamicSink):
    def __init__(self, output: str) -> None:
        self._output = output

    def build(self, step_id: str, worker_index: int, worker_count: int) -> Lines:
        return Lines(Path(f"{self._output}-{worker_index}"))


def added(sums: tuple[int, float], row: tuple[str, float, datetime]) -> tuple[int, float]:
    return sums[0] + 1, sums[1] + row[1]


def merged(one: tuple[int, float], other: tuple[int, float]) -> tuple[int, float]:
    return one[0] + other[0], one[1] + other[1]


def lines(closed: tuple[str, tuple[int, tuple[int, float]]]) -> Iterator[str]:
    channel, (window, (n, total)) = closed
    yield f"{channel},{window * 10_000},{n},{total}\n"


def main(request: dict[str, object]) -> None:
    flow = Dataflow("windows")
    rows = op.input("in", flow, Files(Path(str(request["input"]))))
    keyed = op.key_on("channel", rows, lambda row: row[0])
    clock = EventClock(ts_getter=lambda row: row[2], wait_for_system_duration=SKEW)
    windower = TumblingWindower(length=timedelta(seconds=10), align_to=START)
    sums = windowing.fold_window("sums", keyed, clock, windower, lambda: (0, 0.0), added, merged)
    op.output("out", op.flat_map("lines", sums.down, lines), Written(str(request["output"])))
    began = time.perf_counter()
    cluster_main(flow, [], 0, worker_count_per_proc=int(str(request["threads"])))
    print(json.dumps({"seconds": time.perf_counter() - began}))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
