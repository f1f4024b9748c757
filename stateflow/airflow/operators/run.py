"""A run of a pipeline: one driver per job, whatever happens to the tasks that supervise it."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

from airflow.sdk.exceptions import AirflowFailException, AirflowRescheduleException, AirflowSkipException

from stateflow.airflow.internals.task_instances import code_revision
from stateflow.airflow.launchers.base import LaunchMethod
from stateflow.airflow.operators.arguments import (
    Argument,
    Bound,
    Count,
    Deferrable,
    Flag,
    Name,
    NonRestored,
    PipelineFile,
    Span,
    Table,
    flag,
    is_deferred,
    one_of,
    setting,
    trigger,
)
from stateflow.airflow.operators.assets import checkpoint_asset, tables_alias
from stateflow.airflow.operators.base import triggered_by
from stateflow.airflow.operators.drivers import (
    DriverOperator,
    DriverOptions,
    Launch,
    SparkPlace,
    SparkSettings,
    beside_dag,
    name_of,
)
from stateflow.airflow.operators.events import announce, announce_partitions, announce_tables, keep_quiet
from stateflow.airflow.operators.lineage import ReportsLineage
from stateflow.airflow.operators.links import (
    CheckpointLink,
    DriverLogLink,
    SparkLink,
    driver_log,
    spark_page,
)
from stateflow.airflow.operators.upgrades import is_same_pipeline, pipeline_variable
from stateflow.errors import BusyError, StateflowError, UsageError
from stateflow.pipelines.parameters import as_texts, known_parameters
from stateflow.quantities import written_duration

if TYPE_CHECKING:
    from airflow.sdk import AssetAlias, Context

    from stateflow.airflow.operators.task_lineage import TaskLineage
    from stateflow.checkpoint.control import RunOutcome
    from stateflow.checkpoint.scheduled import ScheduledRun
    from stateflow.checkpoint.statistics import HistoryLine
    from stateflow.driver.run_spec import RunSpec
    from stateflow.driver.run_state import RunState
    from stateflow.driver.supervision import Supervision
    from stateflow.format.records import Owner
    from stateflow.jobs.job import Job
    from stateflow.observe.status import JobStatus, SinkStatus

OnLiveRun = Annotated[str, Argument(one_of("refuse", "wait", "takeover"))]
OnRerun = Annotated[str, Argument(one_of("go_on", "skip", "rewind"))]
OnPast = Annotated[str, Argument(one_of("fail", "skip"))]
OnEmpty = Annotated[str, Argument(one_of("succeed", "skip"))]
Plain = Annotated[bool, Argument(flag, template=False)]
ParentInfo = Annotated[
    bool | None,
    Argument(flag, template=False, when_none=setting("openlineage", "spark_inject_parent_job_info")),
]
TransportInfo = Annotated[
    bool | None,
    Argument(flag, template=False, when_none=setting("openlineage", "spark_inject_transport_info")),
]
Trigger = Annotated[str, Argument(trigger)]
LOOK_AGAIN = timedelta(seconds=30)
"""After this time a task that has given way looks again."""


class StateflowRunOperator(ReportsLineage, DriverOperator):
    """Carries on from the job's newest checkpoint, to the end of the run's trigger."""

    operator_extra_links = (CheckpointLink(), SparkLink(), DriverLogLink())
    way_to_follow = (
        "let it follow by pipeline=pipeline_template(...), which is in dags/stateflow_settings.py, "
    )
    """What the task's author does so that it runs what an upgrade has switched to. It stands before other ways."""

    _driver: dict[str, Any] | None = None
    """What is known of the driver, for links."""

    def __init__(
        self,
        *,
        pipeline: PipelineFile,
        job: Annotated[Name, "the job's name, if it is not the pipeline's"] = "",
        parameters: Annotated[Table, "of the pipeline function"] = None,
        spark_conn_id: SparkPlace = "spark_default",
        launcher: Launch = None,
        parallelism: Annotated[
            Count | None, "subtasks of a keyed operator; another number than before rescales the job"
        ] = None,
        trigger: Annotated[Trigger | None, "`drain`, `until-stopped` or a duration between batches"] = None,
        until: Annotated[
            Bound,
            "end at this version or time, included, such as `{{ data_interval_end }}`. A plain cron schedule has intervals of no length: "
            "with CronDataIntervalTimetable that is the end of the day that a backfill is for",
        ] = None,
        options: DriverOptions = None,
        conf: SparkSettings = None,
        on_live: Annotated[
            OnLiveRun,
            "what to do about another live run of the job: `refuse` (start nothing, give the slot back, and look again), "
            "`wait` for its end, or `takeover`",
        ] = "refuse",
        busy_timeout: Annotated[
            Span,
            "how long the task looks again or waits for another live run, without using a try; then it fails",
        ] = timedelta(hours=1),
        on_rerun: Annotated[
            OnRerun,
            "what a DAG run does that had ended well and was cleared: `go_on` from the newest checkpoint, `skip`, or "
            "`rewind` state, offsets and outputs to where that DAG run began",
        ] = "go_on",
        on_past_until: Annotated[
            OnPast,
            "what a run does whose `until` lies behind what the job has read, so that it has nothing to do: `fail` or `skip`",
        ] = "fail",
        on_empty: Annotated[
            OnEmpty,
            "how a run ends that finds nothing to read: `succeed` or `skip`; either way no asset gets an event",
        ] = "succeed",
        allow_non_restored_state: NonRestored = False,
        any_version: Annotated[
            Flag,
            "run this pipeline also where the Airflow Variable `stateflow_pipeline:CONNECTION:JOB`, which an upgrade sets, names another one",
        ] = False,
        recorded_parameters: Annotated[
            Flag,
            "take parameters that are not given from the job's newest record also where the pipeline has a default, as a run behind a "
            "restore does that is to go on with what the restore took; the worker loads the pipeline for that",
        ] = False,
        final: Annotated[
            Flag, "when the input is used up, fire every event-time timer; the job is over then"
        ] = False,
        deferrable: Annotated[
            Deferrable,
            "wait in the triggerer instead of in a worker's slot; for drivers that are processes of their own. By default as "
            "`[operators] default_deferrable` says",
        ] = None,
        table_assets: Annotated[
            Plain,
            "send an event for the asset of each Delta table that the run has written: `s3://lake/totals`",
        ] = False,
        partition_events: Annotated[
            Plain,
            "name the partitions that the run has written in the events of outlets that are its Delta tables: an event for each, by "
            "which DAGs with a `PartitionedAssetTimetable` begin",
        ] = False,
        openlineage_inject_parent_job_info: Annotated[
            ParentInfo,
            "tell Spark's OpenLineage listener which task its run belongs to; by default as `[openlineage] "
            "spark_inject_parent_job_info` says",
        ] = None,
        openlineage_inject_transport_info: Annotated[
            TransportInfo,
            "tell that listener where Airflow sends its own lineage; by default as `[openlineage] "
            "spark_inject_transport_info` says",
        ] = None,
        grace: Annotated[Span, "how long the driver of a killed task may take to end its batch"] = timedelta(
            minutes=2
        ),
        **kwargs: Any,
    ) -> None:
        job = job or name_of(pipeline)
        super().__init__(job=job, **kwargs)
        self.accept(locals())
        method: LaunchMethod = self.given("launcher")
        if deferrable is None and not method.detached:
            self.deferrable = False  # the configuration means drivers that outlive their task
        if deferrable and not method.detached:
            raise ValueError(
                f"task {self.task_id!r}: deferrable=True needs a driver that outlives the task, and {method!r} starts none: "
                "use SparkSubmit()"
            )
        self._tables: AssetAlias | None = None
        if table_assets:
            # An alias has its name while the DAG is parsed, and the job's may be a template.
            conn_id = self.given("stateflow_conn_id")
            named = not is_deferred(job) and not is_deferred(conn_id)
            self._tables = tables_alias(f"{conn_id}/{job}" if named else self.task_id)
            self.outlets = [*self.outlets, self._tables]
        self._supervision: Supervision | None = None
        self._busy_since: float | None = None

    def execute(self, context: Context) -> dict[str, Any]:
        return self._carry_on(context)

    def _own_lineage(self, context: Context) -> TaskLineage | None:
        from stateflow.airflow.operators.task_lineage import lineage_of

        owner = self.acts_as(context)
        return lineage_of(self.hook.job(self.given("job"), acts_as=owner), owner)

    def _carry_on(self, context: Context) -> dict[str, Any]:
        with self.noting_lineage(lambda: self._own_lineage(context)), self.at_work(), self._in_turn(context):
            owner = self.acts_as(context)
            job = self.hook.job(self.given("job"), acts_as=owner)
            self.linked(context)
            slot = _head(job)
            from stateflow.checkpoint import scheduled  # Airflow parses DAG files all day: they load no work

            self._refuse_forgotten_end(context, job, owner)
            mark = scheduled.begin(job.store, job.layout, owner.dag_run, owner.task, slot, job.clock)
            if mark.ended is not None and mark.ended_by == owner.run:
                self.log.info("%s has ended well in an earlier try of this task", owner.dag_run)
                return self._report(context, job, mark, self._seen(job, mark, mark.ended))
            self._refuse_other_version(context)
            if mark.ended is not None:
                choice = self.given("on_rerun")
                if choice == "skip":
                    self.log.info("%s has ended well before and is skipped (on_rerun='skip')", owner.dag_run)
                    keep_quiet(self)
                    return self._report(context, job, mark, self._seen(job, mark, mark.ended))
                began_from = mark.began_from
                if choice == "rewind":
                    began_from = self._rewound(context, job, mark)
                mark = scheduled.reopen(job.store, job.layout, mark, _head(job), began_from)
            supervision = self._supervise(context, job)
            if self.given("deferrable"):
                supervision.begin()
                return self._followed(context, supervision, mark, supervision.submitted())
            return self._finished(context, supervision, mark, supervision.run())

    def _refuse_other_version(self, context: Context) -> None:
        """A DAG that names the old file would go on with it after an upgrade, on the state that the new one has made."""
        conn_id = self.hook.page_conn_id
        if not conn_id:
            return  # an upgrade has the roots of connections alone
        variable = pipeline_variable(conn_id, self.given("job"))
        switched: str = context["var"]["value"].get(variable, "")
        given = self.file_of(context)
        if (
            not switched
            or self.given("any_version")
            or is_same_pipeline(given, beside_dag(context, switched))
        ):
            return
        raise AirflowFailException(
            f"{self.argument_owner()} would run {given}, and an upgrade has switched job {self.given('job')!r} to {switched} (Airflow "
            f"Variable {variable!r}), so nothing was run: {self.way_to_follow}delete the Variable to go on with the task's own pipeline, "
            "or say any_version=True to run it all the same"
        )

    def _refuse_forgotten_end(self, context: Context, job: Job, owner: Owner) -> None:
        """Airflow knows that this task had ended before it was cleared, and the job has no mark of it any more."""
        from stateflow.checkpoint import scheduled  # as above

        choice = self.given("on_rerun")
        if choice == "go_on" or not self._key_of(context).again or not job.exists:
            return
        if scheduled.find(job.store, job.layout, owner.dag_run, owner.task) is None:
            raise AirflowFailException(
                f"job {job.name!r} has forgotten where {owner.dag_run} began and how it ended, since it remembers its newest "
                f"{scheduled.MOST_MARKS} runs of tasks, so on_rerun={choice!r} cannot be done: clear the task with on_rerun='go_on' to go on from the "
                "newest checkpoint, mark it as success to leave it out, or take the job back with stateflow_recovery"
            )

    def resume(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Called by Airflow after the triggerer has seen the end of the run, or of the task's time."""
        with self.noting_lineage(lambda: self._own_lineage(context)), self.at_work(), self._in_turn(context):
            owner = self.acts_as(context)
            job = self.hook.job(self.given("job"), acts_as=owner)
            supervision = self._supervise(context, job)
            from stateflow.airflow.triggers.overdue import OVERDUE, refuse_overdue  # as above
            from stateflow.checkpoint import scheduled
            from stateflow.checkpoint.control import KILLED
            from stateflow.driver.handover import Handover
            from stateflow.driver.run_state import Ended

            supervision.rejoin(Handover.of(event))
            mark = scheduled.find(job.store, job.layout, owner.dag_run, owner.task)
            state = supervision.settled()
            ended = state.outcome if isinstance(state, Ended) else None
            if event.get(OVERDUE) and (ended is None or ended.exit_code or KILLED in ended.stopped):
                if ended is not None:
                    self.log.warning("the run has ended: %s", ended.error or ended.stopped)
                refuse_overdue(self, event)  # rather than go on with another driver
            return self._followed(context, supervision, mark, state)

    def _followed(
        self, context: Context, supervision: Supervision, mark: ScheduledRun | None, state: RunState
    ) -> dict[str, Any]:
        """Leaves a run that goes on to the triggerer."""
        from stateflow.driver.run_state import Running  # as above

        while not isinstance(state, Running):
            if not supervision.again(state):
                return self._finished(context, supervision, mark, supervision.result(state))
            state = supervision.submitted()
        self._defer(context, supervision)

    def resume_idle(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Called by Airflow after the triggerer has seen the end of the run that was in the way, or of the task's time."""
        from stateflow.airflow.triggers.overdue import refuse_overdue  # as above

        refuse_overdue(self, event)
        self._busy_since = float(event["since"])
        return self._carry_on(context)

    def on_kill(self) -> None:
        """Writes a durable stop request first: it reaches the driver on any host, even if this process has seconds to live."""
        if self._supervision is not None:
            try:
                self._supervision.stop(grace=self.given("grace").total_seconds())
            except Exception as error:
                self.log.warning("the stop request could not be written: %s", error)
        super().on_kill()

    def _supervise(self, context: Context, job: Job) -> Supervision:
        from stateflow.driver.supervision import Supervision  # as above

        self._supervision = Supervision(
            job,
            self._spec(context),
            self.given("launcher").bound(self.given("spark_conn_id")),
            self.acts_as(context),
            # A task that can be deferred waits in the triggerer.
            on_live="refuse"
            if self.given("deferrable") and self.given("on_live") == "wait"
            else self.given("on_live"),
            busy_timeout=self.given("busy_timeout").total_seconds(),
            foresee=lambda: self._foresee(context, job),
            begun=lambda epoch: self._noticed(context, job, epoch),
            say=lambda line: self.log.info("%s", line),
            patience=self.hook.options().heartbeat_timeout.total_seconds(),
        )
        self._supervision.gave_way_at = self._busy_since
        return self._supervision

    def _noticed(self, context: Context, job: Job, epoch: int) -> bool:
        """Lets the task's buttons lead to the driver while it runs. False: it has not said yet what it is."""
        from stateflow.checkpoint.lineage import read_lineage  # as above

        run = read_lineage(job.store, job.layout, epoch)
        if run is None:
            return False
        self._driver = {
            "application": run.application,
            "pages": run.pages,
            "host": run.owner.host,
            "job": job.name,
            "epoch": epoch,
        }
        subject = self.linked(context, **self._known_driver())
        for link, address in ((SparkLink(), spark_page), (DriverLogLink(), driver_log)):
            # Airflow itself stores them when the task has ended.
            context["ti"].xcom_push(link.xcom_key, address(subject))
        return True

    def _known_driver(self) -> dict[str, Any]:
        return {"driver": self._driver} if self._driver is not None else {}

    def _foresee(self, context: Context, job: Job) -> RunOutcome | None:
        from stateflow.jobs.running import foreseen  # loads stateflow.spark, and a DAG file must not

        if self.given("final"):
            return None
        overrides = {"trigger": self.given("trigger") or None, "parallelism": self.given("parallelism")}
        chosen = {name: value for name, value in overrides.items() if value is not None}
        return foreseen(
            self.file_of(context),
            job,
            self._texts(context),
            options=self.hook.options(**{**self.given("options"), **chosen}),
            until=[until] if (until := self.given("until")) else (),
            allow_non_restored_state=self.given("allow_non_restored_state"),
        )

    @contextmanager
    def _in_turn(self, context: Context) -> Iterator[None]:
        """Gives way to another live run: the task comes back later, and neither a try nor a slot is used meanwhile."""
        try:
            yield
        except BusyError as error:
            limit, now = self.given("busy_timeout"), time.time()
            since = self._since_busy(context, now)
            if now - since >= limit.total_seconds():
                raise AirflowFailException(
                    f"{error}; the task has waited for it for busy_timeout={written_duration(limit)}: give it longer, or "
                    "run the two at different times"
                ) from None
            if self.given("deferrable") and self.given("on_live") == "wait":
                self.log.info("%s; waiting for its end in the triggerer", error)
                self._defer_until_idle(context, since, limit)
            left = since + limit.total_seconds() - now
            pause = min(LOOK_AGAIN, timedelta(seconds=left))
            self.log.info("%s; looking again in %s", error, written_duration(pause))
            back = AirflowRescheduleException(datetime.now(UTC) + pause)  # type: ignore[no-untyped-call]
            raise back from None

    def _since_busy(self, context: Context, now: float) -> float:
        """When this try first gave way, in seconds since 1970."""
        supervision = self._supervision
        rescheduled = context["ti"].get_first_reschedule_date(context)
        times = (
            now - supervision.waited if supervision is not None else now,
            supervision.gave_way_at if supervision is not None else self._busy_since,
            rescheduled.timestamp() if rescheduled is not None else None,
        )
        return min(at for at in times if at is not None)

    def _defer_until_idle(self, context: Context, since: float, limit: timedelta) -> NoReturn:
        owner = self.acts_as(context)
        from stateflow.airflow.triggers.idle import StateflowIdleTrigger  # as above
        from stateflow.airflow.triggers.overdue import deadline_of

        self.defer(
            trigger=StateflowIdleTrigger(
                job=self.given("job"),
                stateflow_conn_id=self.given("stateflow_conn_id"),
                checkpoint_dir=self.given("checkpoint_dir"),
                dag_run=owner.dag_run,
                task=owner.task,
                patience=self.hook.options().heartbeat_timeout.total_seconds(),
                since=since,
                limit=limit.total_seconds(),
                deadline=deadline_of(self, context),
            ),
            method_name="resume_idle",
        )

    def _spec(self, context: Context) -> RunSpec:
        from stateflow.driver.run_spec import RunSpec  # as above

        return RunSpec(
            **self.errand(context),
            until=self.given("until"),
            parallelism=self.given("parallelism"),
            trigger=self.given("trigger") or "",
            final=self.given("final"),
            revision=self._revision(context),
            user=triggered_by(context),
        )

    def _texts(self, context: Context) -> dict[str, str]:
        """The given parameters, and behind a restore those that its record has."""
        given = super()._texts(context)
        if not self.given("recorded_parameters"):
            return given
        from stateflow.pipelines.loading import load_pipeline  # loads pyarrow, and a DAG file must not

        job = self.hook.job(self.given("job"))
        loaded = load_pipeline(self.file_of(context), Path.cwd(), self._revision(context))
        recorded = known_parameters(loaded.pipeline.function, job.log().head if job.exists else None)
        return {**recorded, **given}

    def _conf(self, context: Context) -> dict[str, Any]:
        """Spark's settings, with those by which its OpenLineage listener knows this task."""
        conf: dict[str, Any] = self.given("conf")
        parent, transport = (
            self.given(f"openlineage_inject_{what}_info") for what in ("parent_job", "transport")
        )
        if parent or transport:
            from airflow.providers.common.compat.openlineage.utils import spark

            if parent:
                conf = spark.inject_parent_job_information_into_spark_properties(conf, context)
            if transport:
                conf = spark.inject_transport_information_into_spark_properties(conf, context)
        return conf

    def _revision(self, context: Context) -> str:
        file = self.file_of(context)
        return code_revision(context["ti"], Path(file.rpartition(":")[0] or file))

    def _rewound(self, context: Context, job: Job, mark: ScheduledRun) -> int | None:
        """Takes the job back to where the DAG run began; returns the checkpoint that it begins from by now."""
        from stateflow.checkpoint.statistics import history, taken_back  # as above
        from stateflow.pipelines.loading import load_pipeline  # loads pyarrow, and a DAG file must not

        if self.finished_before(job, "restore") is not None:
            return mark.began_from
        if any(mark.began_from in slots for slots in taken_back(history(job.store, job.layout))):
            # An earlier DAG run was run again, which has undone this one. Its checkpoint has the state from before that.
            self.log.warning(
                "%s began at checkpoint %d, behind which job %s has gone back since: it goes on from the newest checkpoint",
                mark.dag_run,
                mark.began_from,
                job.name,
            )
            return _head(job)
        if mark.began_from is None:
            raise UsageError(
                f"job {job.name!r} had no checkpoint when {mark.dag_run} began, so there is none to rewind to: use "
                "on_rerun='go_on', or begin anew as a job of another name with outputs of its own"
            )
        self.log.info(
            "%s is run again: job %s goes back to checkpoint %d", mark.dag_run, job.name, mark.began_from
        )
        loaded = load_pipeline(self.file_of(context), Path.cwd(), self._revision(context))
        plan = job.restore(
            f"checkpoint:{mark.began_from}",
            loaded.pipeline,
            as_texts(self.given("parameters")),
            options=self.hook.options(**self.given("options")),
            rewind_sinks=True,
            allow_non_restored_state=self.given("allow_non_restored_state"),
            conf=self.spark_conf(),
        )
        self.log.info("%s", plan)
        plan.apply(self.progress())
        return mark.began_from

    def spark_conf(self) -> dict[str, str]:
        """Spark's settings for a rewind. Where drivers run on the cluster alone, its Spark runs on this worker."""
        from stateflow.airflow.connections.spark import in_cluster_mode  # as above
        from stateflow.airflow.launchers.kubernetes import Kubernetes

        launcher = self.given("launcher")
        on_cluster = (
            isinstance(launcher, Kubernetes)
            or getattr(launcher, "submit", {}).get("deploy_mode") == "cluster"
            or in_cluster_mode(self.given("spark_conn_id"))
        )
        return {**({} if on_cluster else super().spark_conf()), **as_texts(self.given("conf"))}

    def _defer(self, context: Context, supervision: Supervision) -> NoReturn:
        from stateflow.airflow.launchers.kubernetes import Kubernetes  # as above
        from stateflow.airflow.triggers.overdue import deadline_of
        from stateflow.airflow.triggers.run import StateflowRunTrigger

        launcher = self.given("launcher")
        self.defer(
            trigger=StateflowRunTrigger(
                job=supervision.job.name,
                stateflow_conn_id=self.given("stateflow_conn_id"),
                checkpoint_dir=self.given("checkpoint_dir"),
                dag_run=supervision.owner.dag_run,
                task=supervision.owner.task,
                handover=supervision.handover().plain(),
                patience=supervision.patience,
                grace=self.given("grace").total_seconds(),
                kubernetes_conn_id=launcher.kubernetes_conn_id if isinstance(launcher, Kubernetes) else "",
                deadline=deadline_of(self, context),
            ),
            method_name="resume",
        )

    def _finished(
        self, context: Context, supervision: Supervision, mark: ScheduledRun | None, outcome: RunOutcome
    ) -> dict[str, Any]:
        from stateflow.checkpoint import control, scheduled  # as above

        job = supervision.job
        if supervision.foreseen is not None and not supervision.ended_before:
            self.log.info("%s, so Spark was not started", outcome.stopped)
            if outcome.nothing_left:
                control.note_look(job.store, job.layout, job.clock())
        if outcome.stopped == control.BOUND_BEHIND and not _has_worked(
            outcome, _done(mark, self._lines(job, mark))
        ):
            sentence = self._past_until(job)
            raise (AirflowSkipException if self.given("on_past_until") == "skip" else AirflowFailException)(
                sentence
            )
        seen = self._seen(job, mark, outcome)
        if mark is not None:
            try:
                scheduled.finish(
                    job.store,
                    job.layout,
                    mark,
                    outcome,
                    self.acts_as(context).run,
                    job.clock,
                    told=seen.facts,
                )
            except StateflowError as error:
                # The run has committed. A try that fails now would be red, and run again.
                self.log.warning("that %s has ended well could not be noted: %s", mark.dag_run, error)
        return self._report(context, job, mark, seen)

    def _lines(self, job: Job, mark: ScheduledRun | None) -> list[HistoryLine] | None:
        """What the job has done since this task began, in whatever try; None when that is not known."""
        if mark is None:
            return None
        try:
            lines = job.history() if job.exists else []
        except StateflowError as error:
            self.log.warning("what earlier tries have done is not known: %s", error)
            return None
        return [line for line in lines if line.id > (mark.since or 0)]

    def _told_up_to(self, job: Job, mark: ScheduledRun, lines: Sequence[HistoryLine]) -> int:
        """The slot that the job was at when this task began, or that others, for which it waited, have brought it to and told of.

        Whoever was stopped may have told nobody: a task that is killed lets its driver end its batch, and says nothing any more.
        """
        from stateflow.checkpoint.control import read_heartbeat  # as above

        own = (mark.dag_run, mark.task)
        first = min((line.id for line in lines if (line.dag_run, line.task) == own), default=sys.maxsize)
        others = [line for line in lines if line.dag_run and line.id < first]
        try:
            beats = [
                read_heartbeat(job.store, job.layout, epoch) for epoch in {line.epoch for line in others}
            ]
        except StateflowError as error:
            self.log.warning("whether other tasks have told of what they did is not known: %s", error)
            beats = []
        told = {beat.epoch for beat in beats if beat and beat.outcome and beat.outcome.nothing_left}
        return max((line.id for line in others if line.epoch in told), default=mark.since or 0)

    def _past_until(self, job: Job) -> str:
        positions = ", ".join(f"{source.uid}: {source.position}" for source in job.status().sources)
        return (
            f"job {job.name!r} was read beyond until={self.given('until')!s} by an earlier run ({positions}), so this run has "
            "nothing to read: to process that interval again, take the job back with stateflow_recovery, or let a fork of the "
            "job read it with stateflow_reprocess; on_past_until='skip' skips such a run"
        )

    def _seen(self, job: Job, mark: ScheduledRun | None, outcome: RunOutcome) -> _Seen:
        """What the task tells of its run. When it has ended before, that is what it told then: others may have moved the job on since."""
        try:
            status = job.status() if job.exists else None
        except StateflowError as error:
            self.log.warning("the result lacks what the job's status would tell: %s", error)
            status = None
        # What an earlier task had decided, and this one has delivered, nobody has heard of.
        lines = self._lines(job, mark)
        before = self._told_up_to(job, mark, lines or ()) if mark is not None else 0
        if mark is not None and mark.told:
            return _Seen(outcome, status, before, mark.told)
        delivered = status is not None and mark is not None and any(_newer(status, before))
        # A try that finds its run ended has done nothing itself.
        done = _done(mark, lines)
        head = status.head if status else None
        checkpoint = outcome.checkpoint if outcome.checkpoint is not None else head
        facts = {
            "checkpoint": checkpoint,
            **self._as_of(job, status, checkpoint),
            "batches": outcome.batches if done is None else max(outcome.batches, len(done)),
            "rows": outcome.rows
            if done is None
            else max(outcome.rows, sum(line.processed_rows for line in done)),
            "stopped": outcome.stopped,
            "empty": not delivered and not _has_worked(outcome, done),
        }
        return _Seen(outcome, status, before, facts)

    def _as_of(self, job: Job, status: JobStatus | None, checkpoint: int | None) -> dict[str, Any]:
        """Where the job stood at the checkpoint: it may be elsewhere by now. What nobody knows any more is None, or left out of `offsets`."""
        from stateflow.observe.status import source_status  # as above

        facts: dict[str, Any] = {"epoch": None, "watermark": None, "state_size": None, "offsets": {}}
        if status is None:
            return facts
        if status.head == checkpoint:
            return {name: getattr(status, name) for name in facts if name != "offsets"} | {
                "offsets": {source.uid: source.data for source in status.sources}
            }
        try:
            record = job.log().member(checkpoint or 0)
            line = next((line for line in job.history() if line.id == checkpoint), None)
        except StateflowError as error:
            self.log.warning("the result lacks what checkpoint %s would tell: %s", checkpoint, error)
            return facts
        if line is not None:
            facts |= {name: getattr(line, name) for name in facts if name != "offsets"}
        if record is None:
            self.log.warning(
                "checkpoint %s has been collected, so the result lacks the sources' offsets", checkpoint
            )
            return facts
        return facts | {
            "offsets": {uid: source_status(uid, state).data for uid, state in record.sources.items()}
        }

    def _report(self, context: Context, job: Job, mark: ScheduledRun | None, seen: _Seen) -> dict[str, Any]:
        """The result, which the link and the assets' events repeat. The run has committed, so nothing here fails the task."""
        status, before = seen.status, seen.before
        facts = dict(seen.facts)
        checkpoint = facts.pop("checkpoint")
        self.linked(context, checkpoint, **self._known_driver())
        for warning in seen.outcome.warnings:
            self.log.warning("%s", warning)
        result = self.result(checkpoint, dag_run=self.acts_as(context).dag_run, **facts)
        if not result["empty"]:
            asset = checkpoint_asset(job.name, self.given("stateflow_conn_id"))
            announce(self, context, asset, result, but=self._tables)
            if self._tables is not None and status is not None:
                announce_tables(context, self._tables, _written(status, before), result)
            if self.given("partition_events") and status is not None:
                self._announce_partitions(context, job, status, before)
        elif self.given("on_empty") == "skip":
            raise AirflowSkipException(f"job {job.name!r} had nothing to read")
        else:
            keep_quiet(self)
        return result

    def _announce_partitions(self, context: Context, job: Job, status: JobStatus, before: int) -> None:
        from stateflow.jobs.written_partitions import written_partitions  # as above

        announce_partitions(
            self,
            context,
            _written(status, before),
            lambda uid, sink: written_partitions(job, status.uuid, uid, sink.target, before),
        )


@dataclass(frozen=True)
class _Seen:
    """What a task knows of its run when that has ended well."""

    outcome: RunOutcome
    status: JobStatus | None
    """The job's, as it is now; None when it could not be read."""
    before: int
    """The slot up to which others have told of what was delivered."""
    facts: dict[str, Any]
    """What goes into the result."""


def _done(mark: ScheduledRun | None, lines: Sequence[HistoryLine] | None) -> list[HistoryLine] | None:
    """The batches of this task over all of its tries, also of those that have been collected; None when they are not known."""
    if mark is None or lines is None:
        return None
    return [
        line
        for line in lines
        if (line.dag_run, line.task) == (mark.dag_run, mark.task)
        and line.kind == "checkpoint"
        and line.metrics.get("positions") is None  # it only says where a source goes on
    ]


def _has_worked(outcome: RunOutcome, done: Sequence[HistoryLine] | None) -> bool:
    """Whether this task has made a checkpoint: an earlier try may have, whose driver was killed after it. `done`: its batches, if they
    are known."""
    return bool(outcome.batches) or done is None or bool(done)


def _written(status: JobStatus, before: int) -> dict[str, SinkStatus]:
    """The Delta tables that have something of behind a slot, by sink."""
    from stateflow.pipelines.sink_kinds import is_table  # loads what a DAG file must not

    return {sink.uid: sink for sink in _newer(status, before) if is_table(sink.kind)}


def _newer(status: JobStatus, before: int) -> list[SinkStatus]:
    """The sinks that have something of behind a slot."""
    return [sink for sink in status.sinks if (sink.last_commit or 0) > before]


def _head(job: Job) -> int | None:
    head = job.log().head if job.exists else None
    return head.slot if head else None
