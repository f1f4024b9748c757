"""One micro-batch: it evaluates the flow's operators on the batch's rows and prepares the sinks.

A keyed operator runs in the result stage of exactly one Spark job. When its rows go to a single sink that writes them
as they come, that job is the sink's own; so it is when a sink appends what steps make of each row by itself. Otherwise the
tasks write the rows to files, their acks list the files, and every reader gets that list.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from stateflow.checkpoint.rescale import first_assignment
from stateflow.compatibility.states import (
    begin_to_sweep,
    check_key,
    element_names,
    fixed_options,
    forgets,
    indexes,
    resolve_states,
    state_ids,
    todays_elements,
)
from stateflow.errors import StateflowError, UsageError
from stateflow.format.records import OperatorListState, OperatorState, Prepared, Record, Shard, StateSchema
from stateflow.operators.columnar import ColumnarSpec
from stateflow.operators.combiner_choice import Combined, as_note, combines, measured, noted
from stateflow.operators.combining import combining_of
from stateflow.operators.context import Moment
from stateflow.operators.elements import check_alike
from stateflow.operators.joins.made import runnable
from stateflow.pipelines.flow import Flow
from stateflow.pipelines.graph import (
    KeyedNode,
    Node,
    NodeRows,
    SinkNode,
    SourceNode,
    TransformNode,
    UnionNode,
)
from stateflow.pipelines.held_back import comes_when_reached
from stateflow.pipelines.operators import DEAD_LETTERS, MAIN, OperatorSpec
from stateflow.pipelines.ready import ReadyOperator
from stateflow.pipelines.rows import RowType, row_type
from stateflow.spark.combiner import combined_rows
from stateflow.spark.exchange import (
    LATE,
    KeyedInput,
    carried_by,
    exchanged,
    field_sql,
    same_key_types,
    spread,
)
from stateflow.spark.inputs import SourceFrames, unioned, with_lateness
from stateflow.spark.internals.frames import arrow_schema
from stateflow.spark.internals.plans import in_one_stage
from stateflow.spark.placement import Placement
from stateflow.spark.sinks.base import Sink
from stateflow.spark.sinks.same_task import map_in_arrow
from stateflow.spark.sinks.slot import SinkSlot
from stateflow.spark.sinks.staging import ScratchTarget, StagedWriter, Stager, StoreTarget, Target
from stateflow.spark.task.acks import Ack, AckList, collected, decoded, summed, total
from stateflow.spark.task.arrow_worker import ArrowTask, arrow_worker
from stateflow.spark.task.carried import Carried
from stateflow.spark.task.columns import RowReader
from stateflow.spark.task.partition_worker import partition_worker
from stateflow.spark.task.storage import TaskStorage
from stateflow.spark.task.worker import KeyedTask, keyed_worker
from stateflow.spark.unmeasured import are_small, stays_small, unmeasured, widest_of
from stateflow.state.backends.base import OpenShard
from stateflow.state.values.serializers import serializer_for

BROADCAST_LIMIT = 100_000
_JUDGED = "_judged"
"""Beside a source's outputs: its rows on time and late together."""


@dataclass(frozen=True)
class BatchSettings:
    """What all batches of a run share."""

    job: str
    job_uuid: str
    flow: Flow
    sinks: Mapping[str, Sink]
    parallelism: int
    max_parallelism: int
    backend: str
    open_shard: Callable[[str], OpenShard]
    stager: Stager
    placement: Placement
    shared_scratch: bool
    """True if every task can read what another one writes to scratch disk."""
    scratch: str
    dead_letter_threshold: int
    dead_letter_limit: int
    user_paths: tuple[str, ...] = ()
    operators_in_own_job: set[str] = field(default_factory=set)
    """Uids of operators whose rows a step takes into another stage, as far as batches have shown."""


@dataclass
class Batch:
    """The evaluation of one batch. Every attempt has its own."""

    spark: SparkSession
    settings: BatchSettings
    frames: SourceFrames
    """The rows of each source. `run` releases them."""
    moment: Moment
    parent: Record | None
    last_commits: Mapping[str, int]
    storage: TaskStorage
    late: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Per sink uid the abandoned slots whose output may have arrived all the same."""
    input_free: bool = False
    again: bool = False
    """Whether a try of this batch has failed."""
    _frames: dict[tuple[int, str], DataFrame] = field(default_factory=dict)
    _persisted: list[DataFrame] = field(default_factory=list)
    _running: dict[str, _RunningOperator] = field(default_factory=dict)
    operators: dict[str, OperatorState] = field(default_factory=dict)
    acks: dict[str, list[Ack]] = field(default_factory=dict)
    timings: dict[str, float] = field(default_factory=dict)
    combined: dict[str, Combined] = field(default_factory=dict)
    """Per operator that can be combined what is known of its groups."""

    def run(self) -> dict[str, Prepared]:
        """Evaluates everything; afterwards `operators` holds the new state and the sinks are prepared."""
        flow, prepared = self.settings.flow, {}
        try:
            for node in flow.operators:
                if self._writer_of(node) is None:
                    self._stage(node)
            for sink in flow.sinks:
                began = time.perf_counter()
                stream = sink.inputs[0]
                prev = self.last_commits.get(sink.uid)
                written = self._written_by(sink)
                frame = self._visible(self._frame(stream))
                if written is not None and self._runs_in_own_job(written, stream, frame):
                    frame = self._frame_of_staged(written, stream)
                    written = None
                with unmeasured(frame, written is not None and self._stays_small(written, sink, frame)):
                    prepared[sink.uid] = self.settings.sinks[sink.uid].prepare(
                        frame, self._sink_slot(sink), prev, self.settings.stager
                    )
                if written is not None:
                    self._collect(written)
                self.timings[f"prepare {sink.uid}"] = time.perf_counter() - began
        finally:
            for persisted in self._persisted:
                persisted.unpersist()
            self.frames.release()
        return prepared

    def statistics(self) -> dict[str, Any]:
        """Per operator, and in sum."""
        per_operator = {uid: total(acks) for uid, acks in self.acks.items()}
        metrics = summed(numbers["metrics"] for numbers in per_operator.values())
        statistics = {"operators": per_operator, "metrics": metrics, "timings": dict(self.timings)}
        if self.combined:
            statistics["combiner"] = {uid: as_note(known) for uid, known in self.combined.items()}
        return statistics

    def _sink_slot(self, sink: SinkNode) -> SinkSlot:
        settings = self.settings
        late = self.late.get(sink.uid, ())
        return SinkSlot(settings.job_uuid, settings.job, sink.uid, self.moment.slot, self.storage.epoch, late)

    @staticmethod
    def _visible(frame: DataFrame) -> DataFrame:
        return frame.drop(LATE) if LATE in frame.columns else frame

    def _frame(self, stream: NodeRows) -> DataFrame:
        key = (id(stream.node), stream.output)
        if key not in self._frames:
            frame = self._evaluated(stream)
            once = isinstance(stream.node, KeyedNode) or _splits(stream.node)
            if not once and len(self.settings.flow.consumers(stream.node)) > 1:
                frame = self._shared(stream.node, frame)
            self._frames[key] = frame
        return self._frames[key]

    def _shared(self, node: Node, frame: DataFrame) -> DataFrame:
        """The frame, stored for its several readers.

        Otherwise each reader would read the source again, and see other rows from a nondeterministic step. Spark
        recomputes cached blocks when their executor dies, so on a cluster the frame goes to files.
        """
        if self.settings.shared_scratch:
            frame = frame.persist()
            self._persisted.append(frame)
            return frame
        settings = self.settings
        at = SinkSlot(settings.job_uuid, settings.job, node.uid, self.moment.slot, self.storage.epoch)
        files = settings.stager.stage(frame, at)
        return settings.stager.read(self.spark, files, frame.schema)

    def _evaluated(self, stream: NodeRows) -> DataFrame:
        node = stream.node
        if isinstance(node, SourceNode):
            return self._source(node, stream.output)
        if isinstance(node, TransformNode):
            return self._transformed(node)
        if isinstance(node, UnionNode):
            return unioned([self._frame(s) for s in node.inputs])
        if isinstance(node, KeyedNode) and self._writer_of(node) is not None:
            return self._start(node, None)
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
            frame = with_lateness(node, self.frames[node.uid], self.moment.watermark)
            if _splits(node) and len(self.settings.flow.consumers(node)) > 1:
                frame = self._shared(node, frame)
            self._frames[key] = frame
        return self._frames[key]

    def _transformed(self, node: TransformNode) -> DataFrame:
        frame = node.function(self._frame(node.inputs[0]))
        if not isinstance(frame, DataFrame):
            raise UsageError(f"{node.uid}: a transform must return a DataFrame, not {type(frame).__name__}")
        return frame

    def _writer_of(self, node: KeyedNode) -> SinkNode | None:
        """The sink that is the operator's only reader: its `prepare` writes the rows in the stage that computes them. Between
        an operator and an append there may be steps, unless batches have shown that they take the rows into another stage."""
        at: Node = node
        while True:
            readers = self.settings.flow.consumers(at)
            if len(readers) != 1 or readers[0][1].output != MAIN:
                return None
            reader = readers[0][0]
            if isinstance(reader, SinkNode):
                through = reader.mode == "append" and node.uid not in self.settings.operators_in_own_job
                return reader if at is node or through else None
            if not isinstance(reader, TransformNode):
                return None
            at = reader

    def _written_by(self, sink: SinkNode) -> KeyedNode | None:
        """The operator whose rows the sink writes in the stage that computes them."""
        at = sink.inputs[0].node
        while isinstance(at, TransformNode):
            at = at.inputs[0].node
        return at if isinstance(at, KeyedNode) and self._writer_of(at) is sink else None

    def _runs_in_own_job(self, node: KeyedNode, stream: NodeRows, frame: DataFrame) -> bool:
        """True if the steps between an operator and its sink cause a second stage, or have already run the operator."""
        if stream.node is node:
            return False
        ran = bool(self._running[node.uid].accumulator.value)
        return ran or not in_one_stage(frame, self._frames[(id(node), MAIN)])

    def _frame_of_staged(self, node: KeyedNode, stream: NodeRows) -> DataFrame:
        """A sink's rows, with the operator in a job of its own: for good, since the steps will hardly change."""
        self.settings.operators_in_own_job.add(node.uid)
        at: Node = node
        while not isinstance(at, SinkNode):
            self._frames.pop((id(at), MAIN), None)
            at = self.settings.flow.consumers(at)[0][0]
        self._stage(node)
        return self._visible(self._frame(stream))

    def _stays_small(self, node: Node, sink: SinkNode, frame: DataFrame) -> bool:
        """True if no Arrow batch becomes too large while a sink runs its operator. All sinks but appends may let Spark put the
        operator's own rows into Arrow batches, too."""
        running = self._running[node.uid]
        return running.small and (sink.mode == "append" or are_small(frame, running.widest))

    def _start(self, node: KeyedNode, stage: Callable[[str, Any], Any] | None) -> DataFrame:
        """Plans the operator's task over its exchanged rows. Spark has not run it yet."""
        settings = self.settings
        before = self.parent.operators.get(node.uid) if self.parent else None
        read = self.settings.flow.read_outputs(node)
        inputs = [
            KeyedInput(frame := self._frame(k.stream), k.columns, k.order_by, rows or _untyped(frame))
            for k, rows in zip(node.keyed, _needed(node, read), strict=True)
        ]
        types = same_key_types(node.uid, inputs)
        combining = combining_of(node.columnar, read)
        combine = combining is not None and not self.input_free and combines(self._groups_before(node))
        if combining is not None and combine:
            inputs = [combined_rows(node.uid, inputs[0], combining)]
        if before is not None:
            check_key(node.uid, types, before)
        states, next_id = resolve_states(node, before, self.moment.slot)
        assignment, shards = self._shards(node, before, states)
        running = _RunningOperator(
            node, types, assignment, states, next_id, self.spark.sparkContext.accumulator([], AckList()),
            None if combining is None else combine,
        )  # fmt: skip
        self._running[node.uid] = running
        assert node.output is not None
        carry = None
        if node.has_key:
            ordered = node.columnar is None or node.columnar.ordered
            groups = self._max_parallelism(before)
            carry = carried_by(inputs, types, place=node.columnar is None)
            frame = exchanged(node.uid, inputs, types, groups, assignment, ordered=ordered, carry=carry)
        else:
            frame = spread(node.uid, inputs[0], len(assignment))
        if self.parent is not None and not self.again and not self._begins():
            running.widest = widest_of(self.parent.statistics, node.uid)
        running.small = stays_small(frame, running.widest)
        frame = settings.placement.pin(frame, before.hosts if before else ())
        worker = self._worker(node, running, inputs, shards, before, stage, carry)
        return map_in_arrow(frame, worker, node.output.ddl)

    def _groups_before(self, node: KeyedNode) -> Combined | None:
        return noted(self.parent.statistics, node.uid) if self.parent else None

    def _max_parallelism(self, before: OperatorState | None) -> int:
        return before.max_parallelism if before else self.settings.max_parallelism

    def _shards(
        self, node: KeyedNode, before: OperatorState | None, states: dict[str, StateSchema]
    ) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[Shard, ...], ...]]:
        if before is not None:
            return before.assignment, begin_to_sweep(before, states)
        settings = self.settings
        assignment = first_assignment(
            node.parallelism or min(settings.parallelism, settings.max_parallelism),
            settings.max_parallelism,
            f"operator {node.uid!r}",
        )
        if not node.has_key:
            return assignment, ((),) * len(assignment)
        return assignment, tuple((Shard(first=a, last=b, backend=settings.backend),) for a, b in assignment)

    def _worker(
        self,
        node: KeyedNode,
        running: _RunningOperator,
        inputs: list[KeyedInput],
        shards: tuple[tuple[Shard, ...], ...],
        before: OperatorState | None,
        stage: Callable[[str, Any], Any] | None,
        carry: Carried | None,
    ) -> Callable[..., Any]:
        assert node.output is not None
        main = _arrow(node.output)
        sides = {name: _arrow(rows) for name, rows in node.sides.items()}
        read_outputs = self.settings.flow.read_outputs(node)
        if node.columnar is not None:
            assert carry is not None
            columnar = ColumnarSpec(
                uid=node.uid,
                operator=runnable(node.columnar, read_outputs),
                key=tuple(zip(node.keyed[0].columns, running.key_types, strict=True)),
                max_parallelism=self._max_parallelism(before),
                states={name: running.states[name] for name in node.columnar.states},
                outputs={MAIN: main, **sides},
                # A row was placed by the key that it came with, so a key without a value stays without.
                defaults=tuple(i.rows.defaults_but(i.columns) for i in inputs),
                waited=comes_when_reached(node),
                held_back=node.held_back,
            )
            arrow_task = ArrowTask(
                spec=columnar,
                fields=tuple(tuple(field.name for field in keyed.rows.fields) for keyed in inputs),
                carry=carry,
                moment=self.moment,
                storage=self.storage,
                shards=shards,
                open_shard=self.settings.open_shard,
                stage=stage,
                read_outputs=read_outputs,
                user_paths=self.settings.user_paths,
            )
            return arrow_worker(arrow_task, running.accumulator)
        assert node.process is not None
        assert node.process_type is not None
        spec = OperatorSpec(
            uid=node.uid,
            process=node.process,
            process_type=node.process_type,
            key_columns=node.keyed[0].columns,
            key_types=running.key_types,
            rows=tuple(i.rows for i in inputs),
            output=node.output,
            sides=dict(node.sides),
            state_ids=state_ids(running.states),
            evolved={name: schema for name, schema in running.states.items() if schema.evolved},
            on_error=node.on_error,
            dead_letter_limit=self.settings.dead_letter_limit,
            indexes=indexes(running.states),
            waited=comes_when_reached(node),
            held_back=node.held_back,
        )
        task = KeyedTask(
            spec=spec,
            moment=self.moment,
            storage=self.storage,
            shards=shards,
            open_shard=self.settings.open_shard,
            main=main,
            sides=sides,
            stage=stage,
            read_outputs=read_outputs,
            elements=todays_elements(node, before) if before else {},
            begins=self._begins(),
            broadcast={name: self._broadcast(node, stream) for name, stream in node.broadcast.items()},
            user_paths=self.settings.user_paths,
            carry=carry,
        )
        worker = keyed_worker if node.has_key else partition_worker
        return worker(task, running.accumulator)

    def _begins(self) -> bool:
        """True for a run's first batch: it goes on from the record of another run, or of an edit."""
        parent = self.parent
        return parent is None or parent.kind != "checkpoint" or parent.epoch != self.storage.epoch

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

    def _stage(self, node: KeyedNode) -> None:
        """Runs the operator in a job of its own; its outputs go to files that the acks list."""
        began = time.perf_counter()
        frame = self._start(node, partial(_staged_writer, self._staging_target(), uuid.uuid4().hex))
        with unmeasured(frame, self._running[node.uid].small):
            frame.write.format("noop").mode("overwrite").save()
        acks = self._collect(node)
        outputs: dict[str, RowType] = {MAIN: node.output, **node.sides}  # type: ignore[dict-item]
        for name in {stream.output for _, stream in self.settings.flow.consumers(node)}:
            files = [ref for ack in acks if (ref := ack.staged.get(name)) is not None]
            schema = _struct(outputs[name])
            self._frames[(id(node), name)] = self.settings.stager.read(self.spark, files, schema)
        self.timings[f"operator {node.uid}"] = time.perf_counter() - began

    def _staging_target(self) -> Callable[[str], Target]:
        settings = self.settings
        if settings.shared_scratch:
            return partial(_scratch_target, f"{settings.scratch}/staged")
        layout, opener = self.storage.layout, settings.stager.opener
        return partial(_store_target, opener, layout, self.storage.epoch, self.moment.slot)

    def _collect(self, node: KeyedNode) -> list[Ack]:
        """Takes the acks of an operator whose job has ended."""
        running = self._running[node.uid]
        acks = collected(node.uid, len(running.assignment), decoded(running.accumulator.value))
        self._check_dead_letters(node, acks)
        before = self.parent.operators.get(node.uid) if self.parent else None
        self.acks[node.uid] = acks
        if running.combined is not None:
            rows, groups = sum(ack.rows_in for ack in acks), sum(ack.groups for ack in acks)
            known = measured(self._groups_before(node), rows, groups, combined=running.combined)
            if known is not None:
                self.combined[node.uid] = known
        self.operators[node.uid] = OperatorState(
            key=tuple(zip(node.keyed[0].columns, running.key_types, strict=True)),
            max_parallelism=self._max_parallelism(before),
            assignment=running.assignment,
            shards=tuple(ack.shards for ack in acks),
            states=running.states,
            next_state_id=running.next_id,
            operator_states={**_left_alone(node, before), **_operator_states(node, acks)},
            hosts=self.settings.placement.hosts_of([ack.attempt for ack in acks]),
            parallelism=node.parallelism,
            options=fixed_options(node),
        )
        return acks

    def _check_dead_letters(self, node: KeyedNode, acks: list[Ack]) -> None:
        limit = node.dead_letter_threshold
        if limit is None:
            limit = self.settings.dead_letter_threshold
        count = sum(ack.dead_letters for ack in acks)
        if limit and count > limit:
            raise StateflowError(
                f"operator {node.uid!r} failed on {count} keys in one batch, more than dead_letter_threshold={limit}: "
                f"nothing of the batch was stored, and with dead_letter_threshold={count} it passes and puts out why they failed"
            )


def _needed(node: KeyedNode, read: frozenset[str]) -> tuple[RowType | None, ...]:
    """The columns that go through the exchange."""
    return node.columnar.needed_of_each(read) if isinstance(node.columnar, ReadyOperator) else node.rows


def _splits(node: Node) -> bool:
    """Whether a node is a source whose late rows are an output of their own."""
    return isinstance(node, SourceNode) and node.late is not None


@dataclass
class _RunningOperator:
    node: KeyedNode
    key_types: tuple[str, ...]
    assignment: tuple[tuple[int, int], ...]
    states: dict[str, Any]
    next_id: int
    accumulator: Any
    combined: bool | None
    """Whether its rows were combined before the exchange; None: they cannot be."""
    widest: float = 0
    """The bytes that a row had at most in the batch before; 0: not known, or not to be relied on."""
    small: bool = False
    """Whether no Arrow batch of its rows becomes too large."""


def _left_alone(node: KeyedNode, before: OperatorState | None) -> dict[str, OperatorListState]:
    """Operator state that the code no longer declares stays, as keyed state does, unless the code forgets it."""
    if before is None:
        return {}
    gone = {*element_names(node, before).values(), *forgets(node)}
    return {name: state for name, state in before.operator_states.items() if name not in gone}


def _operator_states(node: KeyedNode, acks: list[Ack]) -> dict[str, OperatorListState]:
    if node.process_type is None:
        return {}
    out = {}
    for name, declaration in node.process_type.declarations().operator.items():
        parts = tuple(ack.elements.get(name, ()) for ack in acks)
        if declaration.kind == "broadcast":
            check_alike(node.uid, name, parts)
            parts = parts[:1]
        out[name] = OperatorListState(
            kind=declaration.kind,  # type: ignore[arg-type]
            schema=serializer_for(declaration.type).schema,
            parts=parts,
        )
    return out


def _staged_writer(target: Callable[[str], Target], token: str, name: str, schema: Any) -> StagedWriter:
    """Runs in the worker. Every output of every attempt gets its own file."""
    task = TaskContext.get()
    assert task is not None
    output = {MAIN: "main", DEAD_LETTERS: "dead"}.get(name, name)
    return StagedWriter(schema, target(f"{output}-{token}-{task.partitionId()}-{task.taskAttemptId()}"))


def _scratch_target(folder: str, unique: str) -> Target:
    return ScratchTarget(folder, unique)


def _store_target(opener: Any, layout: Any, epoch: int, slot: int, unique: str) -> Target:
    return StoreTarget(opener, layout.staged_file(epoch, slot, unique, ".parquet"))


def _struct(rows: RowType) -> Any:
    return StructType.fromDDL(rows.ddl)


def _arrow(rows: RowType) -> Any:
    return arrow_schema(_struct(rows))


def _untyped(frame: DataFrame) -> RowType:
    columns = ", ".join(f"{name} {kind}" for name, kind in frame.dtypes if not name.startswith("_sf_"))
    return row_type(columns)
