"""The Airflow Variable by which an upgrade switches a job to another pipeline. Pure."""

from __future__ import annotations

from pathlib import Path


def pipeline_variable(conn_id: str, job: str) -> str:
    """The Variable's name. Its value is FILE:PIPELINE: from then on every DAG with `pipeline_template` runs that, and a task that names another
    file is refused. A job of that name on another connection is another job."""
    return f"stateflow_pipeline:{conn_id}:{job}"


def is_same_pipeline(one: str, other: str) -> bool:
    """Whether two FILE:PIPELINE, with absolute files, name the same. A file alone names the only pipeline that it has."""
    (file, name), (other_file, other_name) = map(_parts, (one, other))
    return file == other_file and (name == other_name or not name or not other_name)


def _parts(pipeline: str) -> tuple[Path, str]:
    file, colon, name = pipeline.rpartition(":")
    return Path(file if colon else name).resolve(), name if colon else ""
