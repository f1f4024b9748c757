"""The Airflow that tests share: `AirflowServer` with the project's DAGs, its plugin, and the DAGs of tests."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from demo.airflow_client import AirflowClient, RefusedError, RunOf
from demo.airflow_server import PROJECT, AirflowServer

__all__ = [
    "EXAMPLE",
    "PROJECT",
    "AirflowClient",
    "AirflowServer",
    "RefusedError",
    "RunOf",
    "airflow",
    "connection",
    "server_in",
]

EXAMPLE = PROJECT / "examples" / "orders.py"
TEST_DAGS = Path(__file__).parent / "dags"
USERS = {"admin": "admin", "viewer": "viewer", "second": "admin"}
"""Two of them may ask and approve."""
OPTIONS = {"heartbeat_interval": "500 ms", "heartbeat_timeout": "8 seconds"}


def connection(checkpoint_dir: Path | str, **more: object) -> str:
    """A `stateflow` connection as its variable holds it."""
    extra = {"checkpoint_dir": str(checkpoint_dir), "options": OPTIONS, **more}
    return json.dumps({"conn_type": "stateflow", "extra": extra})


@contextmanager
def airflow(folder: Path, **made: Any) -> Iterator[AirflowServer]:
    """`server_in(folder, ...)` while it runs. Its home goes, the rest of the folder stays."""
    (folder / "checkpoints").mkdir()
    with server_in(folder, **made) as server:
        yield server
    shutil.rmtree(folder / "airflow", ignore_errors=True)


def server_in(
    folder: Path,
    *,
    settings: Mapping[str, object] | None = None,
    connections: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    database: str = "",
    goes_on: bool = False,
) -> AirflowServer:
    """With its home, its checkpoint root and the tables of the orders pipeline in `folder`.

    `settings` are those of dags/stateflow_settings.py; a schedule would run the pipeline when no test expects it.
    """
    pipeline = {
        "pipeline": f"{EXAMPLE}:orders",
        "dag_id": "stateflow_orders",
        "parameters": {"input": str(folder / "orders"), "output": str(folder / "totals")},
    }
    chosen = {
        "schedule": None,
        "retry_seconds": 1,
        "approval_minutes": 1,
        "conn_ids": ["nowhere", "unreachable"],
        "jobs": {
            "orders": pipeline,
            "gated": {"pipeline": f"{TEST_DAGS / 'gated.py'}:gated", "dag_id": "gated_runs"},
            "sums": {"pipeline": f"{TEST_DAGS / 'sums.py'}:sums", "dag_id": "sums"},
        },
        **(settings or {}),
    }
    root = folder / "checkpoints"
    return AirflowServer(
        folder / "airflow",
        str(root),
        dags=(PROJECT / "dags", TEST_DAGS),
        connections={"stateflow_default": connection(root), **(connections or {})},
        environment={
            "AIRFLOW_VAR_STATEFLOW": json.dumps(chosen),
            "STORY_FOLDER": str(folder),
            # No test changes a file of a DAG: to read all of them again twice a minute computes for nothing.
            "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "600",
            **(environment or {}),
        },
        database=database,
        users=USERS,
        patience=400,
        goes_on=goes_on,
    )
