"""A columnar operator without Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from stateflow.compatibility.non_restored import check_replaced
from stateflow.compatibility.states import (
    check_key,
    check_key_columns,
    check_options,
    options_behind,
    resolve_states,
)
from stateflow.errors import UsageError
from stateflow.format.instants import micros_since_epoch
from stateflow.format.records import OperatorState
from stateflow.operators.arrow_types import arrow_schema_of
from stateflow.operators.columnar import ColumnarEngine, ColumnarSpec
from stateflow.operators.joins.made import runnable
from stateflow.operators.lateness import is_late
from stateflow.pipelines.flow import Flow
from stateflow.pipelines.graph import KeyedNode
from stateflow.pipelines.keys import no_column
from stateflow.pipelines.processes.columnar import ALONE, ColumnarOperator, columnar_operator
from stateflow.pipelines.processes.operator_spec import DEAD_LETTERS, MAIN, side_outputs
from stateflow.pipelines.processes.process import Output
from stateflow.pipelines.ready.operators import ReadyOperator
from stateflow.pipelines.rows.row_type import RowType, key_advice, key_type, row_type, without_nulls
from stateflow.state.columns.layout import ColumnLayout
from stateflow.state.keys.text import shown
from stateflow.state.values.arrow.digits import cast_by_digits
from stateflow.state.values.arrow.lossless import MISFITS, array_of
from stateflow.state.values.arrow.lossless_casts import check_cast
from stateflow.testing.harness import KeyedStateHarness
from stateflow.testing.recorded import RecordedState


class ColumnarHarness(KeyedStateHarness):
    """Runs one columnar operator over a memory backend. Every call of `rows`, `both` or `advance` is a batch of its own."""

    def __init__(
        self,
        function: Callable[..., Any] | ColumnarOperator,
        *rows: Any,
        key: str | Sequence[str],
        right_key: str | Sequence[str] | None = None,
        state: Mapping[str, Any] | ColumnLayout | None = None,
        output: Any,
        outputs: Iterable[Output[Any]] = (),
        on_due: Callable[..., Any] | None = None,
        now: datetime | None = None,
        parameters: Mapping[str, Any] | None = None,
        max_parallelism: int | None = None,
        event_time: str | None = None,
        after: ColumnarHarness | RecordedState | None = None,
    ) -> None:
        """`rows` is the type of the input's rows, or of both inputs': a class or a schema string. The rest are arguments of
        the pipeline. `event_time` names the column of the rows' times: a row at or behind the watermark is late then.
        `after` is a harness of an earlier release of the code: this one goes on with its state, or is refused as a run would be."""
        if not 1 <= len(rows) <= 2:
            raise UsageError(f"an operator has one input or two, but {len(rows)} row types were given")
        super().__init__(now, max_parallelism)
        self._rows = tuple(map(row_type, rows))
        keys = [_names(key), _names(right_key if right_key is not None else key)][: len(rows)]
        types = tuple(_key_type(self._rows[0], name) for name in keys[0])
        where = getattr(function, "__name__", type(function).__name__)
        operator = columnar_operator(where, function, state, on_due, 1 << 62, keys[0], ())
        self._event_time = event_time
        self._keys = keys
        self._parameters = parameters or {}
        sides = side_outputs(where, tuple(outputs), "fail")
        self._outputs: dict[str, RowType] = {MAIN: row_type(output), **sides}
        self._spec = ColumnarSpec(
            where,
            operator,
            tuple(zip(keys[0], types, strict=True)),
            self._max,
            {},
            {name: arrow_schema_of(of) for name, of in self._outputs.items()},
            {name: of.never_null for name, of in self._outputs.items()},
            tuple(of.defaults_but(names) for of, names in zip(self._rows, keys, strict=True)),
        )
        self._operator: Callable[[], ColumnarOperator] = lambda: operator
        self._earliest: int | None = None
        """What the operator said last of when it is next due. Another release says it anew: a run opens the shards of which the one
        before may have reckoned otherwise, and of the others both say the same."""
        self._release(KeyedNode(where, columnar=operator), after)

    def _release(self, node: KeyedNode, after: ColumnarHarness | RecordedState | None) -> None:
        """Begins with the state of an earlier release, if there is one, as far as a run would."""
        begins = after.recorded() if isinstance(after, ColumnarHarness) else after
        before = begins.operator if begins is not None else None
        if begins is not None and before is not None:
            self._take_key_groups(begins)
            check_key_columns(self._uid, tuple(name for name, _ in self._spec.key), before)
            check_key(self._uid, tuple(kind for _, kind in self._spec.key), before)
            check_options(node, before)
            check_replaced(node, before)
        states, next_id = resolve_states(node, before, begins.slot + 1 if begins is not None else 0)
        self._state: OperatorState = OperatorState(
            key=self._spec.key, max_parallelism=self._max, assignment=(), shards=(), states=states,
            next_state_id=next_id, options=options_behind(node, before),
        )  # fmt: skip
        self._spec = replace(
            self._spec,
            max_parallelism=self._max,
            states={name: schema for name, schema in states.items() if name in self._spec.operator.states},
        )
        if begins is not None:
            self._backend = self._backend_with(())
            self._begin_with(begins)

    @property
    def _uid(self) -> str:
        return self._spec.uid

    def _as_key(self, key: Any) -> Any:
        return key

    def _operator_state(self) -> OperatorState:
        return self._state

    def _serializer(self, of: str) -> None:
        operator = self._node.columnar if self._node is not None else None
        if isinstance(operator, ReadyOperator):
            raise UsageError(
                f"the states of {self._uid} ({operator.kind}) have no feed: its rows say themselves what has changed"
            )

    @classmethod
    def of(
        cls,
        flow: Flow,
        uid: str,
        *,
        rows: Sequence[Any] = (),
        after: ColumnarHarness | RecordedState | None = None,
        **arguments: Any,
    ) -> ColumnarHarness:
        """A columnar operator of a pipeline, such as an aggregate or a window:
        `ColumnarHarness.of(pipeline.build({...}), "per-minute")`. `rows` are the types of its inputs, where the pipeline does not say
        them. The further arguments are `now`, `parameters`, `max_parallelism` and `after`.

        Its watermark is the operator's own. In a run the operators before it may hold it back, and a batch's is ahead of it then."""
        node = next((node for node in flow.operators if node.uid == uid), None)
        types = tuple(map(row_type, rows)) or (node.rows if node is not None else ())
        if node is None or node.columnar is None or node.output is None or None in types:
            columnar = [node.uid for node in flow.operators if node.columnar is not None]
            raise UsageError(
                f"flow {flow.name!r} has no columnar operator {uid!r} whose rows have a type; it has "
                f"{', '.join(columnar) or 'none'}"
            )
        outputs: list[Output[Any]] = [
            Output(name, rows) for name, rows in node.sides.items() if name != DEAD_LETTERS
        ]
        operator = partial(runnable, node.columnar, frozenset(node.sides))
        harness = cls(
            operator(), *types, key=node.keyed[0].columns, right_key=node.keyed[-1].columns,
            output=node.output, outputs=outputs, **arguments,
        )  # fmt: skip
        harness._outputs |= node.sides
        schemas = {name: arrow_schema_of(of) for name, of in harness._outputs.items()}
        never_null = {name: of.never_null for name, of in harness._outputs.items()}
        harness._spec = replace(harness._spec, uid=uid, outputs=schemas, never_null=never_null)
        harness._operator = operator
        harness._node = node
        harness._release(node, after)
        return harness

    def rows(self, *rows: Any, late: Sequence[bool] | None = None) -> list[Any]:
        """One batch of input rows: objects, dicts, or one Arrow table; gives the rows that it puts out. `late` overrides what
        their event times say."""
        if len(self._rows) != 1:
            raise UsageError(f"{self._spec.uid} has two inputs: feed it with both(left, right)")
        return self._batch([self._table(0, rows)], None if late is None else [late])

    def both(
        self, left: Any = (), right: Any = (), *, late: Sequence[Sequence[bool]] | None = None
    ) -> list[Any]:
        """A batch with rows of both inputs, each an iterable of rows or an Arrow table. `late` overrides what the event times of
        each say."""
        if len(self._rows) != 2:
            raise UsageError(f"{self._spec.uid} has one input: feed it with rows()")
        sides = [(side,) if isinstance(side, pa.Table) else tuple(side) for side in (left, right)]
        return self._batch([self._table(index, side) for index, side in enumerate(sides)], late)

    def state(self, name: str = ALONE) -> Any:
        """A state, for reading: `harness.state().get(pa.array([1]))`."""
        engine = self._engine()
        if name not in engine.states:
            raise UsageError(f"{self._spec.uid} has no state {name!r}: it has {', '.join(engine.states)}")
        return engine.states[name]

    def _table(self, index: int, rows: tuple[Any, ...]) -> pa.Table:
        """The rows as a run would hand them over: columns of the input's row type."""
        of = self._rows[index]
        schema = arrow_schema_of(of)
        if len(rows) == 1 and isinstance(rows[0], pa.Table):
            columns = [self._cast(of, rows[0], field) for field in schema]
        else:
            self._refuse_unknown(of, rows)
            columns = [self._column(of, rows, field) for field in schema]
        table = pa.table(columns, schema=schema)
        for name in self._keys[index]:
            if not self._operator().null_keys and table.column(name).null_count:
                raise UsageError(f"a row has no {name!r}, which is its key: {without_nulls(name)}")
        return table

    def _cast(self, of: RowType, table: pa.Table, field: pa.Field) -> Any:
        if field.name not in table.column_names:
            raise self._lacks(of, "the table", field.name)
        try:
            check_cast(table.column(field.name), field.type)
            return cast_by_digits(table.column(field.name), field.type)
        except (TypeError, ValueError, pa.ArrowException) as error:
            given = f"a {table.schema.field(field.name).type}"
            raise self._misfit(given, field, error) from error

    def _column(self, of: RowType, rows: Sequence[Any], field: pa.Field) -> Any:
        for row in rows:
            if not isinstance(row, dict) and not hasattr(row, field.name):
                raise self._lacks(of, f"the row {shown(row)}", field.name)
        values = [row.get(field.name) if isinstance(row, dict) else getattr(row, field.name) for row in rows]
        try:
            return array_of(values, field.type)
        except MISFITS as error:
            given = next((shown(value) for value in values if not _fits(value, field.type)), "values")
            raise self._misfit(given, field, error) from error

    def _refuse_unknown(self, of: RowType, rows: Sequence[Any]) -> None:
        """A misspelt column of a dict would be a null. One that is left out is meant as one."""
        known = set(of.names)
        for row in rows:
            if isinstance(row, dict) and (unknown := sorted(map(str, row.keys() - known))):
                raise UsageError(no_column(f"operator {self._spec.uid!r}", of, unknown[0]))

    def _lacks(self, of: RowType, what: str, name: str) -> UsageError:
        return UsageError(
            f"operator {self._spec.uid!r}: {what} has no {name!r}: give it every column of {of.name}, which are "
            f"{', '.join(of.names)}"
        )

    def _misfit(self, given: str, field: pa.Field, error: Exception) -> UsageError:
        kind, reason = field.type, " ".join(str(error).split())
        step = "give it values of that type, or declare another one"
        if pa.types.is_decimal(kind):
            step = f"give it Decimals of {kind.scale} decimal places, or declare more, as in Annotated[Decimal, 'decimal(38,18)']"
        return UsageError(
            f"operator {self._spec.uid!r}: column {field.name!r} is a {kind} and was given {given} ({reason}): {step}"
        )

    def _batch_without_rows(self) -> list[Any]:
        return self._batch([], None)

    def _batch(self, tables: list[pa.Table], late: Sequence[Sequence[bool]] | None) -> list[Any]:
        self._before = self.recorded()
        self._slot += 1
        before = self._before.entries
        engine = self._engine()
        produced: dict[str, list[Any]] = {name: [] for name in self._outputs}
        try:
            if any(table.num_rows for table in tables):
                flags = late if late is not None else [None] * len(tables)
                late_rows = [self._late(table, given) for table, given in zip(tables, flags, strict=True)]
                self._gather(engine.process(tables, late_rows), produced)
            self._gather(engine.fire(), produced)
            self._earliest = engine.next_due()
        except BaseException:
            # As in a run: a batch that fails has changed nothing.
            self._backend = self._backend_with(before)
            raise
        self._watermark_before = self.watermark
        self._count(engine.context.metrics.counters)
        return self._put_out(produced.pop(MAIN), produced)

    def _gather(self, batches: Iterator[tuple[str, Any]], into: dict[str, list[Any]]) -> None:
        for name, batch in batches:
            of = self._outputs[name]
            into[name] += [of.make(**row) if of.typed else row for row in batch.to_pylist()]

    def _late(self, table: pa.Table, given: Sequence[bool] | None) -> Any:
        if given is not None:
            return pa.array(given, pa.bool_())
        if self._event_time is None or self.watermark is None or self._event_time not in table.column_names:
            return pa.array(np.zeros(table.num_rows, dtype=bool))
        at = table.column(self._event_time).combine_chunks()
        micros = at.cast(pa.int64()).fill_null(micros_since_epoch(self.watermark) + 1).to_numpy()
        return pa.array(is_late(micros, micros_since_epoch(self.watermark)))

    def _engine(self) -> ColumnarEngine:
        # As in a run: a batch knows nothing of the one before but the state.
        spec = replace(self._spec, operator=self._operator(), **self._lag())
        engine = ColumnarEngine(spec, self._moment(self._parameters), self._subtask[0])
        engine.attach(self._watch(), range(self._max), self._earliest, empty=False)
        return engine


def _names(key: str | Sequence[str]) -> tuple[str, ...]:
    return (key,) if isinstance(key, str) else tuple(key)


def _key_type(rows: RowType, name: str) -> str:
    field = rows.field(name)
    if field is None:
        raise UsageError(f"{rows.name} has no column {name!r}; it has {', '.join(rows.names)}")
    kind = key_type(field.type)
    if kind is None:
        raise UsageError(
            f"column {name!r} is a {field.type}, which cannot be a key: {key_advice(field.type)}"
        )
    return kind


def _fits(value: Any, kind: pa.DataType) -> bool:
    try:
        array_of([value], kind)
    except MISFITS:
        return False
    return True
