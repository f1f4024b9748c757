"""One Spark session for the whole test run: starting one takes seconds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


LONGEST = (
    "test_kill.py",
    "test_cluster.py",
    "test_restore.py",
    "test_demo.py",
    "test_api_failures.py",
    "test_rewind.py",
)
"""Files that take minutes. They begin first, so that no worker is left alone with one of them at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ranks = {name: rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(item.path.name, len(LONGEST)))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from stateflow.spark.session import build_session

    conf = {
        "spark.sql.shuffle.partitions": "2",
        "spark.default.parallelism": "2",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
    }
    session = build_session("stateflow-tests", master="local[2]", conf=conf)
    yield session
    session.stop()
