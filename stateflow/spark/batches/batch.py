"""One micro-batch: it evaluates the flow's operators on the batch's rows and prepares the sinks.

A keyed operator runs in the result stage of exactly one Spark job: that of its sink, or one of its own, as `routes.py` says.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from stateflow.errors import UsageError
from stateflow.format.records import OperatorState, Prepared, ShownState
from stateflow.operators.combiner_choice import Combined, as_note, combines
from stateflow.pipelines.feed_readers import fed_by, readers_of
from stateflow.pipelines.graph import (
    KeyedNode,
    Node,
    NodeRows,
    SinkNode,
    SourceNode,
    TransformNode,
    UnionNode,
)
from stateflow.pipelines.held_back import before_and
from stateflow.pipelines.processes.operator_spec import DEAD_LETTERS, MAIN
from stateflow.pipelines.ready.operators import ReadyOperator
from stateflow.pipelines.rows.row_type import RowType, row_type
from stateflow.spark.batches.batch_attempt import BatchAttempt
from stateflow.spark.batches.changes_between import changes_between
from stateflow.spark.batches.running_operator import RunningOperator, begun
from stateflow.spark.inputs.open_inputs import SourceFrames, unioned, with_lateness
from stateflow.spark.internals.plans import in_one_stage
from stateflow.spark.shuffle.exchange import LATE, KeyedInput, field_sql
from stateflow.spark.shuffle.unmeasured import are_small, unmeasured
from stateflow.spark.sinks.slot import SinkSlot
from stateflow.spark.sinks.staging import ScratchTarget, StagedWriter, StoreTarget, Target
from stateflow.spark.task.acks import Ack, summed, total
from stateflow.spark.task.columns import RowReader
from stateflow.spark.task.hot_keys import HotKey, hot_key

BROADCAST_LIMIT = 100_000
_JUDGED = "_judged"
"""Beside a source's outputs: its rows on time and late together."""


@dataclass
class Batch:
    """The evaluation of one attempt."""

    attempt: BatchAttempt
    frames: SourceFrames
    """The rows of each source. `run` releases them."""
    operators: dict[str, OperatorState] = field(default_factory=dict)
    acks: dict[str, list[Ack]] = field(default_factory=dict)
    timings: dict[str, float] = field(default_factory=dict)
    combined: dict[str, Combined] = field(default_factory=dict)
    """Per operator that can be combined what is known of its groups."""
    warnings: dict[str, str] = field(default_factory=dict)
    """What a feed lacks, by the matter."""
    _frames: dict[tuple[int, str], DataFrame] = field(default_factory=dict)
    _persisted: list[DataFrame] = field(default_factory=list)
    _running: dict[str, RunningOperator] = field(default_factory=dict)

    def run(self) -> dict[str, Prepared]:
        """Evaluates everything; afterwards `operators` holds the new state and the sinks are prepared."""
        settings = self.attempt.settings
        try:
            # 1. Operators whose rows go through files run first, each in a job of its own.
            for node in settings.flow.operators:
                if settings.routes.sink_of(node) is None:
                    self._run_apart(node)
            # 2. The sinks prepare. An operator with a sink to itself runs in the sink's job, so that its other outputs come after.
            sinks = settings.flow.sinks
            first = [sink for sink in sinks if settings.routes.operator_of(sink) is not None]
            prepared = {
                sink.uid: self._prepared(sink) for sink in (*first, *(s for s in sinks if s not in first))
            }
            return {sink.uid: prepared[sink.uid] for sink in sinks}
        finally:
            self._release()

    def check(self, prepared: Mapping[str, Prepared]) -> None:
        """Asks each sink whether its target takes the rows, once it has those of the record before."""
        settings = self.attempt.settings
        for sink in settings.flow.sinks:
            settings.sinks[sink.uid].check(prepared[sink.uid], self.attempt.slot_of(sink), settings.stager)

    @contextmanager
    def inputs_of(self, node: KeyedNode) -> Iterator[list[KeyedInput]]:
        """The rows that an operator takes, with all columns of their types. Only the operators before it run."""
        before = {each.uid for each in before_and(node) if isinstance(each, KeyedNode)} - {node.uid}
        try:
            for each in self.attempt.settings.flow.operators:
                if each.uid in before:
                    self._run_apart(each)
            yield self._keyed_inputs(node, node.rows)
        finally:
            self._release()

    def broadcast_of(self, node: KeyedNode) -> dict[str, tuple[Any, ...]]:
        """The rows of the operator's broadcast streams."""
        return {name: self._broadcast(node, stream) for name, stream in node.broadcast.items()}

    def hot_keys(self) -> dict[str, HotKey]:
        """By operator the key that made one of its tasks slow, unless rows are combined before they come there from now on."""
        found = {
            uid: hot_key(acks)
            for uid, acks in self.acks.items()
            if uid not in self.combined or not combines(self.combined[uid])
        }
        return {uid: hot for uid, hot in found.items() if hot is not None}

    def statistics(self) -> dict[str, Any]:
        """Per operator, and in sum."""
        per_operator = {uid: total(acks) for uid, acks in self.acks.items()}
        for uid, hot in self.hot_keys().items():
            per_operator[uid]["hot_key"] = {"share": round(hot.share, 3), "subtask": hot.subtask}
        metrics = summed(numbers["metrics"] for numbers in per_operator.values())
        statistics = {"operators": per_operator, "metrics": metrics, "timings": dict(self.timings)}
        if self.combined:
            statistics["combiner"] = {uid: as_note(known) for uid, known in self.combined.items()}
        return statistics

    def _release(self) -> None:
        for persisted in self._persisted:
            persisted.unpersist()
        self.frames.release()

    # -- operators and sinks

    def _run_apart(self, node: KeyedNode) -> None:
        """Runs the operator in a job of its own; its outputs go to files that the acks list."""
        began = time.perf_counter()
        settings = self.attempt.settings
        frame = self._started(node, direct=False)
        with unmeasured(frame, self._running[node.uid].small):
            frame.write.format("noop").mode("overwrite").save()
        self._ended(node)
        self._read_staged(node, settings.flow.read_outputs(node))
        self.timings[f"operator {node.uid}"] = time.perf_counter() - began

    def _read_staged(self, node: KeyedNode, outputs: Collection[str]) -> None:
        """The rows of these outputs, for their readers."""
        settings = self.attempt.settings
        for name in outputs:
            files = [ref for ack in self.acks[node.uid] if (ref := ack.staged.get(name)) is not None]
            rows = node.outputs[name]
            assert rows is not None
            schema: Any = StructType.fromDDL(rows.ddl)
            frame = settings.stager.read(self.attempt.spark, files, schema)
            self._frames[(id(node), name)] = self._with_changes_between(node, name, frame)

    def _with_changes_between(self, node: KeyedNode, output: str, frame: DataFrame) -> DataFrame:
        """A feed's rows of the batch, with those of what a restore or another type has changed before it."""
        if output not in node.feeds:
            return frame
        feed = self._running[node.uid].feed(output)
        changes, lacking = changes_between(self.attempt, node, output, feed)
        for number, sentence in enumerate(lacking):
            self.warnings[f"feed {node.uid} {output} {number}"] = sentence
        return changes.rows(self.attempt.spark, frame) if changes is not None else frame

    def shown(self, prepared: Mapping[str, Prepared]) -> tuple[ShownState, ...]:
        """What the tables of feeds show once they have the batch's rows."""
        flow, slot = self.attempt.settings.flow, self.attempt.moment.slot
        return tuple(
            ShownState(sink.uid, node.uid, feed.state, slot, prepared[sink.uid].target)
            for node in flow.operators
            for output, feed in node.feeds.items()
            for sink in readers_of(flow, node, output)[0]
        )

    def _prepared(self, sink: SinkNode) -> Prepared:
        """The sink's rows, written where no reader sees them yet."""
        began = time.perf_counter()
        attempt, settings = self.attempt, self.attempt.settings
        stream, operator = sink.inputs[0], settings.routes.operator_of(sink)
        frame = self._visible(self._frame(stream))
        if operator is not None and self._leaves_its_stage(operator, stream, frame):
            settings.routes.keep_apart(operator)
            for node in (operator, *settings.routes.steps_between(operator)):
                self._frames.pop((id(node), MAIN), None)
            self._run_apart(operator)
            operator, frame = None, self._visible(self._frame(stream))
        with unmeasured(frame, operator is not None and self._stays_small(operator, sink, frame)):
            prepared = settings.sinks[sink.uid].prepare(
                frame, attempt.slot_of(sink), attempt.last_commits.get(sink.uid), settings.stager
            )
        if operator is not None:
            self._ended(operator)
            self._read_staged(operator, settings.flow.read_outputs(operator) - {MAIN})
        self.timings[f"prepare {sink.uid}"] = time.perf_counter() - began
        return prepared

    def _leaves_its_stage(self, operator: KeyedNode, stream: NodeRows, frame: DataFrame) -> bool:
        """True if the steps between an operator and its sink cause a second stage, or have already run the operator."""
        if stream.node is operator:
            return False
        running = self._running[operator.uid]
        return running.has_run or not in_one_stage(frame, self._frames[(id(operator), MAIN)])

    def _stays_small(self, operator: KeyedNode, sink: SinkNode, frame: DataFrame) -> bool:
        """True if no Arrow batch becomes too large while a sink runs its operator. A sink with Python code of its own may get the
        operator's rows in Arrow batches, too."""
        running = self._running[operator.uid]
        return running.small and (sink.sink_kind.written_by_spark or are_small(frame, running.widest))

    def _started(self, node: KeyedNode, *, direct: bool) -> DataFrame:
        """`direct`: its main output goes straight to its sink."""
        read = self.attempt.settings.flow.read_outputs(node)
        inputs = self._keyed_inputs(node, _needed(node, read))
        running = self._running[node.uid] = begun(self.attempt, node, inputs)
        staged = read - {MAIN} if direct else read
        stage = None
        if not direct or staged:
            stage = partial(_staged_writer, self._staging_target(), uuid.uuid4().hex)
        return running.planned(self.broadcast_of(node), stage, staged, direct=direct)

    def _keyed_inputs(self, node: KeyedNode, types: Sequence[RowType | None]) -> list[KeyedInput]:
        return [
            KeyedInput(frame := self._frame(k.stream), k.columns, k.order_by, rows or _untyped(frame))
            for k, rows in zip(node.keyed, types, strict=True)
        ]

    def _ended(self, node: KeyedNode) -> list[Ack]:
        """Takes what the operator's tasks have reported."""
        running = self._running[node.uid]
        acks = self.acks[node.uid] = running.acks()
        if (known := running.groups(acks)) is not None:
            self.combined[node.uid] = known
        self.operators[node.uid] = running.state(acks, fed_by(self.attempt.settings.flow, node))
        return acks

    def _staging_target(self) -> Callable[[str], Target]:
        attempt, settings = self.attempt, self.attempt.settings
        if settings.shared_scratch:
            return partial(ScratchTarget, f"{settings.scratch}/staged")
        layout, opener = attempt.storage.layout, settings.stager.opener
        return partial(_store_target, opener, layout, attempt.storage.epoch, attempt.moment.slot)

    # -- the rows of sources and steps

    @staticmethod
    def _visible(frame: DataFrame) -> DataFrame:
        return frame.drop(LATE) if LATE in frame.columns else frame

    def _frame(self, stream: NodeRows) -> DataFrame:
        key = (id(stream.node), stream.output)
        if key not in self._frames:
            frame = self._evaluated(stream)
            once = isinstance(stream.node, KeyedNode) or _splits(stream.node)
            if not once and len(self.attempt.settings.flow.consumers(stream.node)) > 1:
                frame = self._shared(stream.node, frame)
            self._frames[key] = frame
        return self._frames[key]

    def _shared(self, node: Node, frame: DataFrame) -> DataFrame:
        """The frame, stored for its several readers.

        Otherwise each reader would read the source again, and see other rows from a nondeterministic step. Spark
        recomputes cached blocks when their executor dies, so on a cluster the frame goes to files.
        """
        if self.attempt.settings.shared_scratch:
            frame = frame.persist()
            self._persisted.append(frame)
            return frame
        settings = self.attempt.settings
        slot, epoch = self.attempt.moment.slot, self.attempt.storage.epoch
        at = SinkSlot(settings.job_uuid, settings.job, node.uid, slot, epoch)
        files = settings.stager.stage(frame, at)
        return settings.stager.read(self.attempt.spark, files, frame.schema)

    def _evaluated(self, stream: NodeRows) -> DataFrame:
        node = stream.node
        if isinstance(node, SourceNode):
            return self._source(node, stream.output)
        if isinstance(node, TransformNode):
            return self._transformed(node)
        if isinstance(node, UnionNode):
            return unioned([self._frame(s) for s in node.inputs])
        if isinstance(node, KeyedNode) and self.attempt.settings.routes.sink_of(node) is not None:
            return self._started(node, direct=True)
        raise UsageError(f"{node.named} puts out no rows called {stream.output!r}")

    def _source(self, node: SourceNode, output: str) -> DataFrame:
        frame = self._judged(node)
        if not _splits(node):
            return frame
        if output == MAIN:
            return frame.where(~F.col(LATE))
        return frame.where(F.col(LATE)).drop(LATE)

    def _judged(self, node: SourceNode) -> DataFrame:
        """A source's rows before the late ones are split off. Both branches read one copy: each would otherwise read
        the source, and count its rows, again."""
        key = (id(node), _JUDGED)
        if key not in self._frames:
            frame = with_lateness(node, self.frames[node.uid], self.attempt.moment.watermark)
            if _splits(node) and len(self.attempt.settings.flow.consumers(node)) > 1:
                frame = self._shared(node, frame)
            self._frames[key] = frame
        return self._frames[key]

    def _transformed(self, node: TransformNode) -> DataFrame:
        frame = node.function(self._frame(node.inputs[0]))
        if not isinstance(frame, DataFrame):
            raise UsageError(f"{node.uid}: a transform must return a DataFrame, not {type(frame).__name__}")
        return frame

    def _broadcast(self, node: KeyedNode, stream: NodeRows) -> tuple[Any, ...]:
        frame = self._visible(self._frame(stream))
        rows = stream.rows or _untyped(frame)
        given = KeyedInput(frame, (), (), rows)
        columns = (field_sql(node.uid, given, f.name, f.type) for f in rows.fields)
        table = frame.selectExpr(*columns).limit(BROADCAST_LIMIT + 1).toArrow()
        if table.num_rows > BROADCAST_LIMIT:
            raise UsageError(
                f"a broadcast stream had more than {BROADCAST_LIMIT} rows in one batch: it is for small, slow-changing data"
            )
        return tuple(RowReader(rows, range(len(rows.fields))).read(table.columns))


def _needed(node: KeyedNode, read: frozenset[str]) -> tuple[RowType | None, ...]:
    """The columns that go through the exchange."""
    return node.columnar.needed_of_each(read) if isinstance(node.columnar, ReadyOperator) else node.rows


def _splits(node: Node) -> bool:
    """Whether a node is a source whose late rows are an output of their own."""
    return isinstance(node, SourceNode) and node.late is not None


def _staged_writer(target: Callable[[str], Target], token: str, name: str, schema: Any) -> StagedWriter:
    """Runs in the worker. Every output of every attempt gets its own file."""
    task = TaskContext.get()
    assert task is not None
    output = {MAIN: "main", DEAD_LETTERS: "dead"}.get(name, name)
    return StagedWriter(schema, target(f"{output}-{token}-{task.partitionId()}-{task.taskAttemptId()}"))


def _store_target(opener: Any, layout: Any, epoch: int, slot: int, unique: str) -> Target:
    return StoreTarget(opener, layout.staged_file(epoch, slot, unique, ".parquet"))


def _untyped(frame: DataFrame) -> RowType:
    columns = ", ".join(f"{name} {kind}" for name, kind in frame.dtypes if not name.startswith("_sf_"))
    return row_type(columns)
