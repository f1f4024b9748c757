"""What the tests of pipelines on Spark share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from stateflow.testing.sink_log import SinkLog
    from tests.spark.pipelines import Workbench


@pytest.fixture
def bench(spark: SparkSession, tmp_path: Path) -> Workbench:
    """A folder with sources and a job. A file whose own classes go to workers uses `own_classes`, too."""
    from stateflow.spark.session.shipping import by_value
    from tests.spark import pipelines

    by_value([pipelines])
    return pipelines.Workbench(spark, tmp_path)


@pytest.fixture(scope="module")
def own_classes(request: pytest.FixtureRequest) -> None:
    """The classes of the test's file go to workers as those of a pipeline's file do."""
    from stateflow.spark.session.shipping import by_value
    from tests.spark import pipelines

    by_value([pipelines, request.module])


@pytest.fixture
def hasty_vacuum(spark: SparkSession) -> Iterator[None]:
    """Delta then deletes files that are younger than a week, too."""
    name = "spark.databricks.delta.retentionDurationCheck.enabled"
    spark.conf.set(name, "false")
    yield
    spark.conf.unset(name)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a sink writes to."""
    return tmp_path / "out"


@pytest.fixture
def log(spark: SparkSession, tmp_path: Path) -> SinkLog:
    """A job's log, for tests of sinks."""
    from stateflow.testing.sink_log import SinkLog

    return SinkLog(spark, tmp_path / "root")
