"""The batches of a replay: each is read again, evaluated as it was, and compared with its record."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from stateflow.checkpoint.process import this_process
from stateflow.checkpoint.rescale import rescaled_operators
from stateflow.checkpoint.statistics import POSITIONS
from stateflow.compatibility.states import forgets
from stateflow.errors import UsageError
from stateflow.format.records import FileRef, OperatorState, Prepared, Record
from stateflow.pipelines.graph import KeyedNode, Node, SinkNode, TransformNode
from stateflow.pipelines.sink_kinds import FUNCTION, names_of
from stateflow.quantities import several
from stateflow.reading.snapshots import reader_context
from stateflow.replay.captured import CapturedSink, unheard
from stateflow.replay.comparison import SHOWN, ReplayReport, SinkChanges, Unsteady
from stateflow.replay.delivered import NotKept, delivered_rows, staged_rows, was_abandoned
from stateflow.replay.evaluation import Evaluation, PastBatches, evaluation
from stateflow.replay.feed_names import RenamedFeed, renamed_feeds, under_todays_name
from stateflow.replay.rows import GONE, RowChanges, compared
from stateflow.replay.span import Step
from stateflow.replay.states import StateChanges, state_changes
from stateflow.spark.batches.batch import Batch
from stateflow.spark.batches.running_operator import struct_of
from stateflow.spark.inputs.open_inputs import SourceFrames
from stateflow.spark.inputs.reread import SlotInput
from stateflow.spark.internals.frames import arrow_schema
from stateflow.spark.internals.workers import other_hash_seed
from stateflow.spark.sinks.delta_upsert import newest
from stateflow.spark.sinks.staging import Stager, staged_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

_LETTER = {"operator", "key", "error", "traceback", "rows"}
"""Columns of dead letters."""
HearAll = Callable[[str, int, RowChanges | StateChanges], None]
"""Hears of all changes of a sink in a batch, and in parts of those of a state behind the last one: the uid of the sink or the operator, and the
slot."""


@dataclass
class ReplayRequest(PastBatches):
    """What to run again, and with which code."""

    compare: bool = True
    check: bool = False
    """Evaluates each batch a second time, and names the first operator that does something else."""
    notes: Sequence[str] = ()
    """What the report says of the choice of the batches."""
    listener: Callable[[int, int], object] = lambda done, of: None
    changes: HearAll = lambda uid, slot, found: None


def replay(request: ReplayRequest) -> ReplayReport:
    """Runs the batches again, on a fork. Nothing is published, and the job's log is only read."""
    return _Replay(request).run()


class _Replay:
    def __init__(self, request: ReplayRequest) -> None:
        self.request = request
        self.job, self.options = request.job, request.options
        self.batches = [step for step in request.steps if step.is_batch]
        if not self.batches:
            raise UsageError("these records hold no batch: name a checkpoint that had input")
        last = self.batches[-1].record
        self.flow, self.parameters = request.built(last)
        self.report = ReplayReport(
            self.job.name,
            request.pipeline.name,
            self.batches[0].record.slot,
            last.slot,
            compared=request.compare,
            lets_go=self.flow.allow_non_restored_state,
            forgotten=frozenset((node.uid, name) for node in self.flow.operators for name in forgets(node)),
            notes=list(request.notes),
        )
        self.declared = {sink.uid: sink for sink in self.flow.sinks}
        self.kept_sinks = next(
            (
                each.record.sinks.keys()
                for each in self.batches[::-1]
                if not _only_tells_positions(each.record)
            ),
            frozenset[str](),
        )
        """Sinks that the job has in the newest of these batches."""
        self.flow.nodes[:] = [
            _captured(node) if isinstance(node, SinkNode) else node for node in self.flow.nodes
        ]
        self.renamed: dict[tuple[str, RenamedFeed], list[int]] = {}
        """By sink and feed, the slots of batches in which the feed's state had another name."""
        self._notes(last)

    def _notes(self, last: Record) -> None:
        others = sorted(
            {
                name
                for step in self.batches
                for name, value in step.record.parameters.items()
                if last.parameters.get(name) != value
            }
        )
        if others:
            self.report.notes.append(
                f"the batches ran with several values of {', '.join(others)}: all are run again with those of checkpoint {last.slot}"
            )

    def run(self) -> ReplayReport:
        sinks = {uid: CapturedSink(node) for uid, node in self.declared.items()}
        with evaluation(self.request, self.flow, self.parameters, sinks, "replay") as past:
            self.report.fork_bytes = past.fork.size()
            self._evaluate(past)
        return self.report

    def _evaluate(self, past: Evaluation) -> None:
        request = self.request
        past.refuse_unreadable([SlotInput.of(step.record, step.before) for step in self.batches])
        run = _Batches(self, past)
        parent, done = request.steps[0].before, 0
        for step in request.steps:
            if step.is_batch:
                parent = run.carried_on(step, parent)
                done += 1
                request.listener(done, len(self.batches))
                if self.report.unsteady is not None:
                    return
            else:
                parent = _rescaled(step.record, parent, self.job.name)
        self._notes_at_the_end()
        if request.compare and parent is not None:
            self._compare_states(request.steps[-1].record, parent)

    def _notes_at_the_end(self) -> None:
        self.report.notes += [feed.note(sink, slots) for (sink, feed), slots in self.renamed.items()]
        if self.request.check:
            self.report.notes.append("no operator did anything else at a second try of its batches")
        had = {uid for step in self.batches for uid in step.record.sinks}
        for uid in sorted(had - self.kept_sinks - self.declared.keys()) if self.request.compare else ():
            self.report.notes.append(
                f"the job itself had given up sink {uid!r} by checkpoint {self.report.last}: the rows that it got before are compared with "
                "nothing"
            )
        for sink in self.report.sinks.values():
            if sink.gone_batches:
                self.report.notes.append(
                    f"the pipeline has no sink {sink.sink!r} any more: all that it was given counts as gone"
                )
            if sink.new_batches:
                self.report.notes.append(
                    f"the pipeline had no sink {sink.sink!r} in {several(sink.new_batches, 'batch', 'batches')}: the "
                    f"{several(sink.new_rows, 'row')} for it now are compared with nothing"
                )
            if sink.abandoned_batches:
                self.report.notes.append(
                    f"what sink {sink.sink!r} was to get of {several(sink.abandoned_batches, 'batch', 'batches')} was given up with "
                    f"`stateflow abandon`: the {several(sink.abandoned_rows, 'row')} for it now are compared with nothing"
                )

    def _compare_states(self, then: Record, now: Record) -> None:
        context = reader_context(self.options, self.job.store.url, lambda: then.now)
        one, other = context.reader(then), context.reader(now)

        def hear(part: StateChanges) -> None:
            self.request.changes(part.operator, then.slot, part)

        try:
            self.report.states = list(state_changes(one, other, SHOWN, hear))
        finally:
            one.close()
            other.close()


@dataclass
class _Batches:
    """Evaluates the batches of a replay, one after another."""

    of: _Replay
    past: Evaluation

    def carried_on(self, step: Step, parent: Record | None) -> Record:
        """The record that the batch makes on the fork."""
        report, record = self.of.report, step.record
        began = time.perf_counter()

        def evaluate(frames: SourceFrames) -> tuple[Batch, dict[str, Prepared]]:
            first = self._evaluated(step, parent, frames)
            if self.of.request.check:
                with other_hash_seed(self.past.spark):
                    second = self._evaluated(step, parent, frames)
                report.unsteady = self._difference(record.slot, first, second)
            return first

        batch, prepared = self.past.read(step, evaluate)
        report.seconds += time.perf_counter() - began
        report.live_seconds += _seconds_of(record)
        report.batches += 1
        report.rows += int(record.statistics.get("processed_rows", 0))
        if report.unsteady is None:
            self._take_outputs(record, batch.operators, prepared)
        return msgspec.structs.replace(
            record, operators=batch.operators, sinks={}, statistics=batch.statistics, parameters={}
        )

    def _evaluated(
        self, step: Step, parent: Record | None, frames: SourceFrames
    ) -> tuple[Batch, dict[str, Prepared]]:
        batch = Batch(self.past.attempt(step, parent), SourceFrames(frames))
        prepared = batch.run()
        self.past.routes = batch.routes
        return batch, prepared

    # -- what was put out

    def _take_outputs(
        self, record: Record, operators: Mapping[str, OperatorState], prepared: Mapping[str, Prepared]
    ) -> None:
        request, report = self.of.request, self.of.report
        for uid, node in self.of.declared.items():
            sink = report.sinks.setdefault(uid, SinkChanges(uid, _key_of(node)))
            after = self._put_out(prepared[uid])
            if not request.compare:
                sink.after += after.num_rows
                sink.changes += [
                    (record.slot, change)
                    for change in compared(after.slice(0, 0), after.slice(0, SHOWN), ()).changes
                ][: SHOWN - len(sink.changes)]
                continue
            if uid not in record.sinks and not _only_tells_positions(record):
                sink.new_rows += after.num_rows
                sink.new_batches += 1
                continue
            if self._was_abandoned(record, uid):
                # What nobody was given cannot differ: the code that ran then would seem to add rows.
                sink.abandoned_rows += after.num_rows
                sink.abandoned_batches += 1
                continue
            try:
                before = self._delivered(record, uid)
                _refuse_others(before, after)
            except NotKept as why:
                sink.unknown[record.slot] = str(why)
                continue
            for renamed in renamed_feeds(self.of.flow, uid, after.column_names, record.operators, operators):
                self.of.renamed.setdefault((uid, renamed), []).append(record.slot)
                before = None if before is None else under_todays_name(before, renamed)
            if set(after.column_names) >= _LETTER:
                # It names files and lines of the code, which any change of it moves.
                before, after = (_without(rows, "traceback") for rows in (before, after))
            then = record.sinks.get(uid)
            if then is not None and (rules := _rules(then, node)):
                # Else equal rows would hide that another one of them is in the table.
                before, after = (
                    _winners(self.past.spark, rows, rule)
                    for rows, rule in zip((before, after), rules, strict=True)
                )
            found = compared(*_both(before, after), sink.key)
            sink.take(record.slot, found)
            if found.changed:
                request.changes(uid, record.slot, found)
        if request.compare:
            self._take_gone(record)

    def _take_gone(self, record: Record) -> None:
        """The rows of sinks that the code does not have. What the job itself gave up later is named at the end."""
        request, report = self.of.request, self.of.report
        for uid in sorted((record.sinks.keys() - self.of.declared.keys()) & self.of.kept_sinks):
            sink = report.sinks.setdefault(uid, SinkChanges(uid))
            sink.gone_batches += 1
            try:
                before = self._delivered(record, uid)
            except NotKept:
                # However they were, they are gone.
                rows = record.sinks[uid].rows
                sink.take(record.slot, RowChanges(rows, counts={GONE: rows}))
                continue
            if before is not None:
                found = compared(before, before.slice(0, 0), ())
                sink.take(record.slot, found)
                request.changes(uid, record.slot, found)

    def _was_abandoned(self, record: Record, uid: str) -> bool:
        return was_abandoned(self.of.request.log.slots[record.slot].outcome, uid)

    def _delivered(self, record: Record, uid: str) -> pa.Table | None:
        if self._was_abandoned(record, uid):
            return None
        then = record.sinks.get(uid)
        return None if then is None else delivered_rows(self.past.spark, then, self.past.own)

    def _put_out(self, prepared: Prepared) -> pa.Table:
        """What the code puts out for a sink now."""
        return _rows(self.past.own, prepared.files, staged_schema(prepared))

    # -- determinism

    def _difference(
        self,
        slot: int,
        first: tuple[Batch, dict[str, Prepared]],
        second: tuple[Batch, dict[str, Prepared]],
    ) -> Unsteady | None:
        """The first operator, in the order of the pipeline, whose two tries differ."""
        for node in self.of.flow.nodes:
            if isinstance(node, KeyedNode):
                found = self._rows_differ(slot, node, first, second) or self._state_differs(
                    slot, node, first[0], second[0]
                )
                if found is not None:
                    return found
        for uid, node in self.of.declared.items():
            changes = compared(
                *_both(self._put_out(first[1][uid]), self._put_out(second[1][uid])), _key_of(node)
            )
            if changes.changed:
                change = changes.changes[0]
                return Unsteady(
                    f"the steps before sink {uid!r}", slot, "rows", change.key, change.before, change.after
                )
        return None

    def _rows_differ(
        self,
        slot: int,
        node: KeyedNode,
        first: tuple[Batch, dict[str, Prepared]],
        second: tuple[Batch, dict[str, Prepared]],
    ) -> Unsteady | None:
        acks = [each[0].acks.get(node.uid, []) for each in (first, second)]
        pairs = []
        for name in sorted({name for some in acks for ack in some for name in ack.staged}):
            rows = node.outputs[name]
            assert rows is not None
            files = [[ref for ack in some if (ref := ack.staged.get(name)) is not None] for some in acks]
            pairs.append(tuple(_rows(self.past.own, refs, struct_of(rows.ddl)) for refs in files))
        sink = self.past.routes[node.uid].in_sink
        if sink is not None and sink.inputs[0].node is node:
            pairs.append(tuple(self._put_out(each[1][sink.uid]) for each in (first, second)))
        key = node.keyed[0].columns
        for one, other in pairs:
            changes = compared(*_both(one, other), key)
            if changes.changed:
                change = changes.changes[0]
                return Unsteady(
                    _suspects(node),
                    slot,
                    "the rows that it puts out",
                    change.key,
                    change.before,
                    change.after,
                )
        return None

    def _state_differs(self, slot: int, node: KeyedNode, first: Batch, second: Batch) -> Unsteady | None:
        context = reader_context(self.of.options, self.of.job.store.url, lambda: first.attempt.moment.now)
        readers = [context.reader(_only(batch, node.uid)) for batch in (first, second)]
        try:
            for state in state_changes(readers[0], readers[1], 1):
                if state.changes:
                    change = state.changes[0]
                    return Unsteady(
                        _suspects(node),
                        slot,
                        f"state {state.state!r}",
                        change.key,
                        change.before,
                        change.after,
                        state.state,
                        state.key_columns,
                    )
                if state.changed:
                    return Unsteady(
                        _suspects(node), slot, f"state {state.state!r}", None, None, None, state.state
                    )
        finally:
            for reader in readers:
                reader.close()
        return None


def _only_tells_positions(record: Record) -> bool:
    """Whether it says where sources begin, or go on: it has no sinks, whatever the job has."""
    return POSITIONS in record.statistics


def _suspects(node: KeyedNode) -> str:
    """Who may be to blame for what an operator does: the rows that it gets are not compared."""
    return f"operator {node.uid!r}{' or a step before it' if _behind_steps(node) else ''}"


def _behind_steps(node: Node) -> bool:
    return any(
        isinstance(stream.node, TransformNode) or (not stream.node.kind and _behind_steps(stream.node))
        for stream in node.inputs
    )


def _only(batch: Batch, uid: str) -> Record:
    moment = batch.attempt.moment
    base = batch.attempt.parent
    operators: dict[str, OperatorState] = {uid: batch.operators[uid]}
    if base is not None:
        return msgspec.structs.replace(base, operators=operators, watermark=moment.watermark, sinks={})
    return Record(
        kind="checkpoint", job="", slot=moment.slot, epoch=0, writer="", owner=this_process(),
        watermark=moment.watermark, operators=operators,
    )  # fmt: skip


def _captured(sink: SinkNode) -> SinkNode:
    return replace(sink, sink_kind=FUNCTION, target=unheard, options={})


def _rescaled(record: Record, parent: Record | None, job: str) -> Record:
    assert parent is not None, "a rescale has a record before it"
    parallelism = max((len(each.assignment) for each in record.operators.values()), default=1)
    own = {uid: len(each.assignment) for uid, each in record.operators.items()}
    operators = rescaled_operators(parent.operators, parallelism, job, own)
    return msgspec.structs.replace(record, operators=operators, sinks={})


def _key_of(sink: SinkNode) -> tuple[str, ...]:
    """The columns that tell rows of a sink apart: its keys, or those of the operator whose rows it gets."""
    if keys := names_of(sink.options.get("keys")):
        return keys
    stream = sink.inputs[0]
    if stream.changes:
        return stream.changes
    return stream.node.keyed[0].columns if isinstance(stream.node, KeyedNode) else ()


Rule = tuple[tuple[str, ...], tuple[str, ...]]
"""The keys of an upsert, and its order."""


def _rules(then: Prepared, sink: SinkNode) -> tuple[Rule, Rule] | None:
    """By which rule one row of a key won then, and by which one it would now; None where that is the same or nobody picks."""
    if not sink.sink_kind.one_row_per_key or "order_by" not in then.payload:
        return None
    had = tuple(then.payload["keys"]), tuple(then.payload["order_by"])
    has = names_of(sink.options.get("keys")), names_of(sink.options.get("order_by"))
    alike = [[[name.lower() for name in names] for names in rule] for rule in (had, has)]
    return None if alike[0] == alike[1] else (had, has)


def _winners(spark: SparkSession, rows: pa.Table | None, rule: Rule) -> pa.Table | None:
    """The rows that the table gets."""
    if rows is None or not rows.num_rows:
        return rows
    return newest(spark.createDataFrame(rows), *rule).toArrow()


def _refuse_others(before: pa.Table | None, after: pa.Table) -> None:
    """NotKept where no column is in both, as of a sink that stages messages: without any all rows are alike."""
    if before is None or not before.num_rows or not after.num_rows:
        return
    if {name.lower() for name in before.column_names}.isdisjoint(name.lower() for name in after.column_names):
        raise NotKept(
            f"the rows that it was given are kept with other columns ({', '.join(before.column_names)})"
        )


def _without(rows: pa.Table | None, column: str) -> pa.Table | None:
    return rows.drop_columns([column]) if rows is not None and column in rows.column_names else rows


def _rows(stager: Stager, refs: Sequence[FileRef], schema: StructType) -> pa.Table:
    rows = staged_rows(stager, refs)
    return arrow_schema(schema).empty_table() if rows is None else rows


def _both(before: pa.Table | None, after: pa.Table | None) -> tuple[pa.Table, pa.Table]:
    """Two tables; one that is not there has the other one's columns, and no rows."""
    if before is None or not before.num_columns:
        assert after is not None
        return after.slice(0, 0), after
    if after is None or not after.num_columns:
        return before, before.slice(0, 0)
    return before, after


def _seconds_of(record: Record) -> float:
    timings = record.statistics.get("timings")
    return sum(map(float, timings.values())) if isinstance(timings, dict) else 0.0
