from __future__ import annotations

import pytest

from stateflow.checkpoint import store


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries of a create follow at once: here nothing gets better by waiting."""
    monkeypatch.setattr(store, "FIRST_PAUSE", 0.0)
