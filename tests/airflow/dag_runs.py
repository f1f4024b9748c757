"""Runs the project's DAGs as Airflow does, in a process of their own with a database of its own.

A wanted run is `{"dag": id, "conf": {...}, "mark": pattern of tasks taken for done, "at": time, "unpaused": [ids]}`. What is told
of it is its state, and by task its state, its result, and what it said when it failed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]
DAGS = PROJECT / "dags"


def played(
    folder: Path, root: Path, wanted: Sequence[Mapping[str, Any]], **environment: str
) -> list[dict[str, Any]]:
    """All of them, one after the other: starting Airflow is what takes the time. A folder keeps its database."""
    connection = {"conn_type": "stateflow", "extra": {"checkpoint_dir": str(root)}}
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("AIRFLOW_", "STATEFLOW_"))}
    given = {
        **inherited,
        # Beside this interpreter lies spark-submit.
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
        "AIRFLOW_HOME": str(folder / "airflow"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(DAGS),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW_CONN_STATEFLOW_DEFAULT": json.dumps(connection),
        "AIRFLOW_VAR_STATEFLOW": json.dumps(
            {"conn_ids": ["nowhere"], "pipeline_folders": [str(PROJECT / "examples"), str(folder)]}
        ),
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[2]"}),
        **environment,
    }
    asked, told = folder / "wanted.json", folder / "told.json"
    asked.write_text(json.dumps(list(wanted)))
    commands = [["-m", "tests.airflow.dag_runs", str(asked), str(told)]]
    if not (folder / "airflow" / "airflow.db").exists():
        commands.insert(0, ["-m", "airflow", "db", "migrate"])
    for command in commands:
        done = subprocess.run(
            [sys.executable, *command], env=given, cwd=PROJECT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found: list[dict[str, Any]] = json.loads(told.read_text())
    return found


def main(asked: Path, told: Path) -> None:
    sys.path.insert(0, str(DAGS))
    from airflow.dag_processing.dagbag import DagBag

    _hurry()
    dags = DagBag(str(DAGS)).dags
    told.write_text(json.dumps([_ran(dags[each["dag"]], **each) for each in json.loads(asked.read_text())]))


def _hurry() -> None:
    """Before each run Airflow writes all DAGs into its database anew, and it waits for a second where a run has no task that can begin."""
    from airflow.dag_processing import dagbag

    write, written, sleep = dagbag.sync_bag_to_db, set[str](), time.sleep

    def write_once(bag: Any, bundle: str, *more: Any, **options: Any) -> None:
        if bundle not in written:
            write(bag, bundle, *more, **options)
            written.add(bundle)

    def shortly(seconds: float) -> None:
        of_airflow = sys._getframe(1).f_globals.get("__name__") == "airflow.sdk.definitions.dag"
        sleep(0.05 if of_airflow else seconds)

    dagbag.sync_bag_to_db = write_once
    time.sleep = shortly


def _ran(found: Any, dag: str, conf: Any = None, mark: str = "", at: str = "", unpaused: Any = ()) -> Any:
    for dag_id in unpaused:
        _unpause(dag_id)
    said: dict[str, str] = {}

    def failed(context: Any) -> None:
        said[context["ti"].task_id] = str(context["exception"])

    for task in found.tasks:
        if not task.is_mapped:
            task.on_failure_callback = [failed]
    when = {"run_after": datetime.fromisoformat(at), "logical_date": datetime.fromisoformat(at)} if at else {}
    run = found.test(run_conf=conf or {}, mark_success_pattern=mark or None, **when)
    tasks = {}
    for ti in run.get_task_instances():
        name = ti.task_id if ti.map_index < 0 else f"{ti.task_id}[{ti.map_index}]"
        result = (
            ti.xcom_pull(task_ids=ti.task_id, map_indexes=ti.map_index) if ti.state == "success" else None
        )
        tasks[name] = {"state": str(ti.state), "result": result, "said": said.get(ti.task_id, "")}
    return {"dag": dag, "run_id": run.run_id, "state": str(run.state), "tasks": tasks}


def _unpause(dag_id: str) -> None:
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session

    with create_session() as session:
        model = session.get(DagModel, dag_id)
        assert model is not None, f"DAG {dag_id} is not in the database yet"
        model.is_paused = False


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
