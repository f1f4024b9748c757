"""Code per window as users write it: a class whose `process` gets the rows of a window when it closes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Generic, TypeVar, get_args, get_origin

from stateflow.errors import UsageError
from stateflow.pipelines.processes.columnar import ColumnarContext
from stateflow.pipelines.processes.operator_spec import check_on_error
from stateflow.pipelines.ready.aggregates import Aggregate, Aggregated, kept_as
from stateflow.pipelines.ready.fixed_options import waits_no_longer, windowing
from stateflow.pipelines.ready.operators import (
    LATE,
    Diverting,
    KeyedRows,
    WindowAggregate,
    refuse_bounds,
    stored_name,
    window_states,
)
from stateflow.pipelines.ready.stored_forms import row_form
from stateflow.pipelines.ready.windows import LENIENT, Counted, Window
from stateflow.pipelines.rows.row_type import Field, RowType, row_type
from stateflow.state.columns.layout import ColumnLayout

K = TypeVar("K")
R = TypeVar("R")
O = TypeVar("O")  # noqa: E741 - the row types are key, row and output

ENCODED = "encoded_row"
"""The column, and the state, that has whole rows."""


@dataclass(frozen=True, slots=True)
class WindowBounds:
    """The window holds the rows from `start` up to, and without, `end`; a window of a count ends with its last row."""

    start: datetime
    end: datetime


class WindowProcess(Generic[K, R, O]):
    """One call of `process` per key and window, when the window closes, with all of its rows: in the key's `order_by`, or else in
    the order of event time. An object of the class is made for every batch: what it must remember is in the rows."""

    def process(
        self, key: K, window: WindowBounds, rows: list[R], ctx: ColumnarContext
    ) -> Iterable[O] | None:
        raise NotImplementedError(
            f"{type(self).__name__} does not define process(self, key, window, rows, ctx)"
        )


@dataclass(frozen=True)
class WindowCode(Diverting):
    """A window operator that keeps rows and hands them to code."""

    kind: ClassVar[str] = "window code"
    holds_back: ClassVar[str] = "windows"
    waits_for_watermark: ClassVar[bool] = True

    inner: WindowAggregate | None = None
    """Keeps the rows of each window, encoded, as an aggregate would be kept."""
    code: type[WindowProcess[Any, Any, Any]] = WindowProcess
    code_rows: RowType | None = None
    """The rows that the code gets."""
    order: tuple[str, ...] = ()
    on_error: str = "fail"
    kept: tuple[Field, ...] = ()
    """The columns of the rows that open windows have."""

    @property
    def blocks(self) -> Mapping[str, ColumnLayout]:
        columns = ColumnLayout({field.name: kept_as(field.type) or str for field in self.kept})
        return {
            name: columns
            for name, layout in self.states.items()
            if ENCODED in layout.columns or stored_name(ENCODED) in layout.columns
        }

    @property
    def forms(self) -> Mapping[str, str]:
        return {field.name: row_form(field.type) for field in self.kept}

    @property
    def renamed(self) -> Mapping[str, tuple[str, ...]]:
        # The class of the source's rows may say it, or the class that the code gets.
        given = {field.name: field.aliases for field in self.code_rows.fields} if self.code_rows else {}
        return {field.name: (*field.aliases, *given.get(field.name, ())) for field in self.kept}

    @property
    def fixed(self) -> Mapping[str, str]:
        assert self.inner is not None
        return windowing(self.inner.window, self.inner.time, self.inner.lateness)

    @property
    def description(self) -> Mapping[str, str]:
        return self.inner.description if self.inner is not None else {}

    def reads_as(self, option: str, before: str) -> bool:
        return self.inner is not None and waits_no_longer(option, before, self.inner.lateness)

    @property
    def sides(self) -> Mapping[str, RowType]:
        return {LATE: self.rows, **super().sides}


def window_code(
    keyed: KeyedRows,
    code: Any,
    output: Any,
    *,
    window: Window,
    time: str,
    lateness: int,
    on_error: str,
    late: str = LENIENT,
) -> WindowCode:
    uid, rows = keyed.uid, keyed.known()
    if not isinstance(code, type) or not issubclass(code, WindowProcess):
        raise UsageError(f"operator {uid!r}: {getattr(code, '__name__', repr(code))} is not a WindowProcess")
    check_on_error(uid, on_error)
    refuse_bounds(f"operator {uid!r}", keyed)
    arguments = _arguments(code)
    put_out = output if output is not None else (arguments[2] if arguments else None)
    if put_out in (None, type(None), Any):
        raise UsageError(
            f"operator {uid!r}: say what {code.__name__} puts out, as WindowProcess[..., Output] or output=..."
        )
    hint = arguments[1] if arguments else None
    given = row_type(hint) if hint not in (None, Any, dict) else rows
    for field in given.fields:
        _check_given(uid, rows, field)
    encoded = RowType(
        rows.name,
        (*(f for f in rows.fields if f.name in (*keyed.columns, time)), Field(ENCODED, "binary")),
        rows.make,
        False,
    )
    fields = tuple(
        column for name in kept_names(given, keyed.order_by or (time,)) if (column := rows.field(name))
    )
    waits = isinstance(window, Counted)
    named = () if waits else tuple(field.name for field in fields)
    kept = Aggregated(ENCODED, Aggregate("rows", ENCODED), "binary", {ENCODED: bytes}, kept=named)
    names = ", ".join(f"`{name}` {f.type}" for name in keyed.columns if (f := rows.field(name)) is not None)
    inner = WindowAggregate(
        uid, keyed.key(), encoded,
        row_type(f"{names}, window_start timestamp, window_end timestamp, {ENCODED} binary"),
        window_states(
            uid, {ENCODED: bytes}, {stored_name(ENCODED): bytes}, window=window, emit="final", lateness=lateness
        ),
        encoded.names, None, (kept,), time, window, lateness, "final", late=late,
    )  # fmt: skip
    return WindowCode(
        uid, keyed.key(), rows, row_type(put_out), inner.states,
        tuple(name for name in rows.names if name in {*keyed.columns, time, *given.names, *_named(keyed.order_by)}),
        None, inner, code, given, keyed.order_by or (time,), on_error, fields,
    )  # fmt: skip


def kept_names(given: RowType, order_by: tuple[str, ...]) -> list[str]:
    """The columns that the code gets, and those that order them."""
    return list(dict.fromkeys((*given.names, *(by.removeprefix("-") for by in order_by))))


def _named(order_by: tuple[str, ...]) -> set[str]:
    return {each.removeprefix("-") for each in order_by}


def _check_given(uid: str, rows: RowType, field: Field) -> None:
    column = rows.field(field.name)
    if column is None:
        raise UsageError(
            f"operator {uid!r}: its rows have no column {field.name!r}; {rows.name} has {', '.join(rows.names)}"
        )
    nested = column.type.partition("<")[2]
    if field.hint is None and any(word in nested for word in ("date", "decimal")):
        raise UsageError(
            f"operator {uid!r} cannot keep column {field.name!r} ({column.type}) without its Python type: give the rows a class"
        )


def _arguments(cls: type[Any]) -> tuple[Any, ...]:
    """The types in `WindowProcess[int, Order, Visit]`; empty when the class names none."""
    for klass in cls.__mro__:
        for base in getattr(klass, "__orig_bases__", ()):
            if get_origin(base) is WindowProcess:
                arguments = get_args(base)
                if not any(isinstance(each, TypeVar) for each in arguments):
                    return arguments
    return ()
