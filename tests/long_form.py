"""What runs before a release, and not with every change: it tries the project's own tools, or more of what shorter tests try."""

from __future__ import annotations

import os

import pytest

LONG = bool(os.environ.get("STATEFLOW_LONG"))
BEFORE_A_RELEASE = pytest.mark.skipif(
    not LONG,
    reason="before a release, by STATEFLOW_LONG=1: it tries a tool of this project, or more of what a shorter test tries",
)
IN_TEST_AIRFLOW = pytest.mark.skipif(not LONG, reason="`make test-airflow` runs it: it takes minutes")
