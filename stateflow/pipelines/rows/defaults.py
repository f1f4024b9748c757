"""Defaults of a row class's fields: what a row has where its column is null.

A constructor only knows defaults for arguments that are left out, but a reader of columns passes every field: without this,
a field that the input lacks would reach user code as None, whatever its type says.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec


@dataclass(frozen=True, slots=True)
class Default:
    """A value, or what makes one for each row."""

    value: Any = None
    factory: Callable[[], Any] | None = None

    @property
    def empty(self) -> bool:
        return self.value is None and self.factory is None

    def values(self, count: int) -> list[Any]:
        factory = self.factory
        return [self.value] * count if factory is None else [factory() for _ in range(count)]

    def fill(self, values: list[Any]) -> list[Any]:
        """`values` with the default in the place of every None."""
        factory, value = self.factory, self.value
        if factory is None:
            return [value if v is None else v for v in values]
        return [factory() if v is None else v for v in values]


def defaults_of(declared: Any) -> dict[str, Default]:
    """The defaults of a dataclass, msgspec Struct or NamedTuple. None is left out: it changes nothing."""
    if dataclasses.is_dataclass(declared):
        found = {f.name: _default(f, dataclasses.MISSING) for f in dataclasses.fields(declared)}
    elif issubclass(declared, msgspec.Struct):
        found = {f.name: _default(f, msgspec.NODEFAULT) for f in msgspec.structs.fields(declared)}
    else:
        found = {name: Default(value) for name, value in declared._field_defaults.items()}
    return {name: each for name, each in found.items() if each and not each.empty}


def _default(field: Any, missing: Any) -> Default | None:
    if field.default_factory is not missing:
        return Default(factory=field.default_factory)
    return None if field.default is missing else Default(field.default)
