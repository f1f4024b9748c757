"""The rows that a key got up to each version of a state, read again from the sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stateflow.debugging.past_key import key_of, operator_of, read_rows
from stateflow.debugging.trial import plain
from stateflow.errors import NotFoundError, StateflowError, UnavailableError
from stateflow.format.records import Record
from stateflow.pipelines.graph import KeyedNode
from stateflow.pipelines.held_back import before_and
from stateflow.reading.history import KeyVersion, RowsOfVersion
from stateflow.replay.captured import CapturedSink
from stateflow.replay.evaluation import Evaluation, PastBatches, evaluation
from stateflow.replay.span import Step
from stateflow.spark.inputs.reread import SlotInput


def steps_of(records: Sequence[Record], versions: Sequence[KeyVersion]) -> dict[int, Step | str]:
    """By version, the checkpoints between which its rows lie, or why there are none. The records are all that are kept."""
    before = {record.slot: earlier for earlier, record in zip([None, *records], records, strict=False)}
    by_slot = {record.slot: record for record in records}
    return {version.slot: _step(by_slot[version.slot], before[version.slot]) for version in versions}


def _step(record: Record, before: Record | None) -> Step | str:
    if record.kind != "checkpoint":
        return f"it is a {record.kind}, which reads no rows"
    if before is None and record.based_on is not None:
        return "no checkpoint before it is kept, so that nobody knows where its rows begin"
    if before is not None and before.timeline != record.timeline:
        # Retention takes records of restores. What is kept before this one may have read further than the restore let the job go on from.
        return (
            f"a restore lies between checkpoint {before.slot}, the kept one before it, and this one, and its record is not kept, so that nobody "
            "knows where the rows begin"
        )
    return Step(before, record)


def rows_of_versions(
    batches: PastBatches, uid: str, text: str, steps: Mapping[int, Step | str]
) -> dict[int, RowsOfVersion]:
    """`batches` has the steps among these, and at least one."""
    flow, parameters = batches.built(batches.steps[-1].record)
    node = operator_of(flow, uid)
    sinks = {sink.uid: CapturedSink(sink) for sink in flow.sinks}
    try:
        with evaluation(batches, flow, parameters, sinks, "history") as past:
            return {slot: _rows(past, step, node, text) for slot, step in steps.items()}
    except (NotFoundError, UnavailableError) as error:
        # A source is gone as a whole. The values are known all the same.
        return {
            slot: RowsOfVersion(why=step if isinstance(step, str) else str(error))
            for slot, step in steps.items()
        }


def _rows(past: Evaluation, step: Step | str, node: KeyedNode, text: str) -> RowsOfVersion:
    if isinstance(step, str):
        return RowsOfVersion(why=step)
    since = step.before.slot if step.before is not None else None
    is_behind = any(isinstance(each, KeyedNode) for stream in node.inputs for each in before_and(stream.node))
    if is_behind and step.record.based_on != since:
        why = "its rows come from operators before this one, and of some batches since then the checkpoint is not kept"
        return RowsOfVersion(since, why=why)
    try:
        past.refuse_unreadable([SlotInput.of(step.record, step.before)])
        found = read_rows(past, step, node, key_of(step.record.operators[node.uid], text))
    except StateflowError as error:
        return RowsOfVersion(since, why=str(error))
    return RowsOfVersion(since, tuple(tuple(map(plain, rows.plain())) for rows in found.inputs))
