"""A session of Spark's that finds a Unity Catalog server of the tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from pyspark.sql import SparkSession

from stateflow.spark.internals.gateway import class_loader, define_classes
from stateflow.spark.internals.java_names import java_names
from tests.unity.server import UnityServer, unity_server

_SOURCE = Path(__file__).parent / "UCSingleCatalog.java"
_PLUGIN = "io.unitycatalog.spark.UCSingleCatalog"
_numbers = count()


@contextmanager
def unity_catalog(spark: SparkSession, folder: Path) -> Iterator[UnityServer]:
    """A server, and its catalog in the session. A session keeps a catalog that it has opened, so each has another name."""
    beside = java_names(spark).java.lang.Class.forName(
        "org.apache.spark.sql.delta.catalog.DeltaCatalog", False, class_loader(spark)
    )
    define_classes(spark, _SOURCE.read_text(encoding="utf-8"), _PLUGIN, beside.getClassLoader())
    with unity_server(folder, f"main{next(_numbers)}") as server:
        for name, value in server.settings().items():
            spark.conf.set(name, value)
        yield server
