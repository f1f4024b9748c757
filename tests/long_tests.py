"""Which of the long tests a change runs: those of its core always, and as many files of the others as there is time for.

All of them take an hour of two quiet cores, and hours where a machine is busy. Files come in a random order, so each change tries others;
before a release all of them run.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

_GIVEN = os.environ.get("STATEFLOW_LONG_TESTS_UNTIL")
UNTIL = float(_GIVEN) if _GIVEN else None
"""Seconds since 1970. A file of long tests that has begun by then goes on to its end. Without it all of them run."""

TOO_LATE = "there was no time left for the long tests of this file: the next change draws others, and `make test-all` runs all"

_BEGUN: dict[Path, bool] = {}


def _is_long(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(name) for name in ("slow", "system"))


def put_first(items: list[pytest.Item]) -> None:
    """The core, then the files with other long tests. The short ones, which all run, keep all workers busy to the end."""
    long = {item.path for item in items if _is_long(item)}
    core = {item.path for item in items if item.get_closest_marker("core")}
    items.sort(key=lambda item: 0 if item.path in core else 2 - (item.path in long))


def begins(item: pytest.Item, until: float) -> bool:
    """Whether a test runs. One file's tests run all or none, as they share what takes long to start."""
    if not _is_long(item) or item.get_closest_marker("core"):
        return True
    return _BEGUN.setdefault(item.path, time.time() < until)
