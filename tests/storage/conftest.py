"""Stores of every kind, each with an empty root."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from stateflow.storage.hdfs import HdfsStore
from stateflow.storage.local import LocalStore
from stateflow.storage.roots import open_store
from stateflow.storage.store import Store
from tests.fake_hdfs import FakeHdfs
from tests.memory_store import MemoryStore
from tests.servers import AZURE, HDFS, ObjectServer

KINDS = ("local", "memory", "s3", "gcs", "webhdfs", AZURE, HDFS)


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """One of each kind."""
    if request.param == "local":
        return LocalStore(tmp_path / "root")
    if request.param == "memory":
        return MemoryStore()
    if request.param == "webhdfs":
        return HdfsStore("hdfs://namenode/team/checkpoints", web=FakeHdfs())
    server: ObjectServer = request.getfixturevalue(request.param)
    return open_store(server.new_root("team/checkpoints"), server.options)


@pytest.fixture
def ids() -> Callable[[], str]:
    """Ids that a test can foretell."""
    numbers = itertools.count(1)
    return lambda: f"id{next(numbers)}"
