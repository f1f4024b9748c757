"""Jars that connectors need beside Delta's: which of them a running Spark lacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stateflow.spark.internals.gateway import hadoop_setting, has_class

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CLASSES = {
    "kafka": "org.apache.spark.sql.kafka010.KafkaSourceProvider",
}
_FILE_SYSTEMS = ("fs.s3a.impl", "fs.s3.impl")
"""Settings of Hadoop with the class of the client of S3: Spark as a service has one of its own."""


def lacking_bundles(spark: SparkSession, bundles: Sequence[str]) -> list[str]:
    """The names of those whose jars the driver does not have."""
    return [name for name in bundles if not any(has_class(spark, each) for each in _classes(spark, name))]


def _classes(spark: SparkSession, bundle: str) -> list[str]:
    """The bundle is complete if one of these classes is on the class path."""
    if bundle != "s3":
        return [_CLASSES[bundle]]
    return [name for setting in _FILE_SYSTEMS if (name := hadoop_setting(spark, setting))]
