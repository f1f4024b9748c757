"""A key as a batch of the past found it: its state, its rows, the time of the batch; and what the record then held."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from stateflow.errors import NotFoundError, UsageError
from stateflow.format.records import OperatorState, Record
from stateflow.operators.context import Moment
from stateflow.pipelines.flow import Flow
from stateflow.pipelines.graph import KeyedNode
from stateflow.reading.key_state import KeyState, key_state
from stateflow.reading.past_states import PastStates
from stateflow.reading.query import key_from_text, unknown_operator
from stateflow.reading.snapshots import reader_context
from stateflow.replay.captured import CapturedSink
from stateflow.replay.evaluation import Evaluation, PastBatches, evaluation, moment_of
from stateflow.replay.span import Step
from stateflow.spark.batches.batch import Batch
from stateflow.spark.batches.key_rows import KeyRows, rows_of_key
from stateflow.spark.inputs.open_inputs import SourceFrames
from stateflow.spark.inputs.reread import SlotInput
from stateflow.state.keys.codec import KeyCodec


@dataclass(frozen=True)
class PastKey:
    """What there was to know before the batch, and after it."""

    job: str
    flow: Flow
    node: KeyedNode
    key: Any
    """As user code gets it."""
    text: str
    """As it was asked for."""
    record: Record
    moment: Moment
    rows: KeyRows
    before: KeyState
    then: KeyState
    """After the batch, as its record has it."""
    parameters: dict[str, Any] = field(default_factory=dict)
    """Those of the pipeline, as texts."""

    @property
    def slot(self) -> int:
        return self.record.slot

    @property
    def is_untouched(self) -> bool:
        """Whether the batch had no rows of the key, and left its state alone."""
        return not self.rows.count and self.before.entries == self.then.entries


def operator_of(flow: Flow, uid: str) -> KeyedNode:
    """The operator, if it has keys."""
    node = next((node for node in flow.operators if node.uid == uid), None)
    keyed = ", ".join(each.uid for each in flow.operators if each.has_key) or "none"
    if node is None:
        raise NotFoundError(f"the pipeline has no operator {uid!r}: those with keys are {keyed}")
    if not node.has_key:
        raise UsageError(
            f"operator {uid!r} has no keys: it takes all rows of a subtask; those with keys are {keyed}"
        )
    return node


@contextmanager
def past_key(batches: PastBatches, uid: str, text: str) -> Iterator[PastKey]:
    """Reads the key's state from the checkpoints, and its rows from the sources: Spark runs for that.

    Until the block ends the checkpoints are kept, and answers of services come from them.
    """
    (step,) = batches.steps
    flow, parameters = batches.built(step.record)
    node, record = operator_of(flow, uid), step.record
    if uid not in record.operators:
        raise NotFoundError(unknown_operator(record, uid))
    key = key_of(record.operators[uid], text)
    states = PastStates(reader_context(batches.options, batches.job.root, batches.job.clock))
    sinks = {sink.uid: CapturedSink(sink) for sink in flow.sinks}
    with evaluation(batches, flow, parameters, sinks, "debug") as past:
        past.refuse_unreadable([SlotInput.of(record, step.before)])
        then = _state(states, record, record, uid, key)
        before = step.before if step.before is not None and uid in step.before.operators else None
        yield PastKey(
            job=batches.job.name,
            flow=flow,
            node=node,
            key=key,
            text=text,
            record=record,
            moment=moment_of(record, step.before, parameters),
            rows=read_rows(past, step, node, key),
            before=then.unborn if before is None else _state(states, before, record, uid, key),
            then=then,
            parameters=batches.texts(record),
        )


def key_of(operator: OperatorState, text: str) -> Any:
    """The key as user code gets it."""
    names, types = zip(*operator.key, strict=True)
    codec = KeyCodec(types, names if len(types) > 1 else ())
    return codec.decode(codec.encode(key_from_text(operator, text)), 0)[0]


def _state(states: PastStates, of: Record, at: Record, uid: str, key: Any) -> KeyState:
    return key_state(states.reader(of), uid, key, now=at.now, watermark=at.watermark)


def read_rows(past: Evaluation, step: Step, node: KeyedNode, key: Any) -> KeyRows:
    """The rows of the key in the batch of a step, which goes on from the record before it."""

    def use(frames: SourceFrames) -> KeyRows:
        return rows_of_key(Batch(past.attempt(step, step.before), SourceFrames(frames)), node, key)

    return past.read(step, use)
