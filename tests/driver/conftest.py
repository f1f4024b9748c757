"""The scene that the tests of supervision play on."""

from __future__ import annotations

from pathlib import Path

import pytest

from stateflow.jobs.job import Job
from tests.driver.scene import Scene


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(Job(str(tmp_path / "root"), "orders"))
