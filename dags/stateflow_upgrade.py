"""### Upgrade: a new version of a pipeline, taken back by itself when it is wrong

**Before:** put the new version into a file of its own beside the old one (`orders_2.py`: going back needs the old one), and pause
the pipeline's DAG, so that it starts no run of the old version in between; this DAG refuses to begin otherwise. Look whether that DAG
names its pipeline by `pipeline_template`: a plain path does not follow an upgrade, and its next run is then refused.

| step | what it does |
|---|---|
| `old_version`, `paused` | looks up the old version; does the new one lie in a folder of `pipeline_folders`? is the pipeline's DAG paused? |
| `deploy` | *yours*: whatever brings the new file to where the workers find it |
| `check` | does the new version fit the state? |
| `shadow` | the new version runs over the newest batches again, on a fork: nothing is published, and the job is not touched. More differences than *Max changed* end it here |
| `approve` | shows the differences under *Required actions* and waits; no answer in time: it fails, and nothing has changed |
| `still_paused` | is the pipeline's DAG still paused? |
| `stop` | ends the running driver and makes a **savepoint** of where it ended |
| `keep_before` | tags the checkpoint of the stop: what going back goes back to |
| `plan`, `alone` | has nobody else run or restored the job since its stop? Otherwise the new version would put out again what that one has |
| `restore` | the new version takes the savepoint's state over, by that plan; it is refused when somebody was faster |
| `trial` | one run of the new version, on all input there is, with the job's parameters; it deletes no checkpoint. It has the connection's options: *add the `options` and `conf` of the DAG that runs the job where the pipeline needs them* |
| `verify` | every record and file of the job is checked; *add checks of your own after it* |
| `switch` | from now on every DAG with `pipeline_template` runs the new version, and a run of another file is refused |
| `wrong`, `switch_back`, `roll_back`, `verify_rolled_back` | if anything from `restore` on has failed: the DAGs, state, offsets and outputs go back, with the old version |
| `let_go` | removes the tag, unless going back has failed |
| `verdict` | green: upgraded. Red: its sentence says how things stand |

**When `shadow` cannot run**, because a source no longer has the rows of those batches, or because the code is not deterministic by
intention, set *Shadow batches* to 0: `approve` then says that nothing was tried. A change that is meant to differ more needs a higher *Max
changed*; empty is no limit.

**Afterwards** unpause the pipeline's DAG: after a success it goes on with the new version, after a roll-back with the old one. The
savepoint stays (`stop` has its place in its XCom) until somebody deletes it.

**When `roll_back` fails** the job stands where the new version left it. Its log says why; most often somebody else has written to an
output table since. Use `stateflow_recovery` with the savepoint, or `tag:before-upgrade-...`, as restore point.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, Param, Variable, task
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from stateflow_approval import Approval, refuse_unapproved
from stateflow_settings import (
    DAGS,
    SETTINGS,
    conn_field,
    flag_field,
    job_field,
    note_field,
    pipeline_variable,
    switched_to,
)
from stateflow_steps import keep, known_job, let_go, refuse_pipeline_elsewhere, tag_name

from stateflow.airflow import (
    StateflowHook,
    StateflowReplayOperator,
    StateflowRestoreOperator,
    StateflowRunOperator,
    StateflowStopOperator,
    StateflowVerifyOperator,
)
from stateflow.airflow.connections.failures import spoken
from stateflow.airflow.operators.upgrades import is_same_pipeline

if TYPE_CHECKING:
    from airflow.sdk import Context

    from stateflow.jobs.job import Job


KEEPS_ALL = {"retention": "all for 36500 days", "retained_age": "0 seconds"}
"""For the trial: how many checkpoints a job keeps is said by the DAG that runs it, and the trial does not know it."""


class UpgradeApproval(Approval):
    what = "upgrade"


def approved(context: Context) -> None:
    """Before each task that changes something: whoever marks `approve`, or another task, as success upgrades nothing alone."""
    refuse_unapproved(context["ti"].xcom_pull(task_ids="approve"), context["dag_run"], UpgradeApproval.what)


class Shadow(StateflowReplayOperator):
    """One that is left out when it is asked for no batches."""

    def execute(self, context: Context) -> dict[str, Any]:
        if str(self.batches) == "0":
            raise AirflowSkipException(
                "no shadow batches were asked for: the new version is not tried before the approval"
            )
        return super().execute(context)


@task
def paused(old: str, new: str, dag_id: str, ti: Any) -> None:
    """Nothing may run the old version between the stop and the restore: the table would get its output twice."""
    refuse_pipeline_elsewhere(new)
    if is_same_pipeline(*(str(DAGS / Path(each).expanduser()) for each in (new, old))):
        raise AirflowFailException(
            f"{new} is what runs already: give the new version a file of its own, since going back needs the old one"
        )
    if not ti.get_dag(dag_id).is_paused:
        raise AirflowFailException(
            f"DAG {dag_id!r} is not paused: pause it on its page, so that it starts no run of the old version in between, and "
            "clear this task; nothing has been changed"
        )


@task
def keep_before(stopped: dict[str, Any], conn_id: str, job: str, run_id: str) -> str:
    return keep(
        conn_id, job, f"checkpoint:{stopped['checkpoint']}", tag_name("before-upgrade", run_id), "upgrade"
    )


@task
def alone(planned: dict[str, Any], job: str) -> str:
    """The digest of the plan, if nobody has delivered anything since the stop: the new version would deliver it again. The restore
    asks once more, when it has the job."""
    again = [sink["uid"] for sink in planned["document"]["sinks"] if sink["again"]]
    if again:
        raise AirflowFailException(
            f"somebody else has run job {job!r} since it was stopped for this upgrade, and the new version would deliver those rows "
            f"again to {', '.join(again)}; nothing was restored: trigger this DAG again when no other run or upgrade is at work on the job"
        )
    return str(planned["digest"])


@task
def deploy(new: str) -> str:
    """Replace this by what puts the new version into place, and return its FILE:PIPELINE. Here it lies there already."""
    return new


@task
def check(new: str, conn_id: str, job: str) -> dict[str, str]:
    """Whether the new version fits the state, as `stateflow check` says it: without Spark, nothing is written."""
    from stateflow.pipelines.loading import load_pipeline

    refuse_pipeline_elsewhere(new)  # `deploy` may have named another file
    with spoken():
        found = StateflowHook(conn_id).job(job).check(load_pipeline(new, DAGS).pipeline)
    if not found.compatible:
        raise AirflowFailException("; ".join(found.problems))
    return {operator.uid: operator.verdict for operator in found.operators}


@task(pre_execute=approved)
def switch(new: str, conn_id: str, job: str) -> None:
    set_variable(conn_id, job, new)


@task(pre_execute=approved)
def switch_back(earlier: str, conn_id: str, job: str) -> None:
    """`switch` may have failed when the Variable was set."""
    if earlier:
        set_variable(conn_id, job, earlier)
    elif switched_to(conn_id, job):
        Variable.delete(pipeline_variable(conn_id, job))


def set_variable(conn_id: str, job: str, pipeline: str) -> None:
    Variable.set(pipeline_variable(conn_id, job), pipeline, description="Set by DAG stateflow_upgrade")


def is_touched(states: dict[str, str]) -> bool:
    """Whether the restore has begun: before it the job was stopped, and nothing else."""
    return states.get("restore") in ("success", "failed")


def has_restored(job: Job, dag_run: str) -> bool:
    """Whether a restore of this DAG run is decided. One that was refused has changed nothing, and going back would undo what
    others have done."""
    records = (slot.record for slot in job.log().slots.values())
    return any(record and record.kind == "restore" and record.owner.dag_run == dag_run for record in records)


@task.short_circuit(trigger_rule="one_failed", ignore_downstream_trigger_rules=False)
def wrong(conn_id: str, job: str, ti: Any, run_id: str) -> bool:
    """Something has failed. Is there anything to take back?"""
    states = ti.get_task_states(dag_id=ti.dag_id, run_ids=[run_id])[run_id]
    if states.get("restore") != "failed":
        return is_touched(states)
    with spoken():
        return has_restored(StateflowHook(conn_id).job(job), f"{ti.dag_id}/{run_id}")


def verdict_on(states: dict[str, str], old: str, new: str, stopped: dict[str, Any]) -> tuple[bool, str]:
    """Whether the upgrade is done, and a sentence for whoever pressed the button."""
    if states.get("switch") == "success":
        return True, (
            f"upgraded: every DAG that names its pipeline by pipeline_template runs {new} from now on, and one that names another file "
            "is refused; unpause the pipeline's DAG"
        )
    failed = [name for name, state in states.items() if state == "failed" and name in STEPS]
    first = min(failed, key=STEPS.index, default="a step that was skipped")
    go_on = f"see the log of {first}, and unpause the pipeline's DAG to go on with the old version"
    if not stopped and not failed:
        return False, "nothing was changed: the upgrade was rejected"
    if not stopped:
        return False, f"nothing was changed: {first} failed, and its log says why"
    if not is_touched(states) or states.get("roll_back") == "skipped":
        return False, f"{first} failed, and nothing was changed but that the job was stopped: {go_on}"
    if states.get("verify_rolled_back") == "success":
        back = f"checkpoint {stopped['checkpoint']} with {old}"
        return False, f"{first} failed, and the job was taken back to {back}: {go_on}"
    return False, (
        f"{first} failed, and so did going back: the job is not where it was; see the logs of switch_back, "
        f"roll_back and verify_rolled_back, then use stateflow_recovery to restore {stopped['savepoint']}"
    )


STEPS = (
    "old_version", "paused", "deploy", "check", "shadow", "approve", "still_paused", "stop", "keep_before", "plan", "alone", "restore",
    "trial", "verify", "switch",
)  # fmt: skip


def misnamed(named: str, right: str, variable: str) -> str:
    """What to do about a Variable that does not name what the verdict says; empty when it does."""
    if named == right:
        return ""
    mend = f"set it to {right}" if right else "delete it"
    return f"but the Airflow Variable {variable!r} names {named or 'nothing'}: {mend}"


@task(trigger_rule="all_done")
def verdict(
    old: dict[str, str] | None,
    new: str,
    stopped: dict[str, Any] | None,
    conn_id: str,
    job: str,
    ti: Any,
    run_id: str,
) -> str:
    """Green or red for the whole DAG run, in words."""
    states = ti.get_task_states(dag_id=ti.dag_id, run_ids=[run_id])[run_id]
    done, sentence = verdict_on(states, (old or {}).get("pipeline", ""), new, stopped or {})
    if done or states.get("switch_back") in ("success", "failed"):  # else it is as somebody else has set it
        right = new if done else (old or {}).get("switched_to", "")
        if mend := misnamed(switched_to(conn_id, job), right, pipeline_variable(conn_id, job)):
            done, sentence = False, f"{sentence}; {mend}"
    if not done:
        raise AirflowFailException(sentence)
    return sentence


with DAG(
    dag_id="stateflow_upgrade",
    description="Stops a job with a savepoint, tries a new version of its pipeline, and goes back when it is wrong",
    doc_md=__doc__,
    schedule=None,
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    default_args={"retries": 1, "retry_delay": timedelta(seconds=15)},
    params={
        "job": job_field("The job whose pipeline has a new version."),
        "pipeline": Param(
            "/opt/pipelines/orders_2.py:orders",
            title="New version",
            description="FILE:PIPELINE, as the workers see it.",
            type="string",
            minLength=1,
        ),
        "shadow_batches": Param(
            20,
            title="Shadow batches",
            description="How many of the newest batches the new version runs again before the approval; 0: none.",
            type="integer",
            minimum=0,
            maximum=10_000,
        ),
        "max_changed": Param(
            0.01,
            title="Max changed",
            description="The share of rows or keys that may be others; more ends it before the approval. Empty: any.",
            type=["null", "number"],
            minimum=0,
            maximum=1,
        ),
        "rewind_sinks": flag_field(
            "Rewind outputs",
            "When going back, take back what the new version has put out, too.",
            default=True,
        ),
        "note": note_field(),
        "conn_id": conn_field(),
    },
    tags=["stateflow", "manual"],
):
    job, conn_id, new = "{{ params.job }}", "{{ params.conn_id }}", "{{ params.pipeline }}"
    of_job: dict[str, Any] = {"job": job, "stateflow_conn_id": conn_id, "note": "{{ params.note or '' }}"}
    spark: dict[str, Any] = {"spark_conn_id": SETTINGS.spark_conn_id}

    old = known_job.override(task_id="old_version")(conn_id, job)
    ready = paused(old["pipeline"], new, old["dag_id"])
    deployed = deploy(new)
    checked = check(deployed, conn_id, job)
    shadow = Shadow(
        task_id="shadow",
        pipeline=deployed,
        batches="{{ params.shadow_batches }}",
        max_changed="{{ '' if params.max_changed is none else params.max_changed }}",
        **of_job,
        **spark,
    )
    approve = UpgradeApproval(
        task_id="approve",
        subject="Upgrade job {{ params.job }} to {{ params.pipeline }}?",
        body="""{{ (ti.xcom_pull('shadow') or {}).get('report') or 'The new version was **not tried** on past batches: no shadow batches were asked for.' }}

*Approve* stops the job with a savepoint and lets the new version take over. From then on a DAG that \
names the old file by its path, and not by `pipeline_template`, is refused. *Reject* changes nothing.""",
        response_timeout=SETTINGS.approval_time,
        retries=0,
        trigger_rule="none_failed",
        assigned_users=[{"id": each, "name": each} for each in SETTINGS.approvers] or None,
    )
    still_paused = paused.override(task_id="still_paused")(old["pipeline"], new, old["dag_id"])
    stop = StateflowStopOperator(
        task_id="stop",
        wait=timedelta(minutes=10),
        savepoint=True,
        pre_execute=approved,
        **of_job,
        **spark,
    )
    kept = keep_before(stop.output, conn_id, job)
    of_stop: dict[str, Any] = {
        "origin": "{{ ti.xcom_pull('stop')['savepoint'] }}", "pipeline": deployed, **of_job, **spark,
    }  # fmt: skip
    plan = StateflowRestoreOperator(task_id="plan", dry_run=True, **of_stop)
    is_alone = alone(plan.output, job)
    restore = StateflowRestoreOperator(
        task_id="restore",
        approved=is_alone,
        approval=approve.output,
        four_eyes=SETTINGS.four_eyes,
        approvers=list(SETTINGS.approvers) or None,
        **of_stop,
    )
    # The Variable names the old version until `switch`, where an earlier upgrade has set it.
    trial = StateflowRunOperator(
        task_id="trial",
        pipeline=deployed,
        options=KEEPS_ALL,
        recorded_parameters=True,
        any_version=True,
        retries=0,
        pre_execute=approved,
        **of_job,
        **spark,
    )
    verify = StateflowVerifyOperator(task_id="verify", deep=True, retries=0, **of_job)
    switched = switch(deployed, conn_id, job)

    failed = wrong(conn_id, job)
    switched_back = switch_back(old["switched_to"], conn_id, job)
    roll_back = StateflowRestoreOperator(
        task_id="roll_back",
        origin="checkpoint:{{ ti.xcom_pull('stop')['checkpoint'] }}",
        pipeline=old["pipeline"],
        rewind_sinks="{{ params.rewind_sinks }}",
        takeover=True,
        pre_execute=approved,
        **of_job,
        **spark,
    )
    verified = StateflowVerifyOperator(task_id="verify_rolled_back", deep=True, retries=0, **of_job)

    ended = verdict(old, deployed, stop.output, conn_id, job)
    # When going back has failed, too, the tag stays. Where there was nothing to take back, `verify_rolled_back` is skipped.
    released = let_go.override(trigger_rule="none_failed_min_one_success")(conn_id, [job], "before-upgrade")

    ready >> deployed >> checked >> shadow >> approve >> still_paused >> stop >> kept >> plan
    is_alone >> restore >> trial >> verify >> switched
    (
        [kept, plan, is_alone, restore, trial, verify, switched]
        >> failed
        >> switched_back
        >> roll_back
        >> verified
    )
    [switched, verified] >> ended
    [kept, verified] >> released
