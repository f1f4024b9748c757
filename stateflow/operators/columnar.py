"""The engine of columnar operators: tables of whole keys in, output batches and state changes out.

Like the keyed engine it knows no Spark: a Spark task and the test harness drive it alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from stateflow.errors import StateflowError, UsageError, UserCodeError, placed
from stateflow.format.instants import nearest_instant
from stateflow.format.records import ExpiryShare, StateSchema
from stateflow.operators.arrow_types import narrow_pieces, wide_table
from stateflow.operators.combined import Combinable
from stateflow.operators.context import Moment, OperatorContext
from stateflow.operators.engine import REPEATED
from stateflow.operators.expiry import OperatorExpiry
from stateflow.operators.filled import filled
from stateflow.operators.lateness import ahead, of_rows_and_timers
from stateflow.operators.output import null_refused
from stateflow.pipelines.processes.columnar import ColumnarOperator
from stateflow.pipelines.processes.operator_spec import DEAD_LETTERS, MAIN
from stateflow.pipelines.processes.process import Output
from stateflow.pipelines.rows.defaults import Default
from stateflow.state.backends.base import Backend
from stateflow.state.columns.state import UNKNOWN, ColumnState
from stateflow.state.cursor import Cursor
from stateflow.state.expiry.index import Expiry, expiry_of_schema
from stateflow.state.values.arrow.digits import cast_by_digits
from stateflow.state.values.arrow.lossless_casts import check_cast

TABLE_ROWS = 100_000
"""Most rows of an output batch."""


@dataclass(frozen=True)
class ColumnarSpec:
    """One columnar operator of a pipeline: plain values that travel to the workers."""

    uid: str
    operator: ColumnarOperator
    key: tuple[tuple[str, str], ...]
    """Names and types of the key's columns."""
    max_parallelism: int
    states: Mapping[str, StateSchema]
    """Of the states that the operator declares, with their ids."""
    outputs: Mapping[str, pa.Schema]
    """The main output and those to the side."""
    never_null: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Per output, its columns that are declared as `not null`."""
    defaults: tuple[Mapping[str, Default], ...] = ()
    """Per input, what stands for a null in a column that is no key."""
    waited: bool = False
    """True if rows come from another operator, which puts them out when the watermark has reached them. Such rows are late by
    the watermark of the batch before: they are ahead of it."""
    held_back: int = 0
    """By how many microseconds the operator's watermark is behind that of the batch: its rows may be that far behind."""


class TaskColumnarContext(OperatorContext):
    """One per task."""

    late: Any
    """For each row whether it was late."""

    def __init__(self, moment: Moment, subtask: int) -> None:
        super().__init__(Cursor(moment.slot, moment.now), moment, subtask, {})
        self.late = None
        self.now_micros = moment.now
        self.watermark_micros = moment.watermark

    def go_by(self, watermark: int | None) -> None:
        self.watermark_micros = watermark
        self.watermark = None if watermark is None else nearest_instant(watermark)

    def emit(self, output: Output[Any], row: Any) -> None:
        raise UsageError(
            f"columnar code puts tables out to the side by their name: yield ({output.name!r}, table) in place of ctx.emit"
        )


class ColumnarEngine:
    """One operator in one task. `attach` a shard's backend, `process` tables, `fire`: both give `(output, batch)`."""

    def __init__(self, spec: ColumnarSpec, moment: Moment, subtask: int) -> None:
        self.spec = spec
        self.context = TaskColumnarContext(moment, subtask)
        expiries = {
            name: expiry_of_schema(schema, moment.now, moment.watermark, moment.slot + moment.shift)
            for name, schema in spec.states.items()
        }
        self.expiry = OperatorExpiry(
            [e for e in expiries.values() if e is not None and e.indexed], moment.slot
        )
        self._watermark_of_rows, self._watermark = of_rows_and_timers(
            moment, waited=spec.waited, held_back=spec.held_back
        )
        self.dead_letters = 0
        """Keys whose rows were diverted."""
        self.states = {
            name: self._state(name, schema, expiries[name]) for name, schema in spec.states.items()
        }

    def _state(self, name: str, schema: StateSchema, expiry: Expiry | None) -> ColumnState:
        spec = self.spec
        where = f"operator {spec.uid!r}"
        if len(spec.states) > 1:
            where += f", state {name!r}"
        return ColumnState(
            spec.key, schema, spec.max_parallelism, where, expiry, is_wide=spec.operator.is_wide
        )

    def attach(
        self, backend: Backend, groups: range, next_due: int | None, *, empty: bool,
        expiring: Sequence[ExpiryShare] = (),
    ) -> None:  # fmt: skip
        """Turns to another shard: its key groups, what `next_due` and its record said of it, whether it has no entries."""
        waits = self.spec.operator.waits + self.spec.held_back
        earliest = UNKNOWN if next_due is None else next_due - waits
        for state in self.states.values():
            state.attach(backend, groups, earliest, empty=empty)
        self.expiry.attach(backend, expiring)

    @property
    def changed(self) -> bool:
        """Whether the attached shard was written to."""
        return self.expiry.wrote or any(state.changed for state in self.states.values())

    @property
    def keys(self) -> int:
        """Keys that were looked up."""
        return max((state.keys for state in self.states.values()), default=0)

    @property
    def groups(self) -> int:
        """How many combined rows the rows of an operator that can be combined would have made."""
        operator = self.spec.operator
        return operator.groups if isinstance(operator, Combinable) else 0

    def process(self, tables: Sequence[pa.Table], late: Sequence[Any]) -> Iterator[tuple[str, Any]]:
        """Hands the rows of each input to user code."""
        operator = self.spec.operator
        self.context.go_by(self._watermark_of_rows)
        if any(self.spec.defaults):
            by_input = zip(tables, self.spec.defaults, strict=True)
            tables = [filled(self.spec.uid, table, defaults) for table, defaults in by_input]
        if operator.is_wide:
            tables = [wide_table(table) for table in tables]
        if len(tables) == 1:
            self.context.late = late[0]
            yield from self._batches(lambda: operator.process(tables[0], self.states, self.context))
        else:
            left, right = tables
            self.context.late = tuple(late)
            yield from self._batches(lambda: operator.process_both(left, right, self.states, self.context))

    def fire(self) -> Iterator[tuple[str, Any]]:
        """Calls user code for entries that are due."""
        self.context.late = None
        self.context.go_by(self._watermark)
        yield from self._batches(lambda: self.spec.operator.fire(self.states, self.context))

    def next_due(self) -> int | None:
        """The watermark at which a batch has something to do in the attached shard, even without rows."""
        return ahead(self.spec.operator.next_due(self.states), self.spec.held_back)

    def _batches(self, code: Callable[[], Any]) -> Iterator[tuple[str, Any]]:
        for name, piece in self._pieces(code):
            schema = self._schema(name)
            try:
                whole = pa.table(piece).select(schema.names)
                self._check_casts(name, whole, schema)
                tables = [_fitted(each, schema) for each in narrow_pieces(whole)]
            except (KeyError, TypeError, ValueError, pa.ArrowException) as error:
                output = "its output" if name == MAIN else f"side output {name!r}"
                raise UsageError(
                    f"operator {self.spec.uid!r} put out a table that does not fit {output} ({', '.join(schema.names)}): "
                    f"{' '.join(str(error).split())}"
                ) from error
            for column in self.spec.never_null.get(name, ()):
                if any(table.column(column).null_count for table in tables):
                    raise null_refused(f"operator {self.spec.uid!r}", column)
            for table in tables:
                if name == DEAD_LETTERS:
                    self.dead_letters += table.num_rows
                for batch in table.to_batches(max_chunksize=TABLE_ROWS):
                    yield name, batch

    def _check_casts(self, name: str, table: pa.Table, schema: pa.Schema) -> None:
        for column, wanted in zip(table.columns, schema, strict=True):
            try:
                check_cast(column, wanted.type)
            except pa.ArrowException:
                # Arrow says so again, and better, when the whole table is cast.
                continue
            except (TypeError, ValueError) as error:
                where = f"operator {self.spec.uid!r}" + ("" if name == MAIN else f", side output {name!r}")
                raise UsageError(
                    f"{where} put out {column.type} in column {wanted.name!r}, which is a {wanted.type}: {error}"
                ) from error

    def _schema(self, name: Any) -> pa.Schema:
        schema = self.spec.outputs.get(name) if isinstance(name, str) else None
        if schema is None:
            raise UsageError(
                f"operator {self.spec.uid!r} put out a table to {name!r}, which is none of its side outputs: list it in "
                "outputs=[...]"
            )
        return schema

    def _pieces(self, code: Callable[[], Any]) -> Iterator[tuple[str, Any]]:
        """What user code puts out: one table, or several, as it yields them, each with the name of its output."""
        try:
            out = code()
            if out is None:
                return
            if isinstance(out, (pa.Table, pa.RecordBatch)) or _to_side(out):
                out = (out,)
            for piece in out:
                yield piece if _to_side(piece) else (MAIN, piece)
        except StateflowError:
            raise
        except Exception as error:
            raise UserCodeError(f"operator {self.spec.uid!r} failed: {placed(error)}: {REPEATED}") from error


def _fitted(table: pa.Table, schema: pa.Schema) -> pa.Table:
    columns = [
        cast_by_digits(column, field.type) for column, field in zip(table.columns, schema, strict=True)
    ]
    # Casting a table refuses a null where none may be.
    return pa.table(columns, names=schema.names).cast(schema)


def _to_side(piece: Any) -> bool:
    return isinstance(piece, tuple) and len(piece) == 2 and isinstance(piece[0], str)
