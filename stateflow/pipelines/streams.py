"""The methods that pipelines are written with: each adds a node to the graph.

A stream gives a keyed stream, which gives a stream or a windowed one again: the four classes name each other, so they
stand in one file. What each step checks and makes lies in the file of its family (`joins.py`, `windows.py`, `top.py`, ...).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any

from stateflow.errors import UsageError
from stateflow.pipelines.changes import (
    changes_of_all,
    former_of_all,
    operation_rows,
    passed_on,
    refuse_changes,
    refuse_counted_again,
    refuse_left_behind,
    refuse_mixed,
    refuse_stale,
    with_bounds,
    with_operation,
)
from stateflow.pipelines.delivery import Delivery
from stateflow.pipelines.event_times import known_time, ordering_time, time_column, time_columns
from stateflow.pipelines.graph import (
    FormerChanges,
    GroupedRows,
    KeyedNode,
    Node,
    NodeRows,
    SourceNode,
    TransformNode,
    UnionNode,
)
from stateflow.pipelines.keys import check_columns, check_key, check_same_key, check_streams
from stateflow.pipelines.misplaced import Steps
from stateflow.pipelines.operator_nodes import columnar_node, mapped, process_node, queryable_as, ready_node
from stateflow.pipelines.processes.columnar import CHUNK_ROWS, ColumnarOperator
from stateflow.pipelines.processes.operator_spec import DEAD_LETTERS, MAIN
from stateflow.pipelines.processes.process import ConnectedProcess, KeyedProcess, Output, PartitionProcess
from stateflow.pipelines.ready.aggregates import Aggregate
from stateflow.pipelines.ready.enrichment import enrich
from stateflow.pipelines.ready.joins import asof_join, interval_join, latest_join, window_join
from stateflow.pipelines.ready.latest import latest
from stateflow.pipelines.ready.operators import (
    Diverting,
    KeyedRows,
    ReadyOperator,
    RunningAggregate,
    WindowAggregate,
    deduplicate,
    running_aggregate,
    window_aggregate,
)
from stateflow.pipelines.ready.window_process import WindowProcess, window_code
from stateflow.pipelines.ready.windows import LENIENT, Window, late_when, not_negative, window_of
from stateflow.pipelines.rows.row_type import RowType, row_type
from stateflow.pipelines.sinks import add_sink
from stateflow.pipelines.step_checks import check_same_rows, check_transform
from stateflow.pipelines.top import top
from stateflow.state.columns.layout import ColumnLayout
from stateflow.state.expiry.ttl import Ttl, ttl_of


@dataclass(frozen=True, eq=False)
class Stream(NodeRows, Steps, called="a stream", comes="before .key_by()"):
    """Rows that a node puts out."""

    def transform(self, function: Callable[..., Any], type: Any = None) -> Stream:
        """A stateless step: a function from DataFrame to DataFrame; `type` says what comes out, when it is known."""
        node = TransformNode(self.flow.unnamed("transform"), (self,), function)
        check_transform(node.uid, function)
        rows = row_type(type) if type is not None else None
        # Its columns may be others under the same names.
        former = None if self.former is None else replace(self.former, aggregates={})
        return self._then(node, rows, self.changes, self.operation, former)

    def union(self, *others: Stream) -> Stream:
        """The rows of all; columns are matched by name."""
        check_streams("union", others)
        streams = (self, *others)
        changes = changes_of_all(streams)
        refuse_mixed({each.operation for each in streams}, self.node.named)
        for other in others:
            check_same_rows(self, other)
        node = UnionNode(self.flow.unnamed("union"), streams)
        return self._then(node, self.rows, changes, self.operation, former_of_all(streams))

    def key_by(self, *columns: str, order_by: str | Sequence[str] = ()) -> KeyedStream:
        """Groups rows by key columns; rows of a key come in the order of `order_by`."""
        order = (order_by,) if isinstance(order_by, str) else tuple(order_by)
        refuse_changes("key_by", self.changes, self.node.named)
        check_key(self.rows, columns, order)
        return KeyedStream(self, columns, order)

    def deduplicate(
        self,
        uid: str,
        *,
        by: str | Sequence[str],
        within: str | timedelta | None = None,
        keep: str = "first",
        time: str = "",
        ttl: None = None,
    ) -> Stream:
        """Of the rows that are alike in the columns `by`, the first by event time and none of those up to `within` after it;
        with `keep="last"` the last of these. A row comes out when the watermark makes sure that it is the one.

        Without `within` a key is remembered for ever, else for so long. Without event time the first row that comes counts.
        `time` is the column of the event time, if it is not the source's.
        A `ttl` is refused: `within` says how long a key is remembered.
        """
        if ttl is not None:
            raise UsageError(
                f"operator {uid!r}: deduplicate takes no ttl=: say within={ttl!r}, after which a row's copy counts as new and its "
                "key is forgotten"
            )
        keyed = self.key_by(*((by,) if isinstance(by, str) else by))
        length = None if within is None else not_negative("deduplicate", "within", within)
        at = known_time(uid, self, time)
        declared = deduplicate(keyed._rows(uid), time=at.column, within=length, keep=keep)
        return _after(ready_node(declared, (keyed,), at.held_back))

    def process_partition(
        self,
        uid: str,
        process: type[PartitionProcess[Any, Any]] | Callable[[], PartitionProcess[Any, Any]],
        *,
        output: Any = None,
        outputs: Sequence[Output[Any]] = (),
        order_by: str | Sequence[str] = (),
        broadcast: Mapping[str, Stream] | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """A process without keys: the rows are spread evenly over `parallelism` subtasks, and each is called once per batch.

        Its rows come in the order of `order_by`. Without `parallelism` it has as many subtasks as the run's other operators.
        """
        order = (order_by,) if isinstance(order_by, str) else tuple(order_by)
        refuse_changes("process_partition", self.changes, self.node.named)
        check_columns("process_partition", self.rows, [o.removeprefix("-") for o in order])
        return _after(process_node(
            uid, (KeyedStream(self, (), order),), process, PartitionProcess, output, outputs, "fail", None,
            broadcast or {}, parallelism,
        ))  # fmt: skip

    def side(self, output: Output[Any] | str) -> Stream:
        """The side output of an operator, or the late rows of a source, that this stream has."""
        name = output if isinstance(output, str) else output.name
        node = self.node
        if isinstance(node, KeyedNode):
            if name in node.sides:
                return Stream(self.flow, node, name, node.sides[name])
            step = _to_have_the_side(node, name)
            raise UsageError(f"operator {node.uid!r} has no side output {name!r}: {step}")
        if isinstance(node, SourceNode) and node.late is not None and node.late.name == name:
            return Stream(self.flow, node, name, row_type(node.late.type))
        raise UsageError(
            f"{node.named} has no side output {name!r}: ask the operator that puts it out, or give the source late="
        )

    def changes_as_rows(self, *, op: str, counted: bool = False) -> Stream:
        """Each change as a row of its own: a column `op` says what it is, "upsert" or "delete".

        No row takes back the one before, so that a sum over them is refused, unless `counted` says that each change is meant to count,
        as in the number of times that a value has changed.
        """
        if self.changes is None:
            raise UsageError(
                f"changes_as_rows: the rows of {self.node.named} are no changes already: leave it out"
            )
        function = partial(with_operation, op, self.operation)
        node = TransformNode(self.flow.unnamed("changes"), (self,), function)
        rows = None if self.rows is None else operation_rows(self.rows, op, self.operation)
        declared = self.node.columnar if isinstance(self.node, KeyedNode) else None
        aggregates = {
            each.name: each.aggregate
            for each in (
                declared.aggregates if isinstance(declared, RunningAggregate | WindowAggregate) else ()
            )
        }
        forgets = isinstance(declared, RunningAggregate) and declared.forgets
        former = FormerChanges(
            with_bounds(self.changes, self), bool(self.operation), aggregates, counted, forgets, op
        )
        return self._then(node, rows, former=former)

    @property
    def dead_letters(self) -> Stream:
        """One row for every key that user code raised on."""
        return self.side(DEAD_LETTERS)

    def append(self, uid: str, target: Any, **options: Any) -> None:
        """Appends the rows of every batch to a table."""
        add_sink(self, uid, "append", target, options)

    def upsert(
        self,
        uid: str,
        target: Any,
        *,
        keys: str | Sequence[str] = (),
        order_by: str | None = None,
        delete_when: str | None = None,
        **options: Any,
    ) -> None:
        """Keeps one row per key: a batch's last row by `order_by` replaces the table's. Deletes of a stream of changes delete.

        The rows of aggregates know by which columns they replace each other: there `keys` may be left out. A row for which
        `delete_when` holds, a condition in SQL such as `"op = 'delete'"`, deletes the table's row of its key.
        """
        given = {"keys": keys, "order_by": order_by, "delete_when": delete_when, **options}
        add_sink(self, uid, "upsert", target, given)

    def for_each_batch(
        self, uid: str, function: Callable[[Any, Delivery], None] | Callable[[Any, int], None], **options: Any
    ) -> None:
        """Calls `function(frame, delivery)` once a batch is decided, again after a crash.

        `delivery` is a `Delivery`: keep its key and slot with the rows to take each batch once.
        """
        add_sink(self, uid, "function", function, options)

    def collect(self, uid: str, target: Any) -> None:
        """Keeps the rows in memory, for tests."""
        add_sink(self, uid, "collect", target, {})

    def _then(
        self,
        node: Node,
        rows: RowType | None,
        changes: tuple[str, ...] | None = None,
        operation: str = "",
        former: FormerChanges | None = None,
    ) -> Stream:
        self.flow.nodes.append(node)
        return Stream(self.flow, node, MAIN, rows, changes, operation, former)


@dataclass(frozen=True, eq=False)
class KeyedStream(GroupedRows, Steps, called="a keyed stream", comes="after .key_by(...)"):
    """A stream whose rows are grouped by key."""

    stream: Stream

    def process(
        self,
        uid: str,
        process: type[KeyedProcess[Any, Any, Any]] | Callable[[], KeyedProcess[Any, Any, Any]],
        *,
        output: Any = None,
        outputs: Sequence[Output[Any]] = (),
        on_error: str = "fail",
        dead_letter_threshold: int | None = None,
        broadcast: Mapping[str, Stream] | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """A keyed process with state. `on_error="dead_letter"` diverts keys that user code raises on.

        `parallelism` is the number of its subtasks, if that is not to be the run's.
        """
        return _after(
            process_node(
                uid,
                (self,),
                process,
                KeyedProcess,
                output,
                outputs,
                on_error,
                dead_letter_threshold,
                broadcast or {},
                parallelism,
            )
        )

    def connect(self, other: KeyedStream) -> ConnectedStreams:
        """Two inputs with the same key, processed with one state."""
        check_same_key("connect", self, other)
        return ConnectedStreams(self, other)

    def join(
        self,
        uid: str,
        right: KeyedStream,
        output: Any = None,
        /,
        *,
        within: tuple[str | timedelta, str | timedelta] | None = None,
        how: str = "inner",
        where: str = "",
        time: str = "",
        right_time: str = "",
        queryable: bool = False,
    ) -> Stream:
        """Pairs of rows of the two inputs that have the same key, and of which the right row's time is `within` two bounds of
        the left row's: `within=("-10 minutes", "0 minutes")` finds the right rows of the ten minutes before.

        `output` is a row type whose fields are filled by name, or a function `(left, right) -> row`. `how` is inner, left,
        right, full, semi or anti; a row without a partner comes out when none can come any more. `where` is a condition that two
        rows have to fulfil to be partners, such as `"left_price < right_price"`; its columns are called as fields of the output
        are. With `queryable=True` `stateflow serve` answers with the rows of a key that may still have partners.
        """
        check_same_key(f"join {uid!r}", self, right)
        times, held_back = time_columns(uid, self, right, time, right_time)
        declared = interval_join(
            self._rows(uid), right._rows(uid), output, times=times, within=within, how=how, where=where
        )
        return _after(ready_node(queryable_as(declared, queryable), (self, right), held_back))

    def join_asof(
        self,
        uid: str,
        right: KeyedStream,
        output: Any,
        /,
        *,
        keep: str | timedelta | None = None,
        wait: bool = True,
        how: str = "left",
        where: str = "",
        time: str = "",
        right_time: str = "",
        queryable: bool = False,
    ) -> Stream:
        """Each row with the newest row of `right` that has the same key and is not later: the version valid at its event time.

        A row waits until the watermark has reached its time, so that its version is certain; with `wait=False` it takes the
        one that is known when it comes. A version is valid until the next one, and for `keep` at most. Of right rows of one time the
        last by the `order_by` of their key counts. `output` is as in `join`; `how` is left or inner. A row whose version does
        not fulfil `where` has none: no older one takes its place. With `queryable=True`
        `stateflow serve` answers with the versions of a key, and with the rows that wait.
        """
        check_same_key(f"join {uid!r}", self, right)
        times, held_back = time_columns(uid, self, right, time, right_time)
        declared = asof_join(
            self._rows(uid), right._rows(uid), output, times=times, keep=keep, wait=wait, how=how, where=where
        )
        return _after(ready_node(queryable_as(declared, queryable), (self, right), held_back))

    def join_latest(
        self,
        uid: str,
        right: KeyedStream,
        output: Any,
        /,
        *,
        how: str = "left",
        where: str = "",
        ttl: str | timedelta | Ttl | None = None,
        queryable: bool = False,
    ) -> Stream:
        """Each row, as soon as it comes, with the newest row of `right` that has the same key and has come so far.

        The newest is the last by the `order_by` of its key, then by event time, if `right` has one, and else the last to come. A
        row that comes later changes nothing that is out. `ttl` is how long a right row is known. `output` is as in `join`; `how` is left or inner.
        A row that does not fulfil `where` with the newest one has no partner. With `queryable=True` `stateflow serve` answers with the newest row of a key.
        """
        check_same_key(f"join {uid!r}", self, right)
        order = ordering_time(uid, right.stream, right.order_by)
        declared = latest_join(
            self._rows(uid), right._rows(uid), output, order=order, ttl=ttl_of(ttl), how=how, where=where
        )
        return _after(ready_node(queryable_as(declared, queryable), (self, right)))

    def map_with_state(
        self,
        uid: str,
        function: Callable[[Any, Any, Any], tuple[Any, Any]],
        *,
        state: Any,
        output: Any,
        default: Any = None,
        ttl: str | timedelta | Ttl | None = None,
        queryable: bool = False,
    ) -> Stream:
        """For every row `function(key, row, state) -> (output row or None, new state or None to clear it)`."""
        process = mapped(uid, function, state, default, ttl, queryable)
        return self.process(uid, process, output=output)

    def aggregate(
        self,
        uid: str,
        output: Any,
        /,
        *,
        queryable: bool = False,
        on_error: str = "fail",
        ttl: str | timedelta | Ttl | None = None,
        **aggregates: Aggregate,
    ) -> Stream:
        """Aggregates over all rows of a key so far: per batch one row for every key that has rows in it.

        The fields of `output` are the key columns and the aggregates, by name. A row replaces the key's row before. With
        `queryable=True` `stateflow serve` answers from its state. `on_error="dead_letter"` diverts a batch's rows of keys that
        cannot be aggregated, and leaves their state as it was. With `ttl` a key is forgotten that had no row for so long: its
        next row begins anew.
        """
        refuse_counted_again(uid, self.stream, aggregates, self.columns, self.order_by)
        declared = running_aggregate(self._rows(uid), output, aggregates, on_error=on_error, ttl=ttl)
        return _after(ready_node(queryable_as(declared, queryable), (self,)))

    def latest(self, uid: str, *, queryable: str = "", ttl: str | timedelta | Ttl | None = None) -> Stream:
        """The last row of each key, by the key's `order_by` or else by event time; it is put out whenever it changes.

        `queryable` names the state under which `stateflow serve` answers with it. With `ttl` a key is forgotten that had no newer
        row for so long: the next one comes out, whatever its place, and nothing says that the former is gone.
        """
        refuse_left_behind(uid, self.stream, self.columns, self.order_by)
        time = "" if self.order_by else ordering_time(uid, self.stream, ())
        return _after(ready_node(latest(self._rows(uid), time=time, queryable=queryable, ttl=ttl), (self,)))

    def enrich(
        self,
        uid: str,
        look_up: Callable[..., Any],
        output: Any,
        /,
        *,
        batch: int = 100,
        concurrency: int = 1,
        ttl: str | timedelta | Ttl | None = None,
        retries: int = 3,
        backoff: str | timedelta = "1 second",
        rate: float | None = None,
        on_error: str = "fail",
    ) -> Stream:
        """Each row with the answer of a service for its key. Answers are state: what was recorded is not asked again until its
        `ttl` is over.

        `look_up` gets a list of up to `batch` keys, and gives a list of their answers in the same order: objects or dicts,
        None where there is no answer. It may be `async`. `concurrency` calls of a task run at once, at most `rate` begin in a
        second. A call that raises is repeated `retries` times, after `backoff`, then twice that, and so on; then its keys are
        asked for in halves. A key that nobody answers fails the batch, or with `on_error="dead_letter"` its rows are diverted.
        The fields of `output` that the rows do not have are filled from the answer.
        """
        declared = enrich(
            self._rows(uid), look_up, output, batch=batch, concurrency=concurrency, ttl=ttl, retries=retries,
            backoff=backoff, rate=rate, on_error=on_error,
        )  # fmt: skip
        return _after(ready_node(declared, (self,)))

    def window(
        self,
        window: Window,
        *,
        lateness: str | timedelta = "0 seconds",
        time: str = "",
        late: str = LENIENT,
    ) -> WindowedStream:
        """Cuts the rows of a key into windows of event time, such as `sf.tumbling("1 minute")`.

        A window is closed when the watermark has reached its end plus `lateness`. `time` is the column of the event time,
        if it is not the source's. When rows come out, `.aggregate(..., emit=)` says.

        A row is late when all of its windows are closed. With `late="strict"` it is late as soon as one of them is closed, or may
        be: what comes out is then one computation over all rows that were not late.
        """
        return WindowedStream(
            self,
            window_of(window),
            not_negative("window", "lateness", lateness),
            time,
            late_when(late),
        )

    def top(
        self,
        uid: str,
        n: int,
        *,
        by: str | Sequence[str],
        per: str | Sequence[str] = (),
        rank: str = "rank",
        ttl: str | timedelta | Ttl | None = None,
        queryable: bool = False,
    ) -> Stream:
        """The first `n` rows of each key by the columns `by`, as a list that changes: per batch an upsert for each row that is
        new in it or has another `rank`, and a delete for each that dropped out.

        Of rows that are alike in the columns `per` one is in the list: the last by the key's `order_by`, or without one the
        first by `by`. Without `per` each row is one of its own, and rows replace each other by rank. Rows of `.changes_as_rows`
        need both, for a value may have fallen.
        """
        refuse_stale(uid, self.stream.former, self.order_by, per, self.columns)
        declared = top(self._rows(uid), n, by=by, per=per, rank=rank, ttl=ttl)
        return _after(ready_node(queryable_as(declared, queryable), (self,)))

    def _rows(self, uid: str) -> KeyedRows:
        return KeyedRows(uid, self.stream.rows, self.columns, self.order_by)

    def process_arrow(
        self,
        uid: str,
        function: Callable[..., Any] | ColumnarOperator,
        *,
        state: Mapping[str, Any] | ColumnLayout | None = None,
        output: Any,
        outputs: Sequence[Output[Any]] = (),
        on_due: Callable[..., Any] | None = None,
        chunk_rows: int = CHUNK_ROWS,
        forgets: Sequence[str] = (),
        parallelism: int | None = None,
    ) -> Stream:
        """Columnar: `function(table, state, ctx) -> table` over whole keys, as long as a chunk holds them.

        `state` names typed columns that each key has; `state.get(keys)` and `state.put(keys, table)` read and write them.
        With `sf.columns(...)` keys have several entries, or entries that are due at a time: then `on_due(state, ctx)` is
        called. A dict of several `sf.columns(...)` gives the functions all of them by name. In place of functions there
        may be an `sf.ColumnarOperator`. `forgets` names states of earlier code whose values may go.
        """
        return _after(
            columnar_node(
                uid, (self,), function, state, on_due, chunk_rows, output, outputs, forgets, parallelism
            )
        )


@dataclass(frozen=True, eq=False)
class WindowedStream(Steps, called="a windowed stream", comes="after .key_by(...).window(...)"):
    """A keyed stream, cut into windows of event time."""

    keyed: KeyedStream
    windows: Window
    lateness: int
    time: str
    late: str = LENIENT

    def aggregate(
        self,
        uid: str,
        output: Any,
        /,
        *,
        emit: str = "final",
        queryable: bool = False,
        on_error: str = "fail",
        **aggregates: Aggregate,
    ) -> Stream:
        """Aggregates per key and window. The fields of `output` are the key columns, `window_start`, `window_end` and the
        aggregates, by name.

        `emit="final"` puts a window out once, when it is closed. `"changes"` puts it out in every batch that has rows of
        it, and `"on_time"` when the watermark reaches its end and after every later change: then a row replaces the
        window's row before. Rows whose windows are all closed go to `.side("late")`. With `queryable=True` `stateflow serve`
        answers with what the open windows of a key hold so far. `on_error="dead_letter"` diverts a batch's rows of windows that
        cannot be aggregated, and leaves the windows as they were.
        """
        keyed = self.keyed
        at = time_column(uid, keyed.stream, self.time)
        group = (*keyed.columns, at.column)
        refuse_counted_again(uid, keyed.stream, aggregates, group, keyed.order_by)
        declared = window_aggregate(
            keyed._rows(uid), output, aggregates,
            window=self.windows, time=at.column, lateness=self.lateness, emit=emit, on_error=on_error, late=self.late,
        )  # fmt: skip
        return _after(ready_node(queryable_as(declared, queryable), (keyed,), at.held_back))

    def process(
        self,
        uid: str,
        process: type[WindowProcess[Any, Any, Any]],
        *,
        output: Any = None,
        on_error: str = "fail",
    ) -> Stream:
        """Code per window: `process` is a class whose `process(key, window, rows, ctx)` is called when a window closes, and
        gives rows. The rows of open windows are state.

        `on_error="dead_letter"` diverts the rows of windows that user code raises on.
        """
        keyed = self.keyed
        at = time_column(uid, keyed.stream, self.time)
        declared = window_code(
            keyed._rows(uid), process, output,
            window=self.windows, time=at.column, lateness=self.lateness, on_error=on_error, late=self.late,
        )  # fmt: skip
        return _after(ready_node(declared, (keyed,), at.held_back))

    def join(
        self,
        uid: str,
        right: KeyedStream,
        output: Any = None,
        /,
        *,
        how: str = "inner",
        where: str = "",
        right_time: str = "",
        queryable: bool = False,
    ) -> Stream:
        """Pairs of rows of the two inputs that have the same key and are in the same window; they come out when it is closed.

        `output`, `how` and `where` are as in `KeyedStream.join`; fields `window_start` and `window_end` are filled, too. With
        `queryable=True` `stateflow serve` answers with the rows of a key whose windows are open.
        """
        keyed = self.keyed
        check_same_key(f"join {uid!r}", keyed, right)
        times, held_back = time_columns(uid, keyed, right, self.time, right_time)
        declared = window_join(
            keyed._rows(uid), right._rows(uid), output,
            times=times, window=self.windows, lateness=self.lateness, how=how, late=self.late, where=where,
        )  # fmt: skip
        return _after(ready_node(queryable_as(declared, queryable), (keyed, right), held_back))


@dataclass(frozen=True, eq=False)
class ConnectedStreams(Steps, called="two connected streams", comes="after .key_by(...).connect(...)"):
    left: KeyedStream
    right: KeyedStream

    def process(
        self,
        uid: str,
        process: type[ConnectedProcess[Any, Any, Any, Any]]
        | Callable[[], ConnectedProcess[Any, Any, Any, Any]],
        *,
        output: Any = None,
        outputs: Sequence[Output[Any]] = (),
        on_error: str = "fail",
        dead_letter_threshold: int | None = None,
        broadcast: Mapping[str, Stream] | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        return _after(process_node(
            uid, (self.left, self.right), process, ConnectedProcess, output, outputs, on_error,
            dead_letter_threshold, broadcast or {}, parallelism,
        ))  # fmt: skip

    def process_arrow(
        self,
        uid: str,
        function: Callable[..., Any] | ColumnarOperator,
        *,
        state: Mapping[str, Any] | ColumnLayout | None = None,
        output: Any,
        outputs: Sequence[Output[Any]] = (),
        on_due: Callable[..., Any] | None = None,
        chunk_rows: int = CHUNK_ROWS,
        forgets: Sequence[str] = (),
        parallelism: int | None = None,
    ) -> Stream:
        """Columnar: `function(left, right, state, ctx) -> table` over the rows of the same keys of both inputs."""
        inputs = (self.left, self.right)
        return _after(
            columnar_node(
                uid, inputs, function, state, on_due, chunk_rows, output, outputs, forgets, parallelism
            )
        )


def _after(node: KeyedNode) -> Stream:
    """The rows that an operator puts out."""
    declared = node.columnar
    ready = declared if isinstance(declared, ReadyOperator) else None
    return Stream(
        node.keyed[0].stream.flow, node, MAIN, node.output,
        ready.changes if ready else None, ready.operation if ready else "",
        passed_on(ready, [each.stream for each in node.keyed]),
    )  # fmt: skip


def _to_have_the_side(node: KeyedNode, name: str) -> str:
    """What to write for an operator to have a side output of that name."""
    if isinstance(node.columnar, ReadyOperator):
        filters = ""
        if name == DEAD_LETTERS:
            if isinstance(node.columnar, Diverting):
                return "give it on_error='dead_letter'"
            filters = "; leave out what it cannot take with transform() before"
        return f"it has {', '.join(map(repr, node.sides)) or 'none'}{filters}"
    call = ".process()" if node.columnar is None else ".process_arrow()"
    if name == DEAD_LETTERS and node.columnar is None:
        return f"give {call} on_error='dead_letter'"
    return f"list it in outputs=[...] of {call}"
