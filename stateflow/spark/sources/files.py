"""Reads a folder of files up to a bound: the files modified until then, in the source's own batches."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime

from pyspark.sql import DataFrame

from stateflow.spark.internals.file_systems import times_of_files
from stateflow.spark.internals.read_limits import Limited, unlimited
from stateflow.spark.internals.scratch_folder import log_offset
from stateflow.spark.internals.sources import FileSource


def end_lines_until(
    source: FileSource, from_line: str, until: datetime, limit: Limited = unlimited
) -> Iterator[str]:
    """One offset line per batch over the files up to a bound. Taking a line writes the batch's log entry, as in any run.

    If a file appears later with an older modification time, the next run reads it, so that no file is lost.
    """
    source.end_at(until)
    offset = log_offset(from_line)
    while (end := source.next_end(limit())) is not None and end[0] > offset:
        offset, line = end
        yield line


def entry_until(files: DataFrame, until: datetime) -> bytes | None:
    """The log of a source that has read the `files` modified until then; None when there are none."""
    lines = [
        # Spark compares the time with those of files that come later, so it has to be the file's own.
        json.dumps({"path": path, "timestamp": modified, "batchId": 0})
        for path, modified in times_of_files(files).items()
        if modified <= until.timestamp() * 1000
    ]
    return "\n".join(["v1", *lines]).encode() if lines else None
