"""Another parallelism for a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stateflow.airflow.operators.arguments import Reader, named, number, optional
from stateflow.airflow.operators.base import StateflowOperator

if TYPE_CHECKING:
    from airflow.sdk import Context


class StateflowRescaleOperator(StateflowOperator):
    """Hands the state to another number of subtasks: one record, which takes effect at the next run.

    Refused while the job runs. A retry finds what a try that was killed has done.

    :param parallelism: subtasks of every keyed operator.
    :param spark_conn_id: where Spark is, should output be pending that has to be delivered first; else on this worker.
    """

    template_fields: Sequence[str] = (*StateflowOperator.template_fields, "parallelism", "spark_conn_id")
    readers: Mapping[str, Reader[Any]] = {
        **StateflowOperator.readers,
        "parallelism": number(1),
        "spark_conn_id": optional(named),
    }

    def __init__(self, *, parallelism: int | str, spark_conn_id: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.parallelism = parallelism
        self.spark_conn_id = spark_conn_id
        self.check("parallelism", "spark_conn_id")

    def execute(self, context: Context) -> dict[str, Any]:
        with self.at_work():
            wanted = self.given("parallelism")
            job = self.job_for(context, conf=self.spark_conf())
            self.linked(context)
            before = self.finished_before(job, "rescale")
            slot = before.id if before is not None else job.rescale(wanted, note=self.given("note")).slot
            self.log.info("record %d: the next run of job %s has parallelism %d", slot, job.name, wanted)
            self.linked(context, slot)
            return self.result(slot, record=slot, parallelism=wanted)
