"""Jobs of a given age, and what stands in for a task's context."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

from stateflow.checkpoint.control import INPUT_DRAINED, RunOutcome
from stateflow.checkpoint.writer import Writer
from tests.jobs.made import MadeJob

HOUR = timedelta(hours=1)


class AgedJob(MadeJob):
    """Made `ago`, by the clock of this machine; its records have these fields."""

    def __init__(self, root: str, name: str, ago: timedelta, fields: dict[str, Any]) -> None:
        self.ago, self.fields = ago, fields
        super().__init__(root, name)

    def begin(self, run: str) -> Writer:
        writer = super().begin(run)
        decide = writer.decide
        writer.decide = lambda record: decide(msgspec.structs.replace(record, **self.fields))  # type: ignore[method-assign]
        return writer

    def clock(self) -> int:
        return time.time_ns() // 1000 - self.ago // timedelta(microseconds=1)

    def drained(self, *, ago: timedelta = timedelta(0)) -> None:
        """Its run has ended with nothing left to read."""
        at = time.time_ns() // 1000 - ago // timedelta(microseconds=1)
        self.beat(99, at=at, ended=True, outcome=RunOutcome(stopped=INPUT_DRAINED))


def aged_job(
    root: Path,
    name: str = "orders",
    *,
    ago: timedelta = timedelta(0),
    batches: int = 2,
    ended: bool = True,
    **fields: Any,
) -> AgedJob:
    job = AgedJob(str(root), name, ago, fields)
    for _ in range(batches):
        job.batch()
    job.beat(ended=ended)
    return job


@dataclass
class FakeTask:
    """The part of a task instance that sensors use."""

    pushed: dict[str, Any] = field(default_factory=dict)
    dag_id: str = "watch"
    run_id: str = "manual__1"
    task_id: str = "wait"
    map_index: int = -1

    def xcom_push(self, key: str, value: Any) -> None:
        self.pushed[key] = value


def context(task: FakeTask | None = None, **more: Any) -> Any:
    return {"ti": task or FakeTask(), **more}


def written(message: str) -> None:
    """Where a team would read it."""
    with (Path(os.environ["STORY_FOLDER"]) / "alerts").open("a", encoding="utf-8") as alerts:
        alerts.write(message + "\n")
