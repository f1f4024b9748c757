"""What functions that users give can be called with."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def takes(function: Callable[..., Any], count: int) -> bool:
    """Whether it can be called with so many values; what is written in C does not always tell."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return True
    try:
        signature.bind(*(None,) * count)
    except TypeError:
        return False
    return True
