"""### Recovery: take a job back to a restore point

For bad data, a bad deployment, a damaged checkpoint. `docs/runbooks.md` goes through it step by step. **Nothing is touched before
a person has approved the plan.**

| step | what it does |
|---|---|
| `known_job`, `known_readers` | look up which file the job runs and which DAG runs it, and the same of those that may go back with it; refuse a file outside the settings' `pipeline_folders` |
| `plan` | compares restore point, pipeline and job; refuses what cannot be |
| `hold` | tags the restore point, so that retention leaves it while people think (`let_go` removes the tag) |
| `dags_of` | looks up which DAGs `start` will trigger |
| `approve` | shows the plan under *Required actions* and waits; no answer in time: it fails, and nothing has changed |
| `stop` | ends the running driver after its batch |
| `plan_again`, `still_holds` | after the stop: is it still the plan that was approved? Tags where the job stood, for a way back |
| `restore` | state, timers, watermark and offsets come back as one record; outputs too, if that was asked for. It takes the approved plan's digest, and refuses any other plan |
| `verify` | checks every record and file of the job |
| `start` | triggers the pipeline's own DAG (when that is paused, its run begins once it is not) |

**The pipeline's DAG meanwhile.** It need not be paused. A run that it starts between `stop` and `restore` is fenced by the restore:
its task fails without a retry and says so, and what it had delivered is treated like everything after the restore point. One
that begins while the restore is at work is refused and tries again later.

**What is approved is what is done.** The plan's digest covers restore point, parameters, sources, outputs, operators and options. When
the driver has gone on after the plan, so that outputs which had nothing newer would be delivered again, `still_holds` or `restore`
refuses: the job is stopped then, so trigger this DAG again and approve the new plan.

**Without *rewind outputs*** the tables keep what they have, and what followed the restore point is delivered again. Say no to that
only for outputs that can bear it.

**With readers**, which needs *rewind outputs*: jobs of the same root that have read what is undone go back as well, each to its newest
checkpoint from before that, with its own outputs; and so do their readers. The plan has a section for each of them, the approval is of
all of it, and `hold`, `stop`, `verify` and `start` do for each what they do for the job. Every one has to be in the settings' `jobs`. Pause
the readers' DAGs meanwhile: a run that begins between its own restore and that of the job reads the same rows again. Without *with
readers* their next runs are refused, and each has to be recovered by itself.

**When a step fails** its log says what to do; clear it then, and the DAG run goes on from there. When `stop` fails because the driver
hangs, mark that task as success: the restore fences the driver, whatever it does. **The way back:** recover once more, to
`tag:before-recovery-...`, which `still_holds` has left; `stateflow tag JOB NAME --remove` when nobody wants it any more.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import DAG, Param, task
from airflow.sdk.exceptions import AirflowFailException
from stateflow_approval import Approval
from stateflow_settings import (
    NAME,
    SETTINGS,
    conn_field,
    flag_field,
    job_field,
    note_field,
    running_pipeline,
    text_field,
)
from stateflow_steps import keep, keep_latest, known, known_job, let_go, refuse_pipeline_elsewhere, tag_name

from stateflow.airflow import StateflowRestoreOperator, StateflowStopOperator, StateflowVerifyOperator
from stateflow.restore.digest import differences_together

RESTORE_POINT = rf"^(latest|checkpoint:[0-9]+|tag:{NAME}|[A-Za-z][A-Za-z0-9+.-]*://.+|/.+)$"


@task(multiple_outputs=False)
def known_readers(conn_id: str, job: str, params: Any = None) -> dict[str, str]:
    """Which file every other job of the settings runs: those that go back with the job need it. No file is loaded here."""
    if not params["with_readers"]:
        return {}
    files = {name: running_pipeline(conn_id, name) for name in SETTINGS.jobs_of(conn_id) if name != job}
    for file in files.values():
        refuse_pipeline_elsewhere(file)
    return files


@task
def hold(plan: dict[str, Any], conn_id: str, job: str, run_id: str) -> list[str]:
    """A savepoint stays by itself; a checkpoint might be collected before it is restored. Returns the jobs that go back."""
    readers = plan["document"].get("with_readers", [])
    checkpoints = {job: plan["checkpoint"], **{each["job"]: each["checkpoint"] for each in readers}}
    for name, checkpoint in checkpoints.items():
        if checkpoint is not None:
            keep(conn_id, name, f"checkpoint:{checkpoint}", tag_name("recovery", run_id), "to be restored")
    return list(checkpoints)


@task
def dags_of(conn_id: str, jobs: list[str]) -> list[str]:
    """Here, and not when everything is restored, it turns out that one of them is not known."""
    return list(dict.fromkeys(known(conn_id, job)["dag_id"] for job in jobs))


@task
def still_holds(
    approved: dict[str, Any], now: dict[str, Any], conn_id: str, jobs: list[str], run_id: str
) -> str:
    """The plan was made while the driver ran, and approved some time later. The restore asks once more, alone with the job."""
    if approved["digest"] != now["digest"]:
        changed = "; ".join(differences_together(approved["document"], now["document"]))
        stopped = f"job {jobs[0]!r} is" if len(jobs) == 1 else f"jobs {', '.join(map(repr, jobs))} are"
        raise AirflowFailException(
            f"the plan that was approved does not hold any more: {changed or 'a value that the plan does not show has changed'}; "
            f"nothing was restored, and {stopped} stopped: trigger this DAG again and approve the new plan, or trigger the "
            "pipeline's DAG to go on as before"
        )
    return keep_latest(conn_id, jobs, "before-recovery", run_id, "where a recovery set out")


with DAG(
    dag_id="stateflow_recovery",
    description="Takes a job back to a checkpoint, tag or savepoint, once a person has approved the plan",
    doc_md=__doc__,
    schedule=None,
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    default_args={"retries": 2, "retry_delay": timedelta(seconds=15)},
    params={
        "job": job_field("The job to take back."),
        "origin": Param(
            "latest",
            title="Restore point",
            description="latest, checkpoint:42, tag:NAME, or where a savepoint lies.",
            type="string",
            pattern=RESTORE_POINT,
            examples=["latest", "checkpoint:42", "tag:before-prices", "s3://bucket/savepoints/orders"],
        ),
        "rewind_sinks": flag_field(
            "Rewind outputs", "Take the output tables back to the restore point, too."
        ),
        "with_readers": flag_field(
            "With readers",
            "Take back the jobs that have read what 'Rewind outputs' undoes, and their readers, too. All of them are in the plan.",
        ),
        "note": note_field(),
        "conn_id": conn_field(),
        "pipeline": text_field(
            "",
            "Pipeline",
            "FILE:PIPELINE in one of the settings' folders; empty: the one that the job runs now.",
        ),
        "allow_non_restored_state": flag_field(
            "Drop state", "State whose operator the pipeline no longer has may go."
        ),
        "reset_watermark": flag_field("Reset watermark", "Begin event time anew, as after a drained run."),
    },
    tags=["stateflow", "manual"],
):
    job, conn_id = "{{ params.job }}", "{{ params.conn_id }}"
    asked: dict[str, Any] = {"stateflow_conn_id": conn_id, "note": "{{ params.note or '' }}"}
    of_each: dict[str, Any] = {**asked, "map_index_template": "{{ task.job }}"}

    of_settings = known_job(conn_id, job, "{{ params.pipeline or '' }}")
    wanted: dict[str, Any] = {
        **asked,
        "job": job,
        "pipeline": of_settings["pipeline"],
        "rewind_sinks": "{{ params.rewind_sinks }}",
        "with_readers": "{{ params.with_readers }}",
        "readers": known_readers(conn_id, job),
        "allow_non_restored_state": "{{ params.allow_non_restored_state }}",
        "reset_watermark": "{{ params.reset_watermark }}",
        "spark_conn_id": SETTINGS.spark_conn_id,
    }
    plan = StateflowRestoreOperator(task_id="plan", origin="{{ params.origin }}", dry_run=True, **wanted)
    held = hold(plan.output, conn_id, job).as_setup()
    dags = dags_of(conn_id, held)
    approve = Approval(
        task_id="approve",
        subject="Restore job {{ params.job }} from {{ params.origin }}? Plan {{ ti.xcom_pull('plan')['digest'][:12] }}",
        body="""{{ ti.xcom_pull('plan')['plan'] }}

*Approve* stops the drivers of {{ ti.xcom_pull('hold') | join(', ') }}, restores as said above and starts the pipelines again. Until
then they go on; what they still do is treated like everything else that followed the restore point. What is approved is the plan with this digest: when
another one would be carried out after the stop, nothing is restored. *Reject* changes nothing.""",
        response_timeout=SETTINGS.approval_time,
        retries=0,
        # Airflow lets nobody else answer; `restore` asks once more who has.
        assigned_users=[{"id": each, "name": each} for each in SETTINGS.approvers] or None,
    )
    stop = StateflowStopOperator.partial(
        task_id="stop", wait=timedelta(minutes=5), retries=1, **of_each
    ).expand(job=held)
    # `latest` is what it was when it was approved: the driver may have gone on since.
    planned = "{{ ti.xcom_pull('plan')['document']['from'] }}"
    again = StateflowRestoreOperator(task_id="plan_again", origin=planned, dry_run=True, **wanted)
    holds = still_holds(plan.output, again.output, conn_id, held)
    restore = StateflowRestoreOperator(
        task_id="restore",
        origin=planned,
        approved="{{ ti.xcom_pull('plan')['digest'] }}",
        approval=approve.output,
        four_eyes=SETTINGS.four_eyes,
        approvers=list(SETTINGS.approvers) or None,
        takeover=True,
        **wanted,
    )
    verify = StateflowVerifyOperator.partial(task_id="verify", deep=True, retries=0, **of_each).expand(
        job=held
    )
    start = TriggerDagRunOperator.partial(task_id="start", note="after the recovery").expand(
        trigger_dag_id=dags
    )
    release = let_go(conn_id, held, "recovery").as_teardown(setups=held)

    dags >> approve >> stop >> again >> holds >> restore >> verify >> [start, release]
