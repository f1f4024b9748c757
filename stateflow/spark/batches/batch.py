"""One micro-batch: it evaluates the flow's operators on the batch's rows and prepares the sinks.

A keyed operator runs in the result stage of exactly one Spark job: one of its own, or that of its sink, as its route says (`routes.py`).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

from pyspark.sql import DataFrame

from stateflow.format.records import OperatorState, Prepared, ShownState
from stateflow.operators.combiner_choice import Combined, as_note, combines
from stateflow.pipelines.feed_readers import fed_by, readers_of
from stateflow.pipelines.graph import KeyedNode, SinkNode
from stateflow.pipelines.held_back import before_and
from stateflow.pipelines.processes.operator_spec import DEAD_LETTERS, MAIN
from stateflow.pipelines.ready.operators import ReadyOperator
from stateflow.spark.batches.batch_attempt import BatchAttempt
from stateflow.spark.batches.changes_between import changes_between
from stateflow.spark.batches.routes import Route, Routes, route_of
from stateflow.spark.batches.running_operator import RunningOperator, begun, struct_of
from stateflow.spark.batches.stream_rows import StreamRows
from stateflow.spark.inputs.open_inputs import SourceFrames
from stateflow.spark.internals.plans import in_one_stage
from stateflow.spark.shuffle.exchange import KeyedInput
from stateflow.spark.shuffle.unmeasured import are_small, unmeasured
from stateflow.spark.sinks.staging import ScratchTarget, StagedWriter, StoreTarget, Target
from stateflow.spark.sinks.task_writer import attempt_name
from stateflow.spark.task.acks import Ack, summed, total
from stateflow.spark.task.hot_keys import HotKey, hot_key


@dataclass
class Batch:
    """The evaluation of one attempt."""

    attempt: BatchAttempt
    sources: SourceFrames
    """The rows of each source. `run` releases them."""
    routes: Routes = field(init=False)
    """Behind `run` also with what the batch has shown. The next one goes by them."""
    operators: dict[str, OperatorState] = field(default_factory=dict)
    acks: dict[str, list[Ack]] = field(default_factory=dict)
    timings: dict[str, float] = field(default_factory=dict)
    combined: dict[str, Combined] = field(default_factory=dict)
    """Per operator that can be combined what is known of its groups."""
    warnings: dict[str, str] = field(default_factory=dict)
    """By the matter: what a feed lacks, and what steps read that is not as it stands there."""
    rows: StreamRows = field(init=False)
    _running: dict[str, RunningOperator] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.routes = self.attempt.routes
        self.rows = StreamRows(self.attempt, self.sources, self.warnings)

    def run(self) -> dict[str, Prepared]:
        """Evaluates everything; afterwards `operators` holds the new state and the sinks are prepared."""
        flow = self.attempt.settings.flow
        try:
            # 1. Operators in jobs of their own run, in the order of the flow. Their rows are in files then.
            for node in flow.operators:
                if self.routes[node.uid].own_job:
                    self._run_in_own_job(node)
            # 2. The others are planned in their sinks' jobs, if there are steps between. What steps take into another stage gets
            # another route, and runs now.
            for node in flow.operators:
                if self.routes[node.uid].steps and not self._plan_in_sink(node):
                    self._run_in_own_job(node)
            # 3. The sinks prepare. Those that run an operator come first: others may read its side outputs.
            runs = {
                route.in_sink.uid: node
                for node in flow.operators
                if (route := self.routes[node.uid]).in_sink is not None
            }
            prepared = {
                sink.uid: self._prepared(sink, runs[sink.uid]) for sink in flow.sinks if sink.uid in runs
            }
            prepared |= {sink.uid: self._prepared(sink) for sink in flow.sinks if sink.uid not in runs}
            return {sink.uid: prepared[sink.uid] for sink in flow.sinks}
        finally:
            self.rows.release()

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
                    self._run_in_own_job(each)
            yield self.rows.keyed(node, node.rows)
        finally:
            self.rows.release()

    # -- what it tells of itself, once it has run

    @cached_property
    def hot_keys(self) -> dict[str, HotKey]:
        """By operator the key that made one of its tasks slow, unless rows are combined before they come there from now on."""
        found = {
            uid: hot_key(acks)
            for uid, acks in self.acks.items()
            if uid not in self.combined or not combines(self.combined[uid])
        }
        return {uid: hot for uid, hot in found.items() if hot is not None}

    @cached_property
    def statistics(self) -> dict[str, Any]:
        """Per operator, and in sum."""
        per_operator = {uid: total(acks) for uid, acks in self.acks.items()}
        for uid, hot in self.hot_keys.items():
            per_operator[uid]["hot_key"] = {"share": round(hot.share, 3), "subtask": hot.subtask}
        metrics = summed(numbers["metrics"] for numbers in per_operator.values())
        statistics = {"operators": per_operator, "metrics": metrics, "timings": dict(self.timings)}
        if self.combined:
            statistics["combiner"] = {uid: as_note(known) for uid, known in self.combined.items()}
        return statistics

    def shown(self, prepared: Mapping[str, Prepared]) -> tuple[ShownState, ...]:
        """What the tables of feeds show once they have the batch's rows."""
        flow, slot = self.attempt.settings.flow, self.attempt.moment.slot
        return tuple(
            ShownState(sink.uid, node.uid, feed.state, slot, prepared[sink.uid].target)
            for node in flow.operators
            for output, feed in node.feeds.items()
            for sink in readers_of(flow, node, output)[0]
        )

    # -- operators and sinks

    def _run_in_own_job(self, node: KeyedNode) -> None:
        """Runs the operator now; its outputs go to files that the acks list."""
        with self._timed(f"operator {node.uid}"):
            staged = self.attempt.settings.flow.read_outputs(node)
            frame = self._planned(node, Route(staged))
            with unmeasured(frame, self._running[node.uid].small):
                frame.write.format("noop").mode("overwrite").save()
            self._take_acks(node, staged)

    def _plan_in_sink(self, node: KeyedNode) -> bool:
        """Plans an operator in its sink's job. True if it stays there. If the steps between cause a second stage, or have already run the
        operator, the plan is dropped, and from now on the operator has another route."""
        route = self.routes[node.uid]
        assert route.in_sink is not None
        with self._timed(f"prepare {route.in_sink.uid}"):
            # 1. The operator's task, and the steps behind it. Steps with code of the user's call it here.
            frame = self._planned(node, route)
            self.rows.put(node, MAIN, frame)
            behind = self.rows.without_flags(route.in_sink.inputs[0])
            # 2. The plan shows whether all that is one stage.
            if not self._running[node.uid].has_run and in_one_stage(behind, frame):
                return True
        # 3. It is not: nothing of the plan is kept.
        self.rows.forget((node, *route.steps))
        self.routes = {
            **self.routes,
            node.uid: route_of(self.attempt.settings.flow, node, in_one_stage=False),
        }
        return False

    def _prepared(self, sink: SinkNode, operator: KeyedNode | None = None) -> Prepared:
        """The sink's rows, written where no reader sees them yet. `operator`: runs in the sink's job."""
        attempt, settings = self.attempt, self.attempt.settings
        with self._timed(f"prepare {sink.uid}"):
            # 1. The operator of the sink's job is planned, if step 2 of `run` had no reason to.
            if operator is not None and operator.uid not in self._running:
                self.rows.put(operator, MAIN, self._planned(operator, self.routes[operator.uid]))
            # 2. The sink's job runs.
            frame = self.rows.without_flags(sink.inputs[0])
            small = False
            if operator is not None:
                running = self._running[operator.uid]
                # A sink with Python code of its own may get the operator's rows in Arrow batches, too.
                small = running.small and (
                    sink.sink_kind.written_by_spark or are_small(frame, running.widest)
                )
            with unmeasured(frame, small):
                prepared = settings.sinks[sink.uid].prepare(frame, attempt.slot_of(sink), settings.stager)
            # 3. What the operator's tasks have reported in it.
            if operator is not None:
                self._take_acks(operator, self.routes[operator.uid].staged)
        return prepared

    def _planned(self, node: KeyedNode, route: Route) -> DataFrame:
        """The operator's task over its rows. Spark has not run it yet."""
        flow = self.attempt.settings.flow
        operator = node.columnar
        needed = (
            operator.needed_of_each(flow.read_outputs(node))
            if isinstance(operator, ReadyOperator)
            else node.rows
        )
        running = self._running[node.uid] = begun(self.attempt, node, self.rows.keyed(node, needed))
        stage = None
        if route.own_job or route.staged:
            stage = partial(_staged_writer, self._staging_target(), uuid.uuid4().hex)
        return running.planned(self.rows.broadcast(node), stage, route)

    def _take_acks(self, node: KeyedNode, staged: frozenset[str]) -> None:
        """Takes what the operator's tasks have reported: its state, and the rows of its staged outputs for their readers."""
        running = self._running[node.uid]
        acks = self.acks[node.uid] = running.acks()
        if (known := running.groups(acks)) is not None:
            self.combined[node.uid] = known
        self.operators[node.uid] = running.state(acks, fed_by(self.attempt.settings.flow, node))
        stager = self.attempt.settings.stager
        for name in staged:
            files = [ref for ack in acks if (ref := ack.staged.get(name)) is not None]
            rows = node.outputs[name]
            assert rows is not None
            frame = stager.read(self.attempt.spark, files, struct_of(rows.ddl))
            self.rows.put(node, name, self._with_changes_between(node, name, frame))

    def _with_changes_between(self, node: KeyedNode, output: str, frame: DataFrame) -> DataFrame:
        """A feed's rows of the batch, with those of what a restore or another type has changed before it."""
        if output not in node.feeds:
            return frame
        feed = self._running[node.uid].feed(output)
        changes, lacking = changes_between(self.attempt, node, output, feed)
        for number, sentence in enumerate(lacking):
            self.warnings[f"feed {node.uid} {output} {number}"] = sentence
        return changes.rows(self.attempt.spark, frame) if changes is not None else frame

    def _staging_target(self) -> Callable[[str], Target]:
        attempt, settings = self.attempt, self.attempt.settings
        if settings.shared_scratch:
            return partial(ScratchTarget, f"{settings.scratch}/staged")
        layout, opener = attempt.storage.layout, settings.stager.opener
        return partial(_store_target, opener, layout, attempt.storage.epoch, attempt.moment.slot)

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.timings[what] = self.timings.get(what, 0.0) + time.perf_counter() - began


def _staged_writer(target: Callable[[str], Target], token: str, name: str, schema: Any) -> StagedWriter:
    """Runs in the worker. Every output of every attempt gets its own file."""
    output = {MAIN: "main", DEAD_LETTERS: "dead"}.get(name, name)
    return StagedWriter(schema, target(attempt_name(f"{output}-{token}")))


def _store_target(opener: Any, layout: Any, epoch: int, slot: int, unique: str) -> Target:
    return StoreTarget(opener, layout.staged_file(epoch, slot, unique, ".parquet"))
