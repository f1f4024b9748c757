"""A user's function as a sink: it stages rows as listed files, and calls the function after the decision."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stateflow.errors import DisagreementError, FencedError, StateflowError
from stateflow.format.records import Prepared
from stateflow.pipelines.delivery import Delivery, takes_id
from stateflow.pipelines.sink_kinds import FUNCTION
from stateflow.spark.sinks.base import BatchFunction, CommitRequest, Committed, Sink
from stateflow.spark.sinks.slot import SinkSlot
from stateflow.spark.sinks.staging import staged_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from stateflow.spark.sinks.staging import Stager


class FunctionSink(Sink):
    """The sink `stream.for_each_batch(uid, fn)`.

    The sink calls `fn(frame, delivery)` until it returns, in order of slots, and skips batches without rows. The effect is
    exactly once if `fn` ignores slots that are not above the last one it has seen under the delivery's key.
    """

    declared = FUNCTION
    target: BatchFunction

    def open(self, spark: SparkSession, schema: StructType) -> None:
        """Does nothing: the function takes any frame."""

    def prepare(self, frame: DataFrame, at: SinkSlot, stager: Stager) -> Prepared:
        staged = stager.write(frame, at)
        return Prepared(
            kind=FUNCTION.name,
            target=getattr(self.target, "__qualname__", type(self.target).__qualname__),
            payload={"schema": frame.schema.json()},
            files=staged.files,
            rows=staged.rows,
        )

    @staticmethod
    def commit(request: CommitRequest) -> Committed:
        prepared, at, function = request.prepared, request.at, request.function
        if not prepared.files:
            return "none"
        if function is None:
            raise DisagreementError(
                f"record {at.slot} of job {at.job_name!r} has rows for the function of sink {at.sink!r}, which only a run of a pipeline with that sink "
                f"can call: run it once, or, if no code has the sink any more, give the rows up with `stateflow abandon {at.job_name} {at.slot}`"
            )
        frame = request.stager.read(request.spark, prepared.files, staged_schema(prepared))
        # A job that is made again under an old name has another key.
        delivery = Delivery(f"{at.job}/{at.sink}", at.slot, at.job_name, at.sink, at.record)
        # Asked right before the call: a run that was paused for an hour must not deliver again what a newer run delivered.
        request.still_owner()
        try:
            function(frame, at.slot if takes_id(function) else delivery)
        except FencedError:
            raise
        except (Exception, SystemExit) as error:
            raise StateflowError(
                f"the function of {at} failed on checkpoint {at.slot} ({type(error).__name__}: {error}); "
                "the next run calls it, as it is by then, again with the same rows and slot, or give the rows "
                f"up with `stateflow abandon {at.job_name} {at.slot}`"
            ) from error
        return "committed"
