"""Jars that connectors need beside Delta's: which of them a running Spark lacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stateflow.spark.internals.gateway import has_class

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CLASSES = {"kafka": "org.apache.spark.sql.kafka010.KafkaSourceProvider"}


def lacking_bundles(spark: SparkSession, bundles: Sequence[str]) -> list[str]:
    """The names of those whose jars the driver does not have."""
    return [name for name in bundles if not has_class(spark, _CLASSES[name])]
