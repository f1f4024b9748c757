"""Restores: state, timers, watermark and source offsets come back together."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from airflow.sdk.exceptions import AirflowFailException

from stateflow.airflow.internals.task_instances import code_revision
from stateflow.airflow.operators.approvals import person_of, refusal
from stateflow.airflow.operators.arguments import (
    Argument,
    Count,
    Flag,
    Name,
    People,
    Table,
    Text,
    answer,
    one_of,
    plan_digest,
)
from stateflow.airflow.operators.base import StateflowOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

    from stateflow.checkpoint.statistics import HistoryLine
    from stateflow.format.records import Owner
    from stateflow.jobs.job import Job
    from stateflow.restore.planned import RestorePlan

ClaimMode = Annotated[str, Argument(one_of("no_claim", "claim"))]


class StateflowRestoreOperator(StateflowOperator):
    """Takes a job to a checkpoint, a tag or a savepoint: one decision, which is made or is not.

    A retry finds what a try that was killed has done: no job is restored twice by one task. With `dry_run` it only plans; the
    result's `plan` is Markdown for an approval, its `digest` what a task that restores takes as `approved`.
    """

    def __init__(
        self,
        *,
        pipeline: Annotated[Name, "`FILE:PIPELINE`; a relative file is looked for beside the DAG's"],
        origin: Annotated[Name, "`latest`, `checkpoint:N`, `tag:NAME` or the URL of a savepoint"] = "latest",
        parameters: Annotated[
            Table,
            "of the pipeline; a job that exists has its own for those that are not given, a new one the snapshot's",
        ] = None,
        claim_mode: Annotated[
            ClaimMode, "of a savepoint: `no_claim` copies it, `claim` makes it the job's own"
        ] = "no_claim",
        rewind_sinks: Annotated[Flag, "take the outputs back to the checkpoint, too"] = False,
        clone_sinks: Annotated[
            Flag, "of a fork: begin with copies of the other job's tables, as of the checkpoint"
        ] = False,
        allow_non_restored_state: Annotated[Flag, "state without an operator may be dropped"] = False,
        reset_watermark: Annotated[Flag, "begin event time anew, as after a drained run"] = False,
        parallelism: Annotated[Count | None, "subtasks from now on"] = None,
        takeover: Annotated[Flag, "fence a live run instead of refusing"] = False,
        from_job: Annotated[Text, "whose checkpoint, if not the job's own"] = "",
        approved: Annotated[
            str | None,
            Argument(plan_digest),
            "the digest of the plan that was approved; any other plan is refused. Empty text is no digest",
        ] = None,
        approval: Annotated[
            Any, Argument(answer), "what the approval task has returned, such as `approve.output`"
        ] = None,
        four_eyes: Annotated[
            Flag, "refuse unless somebody else than whoever triggered the DAG run has approved"
        ] = False,
        approvers: Annotated[
            People,
            "ids or names of those whose approval is taken; None: of everybody whom Airflow lets answer",
        ] = None,
        count: Annotated[
            Flag,
            "let the plan say how many entries each state has whose type changes: it reads the whole state",
        ] = False,
        dry_run: Annotated[Flag, "plan, and do nothing"] = False,
        spark_conn_id: Annotated[
            Name | None, "where Spark is, when outputs are taken back or delivered; else on this worker"
        ] = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.accept(locals())

    def acts_as(self, context: Context) -> Owner:
        """With whoever approved in the note, where the job's history shows it."""
        owner = super().acts_as(context)
        id_, name = person_of(self.given("approval"))
        if self.given("dry_run") or not (id_ or name):
            return owner
        note = "; ".join(filter(None, (owner.note, f"approved by {name or id_}")))
        return msgspec.structs.replace(owner, note=note)

    def _require_approval(self, context: Context) -> None:
        """Here, where the plan is carried out: whoever changes or skips the approval task changes nothing."""
        rules = {"four_eyes": self.given("four_eyes"), "approvers": self.given("approvers")}
        asked_by = getattr(context["dag_run"], "triggering_user_name", None) or ""
        if sentence := refusal(self.given("approval"), asked_by=asked_by, **rules):
            raise AirflowFailException(sentence)
        if any(rules.values()) and self.given("approved") is None:
            raise AirflowFailException(
                "which plan was approved is not known: give the digest of the plan that people saw as `approved`"
            )

    def execute(self, context: Context) -> dict[str, Any]:
        with self.at_work():
            if not self.given("dry_run"):
                self._require_approval(context)
            conf = self.spark_conf()
            job = self.job_for(context, conf=conf)
            self.linked(context)
            dry = self.given("dry_run")
            if not dry and (before := self.finished_before(job, "restore")) is not None:
                if other := self.given("from_job"):
                    job.beside(other).release_left()
                return self._told_again(context, before)
            plan = self._plan(context, job, conf)
            self.log.info("%s", plan)
            if dry:
                own = plan.request.origin.owner is not None and plan.request.origin.job == job.name
                return self._told(
                    context, plan, plan.request.origin.record.slot if own else None, restored=False
                )
            done = plan.apply(self.progress())
            self.log.info(
                "job %s is restored: record %d, timeline %d; the next run goes on from it",
                job.name, done.checkpoint, done.timeline,
            )  # fmt: skip
            return self._told(
                context, plan, done.checkpoint, restored=True,
                record=done.checkpoint, timeline=done.timeline, copied_bytes=done.copied_bytes, sinks=dict(done.sinks),
            )  # fmt: skip

    def _plan(self, context: Context, job: Job, conf: Mapping[str, str]) -> RestorePlan:
        from stateflow.pipelines.loading import load_pipeline

        pipeline, folder = self.given("pipeline"), self.beside_dag(context)
        file = folder / Path(pipeline.rpartition(":")[0] or pipeline).expanduser()
        loaded = load_pipeline(pipeline, folder, code_revision(context["ti"], file))
        same = (
            "claim_mode",
            "rewind_sinks",
            "clone_sinks",
            "allow_non_restored_state",
            "reset_watermark",
            "takeover",
            "approved",
            "count",
        )
        return job.restore(
            self.given("origin"),
            loaded.pipeline,
            {name: value for name, value in self.given("parameters").items() if value is not None},
            options=self.hook.options(),
            from_job=self.given("from_job"),
            parallelism=self.given("parallelism") or 0,
            conf=conf,
            **{name: self.given(name) for name in same},
        )

    def beside_dag(self, context: Context) -> Path:
        """The folder of the DAG's file: where a relative path begins."""
        return Path(getattr(context.get("dag"), "folder", None) or Path.cwd())

    def _told(
        self, context: Context, plan: RestorePlan, checkpoint: int | None, **facts: Any
    ) -> dict[str, Any]:
        from stateflow.restore.markdown import markdown

        self.linked(context, checkpoint)
        return self.result(
            checkpoint, plan=markdown(plan), document=plan.document(), digest=plan.digest, **facts
        )

    def _told_again(self, context: Context, line: HistoryLine) -> dict[str, Any]:
        self.linked(context, line.id)
        words = f"Job `{self.given('job')}` was restored from `{line.origin}` by an earlier try of this task."
        return self.result(
            line.id, plan=words, document=None, digest=None, restored=True,
            record=line.id, timeline=line.timeline, sinks=dict(line.sinks),
        )  # fmt: skip
