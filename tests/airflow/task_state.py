"""Airflow's store for what a task leaves to its next try, in a file for each task: tries are processes that are killed."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

FOLDER = "STATEFLOW_TESTS_TASK_STATE"
"""The variable that names the folder. A test has one of its own."""


class TaskState:
    """Of one task in one DAG run."""

    def __init__(self, dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> None:
        name = hashlib.sha256(f"{dag_id}\n{run_id}\n{task_id}\n{map_index}".encode()).hexdigest()
        self._file = Path(os.environ[FOLDER]) / f"{name}.json"

    def get(self, key: str, default: Any = None) -> Any:
        return self._notes().get(key, default)

    def set(self, key: str, value: Any) -> None:
        self._file.write_text(json.dumps({**self._notes(), key: value}))

    def _notes(self) -> dict[str, Any]:
        return dict(json.loads(self._file.read_text())) if self._file.exists() else {}
