"""The arguments that functions of users take."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any


def takes(function: Callable[..., Any], count: int) -> bool:
    """Whether the function can be called with so many values. Functions written in C do not always tell."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return True
    try:
        signature.bind(*(None,) * count)
    except TypeError:
        return False
    return True


def never_runs(function: Callable[..., Any]) -> bool:
    """True if a call returns a coroutine or a generator, whose code has not run yet."""
    code = inspect.unwrap(function.func if isinstance(function, partial) else function)
    kinds = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    return any(kind(each) for kind in kinds for each in (code, type(code).__call__))
