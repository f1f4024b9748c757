"""A session of Spark's that finds a Unity Catalog server of the tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from pyspark.sql import SparkSession

from stateflow.spark.internals.gateway import define_classes
from tests.unity.server import UnityServer, unity_server

_SOURCE = Path(__file__).parent / "UCSingleCatalog.java"
_PLUGIN = "io.unitycatalog.spark.UCSingleCatalog"
_numbers = count()


@contextmanager
def unity_catalog(spark: SparkSession, folder: Path) -> Iterator[UnityServer]:
    """A server, and its catalog in the session. A session keeps a catalog that it has opened, so each has another name."""
    define_classes(spark, _SOURCE, _PLUGIN, "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    with unity_server(folder, f"main{next(_numbers)}") as server:
        for name, value in server.settings().items():
            spark.conf.set(name, value)
        yield server
