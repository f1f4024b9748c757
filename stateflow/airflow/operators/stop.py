"""Stopping a job's run, wherever it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from stateflow.airflow.operators.arguments import Reader, flag, named, one_of, optional, span, text
from stateflow.airflow.operators.base import StateflowOperator
from stateflow.airflow.operators.savepoint import default_name, savepoint_facts
from stateflow.errors import UsageError

if TYPE_CHECKING:
    from airflow.sdk import Context

    from stateflow.jobs.job import Job

_TOLD = {
    "not running": "job %s was not running",
    "stopped": "the run of job %s has ended",
    "lost": "the run of job %s shows no sign of life: the next run takes its place",
}


class StateflowStopOperator(StateflowOperator):
    """Asks the run to end after the batch it is in, and waits until it has; a job that does not run is fine.

    Killed, the task no longer watches. The request stays, and a retry sees what became of it.

    :param wait: the longest time to wait; then the task fails, and may be retried.
    :param drain: fire every event-time timer first; the job is over then.
    :param savepoint: make a savepoint of where it ended.
    :param kind: of that savepoint: `native` or `canonical`.
    :param to: URL or folder for it; else it lies in the root.
    :param spark_conn_id: where Spark is, for a canonical one, or should output be pending; else on this worker.
    """

    template_fields: Sequence[str] = (
        *StateflowOperator.template_fields,
        "wait",
        "drain",
        "savepoint",
        "kind",
        "to",
        "spark_conn_id",
    )
    readers: Mapping[str, Reader[Any]] = {
        **StateflowOperator.readers,
        "wait": span,
        "drain": flag,
        "savepoint": flag,
        "kind": one_of("native", "canonical"),
        "to": text,
        "spark_conn_id": optional(named),
    }

    def __init__(
        self,
        *,
        wait: timedelta | str = timedelta(minutes=10),
        drain: bool | str = False,
        savepoint: bool | str = False,
        kind: str = "native",
        to: str = "",
        spark_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.wait = wait
        self.drain = drain
        self.savepoint = savepoint
        self.kind = kind
        self.to = to
        self.spark_conn_id = spark_conn_id
        self.check("wait", "drain", "savepoint", "kind", "to", "spark_conn_id")

    def execute(self, context: Context) -> dict[str, Any]:
        with self.at_work():
            job = self.job_for(context, conf=self.spark_conf())
            self.linked(context)
            drain = self.given("drain")
            done = job.stop(wait=self.given("wait").total_seconds(), reason=self.given("note"), drain=drain)
            self.log.info(_TOLD[done.outcome], job.name)
            if drain and not done.drained:
                raise UsageError(
                    f"job {job.name!r} is {done.outcome}, and nothing has drained it: run it once more with final=True "
                    "(`stateflow run ... --final`)"
                )
            facts: dict[str, Any] = {"outcome": done.outcome, "epoch": done.epoch, "drained": done.drained}
            checkpoint = done.checkpoint
            if self.given("savepoint"):
                checkpoint = job.settle()
                facts |= self._savepoint(context, job)
            self.linked(context, checkpoint)
            return self.result(checkpoint, **facts)

    def _savepoint(self, context: Context, job: Job) -> dict[str, Any]:
        kind = self.given("kind")
        made = job.savepoint(
            kind,
            options=self.hook.options(),
            progress=self.told(),
            to=self.given("to"),
            name=default_name(kind, context, job.owner().run),
            note=self.given("note"),
            conf=self.spark_conf(),
        )
        self.log.info("%s holds checkpoint %d of job %s", made.url, made.savepoint.record.slot, job.name)
        return savepoint_facts(made)
