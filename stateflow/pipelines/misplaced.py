"""A step that is asked of the wrong kind of stream, or that has another name elsewhere: the error says what it is here."""

from __future__ import annotations

import re
from types import FunctionType
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from stateflow.names import STEPS, NoSuchName, suggestion, with_options


class Steps:
    """A kind of stream that knows the steps of the other kinds, and the options of its own steps."""

    _called: ClassVar[str]
    _kinds: ClassVar[list[tuple[type[Steps], str]]] = []

    def __init_subclass__(cls, *, called: str, comes: str, **more: Any) -> None:
        """`comes` says where in a flow such a stream is."""
        super().__init_subclass__(**more)
        cls._called = called
        Steps._kinds.append((cls, comes))
        for name, step in list(vars(cls).items()):
            if isinstance(step, FunctionType) and not name.startswith("_"):
                setattr(cls, name, with_options(step))

    if not TYPE_CHECKING:  # With it, type checkers would take any name for a step.

        def __getattr__(self, name: str) -> NoReturn:
            raise NoSuchName(_misplaced(type(self), name))


def _misplaced(kind: type[Steps], name: str) -> str:
    for other, comes in Steps._kinds:
        if not name.startswith("_") and callable(getattr(other, name, None)):
            return f"{name} is a step of {other._called}, and this is {kind._called}: ask it {comes}"
    if name in STEPS:
        return f"{kind._called} has no {name!r}: that is {_here(kind, name)}"
    steps = [step for step in dir(kind) if not step.startswith("_") and callable(getattr(kind, step))]
    return f"{kind._called} has no {name!r}{suggestion(name, steps)}"


def _here(kind: type[Steps], name: str) -> str:
    """What to write, and where, if this kind of stream has no such step."""
    advice = STEPS[name]
    if kind._called in advice:
        return advice[kind._called]
    of, comes = Steps._kinds[0]
    step = advice[of._called]
    first = re.match(r"\.(\w+)", step)
    return f"{step}, asked {comes}" if first and not hasattr(kind, first[1]) else step
