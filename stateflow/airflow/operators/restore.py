"""Restores: state, timers, watermark and source offsets come back together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from airflow.sdk.exceptions import AirflowFailException

from stateflow.airflow.internals.task_instances import code_revision
from stateflow.airflow.operators.approvals import asked_by, person_of, refusal
from stateflow.airflow.operators.arguments import (
    Argument,
    Count,
    Flag,
    Name,
    NonRestored,
    People,
    PipelineFile,
    Pipelines,
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
    from stateflow.pipelines.pipeline import Pipeline
    from stateflow.restore.together import RestoreTogether

ClaimMode = Annotated[str, Argument(one_of("no_claim", "claim"))]


class _Pipelines(Mapping[str, "Pipeline"]):
    """By job. Each is loaded when it is asked for: that of a job that does not go back may be broken."""

    def __init__(self, files: Mapping[str, str], load: Callable[[str], Pipeline]) -> None:
        self._files, self._load = files, load

    def __getitem__(self, job: str) -> Pipeline:
        return self._load(self._files[job])

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


class StateflowRestoreOperator(StateflowOperator):
    """Takes a job to a checkpoint, a tag or a savepoint: one decision, which is made or is not.

    A retry finds what a try that was killed has done: no job is restored twice by one task. With `dry_run` it only plans; the
    result's `plan` is Markdown for an approval, its `digest` what a task that restores takes as `approved`.
    """

    def __init__(
        self,
        *,
        pipeline: PipelineFile,
        origin: Annotated[Name, "`latest`, `checkpoint:N`, `tag:NAME` or the URL of a savepoint"] = "latest",
        parameters: Annotated[
            Table,
            "of the pipeline; a job that exists has its own for those that are not given, a new one the snapshot's",
        ] = None,
        claim_mode: Annotated[
            ClaimMode, "of a savepoint: `no_claim` copies it, `claim` makes it the job's own"
        ] = "no_claim",
        rewind_sinks: Annotated[Flag, "take the outputs back to the checkpoint, too"] = False,
        with_readers: Annotated[
            Flag,
            "take along the jobs of the root that have read what `rewind_sinks` undoes, and their readers; the plan, its digest "
            "and an approval are of all of them",
        ] = False,
        readers: Annotated[
            Pipelines, "`FILE:PIPELINE` of each job that may go back with it, by its name; others are refused"
        ] = None,
        clone_sinks: Annotated[
            Flag, "of a fork: begin with copies of the other job's tables, as of the checkpoint"
        ] = False,
        allow_non_restored_state: NonRestored = False,
        reset_watermark: Annotated[Flag, "begin event time anew, as after a drained run"] = False,
        parallelism: Annotated[Count | None, "subtasks from now on"] = None,
        max_parallelism: Annotated[
            Count | None,
            "key groups from now on, of a canonical savepoint alone: no rescale can give the job more subtasks",
        ] = None,
        takeover: Annotated[Flag, "fence a live run instead of refusing"] = False,
        from_job: Annotated[Text, "whose checkpoint, if not the job's own"] = "",
        approved: Annotated[
            str | None,
            Argument(plan_digest),
            "the digest of the plan that was approved; any other plan is refused. Empty text is no digest",
        ] = None,
        approval: Annotated[
            Any,
            Argument(answer, takes_none=True),
            "what the approval task has returned, such as `approve.output`",
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
        if sentence := refusal(self.given("approval"), asked_by=asked_by(context["dag_run"]), **rules):
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
            if not dry and (before := self._done_before(job)) is not None:
                for other in filter(None, (self.given("from_job"), *self.given("readers"))):
                    job.beside(other).release_left()
                return self._earlier_result(context, before)
            unattended = not dry and self.given("approved") is None
            if unattended:
                self._refuse_taking_over(context, job)
            plan = self._plan(context, job, conf)
            self.log.info("%s", plan)
            if unattended:
                self._warn_of_rows_that_come_twice(plan)
            if dry:
                origin = plan.first.request.origin
                own = origin.owner is not None and origin.job == job.name
                return self._result(context, plan, origin.record.slot if own else None, restored=False)
            all_done = plan.apply(self.progress())
            for name, each in all_done.items():
                self.log.info(
                    "job %s is restored: record %d, timeline %d; the next run goes on from it",
                    name, each.checkpoint, each.timeline,
                )  # fmt: skip
            done = all_done[job.name]
            return self._result(
                context, plan, done.checkpoint, restored=True,
                record=done.checkpoint, timeline=done.timeline, copied_bytes=done.copied_bytes, sinks=dict(done.sinks),
                records={name: each.checkpoint for name, each in all_done.items()},
            )  # fmt: skip

    def _done_before(self, job: Job) -> HistoryLine | None:
        from stateflow.restore.gone_back import noted_digest  # loads records, and a DAG file must not
        from stateflow.savepoints.origin import is_origin

        approved, origin = self.given("approved"), self.given("origin")

        def otherwise(line: HistoryLine) -> str:
            noted = noted_digest(line)
            if approved is not None and noted:
                same, wanted = noted == approved, f"by the plan {approved[:12]}"
            else:
                same, wanted = is_origin(line.origin, origin, job.storage_options), f"from {origin}"
            return "" if same else f"restored from {line.origin}, and not {wanted}"

        return self.finished_before(job, "restore", otherwise)

    def _refuse_taking_over(self, context: Context, job: Job) -> None:
        """A fork is a new job: nobody has seen a plan that says what would become of one that is there."""
        from stateflow.checkpoint.control import same_owner  # loads records, and a DAG file must not

        from_job = self.given("from_job")
        if from_job in ("", job.name) or not job.exists:
            return
        head = job.log().head
        if head is None or (head.kind == "restore" and same_owner(head.owner, self.acts_as(context))):
            return  # an earlier try's, with which nothing has been done yet
        raise AirflowFailException(
            f"there is a job {job.name!r} already, and a fork of {from_job!r} is a new job: give it another name and outputs of its "
            f"own, or delete that job with `stateflow delete {job.name}` and its outputs too; to take it over, plan that "
            "(dry_run) and give the digest as `approved`"
        )

    def _warn_of_rows_that_come_twice(self, plan: RestoreTogether) -> None:
        for each in plan.plans:
            for sink in each.sinks:
                if sink.again:
                    name = each.request.job.name
                    self.log.warning("job %s, sink %s (%s): %s", name, sink.uid, sink.target, sink.note)

    def _plan(self, context: Context, job: Job, conf: Mapping[str, str]) -> RestoreTogether:
        from stateflow.restore.together import RestoreTogether

        pipeline = self._loaded(context, self.given("pipeline"))
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
        origin, parameters = self.given("origin"), self.given("parameters")
        parameters = {name: value for name, value in parameters.items() if value is not None}
        request: dict[str, Any] = {
            "options": self.hook.options(),
            "from_job": self.given("from_job"),
            "parallelism": self.given("parallelism") or 0,
            "max_parallelism": self.given("max_parallelism") or 0,
            "conf": conf,
            **{name: self.given(name) for name in same},
        }
        if not self.given("with_readers"):
            return RestoreTogether((job.restore(origin, pipeline, parameters, **request),))
        readers = _Pipelines(self.given("readers"), lambda file: self._loaded(context, file))
        return job.restore_with_readers(origin, pipeline, readers, parameters, **request)

    def _loaded(self, context: Context, pipeline: str) -> Pipeline:
        from stateflow.pipelines.loading import load_pipeline

        folder = self.beside_dag(context)
        file = folder / Path(pipeline.rpartition(":")[0] or pipeline).expanduser()
        return load_pipeline(pipeline, folder, code_revision(context["ti"], file)).pipeline

    def beside_dag(self, context: Context) -> Path:
        """The folder of the DAG's file: where a relative path begins."""
        return Path(getattr(context.get("dag"), "folder", None) or Path.cwd())

    def _result(
        self, context: Context, plan: RestoreTogether, checkpoint: int | None, **facts: Any
    ) -> dict[str, Any]:
        self.linked(context, checkpoint)
        return self.result(
            checkpoint,
            plan=plan.markdown(),
            document=plan.document(),
            digest=plan.digest,
            **facts,
        )

    def _earlier_result(self, context: Context, line: HistoryLine) -> dict[str, Any]:
        self.linked(context, line.id)
        words = f"Job `{self.given('job')}` was restored from `{line.origin}` by an earlier try of this task."
        return self.result(
            line.id, plan=words, document=None, digest=None, restored=True,
            record=line.id, timeline=line.timeline, sinks=dict(line.sinks),
        )  # fmt: skip
