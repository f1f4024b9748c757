"""### Clean up now

Deletes the checkpoints of a job beyond those that are to stay, and whatever only they needed; what dead runs have left behind;
savepoints that have expired. A running driver need not be stopped. With *dry run*, which is how the form begins, the task's log
tells what would go, and why; nothing is deleted.

**Press it** when storage runs full between two nights (`stateflow_nightly` does the same by itself). Tags, savepoints that have not
expired and pending records stay, whatever the form says.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param
from stateflow_settings import conn_field, flag_field, job_field, text_field

from stateflow.airflow import StateflowCleanupOperator

with DAG(
    dag_id="stateflow_cleanup",
    description="Deletes what no checkpoint in need of keeping reaches",
    doc_md=__doc__,
    schedule=None,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=30)},
    params={
        "job": job_field("Behind whom to clean up; empty: every job of the root.", optional=True),
        "retained": Param(
            3,
            title="Retained",
            description="Newest checkpoints that stay. Fewer than the job's own retained_checkpoints have no effect: "
            "change that option where the job runs.",
            type="integer",
            minimum=1,
            maximum=10_000,
        ),
        "age": text_field(
            "",
            "Keep all younger than",
            "Such as 1 day: these stay beside the others. Empty: as the connection's option retained_age says. "
            "0 seconds: none stays for its age.",
            pattern=r"^(\d+(\.\d+)? *(ms|s|seconds?|m|minutes?|h|hours?|d|days?|weeks?))?$",
        ),
        "retention": text_field(
            "",
            "Keep of older ones",
            "Such as hourly for 2 days, daily for 30 days. Empty: as the connection's option retention says, also beside "
            "an age. none: none of them. What the job's own retention keeps stays in any case.",
        ),
        "dry_run": flag_field("Dry run", "Only tell what would go.", default=True),
        "conn_id": conn_field(),
    },
    tags=["stateflow", "manual"],
):
    StateflowCleanupOperator(
        task_id="cleanup",
        job="{{ params.job or '*' }}",
        retained="{{ params.retained }}",
        age="{{ params.age or '' }}",
        retention="{{ params.retention or '' }}",
        dry_run="{{ params.dry_run }}",
        stateflow_conn_id="{{ params.conn_id }}",
    )
