"""### Orders: totals per user, exactly once

Reads new orders from a Delta table, keeps a total per user in its state, and appends new totals to another table. A run
takes one checkpoint per micro-batch and ends when the input is used up; the next one carries on from there.

**When it fails.** A retry carries on from the newest checkpoint: nothing is lost or doubled by it, nor by clearing the task
or triggering another run. A task that fails without retrying says what has to be mended first (code that does not fit the
state, a damaged file). *Fenced* means that somebody else's run or a recovery has taken the job over: nothing is to be done.

**Buttons.** *Checkpoints* on the task leads to the job's page. `stateflow_stop` ends a run after its batch,
`stateflow_recovery` takes the job back, `stateflow_savepoint` keeps a copy.

**Bounded runs.** With *bounded*, a run takes what had been written by the end of its data interval and no more, so that a
DAG run means a stretch of time. Without it a run takes all there is.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG, Param
from stateflow_settings import ORDERS, SETTINGS, flag_field, note_field, pipeline_template

from stateflow.airflow import SparkSubmit, StateflowRunOperator, WarmHost, checkpoint_asset

JOB = "orders"
PIPELINE = SETTINGS.jobs_of(SETTINGS.conn_id).get(JOB, ORDERS)


def path_field(name: str, description: str) -> Param:
    default = {**ORDERS.parameters, **PIPELINE.parameters}[name]
    return Param(default, title=name.title(), description=description, type="string", minLength=1)


with DAG(
    dag_id="stateflow_orders",
    description="Totals per user, exactly once from one Delta table into another",
    doc_md=__doc__,
    schedule=SETTINGS.schedule,
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    # One driver per job is kept to by the job itself. This keeps the next run from waiting in a worker for the last one.
    max_active_runs=1,
    default_args={
        "retries": 3,
        "retry_delay": timedelta(seconds=SETTINGS.retry_seconds),
        "retry_exponential_backoff": True,
        "max_retry_delay": timedelta(minutes=10),
    },
    params={
        "input": path_field("input", "Delta table that is read."),
        "output": path_field("output", "Delta table that is appended to."),
        "bounded": flag_field("Bounded", "End where the data interval of this DAG run ends."),
        "note": note_field(),
    },
    tags=["stateflow"],
):
    StateflowRunOperator(
        task_id="run",
        job=JOB,
        pipeline=pipeline_template(SETTINGS.conn_id, JOB, PIPELINE),
        parameters={"input": "{{ params.input }}", "output": "{{ params.output }}"},
        stateflow_conn_id=SETTINGS.conn_id,
        spark_conn_id=SETTINGS.spark_conn_id,
        launcher=WarmHost(PIPELINE.host) if PIPELINE.host else SparkSubmit(),
        # A run that was triggered without a logical date has no data interval, and takes all there is.
        until="{{ data_interval_end if params.bounded and data_interval_end is defined else '' }}",
        # What a DAG run does that ended well and was cleared: go_on, skip, or rewind to where it began.
        on_rerun="go_on",
        note="{{ params.note or '' }}",
        outlets=[checkpoint_asset(JOB, SETTINGS.conn_id)],
    )
