"""Checks a process class before anything runs: names that take a hook's place, or miss a hook's name by a letter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from difflib import get_close_matches
from types import CodeType, FunctionType
from typing import Any

from stateflow.errors import UsageError
from stateflow.names import METHODS, TIMER_METHODS
from stateflow.state.declare import Declaration, Timer

ON_KEYS = ("process", "process_left", "process_right")
HOOKS = (*ON_KEYS, "process_broadcast", "open", "close", "restore", "snapshot")
_NEARLY = 0.85
"""`proces` and `proccess` are misspelt hooks; `preprocess` and `process_row` are helpers."""


def check_class(cls: type, library: tuple[type, ...], own: frozenset[str]) -> None:
    """Refuses a class whose states or timers take a place of the library's, or whose hook is misspelt.

    `library` are the base classes, and `own` all names that they have.
    """
    written = [base for base in cls.__mro__ if base not in library and base is not object]
    declared = {
        name: value
        for base in written
        for name, value in vars(base).items()
        if isinstance(value, Declaration)
    }
    for name, value in declared.items():
        _check_declaration(cls, name, value, own)
    methods = {
        name: value
        for base in reversed(written)
        for name, value in vars(base).items()
        if isinstance(value, FunctionType) and not name.startswith("_")
    }
    handlers = {value.handler for value in declared.values() if isinstance(value, Timer)}
    called = set(_called(methods.values()))
    # What another method calls is a helper, whatever its name.
    idle = [name for name in methods if name not in (*HOOKS, *handlers, *called)]
    if not getattr(cls, "__abstractmethods__", None):
        _check_spelling(cls, idle, [hook for hook in HOOKS if hook in own and hook not in methods])
    for name in idle:
        if name in TIMER_METHODS:
            raise UsageError(
                f"{cls.__name__}.{name} is never called: declare a timer with sf.Timer, and decorate the method "
                "with @<timer>.fires"
            )


def _check_declaration(cls: type, name: str, value: Declaration, own: frozenset[str]) -> None:
    what = "timer" if isinstance(value, Timer) else "state"
    if name in own or name in HOOKS:
        raise UsageError(
            f"{what} {name!r} of {cls.__name__} would replace what process classes have under that name: rename it"
        )
    if isinstance(value, Timer) and (value.handler in own or value.handler in HOOKS):
        raise UsageError(
            f"timer {name!r} of {cls.__name__} has a handler called {value.handler!r}, which is called for "
            f"something else: rename the method, for example to on_{name}"
        )


def _check_spelling(cls: type, idle: list[str], missing: list[str]) -> None:
    """A helper may be called nearly like a hook, unless the class lacks the method that is called for its keys."""
    lacking = [hook for hook in missing if hook in ON_KEYS]
    wanted = missing if lacking else [hook for hook in missing if hook == "process_broadcast"]
    for name in idle:
        if (here := METHODS.get(name)) in missing:
            raise UsageError(f"{cls.__name__}.{name} is never called: that is {here} here")
        near = get_close_matches(name.lower(), wanted, 1, _NEARLY)
        if near:
            raise UsageError(f"{cls.__name__}.{name} is never called: did you mean {near[0]}?")


def _called(methods: Any) -> Iterator[str]:
    for method in methods:
        yield from _names(method.__code__)


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def clash(name: str, before: Any, value: Any) -> str:
    """Why a class body may not set `name` again; empty when it may."""
    one, other = isinstance(before, Declaration), isinstance(value, Declaration)
    if one and other:
        return f"state {name!r} is declared twice"
    method: Callable[..., Any] | None = before if other else value
    if (one or other) and isinstance(method, FunctionType):
        what = "timer" if isinstance(before, Timer) or isinstance(value, Timer) else "state"
        return f"{what} {name!r} and a method have one name"
    return ""
