"""A savepoint to begin with."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.jobs.snapshots import checkpoint, native
from tests.memory_store import MemoryStore


@pytest.fixture
def saved(tmp_path: Path) -> MemoryStore:
    """A savepoint's folder."""
    root, target = MemoryStore("root"), MemoryStore("saved")
    native(root, checkpoint(root), target, tmp_path / "scratch")
    return target
