"""How far the rows of operators are behind the watermark, and so which watermark the next operator follows.

One rule for all. An operator puts a row out when the watermark has reached what the row waits for: the end of a window, the last
instant of a partner. So rows of one batch are ahead of the watermark of the batch *before*, less a length that follows from what is
declared:

    a source                            0
    deduplicate                         0, and `within` with keep="last"
    a window: window_end                `lateness`
              window_start              `lateness` and the window's length
    a join within bounds: left rows     the most that a right row may be later
                          right rows    the most that it may be earlier
    an as-of join: left rows            0
                   right rows           `keep`
    a latest-version join: left rows    0
    code with event timers              what it is held back by

The next operator adds its own. By that length it is held back: it takes rows by the watermark of the batch before less that length, and
puts out what the watermark of this batch less that length has reached. So no row is late for it by nature, and what comes out is what one
computation over all rows gives. A step of user code passes times on by their column; where it gives rows older times than it got, they are
late for what follows, and counted. Code that has timers or asks for the watermark names no column: it is held back by the longest length of
those that have times.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from stateflow.pipelines.graph import KeyedNode, Node, NodeRows, SourceNode
from stateflow.pipelines.processes.columnar import ColumnarOperator
from stateflow.pipelines.processes.operator_spec import MAIN
from stateflow.pipelines.processes.process import Process
from stateflow.pipelines.ready.joined_columns import LEFT, RIGHT
from stateflow.pipelines.ready.joins import AsofJoin, IntervalJoin, JoinOperator, LatestJoin, WindowJoin
from stateflow.pipelines.ready.operators import (
    WINDOW_END,
    WINDOW_START,
    Deduplicate,
    ReadyOperator,
    WindowAggregate,
)
from stateflow.pipelines.ready.window_process import WindowCode
from stateflow.pipelines.ready.windows import Cumulative, Session, Sliding, Window

Length = int | str
"""Microseconds; or a text that says why there is no bound, and what to write."""


@dataclass(frozen=True)
class Behind:
    """How far the times of a stream's rows are behind the watermark of the batch before, at most."""

    columns: Mapping[str, Length] = field(default_factory=dict)
    """By column, for columns with times of rows or with bounds of windows."""
    others: Length = 0
    """For every other column: user code may have made it from any of these."""

    def of(self, column: str) -> Length:
        return self.columns.get(column, self.others)

    @property
    def is_of_sources(self) -> bool:
        """Whether operators have left the rows' times as the sources gave them."""
        return self.others == 0 and not any(isinstance(each, int) and each for each in self.columns.values())

    @property
    def unknown(self) -> Mapping[str, str]:
        """The columns whose times have no bound."""
        return {name: why for name, why in self.columns.items() if isinstance(why, str)}


def behind(stream: NodeRows) -> Behind:
    node = stream.node
    if isinstance(node, SourceNode):
        return Behind({node.event_time: 0} if node.event_time else {})
    inputs = [behind(keyed.stream) for keyed in node.keyed] if isinstance(node, KeyedNode) else None
    before = together(inputs if inputs is not None else map(behind, node.inputs))
    if isinstance(node, KeyedNode) and isinstance(node.columnar, ReadyOperator) and stream.output == MAIN:
        return _after(node.columnar, node.held_back, inputs or [], before)
    if isinstance(node, KeyedNode) and node.held_back and _waits(node):
        # Rows of its timers may have the times of these in any column.
        columns = {name: _longest((each, node.held_back)) for name, each in before.columns.items()}
        return Behind(columns, _longest((before.others, node.held_back)))
    return before


def of_any_time(streams: Iterable[NodeRows]) -> Length:
    """The longest that times of rows may be behind, for user code that may use any column. Only known lengths count."""
    lengths = [length for stream in streams for length in _of_times(stream)]
    known = [each for each in lengths if isinstance(each, int)]
    return max(known) if known else _longest(lengths)


def _of_times(stream: NodeRows) -> list[Length]:
    known = behind(stream)
    if stream.rows is None:
        return [known.others, *known.columns.values()]
    times = [known.of(each.name) for each in stream.rows.fields if each.type == "timestamp"]
    if times and all(isinstance(each, int) for each in times):
        return times
    return [*times, known.others]


def together(parts: Iterable[Behind]) -> Behind:
    """The rows of a union: by column, the longest that any part is behind."""
    parts = list(parts)
    names = {name for part in parts for name in part.columns}
    columns = {name: _longest(part.of(name) for part in parts) for name in names}
    return Behind(columns, _longest(part.others for part in parts))


def comes_when_reached(node: Node) -> bool:
    """Whether rows come to a node from an operator that puts them out in the very batch whose watermark releases them."""
    return any(_waits(each) for stream in node.inputs for each in before_and(stream.node))


def before_and(node: Node) -> Iterator[Node]:
    """The node, and all nodes that its rows come from."""
    yield node
    for stream in node.inputs:
        yield from before_and(stream.node)


def _waits(node: Node) -> bool:
    if not isinstance(node, KeyedNode):
        return False
    if isinstance(node.columnar, ReadyOperator):
        return node.columnar.waits_for_watermark
    if isinstance(node.columnar, ColumnarOperator):
        return node.columnar.fires
    return node.process_type is not None and has_event_timers(node.process_type)


def has_event_timers(process: type[Process[Any]]) -> bool:
    return any(timer.time == "event" for timer in process.declarations().timers.values())


def _after(declared: ReadyOperator, held_back: int, inputs: list[Behind], before: Behind) -> Behind:
    """How far the rows are behind that an operator puts out which is itself held back by so much."""
    match declared:
        case WindowAggregate(window=window, lateness=lateness):
            return _of_windows(declared, window, held_back + lateness)
        case WindowCode(inner=WindowAggregate(window=window, lateness=lateness)):
            return _of_windows(declared, window, held_back + lateness)
        case WindowJoin(window=window, lateness=lateness):
            bounds = _of_windows(declared, window, held_back + lateness)
            return _of_join(declared, inputs, bounds.others, bounds.others, bounds.columns)
        case IntervalJoin(least=least, most=most):
            return _of_join(declared, inputs, held_back + max(0, most), held_back + max(0, -least))
        case AsofJoin(keep=keep):
            right: Length = (
                f"a version of {declared.where} may be of any age: say join_asof(..., keep='30 days')"
            )
            return _of_join(declared, inputs, held_back, right if keep is None else held_back + keep)
        case LatestJoin():
            return _of_newest(declared, inputs[0])
        case Deduplicate() if declared.waits_for_watermark:
            is_last = declared.keep == "last"
            length = held_back + (declared.within or 0 if is_last else 0)
            others = _another_time(declared, declared.time)
            return Behind(
                {**before.unknown, declared.time: length},
                0 if before.is_of_sources and not is_last else others,
            )
    return before


def _of_windows(declared: ReadyOperator, window: Window, held_back: int) -> Behind:
    match window:
        case Sliding(size=size) | Cumulative(size=size):
            return Behind({WINDOW_START: held_back + size, WINDOW_END: held_back}, held_back + size)
    if not isinstance(window, Session):
        why = (
            f"windows of a count that are not full come out of {declared.where} when the job is over, whatever their time: read its table "
            "in another pipeline"
        )
        return Behind({}, why)
    why = (
        f"how long a session of {declared.where} is shows only when it is over, so that of its times only the end can be gone by: say "
        f"time={WINDOW_END!r}"
    )
    return Behind({WINDOW_END: held_back}, why)


def _of_join(
    declared: JoinOperator,
    inputs: list[Behind],
    left: Length,
    right: Length,
    bounds: Mapping[str, Length] = MappingProxyType({}),
) -> Behind:
    sides = {LEFT: (declared.left.time, left, inputs[0]), RIGHT: (declared.right.time, right, inputs[-1])}
    may_lack = {LEFT: declared.puts_out_right, RIGHT: declared.how in ("left", "full")}
    columns: dict[str, Length] = {}
    for each in declared.filled:
        if each.field in bounds:
            columns[each.field] = bounds[each.field]
            continue
        side = RIGHT if each.of == RIGHT else LEFT
        time, length, before = sides[side]
        if each.column == time and each.of == side:
            missing = (
                f"it is null in rows of {declared.where} without a partner, which would be late: make another column of both times with "
                "transform(), such as coalesce(left_ts, right_ts)"
            )
            columns[each.field] = missing if may_lack[side] else length
        elif each.column in before.columns and not before.is_of_sources:
            columns[each.field] = _another_time(declared, time)
        elif each.column in before.unknown:
            columns[each.field] = before.unknown[each.column]
    return Behind(columns, left if declared.is_of_left_alone else _longest((left, right)))


def _of_newest(declared: LatestJoin, left: Behind) -> Behind:
    """A left row comes out as soon as it comes, beside a right row that came long ago."""
    right = f"a version of {declared.where} may be of any age: go by a time of the left rows, or say join_asof(..., keep='30 days')"
    times = {field.name for field in declared.output.fields if field.type == "timestamp"}
    columns: dict[str, Length] = {
        each.field: right if each.of == RIGHT else left.of(each.column)
        for each in declared.filled
        if each.of != RIGHT or each.field in times
    }
    return Behind(columns, left.others)


def _another_time(declared: ReadyOperator, time: str) -> str:
    return (
        f"{declared.where} keeps rows by their {time!r}, and how old their other times are when they come out does not show: go by "
        f"{time!r}"
    )


def _longest(lengths: Iterable[Length]) -> Length:
    lengths = list(lengths)
    why = [each for each in lengths if isinstance(each, str)]
    return why[0] if why else max((each for each in lengths if isinstance(each, int)), default=0)
