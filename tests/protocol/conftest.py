"""What the schedules begin with."""

from __future__ import annotations

import pytest

from stateflow.storage import store as stores
from tests.memory_store import MemoryStore
from tests.protocol.scenario import World, drain


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries of a create follow at once: here nothing gets better by waiting."""
    monkeypatch.setattr(stores, "FIRST_PAUSE", 0.0)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def world(store: MemoryStore) -> World:
    """After two batches."""
    made = World(store)
    drain(2)(made)
    return made
