"""A pipeline as a graph: what users declare, still without Spark.

Every source, operator and sink takes its uid first: state, offsets and outputs are found again by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from stateflow.errors import UsageError
from stateflow.format.layout import checked_name
from stateflow.format.scalars import KEY_TYPES
from stateflow.pipelines.aggregates import Aggregate
from stateflow.pipelines.changes import operation_rows, refuse_changes, refuse_mixed, with_operation
from stateflow.pipelines.columnar import CHUNK_ROWS, ColumnarOperator, columnar_operator
from stateflow.pipelines.enrichment import enrich
from stateflow.pipelines.files import Files
from stateflow.pipelines.joins import asof_join, interval_join, latest_join, window_join
from stateflow.pipelines.latest import latest
from stateflow.pipelines.operators import DEAD_LETTERS, MAIN, side_outputs
from stateflow.pipelines.process import (
    ConnectedProcess,
    KeyedProcess,
    Output,
    PartitionProcess,
    Process,
    type_arguments,
)
from stateflow.pipelines.ready import (
    KeyedRows,
    ReadyOperator,
    deduplicate,
    running_aggregate,
    window_aggregate,
)
from stateflow.pipelines.rows import RowType, key_type, row_type
from stateflow.pipelines.step_checks import check_sink, check_source, check_transform, own_parallelism
from stateflow.pipelines.top import top
from stateflow.pipelines.window_process import WindowProcess, window_code
from stateflow.pipelines.windows import Window, event_time, not_negative, refuse_what_is_held_back, window_of
from stateflow.state.columns.layout import ColumnLayout
from stateflow.state.expiry.ttl import Ttl, micros, ttl_of

_Declared = TypeVar("_Declared", bound=ReadyOperator)


@dataclass(frozen=True, eq=False)
class Node:
    """A step of the graph; inputs are outputs of earlier nodes."""

    uid: str
    inputs: tuple[Stream, ...] = ()


@dataclass(frozen=True, eq=False)
class SourceNode(Node):
    factory: Any = None
    """Has `streaming(spark)`, or is a function of the SparkSession."""
    rows: RowType | None = None
    event_time: str | None = None
    watermark: int | None = None
    late: Output[Any] | None = None


@dataclass(frozen=True, eq=False)
class TransformNode(Node):
    function: Callable[..., Any] = lambda frame: frame


@dataclass(frozen=True, eq=False)
class UnionNode(Node):
    pass


@dataclass(frozen=True, eq=False)
class KeyedNode(Node):
    """An operator; `keyed` repeats how each input is keyed, by no column at all in `process_partition`."""

    keyed: tuple[KeyedStream, ...] = ()
    process: Callable[[], Process[Any]] | None = None
    process_type: type[Process[Any]] | None = None
    columnar: ColumnarOperator | None = None
    """In place of `process`: it gets tables instead of rows."""
    forgets: frozenset[str] = frozenset()
    """Of a columnar operator: see `Process.forgets`."""
    rows: tuple[RowType | None, ...] = ()
    output: RowType | None = None
    sides: Mapping[str, RowType] = field(default_factory=dict)
    on_error: str = "fail"
    dead_letter_threshold: int | None = None
    broadcast: Mapping[str, Stream] = field(default_factory=dict)
    parallelism: int = 0
    """How many subtasks the operator has; 0 for as many as the run has by its options."""

    @property
    def has_key(self) -> bool:
        return any(keyed.columns for keyed in self.keyed)


@dataclass(frozen=True, eq=False)
class SinkNode(Node):
    target: Any = None
    mode: str = "append"
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Stream:
    """Rows that a node puts out."""

    flow: Flow
    node: Node
    output: str
    rows: RowType | None
    """None when the columns are known only to Spark."""
    changes: tuple[str, ...] | None = None
    """The columns by which a row replaces the one before; None when rows are only added."""
    operation: str = ""
    """The column that says of each change whether it is an upsert or a delete; empty when none is a delete."""

    def transform(self, function: Callable[..., Any], type: Any = None) -> Stream:
        """A stateless step: a function from DataFrame to DataFrame; `type` says what comes out, when it is known."""
        node = TransformNode(self.flow._unnamed("transform"), (self,), function)
        check_transform(node.uid, function)
        rows = row_type(type) if type is not None else None
        return self.flow._add(node, rows, self.changes, self.operation)

    def union(self, *others: Stream) -> Stream:
        """The rows of all; columns are matched by name."""
        changes = next((each.changes for each in (self, *others) if each.changes is not None), None)
        refuse_mixed({each.operation for each in (self, *others)}, self.node.uid)
        node = UnionNode(self.flow._unnamed("union"), (self, *others))
        return self.flow._add(node, self.rows, changes, self.operation)

    def key_by(self, *columns: str, order_by: str | Sequence[str] = ()) -> KeyedStream:
        """Groups rows by key columns; rows of a key come in the order of `order_by`."""
        order = (order_by,) if isinstance(order_by, str) else tuple(order_by)
        if not columns:
            raise UsageError("key_by() needs at least one column")
        refuse_changes("key_by", self.changes, self.node.uid)
        if self.rows is not None:
            for name in (*columns, *(o.removeprefix("-") for o in order)):
                if self.rows.field(name) is None:
                    raise UsageError(
                        f"key_by: {self.rows.name} has no column {name!r}; it has {', '.join(self.rows.names)}"
                    )
            for name in columns:
                field = self.rows.field(name)
                if field is not None and key_type(field.type) is None:
                    raise UsageError(
                        f"key_by: column {name!r} is a {field.type}, which cannot be a key: use "
                        f"{', '.join(KEY_TYPES[:-1])} or {KEY_TYPES[-1]}"
                    )
        return KeyedStream(self, columns, order)

    def deduplicate(
        self,
        uid: str,
        *,
        by: str | Sequence[str],
        within: str | timedelta | None = None,
        keep: str = "first",
    ) -> Stream:
        """Of the rows that are alike in the columns `by`, the first by event time and none of those up to `within` after it;
        with `keep="last"` the last of these. A row comes out when the watermark makes sure that it is the one.

        Without `within` a key is remembered for ever. Without event time the first row that comes counts.
        """
        keyed = self.key_by(*((by,) if isinstance(by, str) else by))
        length = None if within is None else not_negative("deduplicate", "within", within)
        time = self.flow._event_time(uid, self, "") if self.flow._has_event_time(self) else ""
        return _ready(keyed, deduplicate(keyed._rows(uid), time=time, within=length, keep=keep))

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
        refuse_changes("process_partition", self.changes, self.node.uid)
        for name in (o.removeprefix("-") for o in order):
            if self.rows is not None and self.rows.field(name) is None:
                raise UsageError(
                    f"process_partition: {self.rows.name} has no column {name!r}; it has {', '.join(self.rows.names)}"
                )
        return _operator(
            uid, (KeyedStream(self, (), order),), process, PartitionProcess, output, outputs, "fail", None,
            broadcast or {}, parallelism,
        )  # fmt: skip

    def side(self, output: Output[Any] | str) -> Stream:
        """A side output of the operator, or the late rows of the source, that this stream comes from."""
        name = output if isinstance(output, str) else output.name
        node = self.node
        if isinstance(node, KeyedNode):
            if name in node.sides:
                return Stream(self.flow, node, name, node.sides[name])
            step = (
                "give .process() on_error='dead_letter'"
                if name == DEAD_LETTERS
                else "list it in outputs=[...] of .process()"
            )
            raise UsageError(f"operator {node.uid!r} has no side output {name!r}: {step}")
        if isinstance(node, SourceNode) and node.late is not None and node.late.name == name:
            return Stream(self.flow, node, name, row_type(node.late.type))
        raise UsageError(f"{node.uid!r} has no side output {name!r}")

    def changes_as_rows(self, *, op: str) -> Stream:
        """Each change as a row of its own: a column `op` says what it is, "upsert" or "delete"."""
        if self.changes is None:
            raise UsageError(
                f"changes_as_rows: the rows of {self.node.uid!r} are no changes already: leave it out"
            )
        function = partial(with_operation, op, self.operation)
        node = TransformNode(self.flow._unnamed("changes"), (self,), function)
        rows = None if self.rows is None else operation_rows(self.rows, op, self.operation)
        return self.flow._add(node, rows)

    @property
    def dead_letters(self) -> Stream:
        """One row for every key that user code raised on."""
        return self.side(DEAD_LETTERS)

    def append(self, uid: str, target: Any, **options: Any) -> None:
        """Appends the rows of every batch to a table."""
        refuse_changes(f"sink {uid!r} (append)", self.changes, self.node.uid)
        self.flow._sink(uid, self, target, "append", options)

    def upsert(
        self,
        uid: str,
        target: Any,
        *,
        keys: str | Sequence[str] = (),
        order_by: str | None = None,
        **options: Any,
    ) -> None:
        """Keeps one row per key: a batch's last row by `order_by` replaces the table's. Deletes of a stream of changes delete.

        The rows of aggregates know by which columns they replace each other: there `keys` may be left out.
        """
        names = (keys,) if isinstance(keys, str) else tuple(keys or self.changes or ())
        given = {"keys": names, "order_by": order_by, **options}
        if self.operation:
            given["operation"] = self.operation
        self.flow._sink(uid, self, target, "upsert", given)

    def for_each_batch(self, uid: str, function: Callable[[Any, int], None], **options: Any) -> None:
        """Calls `function(frame, checkpoint_id)` once a batch is decided, again after a crash."""
        self.flow._sink(uid, self, function, "function", options)

    def collect(self, uid: str, target: Any) -> None:
        """Keeps the rows in memory, for tests."""
        self.flow._sink(uid, self, target, "collect", {})


@dataclass(frozen=True, eq=False)
class KeyedStream:
    """A stream whose rows are grouped by key."""

    stream: Stream
    columns: tuple[str, ...]
    order_by: tuple[str, ...]

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
        return _operator(
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

    def connect(self, other: KeyedStream) -> ConnectedStreams:
        """Two inputs with the same key, processed with one state."""
        self._check_same_key("connect", other)
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
        time: str = "",
        right_time: str = "",
    ) -> Stream:
        """Pairs of rows of the two inputs that have the same key, and of which the right row's time is `within` two bounds of
        the left row's: `within=("-10 minutes", "0 minutes")` finds the right rows of the ten minutes before.

        `output` is a row type whose fields are filled by name, or a function `(left, right) -> row`. `how` is inner, left,
        right, full, semi or anti; a row without a partner comes out when none can come any more.
        """
        self._check_same_key(f"join {uid!r}", right)
        times = self._times(uid, right, time, right_time)
        declared = interval_join(
            self._rows(uid), right._rows(uid), output, times=times, within=within, how=how
        )
        return _ready(self, declared, right)

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
        time: str = "",
        right_time: str = "",
    ) -> Stream:
        """Each row with the newest row of `right` that has the same key and is not later: the version valid at its event time.

        A row waits until the watermark has reached its time, so that its version is certain; with `wait=False` it takes the
        one that is known when it comes. A version is valid until the next one, and for `keep` at most. `output` is as in
        `join`; `how` is left or inner.
        """
        self._check_same_key(f"join {uid!r}", right)
        times = self._times(uid, right, time, right_time)
        declared = asof_join(
            self._rows(uid), right._rows(uid), output, times=times, keep=keep, wait=wait, how=how
        )
        return _ready(self, declared, right)

    def join_latest(
        self,
        uid: str,
        right: KeyedStream,
        output: Any,
        /,
        *,
        how: str = "left",
        ttl: str | timedelta | Ttl | None = None,
    ) -> Stream:
        """Each row, as soon as it comes, with the newest row of `right` that has the same key and has come so far.

        The newest is the last by event time, if `right` has one, and else the last to come. A row that comes later changes
        nothing that is out. `ttl` is how long a right row is known. `output` is as in `join`; `how` is left or inner.
        """
        self._check_same_key(f"join {uid!r}", right)
        flow = self.stream.flow
        order = flow._event_time(uid, right.stream, "") if flow._has_event_time(right.stream) else ""
        expiry = None if ttl is None else ttl_of(ttl)
        declared = latest_join(self._rows(uid), right._rows(uid), output, order=order, ttl=expiry, how=how)
        return _ready(self, declared, right)

    def _times(self, uid: str, right: KeyedStream, left_time: str, right_time: str) -> tuple[str, str]:
        """The columns of the event times of both inputs."""
        flow = self.stream.flow
        return flow._event_time(uid, self.stream, left_time), flow._event_time(uid, right.stream, right_time)

    def _check_same_key(self, what: str, other: KeyedStream) -> None:
        if len(self.columns) != len(other.columns):
            raise UsageError(
                f"{what}: the left input has {len(self.columns)} key columns and the right one {len(other.columns)}"
            )
        for mine, theirs in zip(self.columns, other.columns, strict=True):
            left = self.stream.rows.field(mine) if self.stream.rows else None
            right = other.stream.rows.field(theirs) if other.stream.rows else None
            if left is not None and right is not None and key_type(left.type) != key_type(right.type):
                raise UsageError(
                    f"{what}: the left input is keyed by {mine} ({left.type}) and the right one by {theirs} ({right.type}): "
                    "a key has one type, so cast one of them"
                )

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
        from stateflow.state.declare import ValueState

        def process(self: Any, key: Any, rows: Any, ctx: Any) -> Any:
            value = self.state.value
            for row in rows:
                out, value = function(key, row, value)
                if out is not None:
                    yield out
            if value is None:
                self.state.clear()
            else:
                self.state.value = value

        cls: Any = type(
            f"map_with_state_{uid}",
            (KeyedProcess,),
            {"state": ValueState(state, default=default, ttl=ttl, queryable=queryable), "process": process},
        )
        return self.process(uid, cls, output=output)

    def aggregate(
        self, uid: str, output: Any, /, *, queryable: bool = False, **aggregates: Aggregate
    ) -> Stream:
        """Aggregates over all rows of a key so far: per batch one row for every key that has rows in it.

        The fields of `output` are the key columns and the aggregates, by name. A row replaces the key's row before. With
        `queryable=True` `stateflow serve` answers from its state.
        """
        return _ready(self, _queryable(running_aggregate(self._rows(uid), output, aggregates), queryable))

    def latest(self, uid: str, *, queryable: str = "") -> Stream:
        """The last row of each key, by the key's `order_by` or else by event time; it is put out whenever it changes.

        `queryable` names the state under which `stateflow serve` answers with it.
        """
        flow = self.stream.flow
        has_time = not self.order_by and flow._has_event_time(self.stream)
        time = flow._event_time(uid, self.stream, "") if has_time else ""
        return _ready(self, latest(self._rows(uid), time=time, queryable=queryable))

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
        second. A call that raises is repeated `retries` times, after `backoff`, then twice that, and so on; then the batch
        fails, or with `on_error="dead_letter"` the rows of its keys are diverted. The fields of `output` that the rows do not
        have are filled from the answer.
        """
        declared = enrich(
            self._rows(uid), look_up, output, batch=batch, concurrency=concurrency, ttl=ttl, retries=retries,
            backoff=backoff, rate=rate, on_error=on_error,
        )  # fmt: skip
        return _ready(self, declared)

    def window(
        self, window: Window, *, lateness: str | timedelta = "0 seconds", time: str = ""
    ) -> WindowedStream:
        """Cuts the rows of a key into windows of event time, such as `sf.tumbling("1 minute")`.

        A window is closed when the watermark has reached its end plus `lateness`. `time` is the column of the event time,
        if it is not the source's.
        """
        return WindowedStream(self, window_of(window), not_negative("window", "lateness", lateness), time)

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
        first by `by`. Without `per` each row is one of its own, and rows replace each other by rank.
        """
        declared = top(self._rows(uid), n, by=by, per=per, rank=rank, ttl=ttl)
        return _ready(self, _queryable(declared, queryable))

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
        return _columnar(
            uid, (self,), function, state, on_due, chunk_rows, output, outputs, forgets, parallelism
        )


@dataclass(frozen=True, eq=False)
class WindowedStream:
    """A keyed stream, cut into windows of event time."""

    keyed: KeyedStream
    windows: Window
    lateness: int
    time: str

    def aggregate(
        self,
        uid: str,
        output: Any,
        /,
        *,
        emit: str = "final",
        queryable: bool = False,
        **aggregates: Aggregate,
    ) -> Stream:
        """Aggregates per key and window. The fields of `output` are the key columns, `window_start`, `window_end` and the
        aggregates, by name.

        `emit="final"` puts a window out once, when it is closed. `"changes"` puts it out in every batch that has rows of
        it, and `"on_time"` when the watermark reaches its end and after every later change: then a row replaces the
        window's row before. Rows whose windows are all closed go to `.side("late")`. With `queryable=True` `stateflow serve`
        answers with what the open windows of a key hold so far.
        """
        keyed = self.keyed
        time = keyed.stream.flow._event_time(uid, keyed.stream, self.time)
        declared = window_aggregate(
            keyed._rows(uid), output, aggregates,
            window=self.windows, time=time, lateness=self.lateness, emit=emit,
        )  # fmt: skip
        return _ready(keyed, _queryable(declared, queryable))

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
        time = keyed.stream.flow._event_time(uid, keyed.stream, self.time)
        declared = window_code(
            keyed._rows(uid), process, output,
            window=self.windows, time=time, lateness=self.lateness, on_error=on_error,
        )  # fmt: skip
        return _ready(keyed, declared)

    def join(
        self,
        uid: str,
        right: KeyedStream,
        output: Any = None,
        /,
        *,
        how: str = "inner",
        right_time: str = "",
    ) -> Stream:
        """Pairs of rows of the two inputs that have the same key and are in the same window; they come out when it is closed.

        `output` and `how` are as in `KeyedStream.join`; fields `window_start` and `window_end` are filled, too.
        """
        keyed = self.keyed
        keyed._check_same_key(f"join {uid!r}", right)
        times = keyed._times(uid, right, self.time, right_time)
        declared = window_join(
            keyed._rows(uid), right._rows(uid), output,
            times=times, window=self.windows, lateness=self.lateness, how=how,
        )  # fmt: skip
        return _ready(keyed, declared, right)


@dataclass(frozen=True, eq=False)
class ConnectedStreams:
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
        return _operator(
            uid, (self.left, self.right), process, ConnectedProcess, output, outputs, on_error,
            dead_letter_threshold, broadcast or {}, parallelism,
        )  # fmt: skip

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
        return _columnar(
            uid, inputs, function, state, on_due, chunk_rows, output, outputs, forgets, parallelism
        )


def _columnar(
    uid: str,
    inputs: tuple[KeyedStream, ...],
    code: Callable[..., Any] | ColumnarOperator,
    state: Mapping[str, Any] | ColumnLayout | None,
    on_due: Callable[..., Any] | None,
    chunk_rows: int,
    output: Any,
    outputs: Sequence[Output[Any]],
    forgets: Sequence[str],
    parallelism: int | None,
) -> Stream:
    flow = inputs[0].stream.flow
    order_by = [name for keyed in inputs for name in keyed.order_by]
    node = KeyedNode(
        flow._uid("operator", uid),
        tuple(keyed.stream for keyed in inputs),
        inputs,
        columnar=columnar_operator(uid, code, state, on_due, chunk_rows, inputs[0].columns, order_by),
        forgets=frozenset(forgets),
        rows=tuple(keyed.stream.rows for keyed in inputs),
        output=row_type(output),
        sides=side_outputs(uid, outputs, "fail"),
        parallelism=own_parallelism(uid, parallelism),
    )
    return flow._add(node, node.output)


def _queryable(declared: _Declared, queryable: bool) -> _Declared:
    """The operator, whose states `stateflow serve` may answer from."""
    if not queryable:
        return declared
    return replace(
        declared, states={name: replace(layout, queryable=True) for name, layout in declared.states.items()}
    )


def _ready(keyed: KeyedStream, declared: ReadyOperator, *more: KeyedStream) -> Stream:
    flow, inputs = keyed.stream.flow, (keyed, *more)
    for name, layout in declared.states.items():
        layout.check(f"{declared.where}, state {name!r}", keyed.columns)
    node = KeyedNode(
        flow._uid("operator", declared.uid),
        tuple(each.stream for each in inputs),
        inputs,
        columnar=declared,
        rows=tuple(each.stream.rows for each in inputs),
        output=declared.output,
        sides=declared.sides,
    )
    return flow._add(node, node.output, declared.changes, declared.operation)


def _operator(
    uid: str,
    inputs: tuple[KeyedStream, ...],
    process: Any,
    base: type[Process[Any]],
    output: Any,
    outputs: Sequence[Output[Any]],
    on_error: str,
    threshold: int | None,
    broadcast: Mapping[str, Stream],
    parallelism: int | None,
) -> Stream:
    flow = inputs[0].stream.flow
    flow._uid("operator", uid)
    cls = process if isinstance(process, type) else type(process()) if callable(process) else None
    if cls is None or not issubclass(cls, base):
        raise UsageError(
            f"operator {uid!r}: {getattr(cls, '__name__', repr(process))} is not a {base.__name__}"
        )
    cls.declarations()
    if on_error not in ("fail", "dead_letter"):
        raise UsageError(f"operator {uid!r}: on_error is 'fail' or 'dead_letter', not {on_error!r}")
    arguments = type_arguments(cls)
    declared = output if output is not None else (arguments[-1] if arguments else None)
    if declared in (None, type(None), Any):
        raise UsageError(
            f"operator {uid!r}: say what {cls.__name__} puts out, as {base.__name__}[..., Output] or output=..."
        )
    rows: list[RowType | None] = []
    first = 0 if base is PartitionProcess else 1
    for index, keyed in enumerate(inputs):
        hint = arguments[first + index] if arguments else None
        rows.append(row_type(hint) if hint not in (None, Any, dict) else keyed.stream.rows)
    sides = side_outputs(uid, outputs, on_error)
    node = KeyedNode(
        uid,
        (*(k.stream for k in inputs), *broadcast.values()),
        inputs,
        process=process,
        process_type=cls,
        rows=tuple(rows),
        output=row_type(declared),
        sides=sides,
        on_error=on_error,
        dead_letter_threshold=threshold,
        broadcast=dict(broadcast),
        parallelism=own_parallelism(uid, parallelism),
    )
    return flow._add(node, node.output)


class Flow:
    """Collects what a pipeline function declares."""

    def __init__(self, name: str) -> None:
        self.name = checked_name("pipeline", name)
        self.nodes: list[Node] = []
        self._taken: dict[str, str] = {}

    def source(
        self,
        uid: str,
        factory: Any,
        type: Any = None,
        *,
        event_time: str | None = None,
        watermark: Any = None,
        late: Output[Any] | None = None,
    ) -> Stream:
        """A streaming input, opened only when the pipeline runs.

        `factory` is a table such as `sf.delta(path)`, files such as `sf.files(path, "json")`, or a function from
        SparkSession to a streaming DataFrame. With `event_time` and `watermark` rows at or behind the watermark go to
        `late`, or are marked `ctx.late`.
        """
        self._uid("source", uid)
        check_source(uid, factory)
        rows = row_type(type) if type is not None else None
        if isinstance(factory, Files):
            factory = factory.declared(uid, rows)
            rows = factory.rows
        if (event_time is None) != (watermark is None):
            raise UsageError(f"source {uid!r}: give both event_time and watermark, or neither")
        if event_time is not None and rows is not None:
            column = rows.field(event_time)
            if column is None:
                raise UsageError(f"source {uid!r}: {rows.name} has no event-time column {event_time!r}")
            if column.type != "timestamp":
                raise UsageError(
                    f"source {uid!r}: event-time column {event_time!r} is a {column.type}, not a datetime"
                )
        if late is not None and event_time is None:
            raise UsageError(f"source {uid!r}: late rows need event_time and watermark")
        node = SourceNode(
            uid, (), factory, rows, event_time, micros(watermark) if watermark is not None else None, late
        )
        return self._add(node, rows)

    def _sink(self, uid: str, stream: Stream, target: Any, mode: str, options: Mapping[str, Any]) -> None:
        self._uid("sink", uid)
        check_sink(uid, mode, target, options, stream.rows)
        self.nodes.append(SinkNode(uid, (stream,), target, mode, options))

    def _add(
        self, node: Node, rows: RowType | None, changes: tuple[str, ...] | None = None, operation: str = ""
    ) -> Stream:
        self.nodes.append(node)
        return Stream(self, node, MAIN, rows, changes, operation)

    @staticmethod
    def _has_event_time(stream: Stream) -> bool:
        return any(isinstance(node, SourceNode) and node.event_time for node in _before(stream.node))

    def _event_time(self, uid: str, stream: Stream, named: str) -> str:
        """The column of a stream that has its event time."""
        before = list(_before(stream.node))
        for node in before:
            if (
                isinstance(node, KeyedNode)
                and isinstance(node.columnar, ReadyOperator)
                and node.columnar.holds_back
            ):
                refuse_what_is_held_back(uid, node.uid, node.columnar.holds_back)
        names = {node.event_time for node in before if isinstance(node, SourceNode) and node.event_time}
        return event_time(uid, stream.rows, names, named)

    def _unnamed(self, kind: str) -> str:
        return f"{kind}-{len(self.nodes)}"

    def _uid(self, kind: str, uid: str) -> str:
        checked_name(kind, uid)
        if uid in self._taken:
            raise UsageError(
                f"{kind} uid {uid!r} is taken by a {self._taken[uid]}: every uid of a pipeline is its own: say "
                f"another, such as {f'{uid}-{kind}'!r}"
            )
        self._taken[uid] = kind
        return uid

    @property
    def sources(self) -> list[SourceNode]:
        return [n for n in self.nodes if isinstance(n, SourceNode)]

    @property
    def operators(self) -> list[KeyedNode]:
        return [n for n in self.nodes if isinstance(n, KeyedNode)]

    @property
    def sinks(self) -> list[SinkNode]:
        return [n for n in self.nodes if isinstance(n, SinkNode)]

    def consumers(self, node: Node) -> list[tuple[Node, Stream]]:
        """The nodes that read an output of `node`, each with the output."""
        return [(reader, stream) for reader in self.nodes for stream in reader.inputs if stream.node is node]


def _before(node: Node) -> Iterator[Node]:
    """The node, and all nodes that its rows come from."""
    yield node
    for stream in node.inputs:
        yield from _before(stream.node)
