"""The input of a batch that was: read again as it was cut, or refused with what is still there."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import stateflow as sf
from stateflow.config.options import load
from stateflow.errors import DisagreementError
from stateflow.format.records import FileRef, Record
from stateflow.spark.inputs.open_inputs import OpenInputs, open_inputs
from stateflow.spark.inputs.readable import refuse_unreadable
from stateflow.spark.inputs.reread import SlotInput, reread
from stateflow.spark.task.storage import task_storage
from tests.refusals.refusal import refused
from tests.spark import by_hand
from tests.spark.pipelines import Workbench

pytestmark = pytest.mark.usefixtures("own_classes")


@dataclass
class Row:
    id: int
    n: int


class Count(sf.KeyedProcess[int, Row, Row]):
    count = sf.ValueState(int, default=0)

    def process(self, key: int, rows: Any, ctx: sf.Context) -> Any:
        for row in rows:
            self.count.value += row.n
        yield Row(key, self.count.value)


@dataclass
class Past:
    spark: SparkSession
    bench: Workbench
    inputs: OpenInputs
    records: list[Record]
    scratch: Path

    @property
    def batches(self) -> list[SlotInput]:
        before: list[Record | None] = [None, *self.records]
        return [SlotInput.of(r, b) for b, r in zip(before, self.records, strict=False)]

    def fetch(self, ref: FileRef) -> Path:
        options = load(
            code={"checkpoint_dir": str(self.bench.folder / "root")}, env={}, folder=self.bench.folder
        )
        storage = task_storage(options, options.checkpoint_dir, "seen", 1, 1)
        target = self.scratch / f"fetched-{ref.xxh3}-{os.urandom(4).hex()}"
        storage.store().download(ref.path, target)
        return target

    def rows(self, batch: SlotInput) -> dict[str, list[int]]:
        def ids(frames: Mapping[str, Any]) -> dict[str, list[int]]:
            return {uid: sorted(row.id for row in frame.collect()) for uid, frame in frames.items()}

        return reread(self.spark, self.inputs, batch, self.scratch, self.fetch, ids)

    def refuse(self) -> None:
        refuse_unreadable(self.spark, self.inputs, self.batches, self.scratch, self.fetch)


@pytest.fixture(scope="module")
def past(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Past:
    """A job of files and a table with three batches of one file and one version each."""
    bench = Workbench(spark, tmp_path_factory.mktemp("reread"))
    table = str(bench.folder / "table")

    @sf.pipeline("seen")
    def seen(flow: sf.Flow) -> None:
        files = flow.source("files", bench.source("files", "id int, n int"), Row)
        rows = flow.source("table", sf.delta(table, options={"maxFilesPerTrigger": "1"}), Row)
        files.union(rows).key_by("id").process("count", Count).collect("out", sf.memory("reread"))

    for number in range(3):
        bench.rows("files", [Row(number, 1), Row(number + 10, 1)])
        by_hand.append(Path(table), [(100 + number, 1)], by_hand.columns("id int, n int"))
    bench.run(seen, retained_checkpoints=20)
    inputs = open_inputs(spark, seen.build().sources, exactly_once=True)
    scratch = bench.folder / "again"
    scratch.mkdir()
    return Past(spark, bench, inputs, bench.records("seen"), scratch)


@pytest.mark.system
def test_each_batch_is_read_again_as_it_was_cut(past: Past) -> None:
    rows = [past.rows(batch) for batch in past.batches]

    assert [r for r in rows if any(r.values())] == [
        {"files": [number, number + 10], "table": [100 + number]} for number in range(3)
    ]
    past.refuse()


@pytest.mark.system
def test_of_a_file_that_is_gone_or_was_written_again_the_refusal_names_the_batches_that_are_left(
    past: Past,
) -> None:
    first = past.bench.folder / "files" / "00001.json"
    second = past.bench.folder / "files" / "00002.json"
    text, times = first.read_bytes(), first.stat()
    slots = [batch.slot for batch in past.batches if any(past.rows(batch)["files"])]
    first.unlink()
    try:
        with pytest.raises(DisagreementError) as gone:
            past.refuse()
    finally:
        first.write_bytes(text)
        os.utime(first, (times.st_atime, times.st_mtime))
    assert str(gone.value) == (
        f"the input of checkpoint {slots[0]} cannot be read again: source 'files' lacks 1 of 1 files that were read "
        f"then, the first is file:{first}; the input from checkpoint {slots[1]} on is still there: begin there"
    )

    times = second.stat()
    os.utime(second, (times.st_atime, times.st_mtime + 60))
    try:
        with pytest.raises(DisagreementError, match="was written again after it had been read"):
            past.refuse()
    finally:
        os.utime(second, (times.st_atime, times.st_mtime))


@pytest.mark.system
def test_of_a_table_whose_files_were_vacuumed_the_refusal_names_the_file(past: Past) -> None:
    data = sorted((past.bench.folder / "table").glob("*.parquet"), key=lambda p: p.stat().st_mtime)[0]
    moved = data.rename(data.with_suffix(".away"))
    try:
        with refused(DisagreementError, "lacks 1 files of the Delta table", data.name):
            past.refuse()
    finally:
        moved.rename(data)


@pytest.mark.system
def test_another_table_in_the_place_of_the_one_that_was_read_is_named_as_such(past: Past) -> None:
    table = past.bench.folder / "table"
    away = table.rename(table.with_suffix(".away"))
    by_hand.append(table, [(100, 1)], by_hand.columns("id int, n int"))
    try:
        with refused(
            DisagreementError,
            "source 'table' read the Delta table",
            "it was recreated",
            "another table's place",
        ):
            past.refuse()
    finally:
        table.rename(table.with_suffix(".other"))
        away.rename(table)
