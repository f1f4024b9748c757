"""Spark's failures in the library's words."""

from __future__ import annotations

import re

from stateflow import errors
from stateflow.errors import StateflowError, UnavailableError
from stateflow.spark.task.failures import DISK_FULL, translated

_TOLD = re.compile(r"stateflow\.errors\.(\w+): (.+)")
_BATCH = "the batch failed: "


def library_error(error: Exception) -> Exception:
    """The library's own error, if it ended Spark's planning process; else `error`."""
    match = _TOLD.search(str(error))
    return getattr(errors, match[1])(match[2]) if match and hasattr(errors, match[1]) else error


def failed(what: str, error: Exception) -> StateflowError:
    """The error of a task; or else one that says what failed, with Spark's own words."""
    problem = translated(error)
    text = str(problem)
    if text.startswith(DISK_FULL):
        return UnavailableError(f"{what}: {text}")
    return StateflowError(f"{what}: {text.removeprefix(_BATCH)}") if text.startswith(_BATCH) else problem
