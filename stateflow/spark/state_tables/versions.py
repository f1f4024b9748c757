"""Which versions of a job's outputs belong together, as a Spark table: a row per checkpoint and sink.

    job, versions         the job, and `true`: every checkpoint that it keeps
    checkpoint, or at     only this one, which may be collected

The rows are worked out when the table is loaded, from the job's log and those of its tables: see `sink_versions`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from stateflow.checkpoint.handle import JobHandle
from stateflow.config.options import Options, checkpoint_root
from stateflow.errors import UsageError
from stateflow.spark.sinks.sink_versions import DeliveredSlot, kept_versions, sink_versions

SCHEMA = pa.schema(
    [
        ("job", pa.string()),
        ("slot", pa.int64()),
        ("time", pa.timestamp("us", "UTC")),
        ("sink", pa.string()),
        ("path", pa.string()),
        ("version", pa.int64()),
        ("why", pa.string()),
    ]
)
_OTHERS = ("path", "operator", "state", "key", "keys", "diff", "with")


class VersionsReader(DataSourceReader):
    """Reads rows that are known already, in one task."""

    schema = SCHEMA

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pylist(self.rows, SCHEMA)


def versions_reader(settings: Mapping[str, str], options: Options) -> VersionsReader:
    """The table that a data source's options name."""
    wrong = next((name for name in _OTHERS if name in settings), None)
    if wrong is not None:
        raise UsageError(
            f"option {wrong} does not go with option versions: that table has a row per checkpoint and sink"
        )
    if settings["versions"].lower() != "true" or "job" not in settings:
        raise UsageError(
            "option versions needs option job, which names the job whose outputs it lists: write versions true"
        )
    name = settings["job"]
    job = JobHandle.at(checkpoint_root(options), name, options.storage_options)
    one = settings.get("checkpoint", settings.get("at"))
    return VersionsReader(list(_rows(name, [sink_versions(job, one)] if one else kept_versions(job))))


def _rows(job: str, found: Iterable[DeliveredSlot]) -> Iterator[dict[str, Any]]:
    for each in found:
        for sink in each.sinks.values():
            yield {
                "job": job,
                "slot": each.slot,
                "time": each.at or None,
                "sink": sink.sink,
                "path": sink.target,
                "version": sink.version,
                "why": sink.why,
            }
