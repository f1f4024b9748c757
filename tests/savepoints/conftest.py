"""A savepoint to begin with."""

from __future__ import annotations

from pathlib import Path

import pytest

from stateflow.storage.memory import MemoryStore
from tests.jobs.snapshots import checkpoint, native


@pytest.fixture
def saved(tmp_path: Path) -> MemoryStore:
    """A savepoint's folder."""
    root, target = MemoryStore("root"), MemoryStore("saved")
    native(root, checkpoint(root), target, tmp_path / "scratch")
    return target
