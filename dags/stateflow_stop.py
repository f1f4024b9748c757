"""### Stop a job

Asks the running driver to end after the batch it is in, wherever it runs, and waits until it has. Nothing is lost: the next run
carries on from there. The pipeline's own DAG run ends as a success; to keep the next one from starting, pause that DAG first.

* **savepoint**: keeps a copy of where it ended.
* **drain**: fires every event-time timer first, as if the end of time had come. The job is over then, and does not simply go on:
  for retiring a pipeline, not for pausing it.

**When it fails** because time is up, the driver is still in its batch: it has been asked, and will end. A driver that hangs can be
killed; the next run carries on from the newest checkpoint.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG
from stateflow_settings import conn_field, flag_field, job_field, note_field

from stateflow.airflow import StateflowStopOperator

with DAG(
    dag_id="stateflow_stop",
    description="Ends a job's run after its batch",
    doc_md=__doc__,
    schedule=None,
    default_args={"retries": 1, "retry_delay": timedelta(seconds=30)},
    params={
        "job": job_field("Whose driver is to end."),
        "drain": flag_field("Drain", "Fire all timers first: the job is over then."),
        "savepoint": flag_field("Savepoint", "Keep a copy of where it ended."),
        "note": note_field(),
        "conn_id": conn_field(),
    },
    tags=["stateflow", "manual"],
):
    StateflowStopOperator(
        task_id="stop",
        job="{{ params.job }}",
        wait=timedelta(minutes=10),
        drain="{{ params.drain }}",
        savepoint="{{ params.savepoint }}",
        stateflow_conn_id="{{ params.conn_id }}",
        note="{{ params.note or '' }}",
    )
