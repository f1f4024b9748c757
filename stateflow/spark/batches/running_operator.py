"""An operator in one batch: first its task over the exchanged rows, then what the task's acks make of its state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from stateflow.checkpoint.rescale import first_assignment
from stateflow.compatibility.states import (
    begun_shards,
    check_key,
    element_names,
    forgets,
    indexes,
    options_behind,
    resolve_states,
    state_ids,
    todays_elements,
)
from stateflow.errors import StateflowError, UsageError
from stateflow.format.records import OperatorListState, OperatorState, Shard, StateSchema
from stateflow.format.scalars import BY_NAME
from stateflow.format.state_names import former_names
from stateflow.operators.columnar import ColumnarSpec
from stateflow.operators.combiner_choice import Combined, combines, measured
from stateflow.operators.combining import combining_of
from stateflow.operators.elements import check_alike
from stateflow.operators.joins.made import runnable
from stateflow.pipelines.graph import KeyedNode
from stateflow.pipelines.held_back import comes_when_reached
from stateflow.pipelines.processes.columnar import ColumnarOperator
from stateflow.pipelines.processes.operator_spec import MAIN, OperatorSpec
from stateflow.pipelines.rows.row_type import RowType, key_type
from stateflow.spark.batches.batch_attempt import BatchAttempt
from stateflow.spark.batches.routes import Route
from stateflow.spark.internals.frames import arrow_schema
from stateflow.spark.shuffle.combiner import combined_rows
from stateflow.spark.shuffle.exchange import KeyedInput, carried_by, exchanged, same_key_types, spread
from stateflow.spark.shuffle.unmeasured import stays_small, widest_of
from stateflow.spark.sinks.same_task import map_in_arrow
from stateflow.spark.task.acks import Ack, AckList, collected
from stateflow.spark.task.carried import Carried
from stateflow.spark.task.row_work import RowTask
from stateflow.spark.task.state_feeds import TaskFeed
from stateflow.spark.task.subtask import Task, worker
from stateflow.spark.task.table_work import TableTask
from stateflow.state.values.serializers import serializer_for

Stage = Callable[[str, Any], Any]
"""Makes the writer of one output's staged file."""


@dataclass
class RunningOperator:
    attempt: BatchAttempt
    node: KeyedNode
    inputs: Sequence[KeyedInput]
    key_types: tuple[str, ...]
    assignment: tuple[tuple[int, int], ...]
    shards: tuple[tuple[Shard, ...], ...]
    states: dict[str, StateSchema]
    next_id: int
    accumulator: Any
    combined: bool | None
    """Whether its rows were combined before the exchange; None: they cannot be."""
    widest: float = 0
    """The bytes that a row had at most in the batch before; 0: not known, or not to be relied on."""
    small: bool = False
    """Whether no Arrow batch of its rows becomes too large."""

    @property
    def has_run(self) -> bool:
        return bool(self.accumulator.value)

    @property
    def max_parallelism(self) -> int:
        before = self.attempt.before(self.node)
        return before.max_parallelism if before else self.attempt.settings.max_parallelism

    def planned(
        self,
        broadcast: Mapping[str, tuple[Any, ...]],
        stage: Stage | None,
        route: Route,
    ) -> DataFrame:
        """The operator's task over its exchanged rows. Spark has not run it yet."""
        attempt, node, carry = self.attempt, self.node, None
        before = attempt.before(node)
        if node.has_key:
            ordered = node.columnar is None or node.columnar.ordered
            carry = carried_by(self.inputs, self.key_types, place=node.columnar is None)
            frame = exchanged(
                node.uid, self.inputs, self.key_types, self.max_parallelism, self.assignment, ordered=ordered, carry=carry
            )  # fmt: skip
        else:
            frame = spread(node.uid, self.inputs[0], len(self.assignment))
        if attempt.parent is not None and not attempt.again and not attempt.begins:
            self.widest = widest_of(attempt.parent.statistics, node.uid)
        self.small = not attempt.settings.python_beside and stays_small(frame, self.widest)
        frame = attempt.settings.placement.pin(frame, before.hosts if before else ())
        assert node.output is not None
        return map_in_arrow(
            frame,
            worker(self._task(carry, broadcast, stage, route), self.accumulator),
            node.output.ddl,
        )

    def _task(
        self,
        carry: Carried | None,
        broadcast: Mapping[str, tuple[Any, ...]],
        stage: Stage | None,
        route: Route,
    ) -> Task:
        attempt, node, settings = self.attempt, self.node, self.attempt.settings
        read_outputs = settings.flow.read_outputs(node)
        assert node.output is not None
        outputs = {name: _arrow(rows) for name, rows in {MAIN: node.output, **node.sides}.items()}
        of_every_kind: dict[str, Any] = {
            "moment": attempt.moment,
            "storage": attempt.storage,
            "shards": self.shards,
            "open_shard": settings.open_shard,
            "stage": stage,
            "staged": route.staged,
            "direct": not route.own_job,
            "feeds": tuple(self.feed(name) for name in sorted(read_outputs & node.feeds.keys())),
            "sent_modules": settings.sent_modules,
        }
        if node.columnar is None:
            before = attempt.before(node)
            return RowTask(
                spec=self._operator_spec(node.output),
                outputs=outputs,
                elements=todays_elements(node, before) if before else {},
                begins=attempt.begins,
                broadcast=broadcast,
                carry=carry,
                **of_every_kind,
            )
        assert carry is not None
        return TableTask(
            spec=self._columnar_spec(node.columnar, read_outputs, outputs),
            fields=tuple(tuple(field.name for field in keyed.rows.fields) for keyed in self.inputs),
            carry=carry,
            **of_every_kind,
        )

    def feed(self, output: str) -> TaskFeed:
        """What a task needs to know of a feed."""
        node, feed = self.node, self.node.feeds[output]
        key = tuple(zip(node.keyed[0].columns, self.key_types, strict=True))
        for name, kind in key:
            declared = feed.rows.field(name)
            if declared is None or key_type(declared.type) != kind:
                raise UsageError(
                    f"operator {node.uid!r}: its feed has key column {name!r} as a {declared.type if declared else 'column'}, and the rows "
                    f"have it as a {BY_NAME[kind].spark}: declare the type that the source has"
                )
        return TaskFeed(output, key, feed.state, self.states[feed.state], _arrow(feed.rows))

    def _operator_spec(self, output: RowType) -> OperatorSpec:
        node = self.node
        assert node.process is not None
        assert node.process_type is not None
        return OperatorSpec(
            uid=node.uid,
            process=node.process,
            process_type=node.process_type,
            key_columns=node.keyed[0].columns,
            key_types=self.key_types,
            rows=tuple(i.rows for i in self.inputs),
            output=output,
            sides=dict(node.sides),
            state_ids=state_ids(self.states),
            evolved={name: schema for name, schema in self.states.items() if schema.evolved},
            on_error=node.on_error,
            dead_letter_limit=self.attempt.settings.dead_letter_limit,
            indexes=indexes(self.states),
            waited=comes_when_reached(node),
            held_back=node.held_back,
        )

    def _columnar_spec(
        self, operator: ColumnarOperator, read_outputs: frozenset[str], outputs: Mapping[str, Any]
    ) -> ColumnarSpec:
        node = self.node
        assert node.output is not None
        return ColumnarSpec(
            uid=node.uid,
            operator=runnable(operator, read_outputs),
            key=tuple(zip(node.keyed[0].columns, self.key_types, strict=True)),
            max_parallelism=self.max_parallelism,
            states={name: self.states[name] for name in operator.states},
            outputs=outputs,
            never_null={name: rows.never_null for name, rows in {MAIN: node.output, **node.sides}.items()},
            # A row was placed by the key that it came with, so a key without a value stays without.
            defaults=tuple(i.rows.defaults_but(i.columns) for i in self.inputs),
            waited=comes_when_reached(node),
            held_back=node.held_back,
        )

    def acks(self) -> list[Ack]:
        """One per subtask, when the operator's job has ended. Too many dead letters fail the batch."""
        node = self.node
        acks = collected(node.uid, len(self.assignment), self.accumulator.value)
        limit = node.dead_letter_threshold
        if limit is None:
            limit = self.attempt.settings.dead_letter_threshold
        count = sum(ack.dead_letters for ack in acks)
        if limit and count > limit:
            raise StateflowError(
                f"operator {node.uid!r} failed on {count} keys in one batch, more than dead_letter_threshold={limit}: "
                f"nothing of the batch was stored, and with dead_letter_threshold={count} it passes and puts out why they failed"
            )
        return acks

    def state(self, acks: list[Ack], feeds: tuple[tuple[str, str], ...]) -> OperatorState:
        """The operator's state behind the batch. `feeds`: those that it reads."""
        node, before = self.node, self.attempt.before(self.node)
        return OperatorState(
            key=tuple(zip(node.keyed[0].columns, self.key_types, strict=True)),
            max_parallelism=self.max_parallelism,
            assignment=self.assignment,
            shards=tuple(ack.shards for ack in acks),
            states=self.states,
            next_state_id=self.next_id,
            operator_states={**_left_alone(node, before), **_operator_states(node, before, acks)},
            hosts=self.attempt.settings.placement.hosts_of([ack.attempt for ack in acks]),
            parallelism=node.parallelism,
            options=options_behind(node, before),
            feeds=feeds,
        )

    def groups(self, acks: list[Ack]) -> Combined | None:
        """Rows per group so far; None if the operator's rows cannot be combined."""
        if self.combined is None:
            return None
        rows, groups = sum(ack.rows_in for ack in acks), sum(ack.groups for ack in acks)
        return measured(self.attempt.groups_before(self.node), rows, groups, combined=self.combined)


def begun(attempt: BatchAttempt, node: KeyedNode, inputs: list[KeyedInput]) -> RunningOperator:
    """The operator with its key, its states and the shards of its subtasks."""
    types = same_key_types(node.uid, inputs)
    combining = combining_of(node.columnar, attempt.settings.flow.read_outputs(node))
    combine = combining is not None and not attempt.input_free and combines(attempt.groups_before(node))
    if combining is not None and combine:
        inputs = [combined_rows(node.uid, inputs[0], combining)]
    before = attempt.before(node)
    if before is not None:
        check_key(node.uid, types, before)
    states, next_id = _states(attempt, node)
    assignment, shards = _shards(attempt, node, states)
    accumulator = attempt.spark.sparkContext.accumulator([], AckList())
    combined = None if combining is None else combine
    return RunningOperator(
        attempt, node, inputs, types, assignment, shards, states, next_id, accumulator, combined
    )


def _states(attempt: BatchAttempt, node: KeyedNode) -> tuple[dict[str, StateSchema], int]:
    """Every state with its id, and the next free id."""
    before = attempt.before(node)
    if before is not None and attempt.goes_on:
        return before.states, before.next_state_id
    return resolve_states(node, before, attempt.moment.slot)


def _shards(
    attempt: BatchAttempt, node: KeyedNode, states: dict[str, StateSchema]
) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[Shard, ...], ...]]:
    """The key groups of each subtask, and its shards."""
    before, settings = attempt.before(node), attempt.settings
    if before is not None:
        return before.assignment, before.shards if attempt.goes_on else begun_shards(node, before, states)
    assignment = first_assignment(node.uid, node.parallelism, settings.parallelism, settings.max_parallelism)
    if not node.has_key:
        return assignment, ((),) * len(assignment)
    return assignment, tuple((Shard(first=a, last=b, backend=settings.backend),) for a, b in assignment)


def _left_alone(node: KeyedNode, before: OperatorState | None) -> dict[str, OperatorListState]:
    """Operator state that the code no longer declares stays, as keyed state does, unless the code forgets it."""
    if before is None:
        return {}
    gone = {*element_names(node, before).values(), *forgets(node)}
    return {name: state for name, state in before.operator_states.items() if name not in gone}


def _operator_states(
    node: KeyedNode, before: OperatorState | None, acks: list[Ack]
) -> dict[str, OperatorListState]:
    if node.process_type is None:
        return {}
    out = {}
    names = element_names(node, before) if before is not None else {}
    for name, declaration in node.process_type.declarations().operator.items():
        parts = tuple(ack.elements.get(name, ()) for ack in acks)
        if declaration.kind == "broadcast":
            check_alike(node.uid, name, parts)
            parts = parts[:1]
        out[name] = OperatorListState(
            kind=declaration.kind,  # type: ignore[arg-type]
            schema=serializer_for(declaration.type).schema,
            parts=parts,
            former=_former_names(before, names, name),
        )
    return out


def _former_names(before: OperatorState | None, names: Mapping[str, str], name: str) -> tuple[str, ...]:
    if before is None or name not in names:
        return ()
    return former_names(name, names[name], before.operator_states[names[name]].former)


@cache
def struct_of(ddl: str) -> StructType:
    """Columns as Spark has them. Its JVM reads the text, so each is asked for once a run."""
    return cast("StructType", StructType.fromDDL(ddl))


def _arrow(rows: RowType) -> Any:
    return arrow_schema(struct_of(rows.ddl))
