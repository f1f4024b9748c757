"""Joins as a pipeline declares them: which rows are partners, what they make together, and what state that takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, ClassVar, get_type_hints

from stateflow.errors import UsageError
from stateflow.format.scalars import COLUMN_TYPES
from stateflow.names import JOINS
from stateflow.pipelines.ready.aggregates import fits, kept_as
from stateflow.pipelines.ready.fixed_options import (
    NONE,
    duration,
    listed,
    strictness,
    waits_no_longer,
    windowing,
)
from stateflow.pipelines.ready.fixed_options import signed as signed_text
from stateflow.pipelines.ready.join_conditions import JoinCondition, join_condition
from stateflow.pipelines.ready.joined_columns import KEY, LEFT, RIGHT, Filled
from stateflow.pipelines.ready.operators import (
    SESSION_END,
    SESSION_START,
    WINDOW_END,
    WINDOW_START,
    KeyedRows,
    ReadyOperator,
    refuse_bounds,
)
from stateflow.pipelines.ready.stored_forms import row_form
from stateflow.pipelines.ready.windows import LENIENT, Counted, Session, Window, not_negative, signed
from stateflow.pipelines.rows.row_type import Field, RowType, row_type
from stateflow.state.columns.layout import ColumnLayout
from stateflow.state.expiry.ttl import Ttl

LATE_LEFT, LATE_RIGHT = "late_left", "late_right"
"""The side outputs of the rows of each input that came at or behind the watermark."""
WAITING, DUE, VERSIONS = "waiting", "due", "versions"
ROWS: Mapping[str, type[Any]] = {"rows": bytes, "texts": bytes, "layout": str}
"""The columns of an entry with a block of rows of one input."""
BUCKET = "bucket"
HOWS = ("inner", "left", "right", "full", "semi", "anti")
_ORDER = "order_by of the right rows"
WHERE = "where"

_KEEPABLE = frozenset((*(column.name for column in COLUMN_TYPES), "varchar", "char"))


@dataclass(frozen=True)
class Side:
    """One input of a join."""

    rows: RowType
    key: tuple[str, ...]
    time: str
    """The column of the event time; empty when the join asks for none."""
    kept: tuple[Field, ...]
    """The columns that the output needs beside the key and the time."""
    order: str = ""
    """Without a time: the column whose instants say which row is the newest; empty when that is the last to come."""
    order_by: tuple[str, ...] = ()
    """The columns that say which of two rows counts, before anything else; one that begins with a minus descends."""

    @property
    def needed(self) -> RowType:
        return self.rows.only({*self.key, self.time, self.order, *(field.name for field in self.kept)})


@dataclass(frozen=True)
class JoinOperator(ReadyOperator):
    """The base of every join. `rows` is the type of the left input's rows."""

    holds_back: ClassVar[str] = "rows"
    waits_for_watermark: ClassVar[bool] = True

    left: Side
    right: Side
    filled: tuple[Filled, ...]
    """How the output's columns are filled; empty with a function."""
    function: Callable[[Any, Any], Any] | None
    how: str
    condition: JoinCondition | None

    @property
    def fixed(self) -> Mapping[str, str]:
        return {"how": self.how, "event time": f"{self.left.time} and {self.right.time}", **self._where}

    @property
    def _where(self) -> Mapping[str, str]:
        """Another condition would need columns that rows in state were kept without, and other partners than they had."""
        return {WHERE: NONE if self.condition is None else self.condition.text}

    @property
    def description(self) -> Mapping[str, str]:
        return {"how": self.how}

    @property
    def blocks(self) -> Mapping[str, ColumnLayout]:
        return {state: _columns(**sides) for state, sides in self.sides_of.items() if state in self.states}

    @property
    def sides_of(self) -> Mapping[str, Mapping[str, Side]]:
        """By state, the sides whose rows its blocks have."""
        return {WAITING: {LEFT: self.left}, VERSIONS: {RIGHT: self.right}}

    @property
    def renamed(self) -> Mapping[str, tuple[str, ...]]:
        sides = {LEFT: self.left, RIGHT: self.right}
        return {
            f"{name}.{field.name}": tuple(f"{name}.{alias}" for alias in field.aliases)
            for name, side in sides.items()
            for field in side.kept
        }

    @property
    def forms(self) -> Mapping[str, str]:
        return {
            f"{name}.{field.name}": row_form(field.type)
            for state, sides in self.sides_of.items()
            if state in self.states
            for name, side in sides.items()
            for field in side.kept
        }

    @property
    def sides(self) -> Mapping[str, RowType]:
        return {LATE_LEFT: self.left.rows, LATE_RIGHT: self.right.rows}

    def needed_of_each(self, read: Set[str]) -> tuple[RowType, ...]:
        return (
            self.left.rows if LATE_LEFT in read else self.left.needed,
            self.right.rows if LATE_RIGHT in read else self.right.needed,
        )

    @property
    def puts_out_left(self) -> bool:
        """Whether left rows without a partner come out."""
        return self.how in ("left", "full", "anti")

    @property
    def puts_out_right(self) -> bool:
        return self.how in ("right", "full")

    @property
    def is_of_left_alone(self) -> bool:
        """Whether what comes out is left rows, each once at most."""
        return self.how in ("semi", "anti")


@dataclass(frozen=True)
class IntervalJoin(JoinOperator):
    """Rows of a key whose times lie `least` to `most` microseconds apart, the right row's minus the left row's."""

    kind: ClassVar[str] = "interval join"

    least: int = 0
    most: int = 0

    @property
    def sides_of(self) -> Mapping[str, Mapping[str, Side]]:
        return {WAITING: {LEFT: self.left, RIGHT: self.right}}

    @property
    def fixed(self) -> Mapping[str, str]:
        return {**super().fixed, "within": f"{signed_text(self.least)} to {signed_text(self.most)}"}


def interval_join(
    left: KeyedRows,
    right: KeyedRows,
    output: Any,
    *,
    times: tuple[str, str],
    within: Any,
    how: str,
    where: str = "",
) -> IntervalJoin:
    uid = left.uid
    _refuse_order(left, right, "every pair within the bounds comes out")
    least, most = _bounds(uid, within)
    common = _common(left, right, output, times, how, HOWS, where)
    states = {
        WAITING: ColumnLayout(
            {
                "left_rows": bytes, "left_texts": bytes, "right_rows": bytes, "right_texts": bytes, "layout": str,
            },
            by={BUCKET: datetime},
        ),
        DUE: ColumnLayout(by={BUCKET: datetime}, timed=True),
    }  # fmt: skip
    return IntervalJoin(**common, states=states, least=least, most=most)


@dataclass(frozen=True)
class AsofJoin(JoinOperator):
    """Joins each left row with the newest right row that is not later."""

    kind: ClassVar[str] = "as-of join"

    keep: int | None = None
    """By how many microseconds at most the right row is earlier."""
    wait: bool = True
    """Whether a left row waits until the watermark has settled its right row."""

    @property
    def waits_for_watermark(self) -> bool:  # type: ignore[override]
        return self.wait

    @property
    def fixed(self) -> Mapping[str, str]:
        own = {"keep": duration(self.keep), "wait": str(self.wait), _ORDER: listed(self.right.order_by)}
        return {**super().fixed, **own}


@dataclass(frozen=True)
class LatestJoin(JoinOperator):
    """Joins each left row with the newest right row that has come."""

    kind: ClassVar[str] = "latest-version join"
    holds_back: ClassVar[str] = ""
    waits_for_watermark: ClassVar[bool] = False

    @property
    def fixed(self) -> Mapping[str, str]:
        own = {"event time of the right rows": self.right.order or NONE, _ORDER: listed(self.right.order_by)}
        return {**own, **self._where}

    @property
    def sides(self) -> Mapping[str, RowType]:
        return {}


@dataclass(frozen=True)
class WindowJoin(JoinOperator):
    """Rows of a key that are in the same window."""

    kind: ClassVar[str] = "window join"

    window: Window = field(default_factory=Window)
    lateness: int = 0
    late: str = LENIENT

    @property
    def sides_of(self) -> Mapping[str, Mapping[str, Side]]:
        return {LEFT: {LEFT: self.left}, RIGHT: {RIGHT: self.right}}

    @property
    def fixed(self) -> Mapping[str, str]:
        bounds = windowing(self.window, "", self.lateness)
        return {**bounds, **super().fixed}

    @property
    def description(self) -> Mapping[str, str]:
        return {**super().description, **strictness(self.late)}

    def reads_as(self, option: str, before: str) -> bool:
        return waits_no_longer(option, before, self.lateness)


def window_join(
    left: KeyedRows,
    right: KeyedRows,
    output: Any,
    *,
    times: tuple[str, str],
    window: Window,
    lateness: int,
    how: str,
    late: str = LENIENT,
    where: str = "",
) -> WindowJoin:
    if isinstance(window, Counted):
        raise UsageError(
            f"join {left.uid!r}: windows of a count are those of one input: join with left.join(..., within=...), or cut both into "
            "sf.tumbling(), sf.hopping() or sf.session() windows"
        )
    _refuse_order(left, right, "every pair of a window comes out")
    refuse_bounds(f"join {left.uid!r}", left)
    bounds = {name: Field(name, "timestamp") for name in (WINDOW_START, WINDOW_END)}
    common = _common(left, right, output, times, how, HOWS, where, bounds)
    states = {LEFT: ColumnLayout(ROWS, timed=True), RIGHT: ColumnLayout(ROWS, timed=True)}
    if isinstance(window, Session):
        by = {SESSION_START: datetime}
        states = {
            LEFT: ColumnLayout(ROWS, by=by),
            RIGHT: ColumnLayout(ROWS, by=by),
            "sessions": ColumnLayout({SESSION_END: datetime}, by=by),
            "ends": ColumnLayout(by=by, timed=True),
        }
    return WindowJoin(**common, states=states, window=window, lateness=lateness, late=late)


def asof_join(
    left: KeyedRows,
    right: KeyedRows,
    output: Any,
    *,
    times: tuple[str, str],
    keep: Any,
    wait: bool,
    how: str,
    where: str = "",
) -> AsofJoin:
    length = None if keep is None else not_negative(f"join {left.uid!r}", "keep", keep)
    _refuse_order(left, None, "the event time of a left row says which version it gets")
    common = _common(left, right, output, times, how, ("left", "inner"), where, order_by=right.order_by)
    states = {VERSIONS: ColumnLayout(ROWS), DUE: ColumnLayout(timed=True)}
    if not isinstance(wait, bool):
        raise UsageError(f"join {left.uid!r}: wait is {wait!r}: give it True or False")
    if wait:
        states[WAITING] = ColumnLayout(ROWS, timed=True)
    return AsofJoin(**common, states=states, keep=length, wait=wait)


def latest_join(
    left: KeyedRows,
    right: KeyedRows,
    output: Any,
    *,
    order: str,
    ttl: Ttl | None,
    how: str,
    where: str = "",
) -> LatestJoin:
    _refuse_order(left, None, "a left row gets the version that is known when it comes")
    common = _common(left, right, output, ("", ""), how, ("left", "inner"), where, order_by=right.order_by)
    common["right"] = replace(common["right"], order=order)
    return LatestJoin(**common, states={VERSIONS: ColumnLayout(ROWS, ttl=ttl)})


def _refuse_order(left: KeyedRows, right: KeyedRows | None, decides: str) -> None:
    """Refuses an order of an input that decides nothing."""
    for keyed, side in ((left, LEFT), (right, RIGHT)):
        if keyed is not None and keyed.order_by:
            raise UsageError(
                f"join {left.uid!r}: order_by of the {side} input has no effect, for {decides}: leave it out of key_by()"
            )


def _bounds(uid: str, within: Any) -> tuple[int, int]:
    if within is None:
        raise UsageError(
            f"join {uid!r} has no bound, so that every row would wait for ever: say how far the right row's time may be from "
            "the left row's, such as within=('-10 minutes', '0 minutes')"
        )
    if not isinstance(within, tuple | list) or len(within) != 2:
        raise UsageError(
            f"join {uid!r}: within is {within!r}: give two durations, the least and the most that the right row's time is "
            "after the left row's, such as ('-10 minutes', '0 minutes')"
        )
    least, most = (signed(f"join {uid!r}", "within", each) for each in within)
    if least > most:
        raise UsageError(
            f"join {uid!r}: within begins at {within[0]!r}, which is after its end {within[1]!r}: give the smaller one first"
        )
    return least, most


def _common(
    left: KeyedRows,
    right: KeyedRows,
    output: Any,
    times: tuple[str, str],
    how: str,
    hows: tuple[str, ...],
    where: str,
    bounds: Mapping[str, Field] | None = None,
    order_by: tuple[str, ...] = (),
) -> dict[str, Any]:
    """The parts that all joins share, checked. `order_by` is that of the right rows, where it decides."""
    uid = left.uid
    if how not in hows:
        meant = JOINS.get(how, "") if isinstance(how, str) else ""
        hint = f": write how={meant!r}" if meant in hows else ""
        raise UsageError(f"join {uid!r}: how is one of {', '.join(hows)}, not {how!r}{hint}")
    rows = left.known(), right.known()
    for keyed, time in ((left, times[0]), (right, times[1])):
        if time in keyed.columns:
            raise UsageError(
                f"join {uid!r}: column {time!r} is the event time, and cannot be the key as well: copy it with transform()"
            )
    function, out = _output(uid, output, left, how)
    filled = () if function is not None else _filled(uid, out, left, right, how, bounds or {})
    condition = join_condition(uid, where, left, right)
    # Rows that are compared have one key, and those of an as-of join one time.
    order = tuple(by for by in order_by if by.removeprefix("-") not in (*right.columns, times[1]))
    sides = tuple(
        Side(
            of, keyed.columns, time,
            _kept(uid, name, keyed, time, filled, by, condition, whole=function is not None), order_by=by,
        )
        for of, keyed, time, name, by in zip(
            rows, (left, right), times, (LEFT, RIGHT), ((), order), strict=True
        )
    )  # fmt: skip
    return {
        "uid": uid,
        "key": left.key(),
        "rows": rows[0],
        "output": out,
        "reads": sides[0].needed.names,
        "changes": None,
        "left": sides[0],
        "right": sides[1],
        "filled": filled,
        "function": function,
        "how": how,
        "condition": condition,
    }


def _output(uid: str, given: Any, left: KeyedRows, how: str) -> tuple[Callable[..., Any] | None, RowType]:
    if given is None and how in ("semi", "anti"):
        return None, left.known()
    if given is None:
        raise UsageError(
            f"join {uid!r}: say what it puts out: a row type, or a function (left, right) -> row"
        )
    if isinstance(given, type | str | RowType) or not callable(given):
        return None, row_type(given)
    if how in ("semi", "anti"):
        raise UsageError(
            f"join {uid!r}: a join with how={how!r} puts left rows out, and calls no function: give a row type, or nothing"
        )
    returns = get_type_hints(given).get("return")
    if returns is None:
        raise UsageError(
            f"join {uid!r}: the function {getattr(given, '__name__', given)!r} does not say what it returns: write its type, as "
            "in def joined(left: Click, right: View | None) -> Paid"
        )
    return given, row_type(returns)


def _filled(
    uid: str, out: RowType, left: KeyedRows, right: KeyedRows, how: str, bounds: Mapping[str, Field]
) -> tuple[Filled, ...]:
    return tuple(_source(uid, out, field, left, right, how, bounds) for field in out.fields)


def _source(
    uid: str,
    out: RowType,
    field: Field,
    left: KeyedRows,
    right: KeyedRows,
    how: str,
    bounds: Mapping[str, Field],
) -> Filled:
    """The column that fills a field: a key column, a column of one of the rows, or the column x of the left or right row for
    `left_x` and `right_x`."""
    name, where = field.name, f"{out.name}.{field.name}"
    of_left, of_right = left.known().field(name), right.known().field(name)
    alone = how in ("semi", "anti")
    if name in left.columns and (alone or name in right.columns):
        source = Filled(name, KEY, name), of_left
    elif name in left.columns and of_right is None:
        # Under a name that only one row has, the key is null where that row is not there.
        source = Filled(name, KEY if how in ("inner", "left") else f"{LEFT}_{KEY}", name), of_left
    elif name in right.columns and of_left is None and not alone:
        own = left.columns[right.columns.index(name)]
        source = Filled(name, KEY if how in ("inner", "right") else f"{RIGHT}_{KEY}", own), of_right
    elif of_left is not None and (of_right is None or alone):
        source = Filled(name, LEFT, name), of_left
    elif of_right is not None and of_left is None and not alone:
        source = Filled(name, RIGHT, name), of_right
    elif of_left is None and name in bounds:
        # The bounds of the window come beside the key.
        source = Filled(name, KEY, name), bounds[name]
    elif of_left is not None:
        raise UsageError(
            f"join {uid!r}: both rows have a column {name!r}, so that {where} may be either: call the field "
            f"{LEFT}_{name} or {RIGHT}_{name}, or give a function (left, right) -> row in place of the type"
        )
    else:
        source = _prefixed(uid, out, name, left, right, alone)
    filled, column = source
    assert column is not None
    if not fits(column.type, field.type):
        raise UsageError(
            f"join {uid!r} puts {column.type} into {where}, which is {field.type}: change the type of the field"
        )
    if filled.of == KEY and how in ("right", "full") and filled.column in left.columns:
        # Of a right row without a partner, the key is the right row's.
        theirs = right.known().field(right.columns[left.columns.index(filled.column)])
        assert theirs is not None
        if not fits(theirs.type, field.type):
            raise UsageError(
                f"join {uid!r} puts {theirs.type} into {where}, which is {field.type}: the right rows have their key {theirs.name!r} as {theirs.type}, "
                f"so make the field {theirs.type}"
            )
    return filled


def _prefixed(
    uid: str, out: RowType, name: str, left: KeyedRows, right: KeyedRows, alone: bool
) -> tuple[Filled, Field]:
    for side, keyed in ((LEFT, left), (RIGHT, right)):
        word = name.removeprefix(f"{side}_")
        column = keyed.known().field(word) if word != name else None
        if column is not None and not (alone and side == RIGHT):
            if word in keyed.columns:
                # The key is the key, whichever row it is asked of, unless that row is not there: then it is null.
                return Filled(name, f"{side}_{KEY}", left.columns[keyed.columns.index(word)]), column
            return Filled(name, side, word), column
    have = left.known().names if alone else (*left.known().names, *right.known().names)
    raise UsageError(
        f"join {uid!r} does not know what to put into {out.name}.{name}: its rows have {', '.join(dict.fromkeys(have))}"
    )


def _columns(**sides: Side) -> ColumnLayout:
    """The columns of rows in blocks, each behind its side, as if a state had them: they evolve by the same rules."""
    return ColumnLayout(
        {
            f"{name}.{field.name}": kept_as(field.type) or str
            for name, side in sides.items()
            for field in side.kept
        }
    )


def _kept(
    uid: str,
    side: str,
    keyed: KeyedRows,
    time: str,
    filled: tuple[Filled, ...],
    order: tuple[str, ...],
    condition: JoinCondition | None,
    *,
    whole: bool,
) -> tuple[Field, ...]:
    wanted = {each.column for each in filled if each.of == side} | {by.removeprefix("-") for by in order}
    wanted |= condition.columns_of(side) if condition is not None else set()
    kept = tuple(
        field
        for field in keyed.known().fields
        if field.name not in keyed.columns and field.name != time and (whole or field.name in wanted)
    )
    for column in kept:
        if column.type.partition("(")[0] not in _KEEPABLE:
            raise UsageError(
                f"join {uid!r} cannot keep column {column.name!r} ({column.type}) of the {side} row: take it out, or make a string "
                "of it, with transform()"
            )
    return kept
