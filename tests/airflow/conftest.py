"""Airflow as its tasks see it, without any of its processes: a home that is thrown away, connections in the environment."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.airflow.task_state import FOLDER

if "AIRFLOW_HOME" not in os.environ:
    # Before anything imports Airflow, which reads it then, and would make a folder in the user's home.
    os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="stateflow-airflow-")
    os.environ.setdefault("AIRFLOW__CORE__LOAD_EXAMPLES", "False")
    atexit.register(shutil.rmtree, os.environ["AIRFLOW_HOME"], ignore_errors=True)

Connect = Callable[..., str]


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Connect:
    """Makes a connection of type stateflow, and gives its id."""

    def made(root: Path | str, conn_id: str = "stateflow_default", **extra: Any) -> str:
        document = {"conn_type": "stateflow", "extra": {"checkpoint_dir": str(root), **extra}}
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(document))
        return conn_id

    return made


@pytest.fixture(autouse=True)
def task_state(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left of another test's tasks."""
    monkeypatch.setenv(FOLDER, str(tmp_path_factory.mktemp("task-state")))


@pytest.fixture(autouse=True)
def few_secrets() -> Iterator[None]:
    """Airflow makes one pattern of all secrets that a process has seen, and with each connection of a test compiles it again."""
    yield
    if (masker := sys.modules.get("airflow.sdk._shared.secrets_masker")) is not None:
        masker.reset_secrets_masker()


@pytest.fixture(autouse=True)
def fast_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test here loses power: nothing waits for the disk."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
