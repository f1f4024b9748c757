"""Columnar operators: code that gets whole Arrow tables, and reads and writes state in bulk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from stateflow.errors import UsageError
from stateflow.format.layout import checked_name
from stateflow.state.columns.layout import ColumnLayout

if TYPE_CHECKING:
    import pyarrow as pa

    from stateflow.pipelines.processes.process import Metrics

CHUNK_ROWS = 2_000_000
ALONE = "columns"
"""The name of a state that is declared without one."""

Produced = Any
"""An Arrow table or record batch of output rows, `(name of a side output, table)`, many of these, or None."""


class ColumnarContext(Protocol):
    """What columnar code can ask. Every answer is the same when the batch is replayed."""

    @property
    def now(self) -> Any:
        """The batch's processing time, fixed when it began: a datetime. `now_micros` is the same as an int."""
        ...

    @property
    def now_micros(self) -> int: ...
    @property
    def watermark(self) -> Any:
        """Only later events are expected: a datetime, None before the first one. `watermark_micros` is the same as an int."""
        ...

    @property
    def watermark_micros(self) -> int | None: ...
    @property
    def late(self) -> Any:
        """For each row of the table whether it was at or behind the watermark when it entered: a boolean array. With two
        inputs a tuple of two. None in `fire`."""
        ...

    @property
    def random(self) -> Any:
        """Seeded by batch and subtask."""
        ...

    @property
    def checkpoint_id(self) -> int: ...
    @property
    def subtask(self) -> int: ...
    @property
    def parameters(self) -> Mapping[str, Any]: ...
    @property
    def metrics(self) -> Metrics: ...


class ColumnarOperator:
    """A columnar operator. It is made on the driver, and every task works with a copy.

    `process` gets the rows of whole keys: all of a key's rows of the batch are in one table (only a key with more than
    `chunk_rows` rows comes in several), columns as the input stream has them. `fire` is called after the rows of a shard,
    and for shards without rows in which a timed state has something due. Both return or yield tables of output rows;
    `(name, table)` goes to a side output.
    """

    states: Mapping[str, ColumnLayout]
    chunk_rows: int = CHUNK_ROWS
    """Most rows of a table."""
    ordered: bool = False
    """Whether a key's rows must lie together, in the order of `order_by`. It costs a sort."""
    null_keys: bool = False
    """True if the operator also gets rows with a null in their key. They have no state."""
    is_wide: bool = False
    """Whether texts and bytes come in the wide types of Arrow, `large_string` and `large_binary`, and may be put out in them. One
    array of the others holds 2 GiB."""
    waits: int = 0
    """By how many microseconds, at most, `next_due` is later than the earliest time of the timed states."""

    def process(self, rows: pa.Table, states: Mapping[str, Any], ctx: ColumnarContext) -> Produced:
        raise NotImplementedError(f"{type(self).__name__} does not define process(self, rows, states, ctx)")

    def process_both(
        self, left: pa.Table, right: pa.Table, states: Mapping[str, Any], ctx: ColumnarContext
    ) -> Produced:
        """In place of `process` for two inputs: the rows of the same keys of both. One of them may be empty."""
        raise NotImplementedError(
            f"{type(self).__name__} does not define process_both(self, left, right, states, ctx)"
        )

    def fire(self, states: Mapping[str, Any], ctx: ColumnarContext) -> Produced:
        """Called when time has passed: see `due` and `delete_due` of timed states."""
        return None

    def next_due(self, states: Mapping[str, Any]) -> int | None:
        """When the watermark has reached this instant, `fire` is called also without rows: the earliest time of the timed
        states, or up to `waits` later. In microseconds; None when nothing is due, or nobody would see to it: then nothing
        would come of the batches without rows, and a run would take them for ever."""
        if not self.fires:
            return None
        times = [at for state in states.values() if state.timed and (at := state.next_due()) is not None]
        return min(times, default=None)

    @property
    def fires(self) -> bool:
        """Whether the operator has work to do when time passes."""
        return type(self).fire is not ColumnarOperator.fire


@dataclass(frozen=True, eq=False)
class FunctionOperator(ColumnarOperator):
    """The operator that `process_arrow` makes of functions."""

    function: Callable[..., Any]
    states: Mapping[str, ColumnLayout]
    chunk_rows: int = CHUNK_ROWS
    ordered: bool = False
    on_due: Callable[..., Any] | None = None
    alone: bool = False
    """True if the functions get the only state itself, and no mapping of states by name."""

    def process(self, rows: pa.Table, states: Mapping[str, Any], ctx: ColumnarContext) -> Produced:
        return self.function(rows, self._given(states), ctx)

    def process_both(
        self, left: pa.Table, right: pa.Table, states: Mapping[str, Any], ctx: ColumnarContext
    ) -> Produced:
        return self.function(left, right, self._given(states), ctx)

    def fire(self, states: Mapping[str, Any], ctx: ColumnarContext) -> Produced:
        return None if self.on_due is None else self.on_due(self._given(states), ctx)

    @property
    def fires(self) -> bool:
        return self.on_due is not None

    def _given(self, states: Mapping[str, Any]) -> Any:
        return states[ALONE] if self.alone else states


def columnar_operator(
    uid: str,
    code: Callable[..., Any] | ColumnarOperator,
    state: Mapping[str, Any] | ColumnLayout | None,
    on_due: Callable[..., Any] | None,
    chunk_rows: int,
    keys: Sequence[str],
    order_by: Iterable[str],
) -> ColumnarOperator:
    """The operator for the arguments of `process_arrow`, which it checks."""
    if isinstance(code, ColumnarOperator):
        if state is not None or on_due is not None:
            raise UsageError(
                f"operator {uid!r}: {type(code).__name__} says itself what state it has, and what is due: leave state= and "
                "on_due= out"
            )
        operator = code
    else:
        operator = _of_functions(uid, code, state, on_due, chunk_rows, bool(tuple(order_by)))
    for name, layout in operator.states.items():
        checked_name("state", name)
        layout.check(f"operator {uid!r}" if name == ALONE else f"operator {uid!r}, state {name!r}", keys)
    return operator


def _of_functions(
    uid: str, function: Any, state: Any, on_due: Any, chunk_rows: int, ordered: bool
) -> FunctionOperator:
    if not callable(function):
        raise UsageError(
            f"operator {uid!r}: {function!r} is no function of (table, state, ctx), and no ColumnarOperator"
        )
    if state is None:
        raise UsageError(f"operator {uid!r}: say what state it has, such as state={{'total': float}}")
    if isinstance(state, ColumnLayout):
        return FunctionOperator(function, {ALONE: state}, chunk_rows, ordered, on_due, True)
    layouts = {name: each for name, each in state.items() if isinstance(each, ColumnLayout)}
    if layouts and len(layouts) < len(state):
        plain = next(name for name in state if name not in layouts)
        raise UsageError(
            f"operator {uid!r}: {plain!r} stands beside states of sf.columns(...), so it must be one too: write "
            f"{plain!r}: sf.columns({{...}})"
        )
    if layouts:
        return FunctionOperator(function, layouts, chunk_rows, ordered, on_due)
    return FunctionOperator(function, {ALONE: ColumnLayout(dict(state))}, chunk_rows, ordered, on_due, True)
