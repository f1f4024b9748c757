"""Whether no driver can overwrite another's commit to a Delta table: asked when a run opens its tables."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import TYPE_CHECKING

from stateflow.errors import NotFoundError, UsageError
from stateflow.spark.internals.s3_logs import (
    CommitFiles,
    create_commits,
    creates_commits,
    endpoint,
    scheme_of,
)
from stateflow.spark.sinks.base import DeliveryMode
from stateflow.storage.probe import why_not_once
from stateflow.storage.store import ExistsError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def check_log_store(spark: SparkSession, path: str, delivery: DeliveryMode) -> None:
    """Delta on S3 does not exclude a second driver by itself: two drivers would overwrite each other's commits."""
    if delivery == "at_least_once" or not scheme_of(path):
        return
    if why := create_commits(spark, path) or _why_not_once(spark, path):
        raise UsageError(
            f"exactly-once output into {path} needs commits that no other driver can overwrite, and {why}: take a store and a Spark "
            f"that create files on a condition (docs/sinks.md), set spark.delta.logStore.{scheme_of(path)}.impl="
            "io.delta.storage.S3DynamoDBLogStore (package delta-storage-s3-dynamodb), or use delivery='at_least_once'"
        )


_probed: set[str] = set()
"""Buckets that keep the promise."""


def _why_not_once(spark: SparkSession, path: str) -> str:
    bucket = path.partition("://")[2].partition("/")[0]
    if not creates_commits(spark, path) or bucket in _probed:
        return ""
    if what := why_not_once(_TableFiles(spark, path), lambda: uuid.uuid4().hex):
        return f"the store of bucket {bucket} at {endpoint(spark, path)} does not keep to the condition of a create ({what})"
    _probed.add(bucket)
    return ""


class _TableFiles:
    """Files in a table's folder, as the probe takes a store."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        self._files = CommitFiles(spark, folder)

    def create(self, path: str, body: bytes) -> None:
        if not self._files.create(_hidden(path), body):
            raise ExistsError(path)

    def read(self, path: str) -> bytes:
        found = self._files.read(_hidden(path))
        if found is None:
            raise NotFoundError(path)
        return found

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            self._files.delete(_hidden(path))


def _hidden(name: str) -> str:
    """Neither Spark nor VACUUM sees files with such a name."""
    return f"_stateflow_{name}"
