"""A step that is asked of the wrong kind of stream: the error says where it belongs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from stateflow.errors import UsageError


class NoSuchStep(UsageError, AttributeError):
    """An AttributeError, so that `hasattr` answers as ever."""


class Steps:
    """A kind of stream that knows which steps the other kinds have."""

    _called: ClassVar[str]
    _kinds: ClassVar[list[tuple[type[Steps], str]]] = []

    def __init_subclass__(cls, *, called: str, comes: str, **more: Any) -> None:
        """`comes` says where in a flow such a stream is."""
        super().__init_subclass__(**more)
        cls._called = called
        Steps._kinds.append((cls, comes))

    if not TYPE_CHECKING:  # With it, type checkers would take any name for a step.

        def __getattr__(self, name: str) -> NoReturn:
            raise NoSuchStep(_misplaced(type(self), name))


def _misplaced(kind: type[Steps], name: str) -> str:
    for other, comes in Steps._kinds:
        if not name.startswith("_") and callable(getattr(other, name, None)):
            return f"{name} is a step of {other._called}, and this is {kind._called}: ask it {comes}"
    return f"{kind._called} has no {name!r}"
