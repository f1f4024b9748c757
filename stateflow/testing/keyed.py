"""A process class without Spark."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec.structs import replace

from stateflow.compatibility.non_restored import check_replaced
from stateflow.compatibility.states import (
    changed_elements,
    check_key,
    check_key_columns,
    check_options,
    indexes,
    options_behind,
    resolve_states,
    state_ids,
    todays_elements,
)
from stateflow.errors import UsageError
from stateflow.format.encoding import prefix
from stateflow.format.instants import micros_since_epoch
from stateflow.format.keygroups import key_group
from stateflow.format.records import OperatorListState, OperatorState
from stateflow.format.scalars import BY_NAME
from stateflow.operators.arrow_types import arrow_schema_of
from stateflow.operators.binding import type_of
from stateflow.operators.context import OperatorContext
from stateflow.operators.elements import gathered, hand_out
from stateflow.operators.keyed import Chunk, KeyedEngine
from stateflow.operators.lateness import is_late
from stateflow.operators.output import writers
from stateflow.operators.snapshots import Copies
from stateflow.operators.watch import Watch
from stateflow.pipelines.flow import Flow
from stateflow.pipelines.graph import KeyedNode
from stateflow.pipelines.processes.operator_spec import DEAD_LETTERS, MAIN, OperatorSpec, side_outputs
from stateflow.pipelines.processes.process import ConnectedProcess, Output, Process, type_arguments
from stateflow.pipelines.rows.row_type import Field, RowType, key_type, nested_in, row_type, without_nulls
from stateflow.state.broadcast_map import BoundBroadcast
from stateflow.state.keys.codec import KeyCodec
from stateflow.state.keys.text import shown
from stateflow.state.lists_and_maps import BoundListState, BoundMapState
from stateflow.state.many_timers import BoundTimers
from stateflow.state.namespaces import Namespaced
from stateflow.state.single_values import BoundReducingState, BoundValueState
from stateflow.state.timers import BoundTimer
from stateflow.state.values.evolution.declared_types import evolved_serializer
from stateflow.state.values.key_types import key_types_for
from stateflow.state.values.serializers import Serializer, serializer_for
from stateflow.testing.harness import KeyedStateHarness
from stateflow.testing.recorded import RecordedState, refuse_unknown

_Judged = tuple[Any, bool]
"""A row, and whether it is late."""
_ANY = RowType("Any", (), lambda *values: values, False)


class KeyedHarness(KeyedStateHarness):
    """Runs one process over a memory backend. Every call of `rows` or `advance` is a batch of its own."""

    def __init__(
        self,
        process: type[Process[Any]] | Callable[[], Process[Any]],
        *,
        key: Callable[[Any], Any] | str | tuple[str, ...] | None = None,
        key_type: Any = None,
        now: datetime | None = None,
        parameters: Mapping[str, Any] | None = None,
        output: Any = None,
        outputs: Iterable[Output[Any]] = (),
        on_error: str = "fail",
        max_parallelism: int | None = None,
        event_time: Callable[[Any], datetime | None] | str | None = None,
        after: KeyedHarness | RecordedState | None = None,
    ) -> None:
        """`output` and `outputs` are those of the pipeline's `.process(...)`: rows that a run would refuse are refused.
        `event_time` is a field of the rows, or finds their time: a row at or behind the watermark is late then.
        `after` is a harness of an earlier release of the code: this one goes on with its state, or is refused as a run would be."""
        cls = process if isinstance(process, type) else type(process())
        arguments = type_arguments(cls)
        hint = key_type if key_type is not None else (arguments[0] if arguments else None)
        if hint is None or hint is Any:
            raise UsageError(
                f"say what the key of {cls.__name__} is: KeyedHarness({cls.__name__}, key='user', key_type=int)"
            )
        super().__init__(now, max_parallelism)
        self._key_of = (_key_getter(key, arguments),) * 2
        self._inputs: tuple[RowType, ...] = ()
        self._time_of = _time_getter(event_time)
        self._parameters = parameters or {}
        self._process_type: type[Process[Any]] = cls
        types = key_types_for(hint)
        rows = _output_rows(output, arguments)
        sides = side_outputs(cls.__name__, tuple(outputs), on_error)
        node = KeyedNode(cls.__name__, process_type=cls)
        begins = after.recorded() if isinstance(after, KeyedHarness) else after
        before = begins.operator if begins is not None else None
        if begins is not None and before is not None:
            self._take_key_groups(begins)
            check_key_columns(cls.__name__, _key_names(key, hint, len(types)), before)
            check_key(cls.__name__, types, before)
            check_replaced(node, before)
            changed_elements(node, before)
        states, next_id = resolve_states(node, before, begins.slot + 1 if begins is not None else 0)
        ids = state_ids(states)
        self._spec = OperatorSpec(
            cls.__name__, process, cls, _key_names(key, hint, len(types)), types, (_ANY,), rows or _ANY,
            sides, ids, on_error, evolved={name: schema for name, schema in states.items() if schema.evolved},
            indexes=indexes(states),
        )  # fmt: skip
        self._operator = OperatorState(
            key=tuple(zip(self._spec.key_columns, types, strict=True)), max_parallelism=self._max,
            assignment=(), shards=(), states=states, next_state_id=next_id,
        )  # fmt: skip
        declared = {**({} if rows is None else {MAIN: rows}), **sides}
        schemas = {name: arrow_schema_of(of) for name, of in declared.items()}
        self._takers = {name: Copies(writer) for name, writer in writers(self._spec, schemas).items()}
        self._codec = KeyCodec(types, self._spec.key_columns if len(types) > 1 else ())
        if begins is not None and before is not None:
            self._begin_with(replace(begins, elements=dict(todays_elements(node, before))))

    @classmethod
    def of(
        cls,
        flow: Flow,
        uid: str,
        *,
        rows: Sequence[Any] = (),
        after: KeyedHarness | RecordedState | None = None,
        **arguments: Any,
    ) -> KeyedHarness:
        """A keyed operator of a pipeline: `KeyedHarness.of(pipeline.build({...}), "balance")`. Its rows may be dicts. `rows` are the
        types of its inputs, where the pipeline does not say them. The further arguments are `now`, `parameters`, `max_parallelism`,
        `event_time` and `after`.

        Its watermark is the operator's own."""
        node = next((node for node in flow.operators if node.uid == uid), None)
        if node is None or node.process is None or not node.has_key:
            keyed = [node.uid for node in flow.operators if node.process is not None and node.has_key]
            raise UsageError(
                f"flow {flow.name!r} has no operator {uid!r} whose code gets the rows of a key; it has {', '.join(keyed) or 'none'}"
            )
        inputs = tuple(map(row_type, rows)) or tuple(each for each in node.rows if each is not None)
        if len(inputs) != len(node.keyed):
            raise UsageError(
                f"only Spark knows the columns of operator {uid!r}: give its rows, such as rows=['user long, amount double']"
            )
        sides: list[Output[Any]] = [
            Output(name, of) for name, of in node.sides.items() if name != DEAD_LETTERS
        ]
        begins = after.recorded() if isinstance(after, KeyedHarness) else after
        before = begins.operator if begins is not None else None
        if before is not None:
            check_options(node, before)
        harness = cls(
            node.process, key=node.keyed[0].columns, key_type=_key_hint(uid, inputs[0], node.keyed[0].columns),
            output=node.output, outputs=sides, on_error=node.on_error, after=begins, **arguments,
        )  # fmt: skip
        harness._key_of = (
            _key_getter(node.keyed[0].columns, ()),
            _key_getter(node.keyed[-1].columns, ()),
        )
        harness._inputs = inputs
        harness._node = node
        harness._spec = dataclasses.replace(harness._spec, uid=uid, rows=inputs)
        harness._operator = replace(harness._operator, options=options_behind(node, before))
        return harness

    @property
    def _uid(self) -> str:
        return self._spec.uid

    def _as_key(self, key: Any) -> Any:
        """The key as a run would give it: checked, and a named tuple when it is composite."""
        if key is None:
            raise UsageError("None is no key, for no row can have it: give the key of a row")
        composite = len(self._codec.types) > 1
        return self._codec.decode(self._codec.encode(tuple(key) if composite else key), 0)[0]

    def _full_key(self, key: Any) -> bytes:
        return prefix(key_group(key, self._max), 0) + self._codec.encode(key) + b"\0"

    def put(self, key: Any, **states: Any) -> None:
        """Sets states and timers of a key, each to what `snapshot` gives of it, without a batch."""
        engine = self._new_engine()
        hand_out(engine.process, self._elements, 0, whole=False)
        key = self._as_key(key)

        def change() -> None:
            for name, value in states.items():
                refuse_unknown(self._uid, name, self._process_type.declared_names())
                _set(getattr(engine.process, name), value)

        engine.change(self._full_key(key), key, change)
        engine.expiry.finish()

    def _serializer(self, of: str) -> Serializer:
        return evolved_serializer(type_of(self._process_type, self._uid, of), self._operator.states[of])

    def _operator_state(self) -> OperatorState:
        """The state as a record has it."""
        declared = self._process_type.declarations().operator
        elements = {
            name: OperatorListState(declared[name].kind, serializer_for(declared[name].type).schema, parts)  # type: ignore[arg-type]
            for name, parts in self._elements.items()
        }
        return msgspec.structs.replace(self._operator, operator_states=elements)

    def rows(self, *rows: Any, late: bool | Sequence[bool] | None = None) -> list[Any]:
        """One batch of input rows; gives the rows that it puts out. `late`, for all or for each, overrides what their event times
        say."""
        if issubclass(self._process_type, ConnectedProcess):
            raise UsageError(f"{self._process_type.__name__} has two inputs: feed it with left() and right()")
        return self._batch([self._row(row, 0) for row in rows], late)

    def left(self, *rows: Any) -> list[Any]:
        """A batch of rows of a connected process's left input."""
        return self.both(rows, ())

    def right(self, *rows: Any) -> list[Any]:
        """A batch of rows of a connected process's right input."""
        return self.both((), rows)

    def both(
        self, left: Iterable[Any], right: Iterable[Any], *, late: bool | Sequence[bool] | None = None
    ) -> list[Any]:
        """A batch with rows of both inputs: each key is given its left rows before its right ones. `late` is as in `rows`, the left
        ones first."""
        if not issubclass(self._process_type, ConnectedProcess):
            raise UsageError(f"{self._process_type.__name__} has one input: feed it with rows()")
        sides = [(row, side) for side, rows in enumerate((left, right)) for row in rows]
        return self._batch([self._row(row, side) for row, side in sides], late)

    def batch(
        self,
        *inputs: Iterable[Any],
        late: bool | Sequence[bool] | None = None,
        broadcast: Mapping[str, Sequence[Any]] = MappingProxyType({}),
    ) -> list[Any]:
        """A batch with the rows of each input, and rows of broadcast streams before them."""

        def first(engine: KeyedEngine) -> None:
            for name, rows in broadcast.items():
                engine.broadcast(name, rows)

        rows = [self._row(row, side) for side, rows in enumerate(inputs) for row in rows]
        return self._batch(rows, late, first)

    def _row(self, row: Any, side: int) -> tuple[Any, int, Any]:
        key = self._as_key(self._key_of[side](row))
        return key, side, _made(self._inputs[side], row) if self._inputs and isinstance(row, dict) else row

    def broadcast(self, name: str, *rows: Any) -> list[Any]:
        """A batch with rows of a broadcast stream; gives the rows that it puts out."""
        return self._batch([], None, lambda engine: engine.broadcast(name, rows))

    def state(self, key: Any) -> Any:
        """The process with its states bound to `key`, for reading: `harness.state(1).total.value`. Those of the operator are
        there, too."""
        engine = self._new_engine()
        hand_out(engine.process, self._elements, 0, whole=False)
        key = self._as_key(key)
        engine.move_to(self._full_key(key), key)
        return engine.process

    def snapshot(self, key: Any) -> dict[str, Any]:
        """Every state of a key, and those of the operator, as plain values; what is not there is left out. A state with namespaces
        is a dict by namespace, where None stands for no namespace."""
        process, values = self.state(key), {}
        for name in (n for n in self._spec.state_ids if n in self._process_type.declared_names()):
            state = getattr(process, name)
            value = _plain(state)
            if state.namespace is not None:
                value = {
                    **({} if value is None else {None: value}),
                    **{each: _plain(state.view_of(each)) for each in state.namespaces()},
                } or None
            if value is not None:
                values[name] = value
        for name in self._process_type.declarations().operator:
            if value := _plain(getattr(process, name)):
                values[name] = value
        return values

    def _batch_without_rows(self) -> list[Any]:
        return self._batch([], None)

    def _batch(
        self,
        rows: list[tuple[Any, int, Any]],
        late: bool | Sequence[bool] | None,
        before: Callable[[KeyedEngine], None] = lambda engine: None,
    ) -> list[Any]:
        by_key: dict[Any, tuple[list[_Judged], list[_Judged]]] = {}
        given = late if isinstance(late, Sequence) else [late] * len(rows)
        for (key, side, row), flag in zip(rows, given, strict=True):
            by_key.setdefault(key, ([], []))[side].append((row, self._is_late(flag, row)))
        with self._engine() as engine:
            before(engine)
            with self._watched.expiry():
                engine.expiry.expire(range(self._max))
            watch = Watch(engine)
            for _ in engine.visit(range(self._max)):
                watch.raise_violation()
            inputs = 2 if isinstance(engine.process, ConnectedProcess) else 1
            for key in by_key:
                base = self._full_key(key)
                engine.run(
                    Chunk(
                        [key],
                        [base],
                        partial(_inputs, by_key[key][:inputs], engine.context),
                        partial(_under, base),
                    )
                )
                watch.raise_violation()
            if engine.binding.timers:
                for _ in engine.fire(range(self._max)):
                    pass
                watch.raise_violation()
            engine.expiry.finish()
            produced = list(engine.out)
            for name, emitted in ((MAIN, produced), *engine.context.sides.items()):
                if name in self._takers:
                    self._takers[name].check(emitted)
        self._watermark_before = self.watermark
        self._count(engine.context.metrics.counters)
        return self._put_out(produced, engine.context.sides)

    def _is_late(self, given: bool | None, row: Any) -> bool:
        """As a run judges it: without a watermark, or without an event time, a row is on time."""
        if given is not None or self._time_of is None or self.watermark is None:
            return bool(given)
        at = self._time_of(row)
        return at is not None and bool(is_late(_micros(at), _micros(self.watermark)))

    def _new_engine(self) -> KeyedEngine:
        for each in (self.watermark, self.now):
            if each is not None:
                _micros(each)  # refuses a time without a zone
        spec = dataclasses.replace(self._spec, **self._lag())
        engine = KeyedEngine(spec, self._moment(self._parameters), *self._subtask, takers=self._takers)
        engine.attach(self._watch())
        return engine

    @contextmanager
    def _engine(self) -> Iterator[KeyedEngine]:
        self._before = self.recorded()
        self._slot += 1
        before = self._before.entries
        engine = self._new_engine()
        hand_out(engine.process, self._elements, 0, whole=True, watched=True)
        try:
            engine.open()
            engine.restore()
            yield engine
            engine.snapshot()
            elements: dict[str, tuple[tuple[bytes, ...], ...]] = {
                name: (part,) for name, part in gathered(engine.spec.uid, engine.process).items()
            }
        except BaseException:
            # As in a run: a batch that fails has changed nothing.
            self._backend = self._backend_with(before)
            raise
        else:
            self._elements = elements
        finally:
            engine.close()


def _key_getter(key: Any, arguments: tuple[Any, ...]) -> Callable[[Any], Any]:
    if callable(key):
        return partial(_found_key, key)
    if key is None:
        if len(arguments) < 2:
            raise UsageError("say how a row's key is found: KeyedHarness(..., key='user')")
        fields = row_type(arguments[1]).names
        key = fields[0]
    names = (key,) if isinstance(key, str) else tuple(key)

    def get(row: Any) -> Any:
        values = tuple(row.get(n) if isinstance(row, dict) else getattr(row, n) for n in names)
        for name, value in zip(names, values, strict=True):
            if value is None:
                raise UsageError(f"a row has no {name!r}, which is its key: {without_nulls(name)}")
        return values[0] if len(values) == 1 else values

    return get


def _found_key(key: Callable[[Any], Any], row: Any) -> Any:
    found = key(row)
    if found is None:
        # Which column the function reads only its author knows.
        raise UsageError(
            f"a row has no key: the function that is given as key= gives None for {shown(row)}; leave such rows out, or let it give a value"
        )
    return found


def _output_rows(output: Any, arguments: tuple[Any, ...]) -> RowType | None:
    """The output type of the process, as `.process(...)` finds it; None when only `output=` could say it."""
    if output is not None:
        return row_type(output)
    try:
        return row_type(arguments[-1]) if arguments and isinstance(arguments[-1], type) else None
    except UsageError:
        return None


def _time_getter(event_time: Any) -> Callable[[Any], Any] | None:
    if event_time is None or callable(event_time):
        return event_time  # type: ignore[no-any-return]

    def get(row: Any) -> Any:
        return row[event_time] if isinstance(row, dict) else getattr(row, event_time)

    return get


def _key_names(key: Any, hint: Any, count: int) -> tuple[str, ...]:
    if isinstance(key, tuple):
        return key
    if isinstance(key, str):
        return (key,)
    fields = getattr(hint, "_fields", None) or getattr(hint, "__dataclass_fields__", None)
    return tuple(fields) if fields else tuple(f"k{i}" for i in range(count))


def _key_hint(uid: str, rows: RowType, columns: Sequence[str]) -> Any:
    """The type of a key that a row has in these columns."""
    kinds = [key_type(field.type) for name in columns if (field := rows.field(name)) is not None]
    if len(kinds) < len(columns) or None in kinds:
        raise UsageError(
            f"operator {uid!r}: {rows.name} has no columns {', '.join(columns)} that can be a key; it has {rows.ddl}"
        )
    types = tuple(BY_NAME[kind].type for kind in kinds if kind is not None)
    return types[0] if len(types) == 1 else tuple.__class_getitem__(types)


def _made(of: RowType, row: Mapping[str, Any]) -> Any:
    """A row of the operator's input from its columns."""
    if unlike := {*of.names} ^ {*row}:
        raise UsageError(
            f"rows of {of.name} have the columns {', '.join(of.names)}: look at {', '.join(sorted(unlike))}"
        )
    return of.make(*(_value(field, row[field.name]) for field in of.fields))


def _value(field: Field, value: Any) -> Any:
    if value is None or field.hint is None or nested_in(field.hint)[0] == "":
        return value
    return msgspec.convert(value, field.hint)


def _set(state: Any, value: Any) -> None:
    """Sets a state of the current key to what `_plain` gives of it."""
    if isinstance(state, Namespaced):
        state.clear_key()
    if state.namespace is not None and isinstance(value, dict):
        for namespace, own in value.items():
            _set_one(state.view_of(namespace) if namespace is not None else state, own)
    else:
        _set_one(state, value)


def _set_one(state: Any, value: Any) -> None:
    match state:
        case BoundTimer():
            state.set(value)
        case BoundTimers():
            state.clear_all()
            for at in value:
                state.set(at)
        case BoundMapState() | BoundListState():
            state.update(value)
        case BoundValueState():
            state.value = value
        case BoundReducingState():
            state.add(value)
        case _:
            raise UsageError(
                "the accumulator of an aggregating state cannot be set: begin with after=RecordedState, or add() its values in a batch"
            )


def _inputs(lists: tuple[list[_Judged], ...], context: OperatorContext, i: int) -> tuple[Iterator[Any], ...]:
    return tuple(_Once(_in_turn(rows, context)) for rows in lists)


def _in_turn(rows: list[_Judged], context: OperatorContext) -> Iterator[Any]:
    for row, late in rows:
        context.late = late
        yield row
    context.late = False


class _Once:
    """The rows of a key, for one pass: in a run a second pass silently finds none."""

    def __init__(self, rows: Iterator[Any]) -> None:
        self._rows = rows
        self._over = False

    def __iter__(self) -> _Once:
        if self._over:
            raise UsageError(
                "these rows have been gone through, and come only once: begin with rows = list(rows)"
            )
        return self

    def __next__(self) -> Any:
        for row in self._rows:
            return row
        self._over = True
        raise StopIteration


def _under(base: bytes, state_id: int) -> list[bytes]:
    return [base[:2] + state_id.to_bytes(2, "big") + base[4:]]


def _plain(state: Any) -> Any:
    match state:
        case BoundTimer():
            return state.at
        case BoundTimers():
            return state.all() or None
        case BoundMapState() | BoundBroadcast():
            return dict(state.items()) or None
        case BoundListState():
            return state.get() or None
        case BoundValueState():
            return state.value if state.exists() else None
    return state.get()


def _micros(at: datetime) -> int:
    if at.tzinfo is None:
        raise UsageError(
            f"{at} has no time zone: give times in UTC, such as datetime(2026, 1, 1, tzinfo=UTC)"
        )
    return micros_since_epoch(at)


__all__ = ["KeyedHarness"]
