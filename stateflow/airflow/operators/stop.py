"""Stopping a job's run, wherever it is."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

from stateflow.airflow.operators.arguments import Flag, Kind, Name, Span, Text
from stateflow.airflow.operators.base import StateflowOperator
from stateflow.airflow.operators.savepoint import default_name, savepoint_facts
from stateflow.errors import UsageError

if TYPE_CHECKING:
    from airflow.sdk import Context

    from stateflow.jobs.job import Job

_SENTENCES = {
    "not running": "job %s was not running",
    "stopped": "the run of job %s has ended",
    "lost": "the run of job %s shows no sign of life: the next run takes its place",
}


class StateflowStopOperator(StateflowOperator):
    """Asks the run to end after its current batch, and waits for its end. A job that does not run is fine.

    If the task is killed, the request stays, and a retry sees what became of it. A task that is cleared asks the run that lives then.
    """

    def __init__(
        self,
        *,
        wait: Annotated[
            Span, "the longest time to wait; then the task fails, and may be retried"
        ] = timedelta(minutes=10),
        drain: Annotated[Flag, "fire every event-time timer first; the job is over then"] = False,
        savepoint: Annotated[Flag, "make a savepoint of where it ended"] = False,
        kind: Annotated[Kind, "of that savepoint: `native` or `canonical`"] = "native",
        to: Annotated[Text, "URL or folder for it; else it lies in the root"] = "",
        spark_conn_id: Annotated[
            Name | None,
            "where Spark is, for a canonical one, or if output is pending; else on this worker",
        ] = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.accept(locals())

    def execute(self, context: Context) -> dict[str, Any]:
        with self.at_work():
            job = self.job_for(context, conf=self.spark_conf())
            self.linked(context)
            # A retry looks after the run that was asked. Whoever clears the task means the one that lives then.
            self._end_work()
            drain = self.given("drain")
            wait = self.given("wait").total_seconds()
            stop = job.stop(wait=wait, reason=self.given("note"), drain=drain)
            self.log.info(_SENTENCES[stop.outcome], job.name)
            if drain and not stop.drained:
                raise UsageError(
                    f"job {job.name!r} is {stop.outcome}, and nothing has drained it: run it once more with final=True "
                    "(`stateflow run ... --final`)"
                )
            facts: dict[str, Any] = {"outcome": stop.outcome, "epoch": stop.epoch, "drained": stop.drained}
            checkpoint = stop.checkpoint
            if self.given("savepoint"):
                checkpoint = job.settle(wait=wait)
                facts |= self._savepoint(context, job)
            self.linked(context, checkpoint)
            return self.result(checkpoint, **facts)

    def _savepoint(self, context: Context, job: Job) -> dict[str, Any]:
        kind = self.given("kind")
        made = job.savepoint(
            kind,
            options=self.hook.options(),
            progress=self.progress(),
            to=self.given("to"),
            name=default_name(kind, context, job.owner().run),
            note=self.given("note"),
            conf=self.spark_conf(),
        )
        self.log.info("%s holds checkpoint %d of job %s", made.url, made.savepoint.record.slot, job.name)
        return savepoint_facts(made)
