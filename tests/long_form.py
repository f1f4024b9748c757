"""What runs before a release, and not with every change: it tries the project's own tools, and no promise to users."""

from __future__ import annotations

import os

import pytest

BEFORE_A_RELEASE = pytest.mark.skipif(
    not os.environ.get("STATEFLOW_LONG"), reason="it tries a tool of this project: STATEFLOW_LONG=1 runs it"
)
