"""The classes for keyed operators: process classes, side outputs and the context."""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from random import Random
from typing import Any, ClassVar, Generic, Protocol, TypeVar, get_args, get_origin

from stateflow.errors import UsageError
from stateflow.pipelines.processes.class_checks import check_class, clash
from stateflow.state.declare import Declared, declared

K = TypeVar("K")
R = TypeVar("R")
L = TypeVar("L")
O = TypeVar("O")  # noqa: E741 - the row types are key, row and output


@dataclass(frozen=True, slots=True)
class Output(Generic[O]):
    """A named side output: `ctx.emit(output, row)` sends to it, `stream.side(output)` reads it."""

    name: str
    type: Any


def output(name: str, type: type[O] | str) -> Output[O]:
    """Declares a side output."""
    return Output(name, type)


class Counter(Protocol):
    def inc(self, by: int = 1) -> None: ...


class Metrics(Protocol):
    """User metrics: summed over all subtasks of a batch and shown with its checkpoint."""

    def counter(self, name: str) -> Counter: ...


class Context(Protocol):
    """What user code can ask while it processes a key. Every answer is the same when the batch is replayed."""

    @property
    def key(self) -> Any:
        """None where there is no key."""
        ...

    @property
    def now(self) -> datetime:
        """The batch's processing time, fixed when it began."""
        ...

    @property
    def random(self) -> Random:
        """Seeded by batch and key."""
        ...

    @property
    def watermark(self) -> datetime | None:
        """Only later events are expected: a row at or before it is late. None before the first one."""
        ...

    @property
    def late(self) -> bool:
        """Whether the row read last was at or behind the watermark when it entered through its source."""
        ...

    @property
    def namespace(self) -> Any:
        """In a timer's handler the namespace that the timer was set under; None without one."""
        ...

    def for_each_key(self, state: Any, function: Callable[[Any, Context], Iterable[Any] | None]) -> None:
        """In `process_broadcast`: calls `function(key, ctx)` for every key that has something in `state`, in every subtask.

        The calls come before the rows of the batch, in key order, each with the states bound to its key. What they return is put out.
        """

    def clear_key(self) -> None:
        """Clears all states and timers of the key, in all namespaces. What is set afterwards stays."""

    @property
    def checkpoint_id(self) -> int:
        """The slot that this batch will be recorded in."""
        ...

    @property
    def subtask(self) -> int: ...
    @property
    def parallelism(self) -> int:
        """How many subtasks the operator has."""
        ...

    @property
    def parameters(self) -> Mapping[str, Any]: ...
    @property
    def metrics(self) -> Metrics: ...
    def emit(self, output: Output[Any], row: Any) -> None: ...


class _Body(dict[str, Any]):
    """The body of a process class while it is read: what replaces a state there is refused, not swallowed."""

    def __setitem__(self, name: str, value: Any) -> None:
        if name in self and (why := clash(name, self[name], value)):
            raise UsageError(f"{why} in {self.get('__qualname__', 'one class')}: rename one of them")
        super().__setitem__(name, value)


class _ProcessType(ABCMeta):
    """ABCMeta's kind, so that a process class may have abstract methods of its own."""

    @classmethod
    def __prepare__(mcs, name: str, bases: tuple[type, ...], /, **options: Any) -> _Body:
        return _Body()

    def __new__(
        mcs, name: str, bases: tuple[type, ...], body: dict[str, Any], /, **options: Any
    ) -> _ProcessType:
        made = super().__new__(mcs, name, bases, dict(body), **options)
        library = tuple(base for base in made.__mro__ if base.__module__ in (__name__, "typing"))
        if made not in library:
            check_class(made, library, frozenset(n for base in library for n in dir(base)))
        return made


_WRITES = {"value": ".value = ...", "map": "[key] = ...", "broadcast": "[key] = ...", "timer": ".set(...)"}
"""How code changes what a state holds, by the kind of the state; the others take one more value."""


class Process(Generic[K], metaclass=_ProcessType):
    """The base of all process classes: declared state, life cycle, hooks."""

    forgets: ClassVar[tuple[str, ...]] = ()
    """Names of states that earlier code declared and whose values may go. Without this, a run refuses to begin when a state is
    gone and another one is new and empty. It can be taken out again after the first checkpoint."""

    def open(self, ctx: Context) -> None:
        """Once per task, before the first key: connections, models. Keyed state is unavailable here."""

    def close(self) -> None:
        """Once per task, also when it fails."""

    def restore(self, ctx: Context) -> None:
        """After operator state was loaded, before the first key."""

    def snapshot(self, ctx: Context) -> None:
        """Before operator state is recorded: the last chance to update it."""

    def process_broadcast(self, name: str, rows: Iterator[Any], ctx: Context) -> None:
        """Rows of a broadcast stream, the same in every subtask, before the keys of the batch."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in type(self).declared_names():
            write = _WRITES.get(getattr(type(self), name).kind, ".add(...)")
            raise UsageError(
                f"self.{name} = ... replaces the state {name!r} itself: write self.{name}{write} to change what it holds"
            )
        object.__setattr__(self, name, value)

    _declarations: ClassVar[Declared]
    _declared_names: ClassVar[frozenset[str]]

    @classmethod
    def declarations(cls) -> Declared:
        declarations = cls.__dict__.get("_declarations")
        if declarations is None:
            declarations = cls._declarations = declared(cls)
        return declarations

    @classmethod
    def declared_names(cls) -> frozenset[str]:
        names = cls.__dict__.get("_declared_names")
        if names is None:
            every = cls.declarations()
            names = frozenset((*every.states, *every.timers, *every.operator))
            cls._declared_names = names
        return names


class KeyedProcess(Process[K], Generic[K, R, O]):
    """One call of `process` per key and batch, with the key's rows in `order_by` order."""

    def process(self, key: K, rows: Iterator[R], ctx: Context) -> Iterable[O] | None:
        raise NotImplementedError(f"{type(self).__name__} does not define process(self, key, rows, ctx)")


class ConnectedProcess(Process[K], Generic[K, L, R, O]):
    """Two inputs with the same key and one state: for each key first the left rows, then the right ones."""

    def process_left(self, key: K, rows: Iterator[L], ctx: Context) -> Iterable[O] | None:
        raise NotImplementedError(f"{type(self).__name__} does not define process_left(self, key, rows, ctx)")

    def process_right(self, key: K, rows: Iterator[R], ctx: Context) -> Iterable[O] | None:
        raise NotImplementedError(
            f"{type(self).__name__} does not define process_right(self, key, rows, ctx)"
        )


class PartitionProcess(Process[None], Generic[R, O]):
    """One call of `process` per subtask and batch, also when the subtask gets no rows. It has no key: its states are those of the
    subtask, `OperatorListState`, `UnionListState` and `BroadcastState`."""

    def process(self, rows: Iterator[R], ctx: Context) -> Iterable[O] | None:
        raise NotImplementedError(f"{type(self).__name__} does not define process(self, rows, ctx)")

    @classmethod
    def declarations(cls) -> Declared:
        found = super().declarations()
        for name in (*found.states, *found.timers):
            raise UsageError(
                f"{name!r} of {cls.__name__} belongs to a key, and a PartitionProcess has none: use OperatorListState, "
                "UnionListState or BroadcastState, or key the stream with key_by and make it a KeyedProcess"
            )
        return found


def type_arguments(cls: type[Process[Any]]) -> tuple[Any, ...]:
    """The types in `KeyedProcess[int, Order, Total]` or its like; empty when the class names none."""
    for klass in cls.__mro__:
        for base in getattr(klass, "__orig_bases__", ()):
            origin = get_origin(base)
            if isinstance(origin, type) and issubclass(
                origin, (KeyedProcess, ConnectedProcess, PartitionProcess)
            ):
                arguments = get_args(base)
                if not any(isinstance(a, TypeVar) for a in arguments):
                    return arguments
    return ()
