"""A user's function as a sink: rows staged as listed files first, the call after the decision."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from stateflow.errors import DisagreementError, FencedError, StateflowError, UsageError
from stateflow.format.records import Prepared
from stateflow.spark.sinks.base import BatchFunction, Committed
from stateflow.spark.sinks.slot import SinkSlot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from stateflow.spark.sinks.staging import Stager

KIND = "function"


class FunctionSink:
    """The sink `stream.for_each_batch(uid, fn)`.

    `fn(frame, checkpoint_id)` is called until it returns, in order of checkpoints, not for a batch without
    rows. Its effect is exactly once if it ignores ids that are not above the last one it has seen.
    """

    kind = KIND

    def __init__(self, function: BatchFunction) -> None:
        if not callable(function):
            raise UsageError(f"for_each_batch needs a function of (frame, checkpoint_id), not {function!r}")
        self.function = function

    def open(self, spark: SparkSession, schema: StructType) -> None:
        """Nothing is to be made or checked: the function takes any frame."""

    def prepare(self, frame: DataFrame, place: SinkSlot, prev: int | None, stage: Stager) -> Prepared:
        staged = stage.write(frame, place)
        return Prepared(
            kind=KIND,
            target=getattr(self.function, "__qualname__", type(self.function).__qualname__),
            prev=prev,
            payload={"schema": frame.schema.json()},
            files=staged.files,
            rows=staged.rows,
        )


def carry_out(
    spark: SparkSession,
    prepared: Prepared,
    place: SinkSlot,
    still_owner: Callable[[], None],
    functions: Mapping[str, BatchFunction],
    stage: Stager,
) -> Committed:
    from pyspark.sql.types import StructType

    if not prepared.files:
        return "none"
    function = functions.get(place.sink)
    if function is None:
        raise DisagreementError(
            f"record {place.slot} of job {place.job_name!r} has rows for the function of sink "
            f"{place.sink!r}, which this pipeline does not have: run a pipeline with that sink once, or give "
            f"the rows up with `stateflow abandon {place.job_name} {place.slot}`"
        )
    frame = stage.read(spark, prepared.files, StructType.fromJson(json.loads(prepared.payload["schema"])))
    # As late as can be: a run that was paused for an hour must not call with what others have long delivered.
    still_owner()
    try:
        function(frame, place.slot)
    except FencedError:
        raise
    except Exception as error:
        raise StateflowError(
            f"the function of {place} failed on checkpoint {place.slot} ({type(error).__name__}: {error}); "
            "it will be called again with the same rows and id by the next run: correct it, or give the rows "
            f"up with `stateflow abandon {place.job_name} {place.slot}`"
        ) from error
    return "committed"
