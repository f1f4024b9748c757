"""### Reprocess: compute an interval again, in a fork of the job

A job reads its input once. So a run whose `until` lies behind what the job has read does nothing, and fails with a sentence that
sends you here. There are two ways to process an interval again:

- **A rewind** (`stateflow_recovery` with *rewind outputs*) takes the job itself back, with state, offsets and output tables. Press it
  when what the job has computed since is wrong.
- **A fork**, which is this DAG: a new job begins with the state of an earlier checkpoint and reads on from there to *until*, into
  output tables of its own. The job itself goes on meanwhile and is not touched. Press it when you want to see or compare a result,
  or swap tables afterwards.

| step | what it does |
|---|---|
| `known_pipeline` | looks up which file the job runs, unless *Pipeline* names it; refuses one outside the settings' `pipeline_folders` |
| `chosen` | the parameters of the fork; refuses those of the job itself, which would write into its tables |
| `fork` | a new job, with the state and the offsets of the restore point; refuses the name of a job that is there |
| `run` | reads from there to *until*, included, with the parameters that `fork` took: those of the form, else the job's |
| `verify` | checks every record and file of the fork |

**Copies of tables.** The fork's tables begin empty, so an upserted one gets only the keys that change from the restore point on. With *Copies
of tables* they begin with what the job's tables held at the restore point, which then has to be a checkpoint or a tag. Take it to
compare or swap whole tables.

**When a step fails** its log says what to do; clear it then. **Afterwards** delete the fork with `stateflow delete NAME`, and its
tables: a later fork adds its rows to those that it finds. To keep it, give the next one another name and other tables.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import DAG, Param, task
from airflow.sdk.exceptions import AirflowFailException
from stateflow_settings import NAME, SETTINGS, conn_field, flag_field, job_field, note_field, text_field
from stateflow_steps import known_pipeline

from stateflow.airflow import (
    StateflowHook,
    StateflowRestoreOperator,
    StateflowRunOperator,
    StateflowVerifyOperator,
)
from stateflow.airflow.connections.failures import spoken
from stateflow.pipelines.parameters import as_texts

RESTORE_POINT = rf"^(latest|checkpoint:[0-9]+|tag:{NAME}|[A-Za-z][A-Za-z0-9+.-]*://.+|/.+)$"


@task
def chosen(conn_id: str, job: str, fork: str, params: Any = None) -> dict[str, Any]:
    """What the fork runs with. Whether a parameter names an output is not known here, so at least one has to differ. One that is null is
    the job's own."""
    parameters: dict[str, Any] = dict(params["parameters"])
    with spoken():
        own = StateflowHook(conn_id).job(job).status().parameters
    if fork == job:
        raise AirflowFailException(f"a fork needs a name of its own, and {fork!r} is the job itself")
    # As a record has them: False is "false" there.
    if all(own.get(name) == text for name, text in as_texts(parameters).items()):
        raise AirflowFailException(
            f"the fork would write into the tables of job {job!r}: name other outputs under Parameters, such as "
            '{"output": "/data/totals_again"}'
        )
    return parameters


with DAG(
    dag_id="stateflow_reprocess",
    description="Computes an interval again in a fork of a job, beside the job",
    doc_md=__doc__,
    schedule=None,
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    default_args={"retries": 2, "retry_delay": timedelta(seconds=15)},
    params={
        "job": job_field("The job whose input is read again."),
        "fork": Param(
            "again",
            title="Fork",
            description="Name of the new job: that of a job which is there is refused.",
            type="string",
            pattern=f"^{NAME}$",
        ),
        "origin": Param(
            "latest",
            title="Restore point",
            description="The checkpoint before the interval: checkpoint:42, tag:NAME, or where a savepoint lies.",
            type="string",
            pattern=RESTORE_POINT,
            examples=["checkpoint:42", "tag:before-prices", "s3://bucket/savepoints/orders"],
        ),
        "until": text_field("", "Until", "End of the interval: a time or a version. Empty: all there is."),
        "parameters": Param(
            {"output": "/data/totals_again"},
            title="Parameters",
            description="Of the fork, where they differ from the job's: its outputs at least.",
            type="object",
            minProperties=1,
        ),
        "clone_sinks": flag_field(
            "Copies of tables",
            "Begin with copies of the job's tables, as of the restore point: a checkpoint or a tag.",
        ),
        "note": note_field(),
        "conn_id": conn_field(),
        "pipeline": text_field("", "Pipeline", "FILE:PIPELINE; empty: the one that the job runs now."),
    },
    tags=["stateflow", "manual"],
):
    job, conn_id = "{{ params.job }}", "{{ params.conn_id }}"
    pipeline = known_pipeline(conn_id, job, "{{ params.pipeline or '' }}")
    wanted = chosen(conn_id, job, "{{ params.fork }}")
    of_fork: dict[str, Any] = {
        "job": "{{ params.fork }}",
        "stateflow_conn_id": conn_id,
        "note": "{{ params.note or '' }}",
    }
    spark: dict[str, Any] = {"pipeline": pipeline, "spark_conn_id": SETTINGS.spark_conn_id}
    fork = StateflowRestoreOperator(
        task_id="fork",
        origin="{{ params.origin }}",
        from_job=job,
        parameters=wanted,
        clone_sinks="{{ params.clone_sinks }}",
        **of_fork,
        **spark,
    )
    run = StateflowRunOperator(
        task_id="run",
        until="{{ params.until or '' }}",
        parameters=wanted,
        # Those of the job that `fork` took: otherwise what the form leaves out would be the pipeline's default.
        recorded_parameters=True,
        **of_fork,
        **spark,
    )
    verify = StateflowVerifyOperator(task_id="verify", retries=0, **of_fork)

    [pipeline, wanted] >> fork >> run >> verify
