"""Bounded reading of a folder of files: the files modified up to a time, in the source's own batches."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from pyspark.sql import SparkSession

from stateflow.errors import IncompatibleError
from stateflow.format.source_offsets import NOTHING

_LISTED = "allFilesForTriggerAvailableNow"


class FilePlanner:
    """Lets Spark's file source plan batches over the files up to a bound, writing its log as Spark would.

    The source lists its files once for an `availableNow` run and plans from that list; the list is cut at the
    bound. A file that appears later with an older modification time is read by the next run: nothing is lost.
    """

    def __init__(self, spark: SparkSession, source: Any, until: datetime) -> None:
        self._spark = spark
        self._source = source
        source.prepareForTriggerAvailableNow()
        listed = next((f for f in source.getClass().getDeclaredFields() if f.getName() == _LISTED), None)
        if listed is None:
            raise IncompatibleError(
                f"this Spark version's file source has no {_LISTED}: a bounded run needs Spark 4.2; "
                "run without a bound"
            )
        listed.setAccessible(True)
        listed.set(source, _up_to(listed.get(source), int(until.timestamp() * 1000)))

    def ends(self, from_line: str) -> Iterator[str]:
        """One offset line per batch; a batch's log entry is written when its line is taken."""
        offset = -1 if from_line == NOTHING else int(json.loads(from_line)["logOffset"])
        while True:
            planned = self._source.latestOffset(None, self._source.getDefaultReadLimit())
            if planned is None or int(planned.logOffset()) <= offset:
                return
            offset = int(planned.logOffset())
            yield str(planned.json())


def _up_to(files: Any, bound_ms: int) -> Any:
    """The listed files (sorted by time, either way) that were modified at or before the bound."""
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
