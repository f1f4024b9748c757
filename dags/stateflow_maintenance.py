"""### Nightly maintenance

1. `report`: what cleaning up would delete, and why. Read it in the task's log; it deletes nothing.
2. `cleanup`: deletes it: checkpoints beyond those retained, state that no checkpoint needs any more, what dead runs have left
   behind, savepoints that have expired. Whatever a tag, a reader or a running driver needs stays. Drivers need not be stopped.
3. `verify`: every job is checked. The log lists what is wrong, and the task fails if something is.

**When `verify` fails** nothing has been changed by it. The log names the file and the checkpoint: restore an earlier
checkpoint or a savepoint with `stateflow_recovery`. **When `cleanup` fails** it has stopped before deleting what it was not sure
of: clear the task once its sentence is dealt with.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG
from stateflow_settings import conn_field, flag_field
from stateflow_steps import living_jobs

from stateflow.airflow import StateflowCleanupOperator, StateflowVerifyOperator

RETAINED = 3
"""Newest checkpoints of each job that stay."""
YOUNG = timedelta(days=1)
"""Those younger than this stay, too: as far back as a recovery may want to go."""

with DAG(
    dag_id="stateflow_nightly",
    description="Cleans up behind every job and verifies it",
    doc_md=__doc__,
    schedule="30 3 * * *",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 2, "retry_delay": timedelta(minutes=5)},
    params={
        "deep": flag_field("Deep", "Read every file when verifying, not only the records and sizes."),
        "conn_id": conn_field(),
    },
    tags=["stateflow"],
):
    report, cleanup = (
        StateflowCleanupOperator(
            task_id=name,
            job="",  # every job of the root
            stateflow_conn_id="{{ params.conn_id }}",
            retained=RETAINED,
            age=YOUNG,
            expired_savepoints=True,
            dry_run=name == "report",
        )
        for name in ("report", "cleanup")
    )
    verify = StateflowVerifyOperator.partial(
        task_id="verify",
        stateflow_conn_id="{{ params.conn_id }}",
        deep="{{ params.deep }}",
        retries=0,  # damage does not go away
        trigger_rule="all_done",  # what kept the cleanup from its work may be what is found here
        map_index_template="{{ task.job }}",
    ).expand(job=living_jobs("{{ params.conn_id }}"))

    report >> cleanup >> verify
