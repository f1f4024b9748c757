"""What stands in for a task's context."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

HOUR = timedelta(hours=1)


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
