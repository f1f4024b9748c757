"""Ready-made operators as a pipeline declares them: plain values, checked before anything runs.

`operators/ready` makes the columnar operators of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, ClassVar

from stateflow.errors import UsageError
from stateflow.format.instants import BEGIN_OF_TIME, END_OF_TIME
from stateflow.pipelines.processes.columnar import ColumnarOperator
from stateflow.pipelines.processes.operator_spec import (
    DEAD_LETTER,
    DEAD_LETTER_SCHEMA,
    DEAD_LETTERS,
    check_on_error,
)
from stateflow.pipelines.ready.aggregates import Aggregate, Aggregated, aggregated, fits, kept_as
from stateflow.pipelines.ready.fixed_options import (
    NONE,
    aggregate_options,
    duration,
    strictness,
    waits_no_longer,
    windowing,
)
from stateflow.pipelines.ready.stored_forms import PLAIN, form_of, is_ambiguous
from stateflow.pipelines.ready.windows import LENIENT, Counted, Cumulative, Session, Window
from stateflow.pipelines.rows.row_type import RowType, key_type, row_type
from stateflow.state.columns.layout import ColumnLayout
from stateflow.state.expiry.ttl import Ttl, ttl_of

LATE = "late"
"""The side output of rows that came when all of their windows were closed."""
LATE_ROWS = "late_rows"
"""The counter of rows that are late for an operator."""
PARTLY_LATE_ROWS = "partly_late_rows"
"""The counter of rows that an operator takes although one of their windows has come out without them, or may have."""
WINDOW_START, WINDOW_END = "window_start", "window_end"
SESSION_START, SESSION_END = "session_start", "session_end"
"""The columns of a session in state: its start, by which it is stored beside its key, and its end."""
UNTIL, ROW_TIME, ROW_THERE = "until", "time_of_row", "is_row"
FOREVER, BEGINNING = END_OF_TIME, BEGIN_OF_TIME
"""The last instant that there is, and the first."""
SEEN, VALUE = "seen", "distinct_value"
PANE = "is_pane"
FILLED, FIRST_TIME, LAST_TIME, NUMBER = "rows_so_far", "first_time", "last_time", "number"
"""For a window of a count: how full it is, the times of its rows, and what tells rows of one time apart."""
EMITS = ("final", "changes", "on_time")


@dataclass(frozen=True)
class ReadyOperator(ColumnarOperator):
    """What every ready-made operator has."""

    kind: ClassVar[str] = ""
    """Its name in records and messages. It stays when the class gets another name."""
    operation: ClassVar[str] = ""
    """The output column that says whether a change is an upsert or a delete; empty when none is a delete."""
    holds_back: ClassVar[str] = ""
    """The rows that come out only when the watermark has passed their time, and without the time of their source; empty: none."""
    waits_for_watermark: ClassVar[bool] = False
    """Whether rows come out in the very batch whose watermark releases them."""
    keeps_rows: ClassVar[bool] = False
    """Whether columns of its rows are columns of its state, under their `stored_name`."""

    uid: str
    key: tuple[tuple[str, str], ...]
    """The names and the types of the key columns."""
    rows: RowType
    """The input's rows."""
    output: RowType
    states: Mapping[str, ColumnLayout]
    reads: tuple[str, ...]
    """The input columns that it needs: all of them if it puts out late rows."""
    changes: tuple[str, ...] | None
    """The columns by which an output row replaces an earlier one; None when each row is one of its own."""

    @property
    def where(self) -> str:
        return f"operator {self.uid!r}"

    @property
    def key_columns(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.key)

    @property
    def sides(self) -> Mapping[str, RowType]:
        return {}

    @property
    def letters_have_all_columns(self) -> bool:
        """Whether its dead letters also have the columns that the operator itself does not need."""
        return False

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings of what works and is perhaps not intended."""
        return ()

    @property
    def fixed(self) -> Mapping[str, str]:
        """By name, as text: the options that the state depends on. Another value could not read it."""
        return {}

    @property
    def description(self) -> Mapping[str, str]:
        """By name, as text: the options that a record keeps for people. Any state goes with them."""
        return {}

    @property
    def blocks(self) -> Mapping[str, ColumnLayout]:
        """By state, the columns of the rows in its blocks. The state's own type does not show them."""
        return {}

    @property
    def renamed(self) -> Mapping[str, tuple[str, ...]]:
        """Earlier names of the columns of rows that it keeps."""
        return {field.name: field.aliases for field in self.rows.fields}

    @property
    def forms(self) -> Mapping[str, str]:
        """By column of rows that it keeps, what its values mean there, where the recorded type does not say it."""
        if not self.keeps_rows:
            return {}
        kept = {name for layout in self.states.values() for name in layout.columns}
        return {
            field.name: form_of(field.type) or PLAIN
            for field in self.rows.fields
            if stored_name(field.name) in kept and is_ambiguous(field.type)
        }

    def reads_as(self, option: str, before: str) -> bool:
        """True if it reads the state although `option` was `before` when the state was made."""
        return False

    def needed(self, read: Set[str]) -> RowType:
        """The input columns that it needs; `read` are its outputs that have a reader."""
        if LATE in read or (DEAD_LETTERS in read and self.letters_have_all_columns):
            return self.rows
        return self.rows.only(self.reads)

    def needed_of_each(self, read: Set[str]) -> tuple[RowType, ...]:
        """The same for each of its inputs."""
        return (self.needed(read),)


class Diverting(ReadyOperator):
    """An operator that can put rows aside which it cannot take."""

    on_error: str

    @property
    def diverts(self) -> bool:
        return self.on_error == DEAD_LETTER

    @property
    def sides(self) -> Mapping[str, RowType]:
        return {DEAD_LETTERS: row_type(DEAD_LETTER_SCHEMA)} if self.diverts else {}


@dataclass(frozen=True)
class RunningAggregate(Diverting):
    """One row per key and batch with rows of it: the aggregates over all rows so far."""

    kind: ClassVar[str] = "running aggregate"

    aggregates: tuple[Aggregated, ...] = ()
    on_error: str = "fail"

    @property
    def letters_have_all_columns(self) -> bool:
        return self.diverts

    @property
    def forgets(self) -> bool:
        """Whether a key begins anew that had no row for long."""
        return self.states["aggregates"].ttl is not None

    @property
    def fixed(self) -> Mapping[str, str]:
        return aggregate_options(self.aggregates)


@dataclass(frozen=True)
class WindowAggregate(Diverting):
    """Aggregates per key and window of event time."""

    kind: ClassVar[str] = "window aggregate"
    holds_back: ClassVar[str] = "windows"
    waits_for_watermark: ClassVar[bool] = True

    aggregates: tuple[Aggregated, ...] = ()
    time: str = ""
    window: Window = field(default_factory=Window)
    lateness: int = 0
    emit: str = "final"
    on_error: str = "fail"
    late: str = LENIENT

    @property
    def keeps_rows(self) -> bool:  # type: ignore[override]
        return isinstance(self.window, Counted)

    @property
    def letters_have_all_columns(self) -> bool:
        # The rows of a window of a count wait, without the columns that it does not need.
        return self.diverts and not self.keeps_rows

    @property
    def fixed(self) -> Mapping[str, str]:
        return {
            **windowing(self.window, self.time, self.lateness), "emit": self.emit, **aggregate_options(self.aggregates),
        }  # fmt: skip

    @property
    def description(self) -> Mapping[str, str]:
        return strictness(self.late)

    def reads_as(self, option: str, before: str) -> bool:
        return waits_no_longer(option, before, self.lateness)

    @property
    def sides(self) -> Mapping[str, RowType]:
        return {LATE: self.rows, **super().sides}


@dataclass(frozen=True)
class Deduplicate(ReadyOperator):
    """One row per key, or per key and `within`."""

    kind: ClassVar[str] = "deduplication"
    keeps_rows: ClassVar[bool] = True

    time: str = ""
    """Without one, the order in which rows come decides."""
    within: int | None = None
    keep: str = "first"
    kept: tuple[str, ...] = ()
    """The columns beside the key and the time."""

    @property
    def fixed(self) -> Mapping[str, str]:
        return {"event time": self.time or NONE, "keep": self.keep, "within": duration(self.within)}

    def reads_as(self, option: str, before: str) -> bool:
        # Groups that are open end when they would have ended. Without an end, or with one for the first time, other states hold
        # the rows.
        return option == "within" and before != NONE and self.within is not None

    @property
    def holds_back(self) -> str:  # type: ignore[override]
        # The last row of a group comes out when the group is over, long after its time.
        return "rows" if self.waits_for_watermark and self.keep == "last" else ""

    @property
    def waits_for_watermark(self) -> bool:  # type: ignore[override]
        return "waiting" in self.states

    @property
    def sides(self) -> Mapping[str, RowType]:
        return {LATE: self.rows} if self.waits_for_watermark else {}

    @property
    def warnings(self) -> tuple[str, ...]:
        if self.within is not None:
            return ()
        return (
            (
                f"operator {self.uid!r} remembers every key for ever, so that its state grows with them: say within='7 days', or "
                "however long duplicates come"
            ),
        )


@dataclass(frozen=True)
class KeyedRows:
    """The rows that an operator is given, and how they are keyed."""

    uid: str
    rows: RowType | None
    columns: tuple[str, ...]
    order_by: tuple[str, ...]

    def known(self) -> RowType:
        if self.rows is None:
            raise UsageError(
                f"operator {self.uid!r} cannot tell the types of its columns: give flow.source(..., type) or "
                "transform(..., type=...) before it the type of the rows"
            )
        return self.rows

    def key(self) -> tuple[tuple[str, str], ...]:
        rows, key = self.known(), []
        for name in self.columns:
            column = rows.field(name)
            assert column is not None, "key_by() has checked it"
            key.append((name, str(key_type(column.type))))
        return tuple(key)


def running_aggregate(
    keyed: KeyedRows,
    output: Any,
    aggregates: Mapping[str, Any],
    *,
    on_error: str = "fail",
    ttl: str | timedelta | Ttl | None = None,
) -> RunningAggregate:
    uid, rows, out = keyed.uid, keyed.known(), row_type(output)
    check_on_error(uid, on_error)
    declared = _aggregated(keyed, aggregates)
    _check_output(keyed, out, declared, {})
    return RunningAggregate(
        uid,
        keyed.key(),
        rows,
        out,
        {
            "aggregates": ColumnLayout(_partials(uid, declared), ttl=_forgetting(uid, ttl, declared)),
            **_distinct_states(declared, timed=False),
        },
        _reads(keyed, declared),
        keyed.columns,
        declared,
        on_error,
    )


def _forgetting(uid: str, given: Any, aggregates: tuple[Aggregated, ...]) -> Ttl | None:
    if isinstance(given, Aggregate):
        raise UsageError(
            f"operator {uid!r}: ttl= is how long a key is known: give the aggregate another name"
        )
    for each in aggregates if given is not None else ():
        # Each value would be forgotten on its own, so long after it came first, and then count again.
        if each.value is not None:
            raise UsageError(
                f"operator {uid!r}: {each.name} keeps each value for ever, and cannot have a ttl: say approximate=True, or aggregate "
                "in windows"
            )
    return ttl_of(given)


def window_aggregate(
    keyed: KeyedRows,
    output: Any,
    aggregates: Mapping[str, Any],
    *,
    window: Window,
    time: str,
    lateness: int,
    emit: str,
    on_error: str = "fail",
    late: str = LENIENT,
) -> WindowAggregate:
    uid, rows, out = keyed.uid, keyed.known(), row_type(output)
    check_on_error(uid, on_error)
    refuse_bounds(f"operator {uid!r}", keyed)
    if emit not in EMITS:
        raise UsageError(f"operator {uid!r}: emit is 'final', 'changes' or 'on_time', not {emit!r}")
    declared = _aggregated(keyed, aggregates)
    _check_output(keyed, out, declared, {WINDOW_START: "timestamp", WINDOW_END: "timestamp"})
    telling = bounds_that_tell(window)
    bound = next((name for name in telling if name in out.names), "")
    if emit != "final" and not bound:
        raise UsageError(
            f"operator {uid!r}: with emit={emit!r} its rows replace each other by window, but {out.name} does not tell the "
            f"window: add the field {' or '.join(telling)}"
        )
    partials = _partials(uid, declared)
    counts = [each.name for each in declared if each.value is not None]
    if counts and isinstance(window, Session | Counted):
        reason = (
            "session windows grow together"
            if isinstance(window, Session)
            else "windows of a count have no end in time"
        )
        raise UsageError(
            f"operator {uid!r}: {reason}, so that {counts[0]!r} would have to be counted anew: say approximate=True, which is a "
            "sketch; the exact count is for the other windows"
        )
    reads = _reads(keyed, declared, time)
    row = tuple(name for name in reads if name not in (*keyed.columns, time))
    is_counted = isinstance(window, Counted)
    stored = stored_columns(uid, rows, row) if is_counted else {}
    distinct = _distinct_states(declared, timed=True)
    states = window_states(
        uid, partials, stored, window=window, emit=emit, lateness=lateness, distinct=distinct
    )
    if is_counted:
        states["waiting"] = replace(states["waiting"], renamed=former_columns(rows, row))
    return WindowAggregate(
        uid,
        keyed.key(),
        rows,
        out,
        states,
        reads,
        None if emit == "final" else (*keyed.columns, bound),
        declared,
        time,
        window,
        lateness,
        emit,
        on_error,
        late,
    )


def bounds_that_tell(window: Window) -> tuple[str, ...]:
    """The bounds of which each alone tells a window from the others of its key."""
    # Cumulative windows begin together.
    return (WINDOW_END,) if isinstance(window, Cumulative) else (WINDOW_START, WINDOW_END)


def refuse_bounds(where: str, keyed: KeyedRows) -> None:
    """Whether the key's columns can stand beside the bounds of the windows, which rows come out with."""
    for name in keyed.columns:
        if name.lower() in (WINDOW_START, WINDOW_END):
            raise UsageError(
                f"{where}: key column {name!r} is called as a bound of the windows is, and would come out as that: rename it "
                f"before, such as .transform(lambda frame: frame.withColumnRenamed({name!r}, 'of_{name}'), type=...)"
            )


def window_states(
    uid: str,
    partials: Mapping[str, type[Any]],
    row: Mapping[str, type[Any]],
    *,
    window: Window,
    emit: str,
    lateness: int,
    distinct: Mapping[str, ColumnLayout] = MappingProxyType({}),
) -> dict[str, ColumnLayout]:
    """What a window operator keeps; `row` are the columns of rows that wait."""
    if isinstance(window, Session | Counted) and emit != "final":
        reason = (
            "session windows grow together, so that rows put out before would have to be taken back"
            if isinstance(window, Session)
            else "a window of a count comes out when it is full"
        )
        raise UsageError(f"operator {uid!r}: {reason}: say emit='final'")
    for name in (SESSION_END, PANE, FILLED, FIRST_TIME, LAST_TIME):
        if name in partials:
            raise UsageError(f"operator {uid!r} keeps {name!r} itself: rename the aggregate")
    if isinstance(window, Session):
        by = {SESSION_START: datetime}
        return {
            "sessions": ColumnLayout({**partials, SESSION_END: datetime}, by=by),
            "ends": ColumnLayout(by=by, timed=True),
        }
    if isinstance(window, Counted):
        bounds = {FILLED: int, FIRST_TIME: datetime, LAST_TIME: datetime}
        return {
            "waiting": ColumnLayout({ROW_THERE: bool, **row}, by={NUMBER: int}, timed=True),
            "open": ColumnLayout({**partials, **bounds}, timed=True),
        }
    if emit == "final" and window.count > 1 and not distinct:
        return {
            "panes": ColumnLayout({**partials, PANE: bool}, timed=True),
            "ends": ColumnLayout(timed=True),
        }
    names = ("windows", "emitted") if emit == "on_time" and lateness > 0 else ("windows",)
    return {**{name: ColumnLayout(partials, timed=True) for name in names}, **distinct}


def stored_columns(uid: str, rows: RowType, names: tuple[str, ...]) -> dict[str, type[Any]]:
    """The state columns of columns of rows that wait."""
    stored: dict[str, type[Any]] = {}
    for name in names:
        column = rows.field(name)
        assert column is not None
        kind = kept_as(column.type)
        if kind is None:
            raise UsageError(
                f"operator {uid!r} cannot keep and compare column {name!r} ({column.type}): take it out, or make a string of "
                "it, with transform()"
            )
        stored[stored_name(name)] = kind
    return stored


def former_columns(rows: RowType, names: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Earlier names of these state columns, from the class of the rows."""
    fields = [field for field in rows.fields if field.name in names and field.aliases]
    return {stored_name(field.name): tuple(map(stored_name, field.aliases)) for field in fields}


def deduplicate(keyed: KeyedRows, *, time: str, within: int | None, keep: str) -> Deduplicate:
    uid, rows = keyed.uid, keyed.known()
    if keep not in ("first", "last"):
        raise UsageError(f"operator {uid!r}: keep is 'first' or 'last', not {keep!r}")
    if not time and (keep == "last" or within is not None):
        what = "keep='last'" if keep == "last" else "within="
        raise UsageError(
            f"operator {uid!r}: {what} needs event time, which none of its sources has: give flow.source(...) event_time= and "
            "watermark="
        )
    if time in keyed.columns:
        raise UsageError(
            f"operator {uid!r}: column {time!r} is the event time, and cannot be what rows are alike in"
        )
    kept = tuple(name for name in rows.names if name != time and name not in keyed.columns)
    row: dict[str, type[Any]] = {ROW_THERE: bool, **stored_columns(uid, rows, kept)}
    states = _deduplication_states(row, time=bool(time), ends=within is not None, last=keep == "last")
    former = former_columns(rows, kept)
    states = {name: replace(layout, renamed=former) for name, layout in states.items()}
    changes = keyed.columns if keep == "last" and within is None else None
    return Deduplicate(
        uid, keyed.key(), rows, rows, states, rows.names, changes, time, within, keep, kept
    )  # fmt: skip


def _deduplication_states(
    row: Mapping[str, type[Any]], *, time: bool, ends: bool, last: bool
) -> dict[str, ColumnLayout]:
    until = {UNTIL: datetime}
    if not time:
        return {"groups": ColumnLayout(until)}
    if last and not ends:
        return {"groups": ColumnLayout({ROW_THERE: bool, ROW_TIME: datetime, **row})}
    states = {
        "waiting": ColumnLayout(row, timed=True),
        "groups": ColumnLayout({**row, ROW_TIME: datetime, **until} if last else until),
    }
    return {**states, "ends": ColumnLayout(timed=True)} if ends else states


def stored_name(column: str) -> str:
    """The state column of a column of rows."""
    return f"row_{column}"


def _distinct_states(aggregates: tuple[Aggregated, ...], *, timed: bool) -> dict[str, ColumnLayout]:
    """The values that are known already, of each aggregate that counts them."""
    return {
        distinct_state(each.name): ColumnLayout({SEEN: bool}, by={VALUE: each.value}, timed=timed)
        for each in aggregates
        if each.value is not None
    }


_DISTINCT = "distinct-"


def distinct_state(name: str) -> str:
    return f"{_DISTINCT}{name}"


def counted_distinct(state: str) -> str:
    """The aggregate whose values the state knows; empty for a state of another kind."""
    return state.removeprefix(_DISTINCT) if state.startswith(_DISTINCT) else ""


def _aggregated(keyed: KeyedRows, aggregates: Mapping[str, Any]) -> tuple[Aggregated, ...]:
    if not aggregates:
        raise UsageError(
            f"operator {keyed.uid!r} aggregates nothing: give it an aggregate, such as n=sf.count()"
        )
    where, rows = f"operator {keyed.uid!r}", keyed.known()
    return tuple(
        aggregated(where, name, aggregate, rows, keyed.order_by) for name, aggregate in aggregates.items()
    )


def _check_output(
    keyed: KeyedRows, out: RowType, aggregates: tuple[Aggregated, ...], window: Mapping[str, str]
) -> None:
    """Checks that every field is a key column, a bound of the window or an aggregate, and has its type."""
    uid, rows = keyed.uid, keyed.known()
    offered = dict(window)
    for name in keyed.columns:
        column = rows.field(name)
        offered[name] = column.type if column is not None else ""
    for each in aggregates:
        if each.name in offered:
            raise UsageError(
                f"operator {uid!r}: {each.name!r} is an aggregate and a "
                f"{'bound of the window' if each.name in window else 'key column'}: rename the aggregate"
            )
        offered[each.name] = each.result
    for name in (*keyed.columns, *(each.name for each in aggregates)):
        if out.field(name) is None:
            raise UsageError(
                f"operator {uid!r}: {out.name} has no field for {name!r}: add it; it has {', '.join(out.names)}"
            )
    of_state = {
        each.name for each in aggregates if each.aggregate.code is not None and each.aggregate.code.of_state
    }
    for column in out.fields:
        if column.name not in offered:
            raise UsageError(
                f"operator {uid!r} does not know what to put into {out.name}.{column.name}: it has "
                f"{', '.join(offered)}"
            )
        if not fits(offered[column.name], column.type):
            step = "change the type of the field"
            if column.name in of_state:
                step = f"say sf.aggregate(..., output=) where result gives another type than the state, or {step}"
            raise UsageError(
                f"operator {uid!r} puts {offered[column.name]} into {out.name}.{column.name}, which is "
                f"{column.type}: {step}"
            )


def _partials(uid: str, aggregates: tuple[Aggregated, ...]) -> dict[str, type[Any]]:
    columns: dict[str, type[Any]] = {}
    for each in aggregates:
        for name, kept in each.partials.items():
            if name in columns:
                raise UsageError(
                    f"operator {uid!r}: two aggregates keep a column {name!r}: rename {each.name!r}"
                )
            columns[name] = kept
    return columns


def _reads(keyed: KeyedRows, aggregates: tuple[Aggregated, ...], *more: str) -> tuple[str, ...]:
    """In the order that the rows have them."""
    needed = {*keyed.columns, *more}
    for each in aggregates:
        needed |= each.needs
    return tuple(name for name in keyed.known().names if name in needed)
