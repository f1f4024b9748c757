"""Runs DAGs of a folder in this process, one after the other: `python dag_runs.py WANTED.json TOLD.json`.

`WANTED` is a list of `{"dag": id, "conf": {...}, "mark": pattern of tasks taken for done, "at": time, "unpaused": [ids]}`.
`TOLD` gets for each its state and, by task, state and result, or what it said when it failed.
"""

from __future__ import annotations

import json
import sys
from datetime import datetime
from pathlib import Path
from typing import Any


def main(wanted: Path, told: Path) -> None:
    from airflow.configuration import conf

    folder = conf.get("core", "dags_folder")
    sys.path.insert(0, folder)
    from airflow.dag_processing.dagbag import DagBag

    dags = DagBag(folder).dags
    told.write_text(json.dumps([_ran(dags[each["dag"]], **each) for each in json.loads(wanted.read_text())]))


def _ran(found: Any, dag: str, conf: Any = None, mark: str = "", at: str = "", unpaused: Any = ()) -> Any:
    for dag_id in unpaused:
        _unpause(dag_id)
    said: dict[str, str] = {}
    for task in found.tasks:
        if not task.is_mapped:
            task.on_failure_callback = [
                lambda context: said.update({context["ti"].task_id: str(context["exception"])})
            ]
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
