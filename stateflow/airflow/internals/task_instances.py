"""What is known of a task instance beyond Airflow's public protocol of one."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def state_of(ti: Any) -> str:
    """Its state as Airflow's database has it now, for a process that does not run it. Imported when it is asked: the module loads a part of
    Airflow's runtime."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    states = RuntimeTaskInstance.get_task_states(
        dag_id=ti.dag_id, task_ids=[ti.task_id], run_ids=[ti.run_id], map_index=ti.map_index
    )
    key = ti.task_id if ti.map_index < 0 else f"{ti.task_id}_{ti.map_index}"
    return str(states[ti.run_id][key])


def code_revision(ti: Any, file: Path) -> str:
    """`BUNDLE@VERSION` of the DAG bundle that the file came with; empty where the bundle has no versions, or the file is no
    part of it."""
    bundle: Any = getattr(ti, "bundle_instance", None)
    if bundle is None or not bundle.version:
        return ""
    try:
        inside = file.resolve().is_relative_to(Path(bundle.path).resolve())
    except (AttributeError, OSError, TypeError):
        return ""
    return f"{bundle.name}@{bundle.version}" if inside else ""
