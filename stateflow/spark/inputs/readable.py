"""Whether the input of batches that were can still be read: said for all of them before any is."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import SparkSession

from stateflow.errors import DisagreementError
from stateflow.format.records import SourceState
from stateflow.format.source_offsets import NOTHING, check_same_source
from stateflow.spark.inputs.open_inputs import OpenInputs
from stateflow.spark.inputs.reread import SlotInput
from stateflow.spark.internals.file_systems import missing, modified_at, path_of_url
from stateflow.spark.internals.scratch_folder import files_between, log_folder, log_offset
from stateflow.spark.internals.sources import DeltaSource, MicroBatchStream, PlanRefused
from stateflow.spark.sources import kafka
from stateflow.spark.sources.delta_offset import DeltaOffset
from stateflow.spark.sources.file_log import Fetch, entries_of, restore_entries
from stateflow.spark.sources.kafka_topics import not_named
from stateflow.spark.sources.leaves import LeafDescription, by_source, shape_of
from stateflow.spark.sources.positions import delta_source, open_stream


class LostInput(NamedTuple):
    """Why the input of a batch cannot be read again."""

    why: str
    by_code: bool = False
    """Whether the code does not ask for it, though it may be there."""


Losses = Mapping[int, LostInput]
"""By slot."""


def refuse_unreadable(
    spark: SparkSession,
    inputs: OpenInputs,
    batches: Sequence[SlotInput],
    scratch: Path,
    fetch: Fetch,
) -> None:
    """DisagreementError for batches, in the order of their slots, whose rows a source no longer has."""
    losses: dict[int, LostInput] = {}
    for uid, own in by_source(inputs.leaves).items():
        shape = shape_of(uid, own)
        known = [batch for batch in batches if uid in batch.after]
        for batch in known:
            check_same_source(shape, batch.after[uid])
        for leaf in own:
            stream = f" (stream {leaf.place})" if len(own) > 1 else ""
            for slot, lost in _lost(spark, leaf, known, scratch, fetch):
                losses.setdefault(slot, lost._replace(why=f"source {uid!r}{stream} {lost.why}"))
    if losses:
        raise DisagreementError(lost_sentence(losses, [batch.slot for batch in batches]))


def lost_sentence(losses: Losses, slots: Sequence[int]) -> str:
    """The refusal, with the batches that can still be read."""
    first, last = min(losses), max(losses)
    left = [slot for slot in slots if slot > last]
    more = "" if len(losses) == 1 else f", and that of {len(losses) - 1} more up to {last}"
    by_code = losses[first].by_code
    if left:
        way = f"the input from checkpoint {left[0]} on is still there: begin there"
        way += ", or take code that names the topic" if by_code else ""
    else:
        way = f"{'take code that names the topic' if by_code else 'put back what is gone'}, or take batches that ran since"
    return f"the input of checkpoint {first} cannot be read again{more}: {losses[first].why}; {way}"


def _lost(
    spark: SparkSession, leaf: LeafDescription, batches: Sequence[SlotInput], scratch: Path, fetch: Fetch
) -> Iterator[tuple[int, LostInput]]:
    moved = [
        (batch, begin, end)
        for batch in batches
        if (end := leaf.line_in(batch.after)) != (begin := leaf.line_in(batch.before))
    ]
    if not moved:
        return
    folder = scratch / f"readable-{uuid.uuid4().hex}"
    if leaf.kind == "delta":
        with delta_source(spark, leaf, folder) as source:
            for batch, begin, end in moved:
                if why := _lost_of_delta(spark, source, begin, end):
                    yield batch.slot, LostInput(why)
    elif leaf.kind == "kafka" and leaf.reads_micro_batches:
        with open_stream(spark, leaf, folder) as stream:
            yield from _lost_of_kafka(spark, leaf, stream, moved)
    elif leaf.kind == "file":
        for batch, begin, end in moved:
            if why := _lost_of_files(spark, batch.after[leaf.uid], leaf.place, begin, end, folder, fetch):
                yield batch.slot, LostInput(why)


def _lost_of_delta(spark: SparkSession, source: DeltaSource, begin: str, end: str) -> str:
    path, first = source.log.path, DeltaOffset.parse(begin if begin != NOTHING else end)
    if first.table != source.table_id:
        return (
            f"read the Delta table {first.table}, and {path} is table {source.table_id}: it was recreated, or the source is given "
            "another table's place"
        )
    earliest = source.earliest_snapshot() if first.snapshot else source.earliest_commit()
    if first.version < earliest and first.version <= source.log.version():
        return f"read version {first.version} of the Delta table {path}, whose log now begins at version {earliest}"
    try:
        gone = missing(spark, source.files_of_batch(None if begin == NOTHING else begin, end))
    except PlanRefused as error:
        return f"has another history than it had then: {path} refuses to plan the batch ({error.__cause__ or error})"
    return f"lacks {len(gone)} files of the Delta table {path}, the first is {gone[0]}" if gone else ""


def _lost_of_kafka(
    spark: SparkSession,
    leaf: LeafDescription,
    stream: MicroBatchStream,
    moved: Sequence[tuple[SlotInput, str, str]],
) -> Iterator[tuple[int, LostInput]]:
    earliest, latest = map(kafka.parse, stream.kafka_range())
    for batch, begin, end in moved:
        begins = {} if begin == NOTHING else kafka.parse(begin)
        ends = kafka.parse(end)
        # Brokers are asked only for what the code names: of anything else they do not say that it is there.
        if topic := not_named(spark, leaf.options, kafka.read_between(begins, ends)):
            yield batch.slot, LostInput(f"read {topic}, which this code does not name any more", by_code=True)
        elif why := kafka.missing_between(begins, ends, earliest, latest):
            yield batch.slot, LostInput(why)


def _lost_of_files(
    spark: SparkSession, after: SourceState, number: int, begin: str, end: str, folder: Path, fetch: Fetch
) -> str:
    log = log_folder(folder / uuid.uuid4().hex, number)
    restore_entries(log, entries_of(after, number), fetch)
    files = files_between(log, log_offset(begin), log_offset(end))
    paths = [path_of_url(spark, file.path) for file in files]
    times = modified_at(spark, paths)
    gone = [path for path in paths if times[path] is None]
    if gone:
        return f"lacks {len(gone)} of {len(files)} files that were read then, the first is {gone[0]}"
    changed = [path for path, file in zip(paths, files, strict=True) if times[path] != file.modified_ms]
    return f"has another {changed[0]} now: it was written again after it had been read" if changed else ""
