"""Root, cache and scratch folder may have any name that a disk allows: Hadoop reads some of its characters its own way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import stateflow as sf
from stateflow.config.options import load
from stateflow.spark.task.storage import task_storage
from tests.spark.pipelines import VISIT, Told, Visit, Workbench, at

pytestmark = pytest.mark.usefixtures("own_classes")


class Count(sf.KeyedProcess[int, Visit, Told]):
    """How many visits a user has made."""

    seen = sf.ValueState(int, default=0)

    def process(self, key: int, rows: Any, ctx: sf.Context) -> Any:
        self.seen.value += len(list(rows))
        yield Told(key, str(self.seen.value))


@pytest.mark.system
@pytest.mark.parametrize("name", ["ä b", "a%20b#2", "what?", "[v1]{x}*", "a\\b"])
def test_a_run_goes_on_where_the_one_before_it_ended(bench: Workbench, name: str, tmp_path: Path) -> None:
    told: list[tuple[int, int, str]] = []
    odd = {what: str(tmp_path / name / what) for what in ("checkpoint_dir", "cache_dir", "scratch_dir")}

    def deliver(frame: Any, checkpoint: int) -> None:
        told.extend((checkpoint, row["user"], row["text"]) for row in frame.collect())

    @sf.pipeline("users")
    def users(flow: sf.Flow) -> None:
        rows = flow.source(
            "visits", bench.source("visits", VISIT), Visit, event_time="ts", watermark="1 minute"
        )
        rows.key_by("user").process("count", Count).for_each_batch("told", deliver)

    for minute in range(2):
        bench.rows("visits", [Visit(user, "home", 1.0, at(minute)) for user in (1, 2)])
        bench.run(users, trigger="drain", **odd)
    assert sorted((user, text) for _, user, text in told) == [(1, "1"), (1, "2"), (2, "1"), (2, "2")]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted({name, "visits"})


def test_tasks_work_in_the_root_that_was_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    options = load(code={}, env={}, folder=tmp_path)
    for written in ("~/chk#1", f"file:{tmp_path}/chk%231", f"{tmp_path}/x/../chk#1"):
        assert task_storage(options, written, "orders", 1, 1).store().local_root == tmp_path / "chk#1"
    assert task_storage(options, "s3://bucket/chk", "orders", 1, 1).root == "s3://bucket/chk"
