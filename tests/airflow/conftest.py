"""Airflow as its tasks see it, without any of its processes: a home that is thrown away, connections in the environment."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from scripts.postgres import find
from tests.airflow.postgres import postgres
from tests.airflow.server import AirflowClient, AirflowServer, airflow, connection
from tests.airflow.stage import PATIENCE
from tests.airflow.story import SECRET
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


# One Airflow for a file, since it takes half a minute to start, with Postgres as in production


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("story")


@pytest.fixture(scope="module")
def today() -> date:
    """The day on which the module began: its tests may run over midnight."""
    return datetime.now(UTC).date()


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    """Postgres where it is installed, else what Airflow has by itself."""
    if not find():
        yield ""
        return
    with postgres() as url:
        yield url


@pytest.fixture(scope="module")
def server(folder: Path, database: str, today: date) -> Iterator[AirflowServer]:
    nobody_there = connection(
        "s3://bucket/checkpoints",
        storage_options={
            "endpoint": "http://127.0.0.1:9",
            "allow_http": "true",
            "access_key_id": "nobody",
            "secret_access_key": "hush",
            "max_retries": "1",
            "region": "local",
        },
    )
    with airflow(
        folder,
        settings={"four_eyes": True},
        connections={"unreachable": nobody_there},
        environment={"AIRFLOW_VAR_LEDGER_TOKEN": SECRET, "STORY_DAY": str(today)},
        database=database,
    ) as running:
        running.client().await_dags(
            "days", "gated_runs", "ledger", "patient", "stateflow_orders", "stateflow_recovery", "sums"
        )
        yield running


@pytest.fixture
def client(server: AirflowServer) -> AirflowClient:
    made = server.client()
    made.patience = PATIENCE
    return made
