"""Reads a folder of files up to a bound: the files modified until then, in the source's own batches."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from stateflow.errors import IncompatibleError
from stateflow.format.source_offsets import NOTHING

_FILE_LIST = "allFilesForTriggerAvailableNow"


class FilePlanner:
    """Lets Spark's file source plan batches over the files up to a bound. The source writes its log as in any run.

    For an `availableNow` run the source lists its files once and plans from that list, which is cut at the bound. If a
    file appears later with an older modification time, the next run reads it, so that no file is lost.
    """

    def __init__(self, spark: SparkSession, source: Any, until: datetime) -> None:
        self._spark = spark
        self._source = source
        source.prepareForTriggerAvailableNow()
        field = next((f for f in source.getClass().getDeclaredFields() if f.getName() == _FILE_LIST), None)
        if field is None:
            raise IncompatibleError(
                f"this Spark version's file source has no {_FILE_LIST}: a bounded run needs Spark 4.2; "
                "run without a bound"
            )
        field.setAccessible(True)
        field.set(source, _up_to(field.get(source), int(until.timestamp() * 1000)))

    def ends(self, from_line: str) -> Iterator[str]:
        """One offset line per batch. Taking a line writes the batch's log entry."""
        offset = -1 if from_line == NOTHING else int(json.loads(from_line)["logOffset"])
        while True:
            end = self._source.latestOffset(None, self._source.getDefaultReadLimit())
            if end is None or int(end.logOffset()) <= offset:
                return
            offset = int(end.logOffset())
            yield str(end.json())


def entry_until(spark: SparkSession, files: DataFrame, until: datetime) -> bytes | None:
    """What a source's log has once it has read those of `files` that were modified until then; None when there are none."""
    path_of = spark._jvm.org.apache.spark.paths.SparkPath.fromFileStatus  # type: ignore[union-attr]
    found = files._jdf.queryExecution().analyzed().relation().location().allFiles()
    lines = []
    for at in range(found.size()):
        status = found.apply(at)
        modified = int(status.getModificationTime())
        if modified <= until.timestamp() * 1000:
            # Spark compares the time with those of files that come later, so it has to be the file's own.
            lines.append(
                json.dumps({"path": path_of(status).urlEncoded(), "timestamp": modified, "batchId": 0})
            )
    return "\n".join(["v1", *lines]).encode() if lines else None


def _up_to(files: Any, bound_ms: int) -> Any:
    """Those `files` that were modified at or before the bound. The list is sorted by time, in either direction."""
    count = files.size()
    if count == 0:
        return files
    newest_first = files.apply(0).timestamp() > files.apply(count - 1).timestamp()
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if (files.apply(middle).timestamp() <= bound_ms) != newest_first:
            low = middle + 1
        else:
            high = middle
    return files.drop(low) if newest_first else files.take(low)
