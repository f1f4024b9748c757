"""Stores of every kind, each with an empty root."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stateflow.storage.local import LocalStore
from stateflow.storage.memory import MemoryStore
from stateflow.storage.roots import open_store
from stateflow.storage.store import Store
from tests.checkpoint.snapshots import checkpoint, native
from tests.servers import AZURE, ObjectServer, azure_server, s3_server

KINDS = ("local", "memory", "s3", AZURE)


@pytest.fixture(scope="session")
def s3() -> Iterator[ObjectServer]:
    with s3_server() as server:
        yield server


@pytest.fixture(scope="session")
def azure() -> Iterator[ObjectServer]:
    with azure_server() as server:
        yield server


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """One of each kind."""
    if request.param == "local":
        return LocalStore(tmp_path / "root")
    if request.param == "memory":
        return MemoryStore()
    server: ObjectServer = request.getfixturevalue(request.param)
    return open_store(server.new_root("team/checkpoints"), server.options)


@pytest.fixture
def ids() -> Callable[[], str]:
    """Ids that a test can foretell."""
    numbers = itertools.count(1)
    return lambda: f"id{next(numbers)}"


@pytest.fixture
def other_disk() -> Iterator[Path]:
    """A folder on another file system than `tmp_path`, where hard links do not reach."""
    folder = Path(tempfile.mkdtemp(dir="/dev/shm"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def saved(tmp_path: Path) -> MemoryStore:
    """A savepoint's folder."""
    root, target = MemoryStore("root"), MemoryStore("saved")
    native(root, checkpoint(root), target, tmp_path / "scratch")
    return target
