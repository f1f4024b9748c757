"""Switches that take one mechanism for speed away, in the driver and in its workers, as if its calls did not stand in the code.

No option of the product does this. A switch puts the plain way of doing the same in place of a name of a module, and back.
"""

from __future__ import annotations

import gc
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any

_FIRST_INSTANT = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Patch:
    """Another value of a module's name, made from the value that it has."""

    module: str
    name: str
    off: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Switch:
    driver: tuple[Patch, ...] = ()
    worker: tuple[Patch, ...] = ()
    session: bool = False
    """Whether it takes effect as a session starts, and not from one batch to the next."""


def _always(value: Any) -> Callable[[Any], Any]:
    """A function that has this result, whatever it is asked."""
    return lambda before: lambda *arguments, **named: value


def _with_every_column(before: Any) -> Any:
    def carried(*arguments: Any, **named: Any) -> Any:
        less = before(*arguments, **named)
        return less if less.sides else replace(less, keys=(None,) * len(less.keys), late=True)

    return carried


def _often(before: Any) -> Any:
    """Python's cycle collector as it comes, also in a worker that earlier batches have spared it."""
    return lambda: (gc.set_threshold(700, 10, 10), gc.unfreeze())


def _sorted_by_spark(before: Any) -> Any:
    def carried(*arguments: Any, **named: Any) -> Any:
        return replace(before(*arguments, **named), mixed=False)

    return carried


class PlainIndex:
    """What `KeyIndex` does, with one list that is sorted anew for each addition."""

    def __init__(self) -> None:
        self._keys: list[bytes] = []

    def add(self, keys: list[bytes]) -> None:
        self._keys = sorted({*self._keys, *keys})

    def between(self, begin: bytes, end: bytes) -> Iterator[bytes]:
        return iter(self._keys[bisect_left(self._keys, begin) : bisect_left(self._keys, end)])


def _each_row(before: Any) -> Any:
    """`packed_rows` by msgspec, value by value."""
    from msgspec.msgpack import Encoder

    encode = Encoder().encode

    def packed(head: bytes, columns: Sequence[Any], count: int) -> list[bytes]:
        rows = zip(*(column.to_pylist() for column in columns), strict=True)
        return [head + b"".join(map(encode, row)) for row in rows]

    return packed


def _each_instant(before: Any) -> Any:
    def datetimes(micros: Any) -> list[datetime]:
        return [_FIRST_INSTANT + timedelta(microseconds=value) for value in micros.tolist()]

    return datetimes


def _apart(before: Any) -> Any:
    return lambda frame, function, schema: frame.mapInArrow(function, schema)


_INSTANTS_USED_IN = (
    "operators.decoded",
    "operators.python_values",
    "operators.due",
)
_BATCHES, _SINKS = "stateflow.spark.batches", "stateflow.spark.sinks"
_SESSION = "stateflow.spark.session"

SWITCHES: Mapping[str, Switch] = {
    "parts_of_union": Switch((Patch("stateflow.spark.inputs.open_inputs", "parts_of_union", _always([])),)),
    "unmeasured": Switch(
        (
            Patch(f"{_BATCHES}.running_operator", "stays_small", _always(False)),
            Patch(f"{_BATCHES}.batch", "are_small", _always(False)),
        )
    ),
    "own_merge": Switch((Patch(f"{_SINKS}.delta_upsert", "files_to_rewrite", _always(None)),)),
    "driver_written": Switch((Patch(f"{_SINKS}.delta_append", "files_of", _always(None)),)),
    "key_ranges": Switch((Patch(f"{_SINKS}.delta_upsert", "key_ranges", _always(())),)),
    "same_task": Switch((Patch(f"{_SINKS}.staging", "then_in_arrow", _apart),)),
    "sorted_rows": Switch((Patch(f"{_BATCHES}.running_operator", "carried_by", _sorted_by_spark),)),
    "combiner": Switch((Patch(f"{_BATCHES}.running_operator", "combines", _always(False)),)),
    "combiner_choice": Switch((Patch(f"{_BATCHES}.running_operator", "combines", _always(True)),)),
    "carried": Switch((Patch(f"{_BATCHES}.running_operator", "carried_by", _with_every_column),)),
    "cycle collector": Switch(worker=(Patch("stateflow.spark.task.subtask", "spare_the_collector", _often),)),
    "key_index": Switch(
        worker=(Patch("stateflow.state.backends.rocksdb", "KeyIndex", lambda b: PlainIndex),)
    ),
    "packed_rows": Switch(
        worker=(Patch("stateflow.state.values.arrow.column_values", "packed_rows", _each_row),)
    ),
    "packed_instants": Switch(
        worker=tuple(Patch(f"stateflow.{user}", "datetimes_of", _each_instant) for user in _INSTANTS_USED_IN)
    ),
    "local_files": Switch((Patch(f"{_SESSION}.build", "without_processes", _always(False)),), session=True),
    "compiling": Switch((Patch(f"{_SESSION}.compiling", "options", _always("")),), session=True),
    "class_data": Switch((Patch(f"{_SESSION}.class_data", "options", _always("")),), session=True),
}

_before: list[tuple[Any, str, Any]] = []
"""What this process's modules have while a switch is off."""


def switch_off(name: str | None, *, worker: bool = False) -> None:
    """Takes this one mechanism away, and gives back the one that was taken before; None: only gives back."""
    while _before:
        setattr(*_before.pop())
    if name is None:
        return
    switch = SWITCHES[name]
    for patch in switch.worker if worker else switch.driver:
        module = import_module(patch.module)
        value = getattr(module, patch.name)
        _before.append((module, patch.name, value))
        setattr(module, patch.name, patch.off(value))


@dataclass(frozen=True, slots=True)
class InWorker:
    """A task's function that first switches a mechanism off in its process, which earlier batches have used, too."""

    function: Callable[[Iterator[Any]], Iterator[Any]]
    name: str | None

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        switch_off(self.name, worker=True)
        yield from self.function(batches)


class Switches:
    """The one mechanism that is off, in this driver and in the workers of the batches that it plans."""

    def __init__(self) -> None:
        from stateflow.spark.batches import running_operator

        self._name: str | None = None
        plain: Any = running_operator.map_in_arrow

        def map_in_arrow(frame: Any, function: Any, schema: str) -> Any:
            return plain(frame, InWorker(function, self._name), schema)

        running_operator.map_in_arrow = map_in_arrow

    def off(self, name: str | None) -> None:
        self._name = name
        switch_off(name)


def main(name: str, *arguments: str) -> None:
    """The command `stateflow` without a mechanism; `as_is`: with all of them."""
    Switches().off(None if name == "as_is" else name)
    from stateflow.cli.main import app

    sys.argv = ["stateflow", *arguments]
    app()


if __name__ == "__main__":
    # Workers find the classes of this module by its name.
    with suppress(BrokenPipeError):
        import_module("bench.switches").main(*sys.argv[1:])
