"""A disk that is full in the middle of what Spark's tasks write: canonical savepoints, exports, and restores from them."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import stateflow as sf
from stateflow.checkpoint.pins import list_pins
from stateflow.checkpoint.process import this_process
from stateflow.config.options import Options
from stateflow.errors import UnavailableError
from stateflow.jobs.job import Job
from stateflow.spark.state_tables.export import export_state
from stateflow.spark.state_tables.snapshots import checkpoint_of
from tests.jobs.builder import options_of
from tests.refusals.refusal import refused
from tests.spark.pipelines import Workbench

pytestmark = pytest.mark.usefixtures("own_classes")

SmallDisk = Callable[[int], AbstractContextManager[Path]]
TINY, KEYS = 16, 40


class Keep(sf.KeyedProcess[Any, Any, Any]):
    """State that no pageful of disk holds."""

    text = sf.ValueState(str)

    def process(self, key: Any, rows: Any, ctx: sf.Context) -> Any:
        for row in rows:
            self.text.value = row.text
        return ()


@pytest.fixture
def bench(spark: SparkSession, tmp_path: Path) -> Workbench:
    bench = Workbench(spark, tmp_path)
    bench.rows("input", [{"user": n, "text": random.Random(n).randbytes(6000).hex()} for n in range(KEYS)])
    bench.run(pipeline(bench, "first"), parallelism=2, inline_threshold="0")
    return bench


def pipeline(bench: Workbench, name: str) -> sf.Pipeline:
    @sf.pipeline(name)
    def keeping(flow: sf.Flow) -> None:
        rows = flow.source("input", bench.source("input", "user int, text string"))
        rows.key_by("user").process("keep", Keep, output="x int").collect("none", sf.memory(name))

    return keeping


def options(bench: Workbench, root: Path) -> Options:
    return options_of(root, bench.folder, inline_threshold="0", local_fsync=True)


def test_what_does_not_fit_leaves_nothing_and_lets_go_of_its_checkpoint(
    bench: Workbench, small_disk: SmallDisk
) -> None:
    root = bench.folder / "root"
    job, chosen = Job(str(root), "first"), options(bench, root)

    def exported(to: Path) -> int:
        return export_state(
            bench.spark, checkpoint_of("first", "latest", chosen), "keep", "text", str(to), "json",
            owner=this_process(), ids=job.new_id, clock=job.clock, overwrite=to.exists(),
        )  # fmt: skip

    with small_disk(TINY) as disk:
        with refused(UnavailableError, f"the disk that holds {disk}/one", "is full"):
            job.savepoint("canonical", options=chosen, to=str(disk / "one"), split_size=1)
        with refused(UnavailableError, f"{disk}/export failed", "a disk is full") as told:
            exported(disk / "export")
        assert "\n" not in str(told.value)
        assert list(disk.iterdir()) == []
    assert list_pins(job.store, job.layout) == []
    assert exported(bench.folder / "export") == KEYS


def test_a_canonical_restore_that_does_not_fit_keeps_no_state_and_can_be_repeated(
    bench: Workbench, small_disk: SmallDisk
) -> None:
    root = bench.folder / "root"
    made = Job(str(root), "first").savepoint(
        "canonical", options=options(bench, root), to=str(bench.folder / "one")
    )
    with small_disk(160) as disk:
        fork = Job(str(disk), "fork")

        def restore(into: Path) -> None:
            Job(str(into), "fork").restore(
                made.url, pipeline(bench, "fork"), options=options(bench, into), parallelism=8
            ).apply()

        with pytest.raises(UnavailableError, match=f"the disk that holds {disk}/fork/shared is full"):
            restore(disk)
        assert fork.log().head is None
        assert fork.store.list("fork/shared/") == []
    restore(bench.folder / "other")
    assert [f.text for f in Job(str(bench.folder / "other"), "fork").verify(deep=True)] == []
