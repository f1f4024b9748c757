"""### Periodic savepoints

Every night a **native** savepoint of each job: a copy of its newest checkpoint in a folder of its own, made beside a running
driver without slowing it. Every Sunday a **canonical** one, too: Parquet tables that restore into any backend and any number
of key groups, and that other programs can read.

They expire; `stateflow_nightly` deletes those whose time is over, unless a job has claimed them.

**When it fails** no job is harmed, and no half savepoint is left: clear the task, or wait for the next night. **Press it** before
something risky, or use `stateflow_savepoint` for a single job.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import DAG, task
from stateflow_settings import SETTINGS, conn_field, flag_field
from stateflow_steps import living_jobs

from stateflow.airflow import StateflowSavepointOperator

NATIVE_STAYS = timedelta(days=7)
CANONICAL_STAYS = timedelta(days=60)
SUNDAY = 6


@task.short_circuit
def is_weekly(params: dict[str, Any], dag_run: Any) -> bool:
    """On Sundays, and whenever the form asks for it."""
    return bool(params["canonical"]) or dag_run.run_after.weekday() == SUNDAY


with DAG(
    dag_id="stateflow_periodic_savepoints",
    description="A native savepoint of every job each night, a canonical one each week",
    doc_md=__doc__,
    schedule="30 1 * * *",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 2, "retry_delay": timedelta(minutes=5)},
    params={
        "canonical": flag_field("Canonical, too", "Make the weekly savepoints now, whatever the day."),
        "conn_id": conn_field(),
    },
    tags=["stateflow"],
):
    jobs = living_jobs("{{ params.conn_id }}")

    StateflowSavepointOperator.partial(
        task_id="native",
        kind="native",
        expires=NATIVE_STAYS,
        stateflow_conn_id="{{ params.conn_id }}",
        note="nightly",
        map_index_template="{{ task.job }}",
    ).expand(job=jobs)

    canonical = StateflowSavepointOperator.partial(
        task_id="canonical",
        kind="canonical",
        expires=CANONICAL_STAYS,
        stateflow_conn_id="{{ params.conn_id }}",
        spark_conn_id=SETTINGS.spark_conn_id,
        note="weekly",
        map_index_template="{{ task.job }}",
        max_active_tis_per_dag=1,  # each starts Spark
    ).expand(job=jobs)

    is_weekly() >> canonical
