"""Declarations of state in a process class. A task replaces them by states that are bound to its keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, Literal, Self, TypeVar, overload

from stateflow.errors import UsageError
from stateflow.names import with_options
from stateflow.state.expiry.ttl import Ttl, ttl_of
from stateflow.state.factories import shared_by_all, unchangeable
from stateflow.state.lists_and_maps import BoundListState, BoundMapState
from stateflow.state.many_timers import BoundTimers
from stateflow.state.operator_lists import BoundOperatorList
from stateflow.state.single_values import BoundAggregatingState, BoundReducingState, BoundValueState
from stateflow.state.timers import BoundTimer

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
A = TypeVar("A")
R = TypeVar("R")

Migrate = Callable[[Any], Any] | Sequence[Callable[[Any], Any]]
"""A function that takes a value of an earlier type, as its annotation names it or as plain data; or several of them."""


class Declaration:
    """A named state of an operator. Reading the attribute of an instance gives the state bound to its key."""

    kind = ""
    name = ""

    @with_options
    def __init__(
        self,
        *,
        ttl: str | timedelta | Ttl | None = None,
        queryable: bool = False,
        aliases: tuple[str, ...] | list[str] = (),
        namespace: Any = None,
        migrate: Migrate | None = None,
    ) -> None:
        """`namespace` is the type of the namespaces. A key has the state once per namespace: see `.at(namespace)`."""
        self.expiry = ttl_of(ttl)
        self.ttl = self.expiry.micros if self.expiry is not None else None
        self.namespace = namespace
        self.queryable = queryable
        self.aliases = tuple(aliases)
        self.migrate = migrate
        """The functions that make values of today's type from values of an earlier one."""

    def __set_name__(self, owner: type, name: str) -> None:
        if self.name and self.name != name:
            raise UsageError(
                f"{owner.__name__}.{name} is the same declaration as {self.name!r}: declare each state with its own call"
            )
        self.name = name


B = TypeVar("B")


class Binds(Generic[B]):
    """A declaration that a task replaces by a state of this class."""

    name: str

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> B: ...
    def __get__(self, instance: object | None, owner: type) -> Any:
        # Bound states lie in the instance's own dict and are found before this non-data descriptor is asked, which
        # keeps `self.total` as fast as a plain attribute.
        if instance is None:
            return self
        raise UsageError(
            f"state {self.name!r} was used outside of a run: test a process with sf.testing.KeyedHarness"
        )


class ValueState(Declaration, Binds[BoundValueState[T]], Generic[T]):
    """One value per key. `default` stands in while there is none; a mutable default is a factory."""

    kind = "value"

    def __init__(
        self, type: type[T] | Any, default: T | Callable[[], T] | None = None, **options: Any
    ) -> None:
        super().__init__(**options)
        if not callable(default) and not unchangeable(default):
            raise UsageError(
                f"a default of type {default.__class__.__name__} would be shared by all keys: "
                f"give a factory, such as default={default.__class__.__name__}"
            )
        self.type: Any = type
        self.default: Any = default


class ListState(Declaration, Binds[BoundListState[T]], Generic[T]):
    """A list per key; `add` writes without reading."""

    kind = "list"

    def __init__(self, type: type[T] | Any, **options: Any) -> None:
        super().__init__(**options)
        self.type: Any = type


class MapState(Declaration, Binds[BoundMapState[K, V]], Generic[K, V]):
    """A map per key; each entry is read and written on its own."""

    kind = "map"

    def __init__(self, key: type[K] | Any, value: type[V] | Any, **options: Any) -> None:
        super().__init__(**options)
        self.key: Any = key
        self.type: Any = value


class ReducingState(Declaration, Binds[BoundReducingState[T]], Generic[T]):
    """One value per key, into which `add` folds another of the same type."""

    kind = "reducing"

    def __init__(self, type: type[T] | Any, reduce: Callable[[T, T], T], **options: Any) -> None:
        super().__init__(**options)
        self.type: Any = type
        self.reduce = reduce


class AggregatingState(Declaration, Binds[BoundAggregatingState[V, R]], Generic[V, A, R]):
    """An accumulator per key: `create`, `add(accumulator, value)` and `result(accumulator)`."""

    kind = "aggregating"

    def __init__(
        self,
        type: type[A] | Any,
        *,
        create: Callable[[], A],
        add: Callable[[A, V], A],
        result: Callable[[A], R],
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.type: Any = type
        self.create, self.add, self.result = create, add, result


M = TypeVar("M", BoundTimer, BoundTimers)


class Timer(Declaration, Binds[M]):
    """A timer per key, in event or processing time. Setting it again replaces its time; with `many=True` each time that it is
    set to fires once."""

    kind = "timer"

    @overload
    def __init__(
        self: Timer[BoundTimer],
        time: str = "event",
        *,
        many: Literal[False] = False,
        namespace: Any = None,
        aliases: tuple[str, ...] | list[str] = (),
    ) -> None: ...
    @overload
    def __init__(
        self: Timer[BoundTimers],
        time: str = "event",
        *,
        many: Literal[True],
        namespace: Any = None,
        aliases: tuple[str, ...] | list[str] = (),
    ) -> None: ...
    def __init__(
        self,
        time: str = "event",
        *,
        many: bool = False,
        namespace: Any = None,
        aliases: tuple[str, ...] | list[str] = (),
    ) -> None:
        super().__init__(aliases=aliases, namespace=namespace)
        if time not in ("event", "processing"):
            raise UsageError(f"a timer runs in 'event' or 'processing' time, not {time!r}")
        self.time = time
        self.many = many
        self.handler: str | None = None

    def fires(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Decorates the method that is called with `(key, at, ctx)` when the timer fires."""
        self.handler = method.__name__
        return method


class OperatorState(Declaration, Generic[T]):
    """State of an operator's subtask rather than of a key."""

    def __init__(
        self,
        type: type[T] | Any,
        *,
        aliases: tuple[str, ...] | list[str] = (),
        migrate: Migrate | None = None,
    ) -> None:
        super().__init__(aliases=aliases, migrate=migrate)
        self.type: Any = type


class OperatorListState(OperatorState[T], Binds[BoundOperatorList[T]]):
    """A list of elements per subtask, spread evenly over the subtasks when their number changes."""

    kind = "list"


class UnionListState(OperatorListState[T]):
    """Like OperatorListState, but when a run begins every subtask is shown the elements of all of them.

    `get` gives these until `update` or `clear` replaces them. Each subtask records its own: what it had before, and what it adds."""

    kind = "union"


class BroadcastState(OperatorState[V], Binds[dict[K, V]], Generic[K, V]):
    """A small map that is the same in every subtask; `process_broadcast` alone may change it, and a write elsewhere is refused."""

    kind = "broadcast"

    def __init__(
        self,
        key: type[K] | Any,
        value: type[V] | Any,
        *,
        aliases: tuple[str, ...] | list[str] = (),
        migrate: Migrate | None = None,
    ) -> None:
        super().__init__(dict[key, value], aliases=aliases, migrate=migrate)  # type: ignore[valid-type]


@dataclass(frozen=True, slots=True)
class Declared:
    """All declarations of one process class."""

    states: dict[str, Declaration]
    timers: dict[str, Timer[Any]]
    operator: dict[str, OperatorState[Any]]
    forgets: frozenset[str] = frozenset()
    """States of earlier code whose values may go."""


def declared(owner: type) -> Declared:
    """What a class and its bases declare, in order; two of one name are refused."""
    states: dict[str, Declaration] = {}
    timers: dict[str, Timer[Any]] = {}
    operator: dict[str, OperatorState[Any]] = {}
    claimed: dict[str, str] = {}
    for base in reversed(owner.__mro__):
        for name, value in vars(base).items():
            if not isinstance(value, Declaration):
                continue
            if name in claimed and claimed[name] != base.__name__:
                raise UsageError(
                    f"state {name!r} is declared in both {claimed[name]} and {base.__name__}: rename one of them"
                )
            claimed[name] = base.__name__
            if isinstance(value, Timer):
                if value.handler is None:
                    raise UsageError(
                        f"timer {name!r} of {owner.__name__} has no handler: decorate one with @{name}.fires"
                    )
                timers[name] = value
            elif isinstance(value, OperatorState):
                operator[name] = value
            else:
                _check_factory(owner, value)
                states[name] = value
    every: dict[str, Declaration] = {**states, **timers, **operator}
    for name, declaration in every.items():
        for alias in declaration.aliases:
            if alias in every:
                raise UsageError(
                    f"state {name!r} of {owner.__name__} has alias {alias!r}, which is a state itself"
                )
    return Declared(states, timers, operator, _forgotten(owner, every))


def _check_factory(owner: type, state: Declaration) -> None:
    """Refuses a factory that gives one object to all keys: what one of them changes, the others would have."""
    what, factory = "default", getattr(state, "default", None)
    if isinstance(state, AggregatingState):
        what, factory = "create", state.create
    if callable(factory) and (shared := shared_by_all(factory)):
        raise UsageError(
            f"state {state.name!r} of {owner.__name__}: {what} gives {shared} every time, which all keys would share: make a new one "
            f"in it, such as {what}=list or {what}=lambda: [0, 0]"
        )


def _forgotten(owner: type, declared: Mapping[str, Declaration]) -> frozenset[str]:
    """The names that a class and its bases let go of."""
    names: set[str] = set()
    for base in owner.__mro__:
        listed = vars(base).get("forgets", ())
        if isinstance(listed, str) or not all(isinstance(name, str) for name in listed):
            raise UsageError(
                f'{base.__name__}.forgets is {listed!r}: list names of states, such as ("seen",)'
            )
        names.update(listed)
    for name, declaration in declared.items():
        for kept in (name, *declaration.aliases):
            if kept in names:
                raise UsageError(
                    f"{owner.__name__} forgets {kept!r}, which state {name!r} is or was: do one of the two"
                )
    return frozenset(names)
