"""Replays: code that is not deployed yet, tried on batches that were."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from stateflow.airflow.operators.arguments import Count, Name, NonRestored, Share, Table
from stateflow.airflow.operators.drivers import (
    DriverOperator,
    DriverOptions,
    Launch,
    SparkPlace,
    SparkSettings,
    name_of,
)
from stateflow.errors import IncompatibleError, StateflowError

if TYPE_CHECKING:
    from airflow.sdk import Context

    from stateflow.driver.following import Following
    from stateflow.driver.run_spec import ReplaySpec
    from stateflow.jobs.job import Job
    from stateflow.replay.reports import KeptReport

RESULT_CHANGES = 20
"""Changes that go into XCom; the job's page has more of them."""


class StateflowReplayOperator(DriverOperator):
    """Runs the job's newest batches again with the code of `pipeline`, on a fork, and compares outputs and state. It publishes
    nothing, and a run of the job may go on meanwhile.

    The result has counts and the first differences; its `report` is Markdown for an approval. With `max_changed` a task whose
    differences are more than that fails, and is not tried again. The report stays beside the job, where its page shows it.
    """

    _following: Following | None = None

    def __init__(
        self,
        *,
        pipeline: Annotated[
            Name, "`FILE:PIPELINE` of the code to try; a relative file is looked for beside the DAG's"
        ],
        job: Annotated[Name, "the job whose batches run again, if it is not called like the pipeline"] = "",
        batches: Annotated[Count, "how many of the newest; of fewer that are kept, all, and it says so"] = 20,
        max_changed: Annotated[
            Share | None,
            "the share of a sink's rows, or of a state's keys that were looked at, that may be others, such as 0.01; None: any",
        ] = None,
        parameters: Annotated[Table, "of the pipeline function, where they differ from the job's own"] = None,
        spark_conn_id: SparkPlace = "spark_default",
        launcher: Launch = None,
        options: DriverOptions = None,
        conf: SparkSettings = None,
        allow_non_restored_state: NonRestored = False,
        **kwargs: Any,
    ) -> None:
        job = job or name_of(pipeline)
        super().__init__(job=job, **kwargs)
        self.accept(locals())

    def execute(self, context: Context) -> dict[str, Any]:
        from stateflow.replay import reports  # a DAG file loads what declares, not what works

        with self.at_work():
            owner = self.acts_as(context)
            job = self.job_for(context)
            self.linked(context)
            name = reports.name_of(f"{owner.task}-{context['dag_run'].run_id}", owner.run)
            kept = reports.find(job.store, job.layout, name)
            if kept is not None:
                self.log.info("an earlier try of this task has made report %s: it is not made again", name)
            else:
                kept = self._replayed(job, self._spec(context, name))
            return self._result(context, kept)

    def on_kill(self) -> None:
        """Kills the driver: a fork is nobody's, and what it leaves on its host, the next replay there takes away."""
        if self._following is not None:
            self._following.stop()
        super().on_kill()

    def _replayed(self, job: Job, spec: ReplaySpec) -> KeptReport:
        from stateflow.driver.following import Following  # as above
        from stateflow.replay import reports

        launcher = self.given("launcher").bound(self.given("spark_conn_id"))
        self._following = Following(launcher, spec, say=lambda line: self.log.info("%s", line))
        failed: StateflowError | None = None
        try:
            self._following.run()
        except StateflowError as error:
            failed = error  # beyond its limit a replay fails, too, when its report is kept
        kept = reports.find(job.store, job.layout, spec.keep)
        if kept is not None and (failed is None or kept.excess):
            return kept
        raise failed or StateflowError(
            f"the replay of job {job.name!r} has ended and left no report: does its driver use the root {job.store.url}, too?"
        )

    def _spec(self, context: Context, name: str) -> ReplaySpec:
        from stateflow.driver.run_spec import ReplaySpec  # as above

        return ReplaySpec(
            **self.errand(context),
            batches=self.given("batches"),
            keep=name,
            max_changed=self.given("max_changed"),
        )

    def _result(self, context: Context, kept: KeptReport) -> dict[str, Any]:
        from stateflow.jobs.described_replay import described_changes, described_report  # as above
        from stateflow.restore.printing import markdown, text

        description = described_report(kept)
        for line in text(description).splitlines():
            self.log.info("%s", line)
        document = kept.document
        self.linked(context, document["to"], replay=kept.name)
        result = self.result(
            document["to"],
            replay=kept.name,
            report=markdown(description),
            excess=kept.excess,
            max_changed=kept.max_changed,
            **{
                name: document[name]
                for name in ("from", "to", "batches", "rows", "same", "uncompared", "notes")
            },
            sinks={each["sink"]: _counts(each) for each in document["sinks"]},
            states={f"{each['operator']}.{each['state']}": _counts(each) for each in document["states"]},
            changes=described_changes(kept)[:RESULT_CHANGES],
        )
        if kept.excess:
            # A task that fails has no result, and people want to see the differences.
            context["ti"].xcom_push("differences", result)
            # No retry follows, and a cleared task is to try the code and the limit of then: this report answers neither.
            self._end_work()
            raise IncompatibleError(
                f"{kept.excess}; look at the differences, and give a higher max_changed if they are meant"
            )
        return result


def _counts(group: dict[str, Any]) -> dict[str, int]:
    return {
        name: group[name] for name in ("before", "after", "keys", "gone", "new", "different") if name in group
    }
