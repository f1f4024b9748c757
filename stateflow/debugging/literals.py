"""Values as the Python that makes them again."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, Flag
from types import ModuleType
from typing import Any
from uuid import UUID

import msgspec


class Unwritable(Exception):
    """A value that no short text makes again."""


@dataclass
class Literals:
    """Writes values, and remembers what the text has to import. Classes of `module` are written as `CODE.Name`."""

    module: ModuleType
    beside: frozenset[str] = frozenset()
    """The modules beside the pipeline: Python finds them once the pipeline is loaded."""
    imports: set[str] = field(default_factory=set)
    imports_beside: set[str] = field(default_factory=set)
    uses_code: bool = False

    def text(self, value: Any) -> str:
        match value:
            case Flag():  # A combination of members has no name that Python takes.
                return f"{self._name(type(value))}({value.value})"
            case Enum():
                return f"{self._name(type(value))}.{value.name}"
            case None | bool() | int() | str() | bytes():
                return repr(value)
            case float():
                return repr(value) if math.isfinite(value) else f'float("{value}")'
            case datetime():
                return self._datetime(value)
            case date() | time() | timedelta():
                self.imports.add(f"from datetime import {type(value).__name__}")
                return repr(value).removeprefix("datetime.")
            case Decimal() | UUID():
                self.imports.add(f"from {type(value).__module__} import {type(value).__name__}")
                return f'{type(value).__name__}("{value}")'
        return self._of_many(value)

    def _of_many(self, value: Any) -> str:
        fields = _fields(value)
        if fields is not None:
            inside = ", ".join(f"{name}={self.text(each)}" for name, each in fields.items())
            return f"{self._name(type(value))}({inside})"
        if isinstance(value, Mapping):
            return (
                "{" + ", ".join(f"{self.text(key)}: {self.text(each)}" for key, each in value.items()) + "}"
            )
        if type(value) is list:
            return "[" + ", ".join(map(self.text, value)) + "]"
        if type(value) is tuple:
            return "(" + "".join(f"{self.text(each)}, " for each in value).rstrip(" ") + ")"
        if type(value) in (set, frozenset):
            return f"{type(value).__name__}([{', '.join(sorted(map(self.text, value)))}])"
        raise Unwritable(type(value).__name__)

    def _datetime(self, value: datetime) -> str:
        if value.tzinfo is None or value.utcoffset():
            raise Unwritable("a time that is not in UTC")
        self.imports |= {"from datetime import UTC", "from datetime import datetime"}
        parts = [
            value.year,
            value.month,
            value.day,
            value.hour,
            value.minute,
            value.second,
            value.microsecond,
        ]
        while len(parts) > 3 and not parts[-1]:
            parts.pop()
        return f"datetime({', '.join(map(str, parts))}, tzinfo=UTC)"

    def _name(self, of: type) -> str:
        if getattr(self.module, of.__name__, None) is of:
            self.uses_code = True
            return f"CODE.{of.__name__}"
        if "<locals>" in of.__qualname__ or "." in of.__qualname__ or of.__module__.startswith("_"):
            raise Unwritable(of.__qualname__)
        imports = self.imports_beside if of.__module__ in self.beside else self.imports
        imports.add(f"from {of.__module__} import {of.__name__}")
        return of.__name__


def _fields(value: Any) -> dict[str, Any] | None:
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return dict(value._asdict())
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.asdict(value)
    if dataclasses.is_dataclass(value):
        return {each.name: getattr(value, each.name) for each in dataclasses.fields(value) if each.init}
    return None
