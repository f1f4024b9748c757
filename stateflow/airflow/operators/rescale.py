"""Another parallelism for a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from stateflow.airflow.operators.arguments import Count, Name
from stateflow.airflow.operators.base import StateflowOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

    from stateflow.checkpoint.statistics import HistoryLine


class StateflowRescaleOperator(StateflowOperator):
    """Hands the state to another number of subtasks: one record, which takes effect at the next run.

    Refused while the job runs. If an earlier try of the task was killed, the retry finds the record that it made.
    """

    def __init__(
        self,
        *,
        parallelism: Annotated[Count, "subtasks of every keyed operator"],
        spark_conn_id: Annotated[
            Name | None, "where Spark is, if pending output has to be delivered first; else on this worker"
        ] = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.accept(locals())

    def execute(self, context: Context) -> dict[str, Any]:
        with self.at_work():
            parallelism = self.given("parallelism")
            job = self.job_for(context, conf=self.spark_conf())
            self.linked(context)
            before = self.finished_before(job, "rescale", lambda line: _otherwise(line, parallelism))
            slot = before.id if before is not None else job.rescale(parallelism, note=self.given("note")).slot
            self.log.info("record %d: the next run of job %s has parallelism %d", slot, job.name, parallelism)
            self.linked(context, slot)
            return self.result(slot, record=slot, parallelism=parallelism)


def _otherwise(line: HistoryLine, parallelism: int) -> str:
    noted = line.metrics.get("parallelism", parallelism)  # records of earlier versions do not say it
    return "" if noted == parallelism else f"set parallelism {noted}, and not {parallelism}"
