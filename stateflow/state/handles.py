"""A state in user code is no value: code that treats it as one has forgotten to read it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from stateflow.errors import UsageError


class NoSuchPart(UsageError, AttributeError):
    """An AttributeError, so that `hasattr` answers as ever."""


class Handle:
    """A handle of a value. Without this class Python would silently take it for true, and for unequal to every value."""

    __slots__ = ()
    _read_by: ClassVar[str]
    """How user code reads it."""

    name: str

    def __bool__(self) -> bool:
        raise self._unread("tested")

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Handle):
            return self is other
        raise self._unread("compared")

    __hash__ = object.__hash__

    def _unread(self, what: str) -> UsageError:
        return UsageError(
            f"{self.name!r} is a state, which is {what} as if it were its value: write self.{self.name}{self._read_by}"
        )

    if not TYPE_CHECKING:  # With it, type checkers would take any name for a part.

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_") or hasattr(type(self), name):
                return object.__getattribute__(self, name)  # which raises what it has raised
            parts = ", ".join(part for part in _FOR_USERS if hasattr(type(self), part))
            raise NoSuchPart(f"state {self.name!r} has no {name!r}: it has {parts}")


_FOR_USERS = ("value", "get", "add", "set", "at", "all", "exists", "clear", "clear_all", "under")
"""What user code may use; the rest of a state is for the engine."""
