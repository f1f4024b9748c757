"""A step that is asked of the wrong kind of stream: the error says where it belongs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from stateflow.errors import UsageError


class NoSuchStep(UsageError, AttributeError):
    """An AttributeError, so that `hasattr` answers as ever."""


class Steps:
    """A kind of stream that knows which steps the other kinds have."""

    called: ClassVar[str]
    _kinds: ClassVar[list[tuple[type[Steps], str]]] = []

    def __init_subclass__(cls, *, called: str, comes: str, **more: Any) -> None:
        """`comes` says where in a flow such a stream is."""
        super().__init_subclass__(**more)
        cls.called = called
        Steps._kinds.append((cls, comes))

    if not TYPE_CHECKING:  # With it, type checkers would take any name for a step.

        def __getattr__(self, name: str) -> NoReturn:
            raise NoSuchStep(_misplaced(type(self), name))


def _misplaced(kind: type[Steps], name: str) -> str:
    for other, comes in Steps._kinds:
        if not name.startswith("_") and callable(getattr(other, name, None)):
            return f"{name} is a step of {other.called}, and this is {kind.called}: ask it {comes}"
    return f"{kind.called} has no {name!r}"
