"""The input of a batch that was, read again: from where its record says that it began, to where it ended.

Spark itself reads it, in a query of one batch on a folder that is seeded with both ends. So the rows are those that the batch
had, whatever a source's limits are today.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pyspark.sql import DataFrame, SparkSession

from stateflow.checkpoint.statistics import POSITIONS
from stateflow.errors import StateflowError
from stateflow.format.records import Record, SourceState
from stateflow.format.source_offsets import joined_lines
from stateflow.spark.inputs.file_types import refuse_other_types
from stateflow.spark.inputs.open_inputs import OpenInputs, SourceFrames
from stateflow.spark.inputs.seeding import plan_batch, seed, seed_entries, unread
from stateflow.spark.internals.gateway import first_line
from stateflow.spark.internals.scratch_folder import SHUFFLE
from stateflow.spark.sources.file_log import Fetch
from stateflow.storage.file_urls import hadoop_path

T = TypeVar("T")
BEFORE_FIRST_BATCH = "before_first_batch"
"""In the statistics of a checkpoint of mere positions whose run has had no batch yet. What the run began from may be deleted when somebody asks."""


def is_before_first_batch(parent: Record | None, epoch: int) -> bool:
    """Whether the batch behind a record is the first of the run of an epoch: the record is another run's, an edit's, or one of positions that the
    run wrote before it had a batch."""
    if parent is None or parent.kind != "checkpoint" or parent.epoch != epoch:
        return True
    return parent.statistics.get(BEFORE_FIRST_BATCH, False) is True


@dataclass(frozen=True, slots=True)
class SlotInput:
    """The ends of one batch's input, as the records before it and of it have them."""

    slot: int
    before: Mapping[str, SourceState]
    after: Mapping[str, SourceState]
    now: int
    """The time of the batch, in microseconds."""

    @classmethod
    def of(cls, record: Record, before: Record | None) -> SlotInput:
        """Of a checkpoint and the record before it. A checkpoint that only says where sources begin, or go on, has no rows."""
        if POSITIONS in record.statistics:
            begin: Mapping[str, SourceState] = record.sources
        else:
            begin = before.sources if before is not None else {}
        return cls(record.slot, begin, record.sources, record.now)

    @property
    def is_empty(self) -> bool:
        """Whether no source moved."""
        return all(
            uid in self.before and self.before[uid].lines == state.lines for uid, state in self.after.items()
        )


def reread(
    spark: SparkSession,
    inputs: OpenInputs,
    batch: SlotInput,
    scratch: Path,
    fetch: Fetch,
    use: Callable[[SourceFrames], T],
) -> T:
    """Gives `use` a frame per source, with the rows of the batch. The frames are good until it returns.

    `fetch` gets a file that the records name. Sources that the pipeline has had since have no rows.
    """
    if batch.is_empty:
        return use(inputs.empty(spark))
    location = scratch / f"reread-{uuid.uuid4().hex}"
    conf, now_ms = {SHUFFLE: str(spark.conf.get(SHUFFLE))}, batch.now // 1000
    begin = {source.uid: batch.before.get(source.uid, unread(source)) for source in inputs.layout}
    end = {source.uid: batch.after.get(source.uid, begin[source.uid]) for source in inputs.layout}
    batch_id = seed(location, inputs.layout, begin, fetch, conf, now_ms, str(uuid.uuid4()))
    seed_entries(location, inputs.layout, end, fetch)
    plan_batch(location, batch_id, joined_lines(inputs.layout, end), conf, now_ms)
    results: list[T] = []
    failures: list[BaseException] = []

    def on_batch(frame: DataFrame, number: int) -> None:
        try:
            refuse_other_types(spark, inputs, location, number)
            frames = inputs.split(frame)
            try:
                results.append(use(frames))
            finally:
                frames.release()
        except BaseException as error:
            # Spark passes on only the error's text.
            failures.append(error)
            raise

    query = (
        inputs.stream.writeStream.option("checkpointLocation", hadoop_path(location))
        .trigger(once=True)
        .foreachBatch(on_batch)
        .start()
    )
    try:
        query.awaitTermination()
    except Exception as error:
        if failures:
            raise failures[0] from None
        raise StateflowError(
            f"the input of checkpoint {batch.slot} cannot be read again: {first_line(error)}"
        ) from error
    finally:
        query.stop()
    if not results:
        raise StateflowError(
            f"the input of checkpoint {batch.slot} cannot be read again: Spark ran no batch from its beginning to its end"
        )
    return results[0]
