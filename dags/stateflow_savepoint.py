"""### Take a savepoint now

Keeps a copy of a job's newest checkpoint, in a folder of its own, until somebody deletes it. A running driver is not slowed.

* **native**: the state's files, linked or copied. Seconds.
* **canonical**: typed Parquet tables; starts Spark. For another backend, more key groups, or other programs.

**Press it** before a deployment, a change of the input, or anything that might go wrong. The place is in the task's log and in
its XCom under `savepoint`: that text is what `stateflow_recovery` takes as *restore point*.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param
from stateflow_settings import SETTINGS, conn_field, job_field, note_field

from stateflow.airflow import StateflowSavepointOperator

with DAG(
    dag_id="stateflow_savepoint",
    description="Keeps a copy of a job's newest checkpoint",
    doc_md=__doc__,
    schedule=None,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=30)},
    params={
        "job": job_field("Whose state is kept."),
        "kind": Param("native", title="Kind", type="string", enum=["native", "canonical"]),
        "note": note_field(),
        "conn_id": conn_field(),
    },
    tags=["stateflow", "manual"],
):
    StateflowSavepointOperator(
        task_id="savepoint",
        job="{{ params.job }}",
        kind="{{ params.kind }}",
        stateflow_conn_id="{{ params.conn_id }}",
        spark_conn_id=SETTINGS.spark_conn_id,
        note="{{ params.note or '' }}",
    )
