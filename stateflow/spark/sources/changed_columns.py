"""Finds Delta sources whose columns were renamed or dropped ahead of the job: Delta does not read across that by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pyspark.sql import SparkSession

from stateflow.format.records import SourceState
from stateflow.spark.internals.sources import DeltaSource
from stateflow.spark.sources.leaves import LeafDescription
from stateflow.spark.sources.positions import delta_source

READ_ANYWAY = "spark.databricks.delta.streaming.unsafeReadOnIncompatibleColumnMappingSchemaChanges.enabled"
"""Delta then reads the older files, too, with the columns that the table has now: by their ids, not by their names."""


def changed_columns(
    spark: SparkSession,
    leaves: Sequence[LeafDescription],
    state: Mapping[str, SourceState],
    scratch: Path,
) -> list[tuple[str, str]]:
    """Source and table of each Delta stream whose table got other columns or properties behind the recorded position. If the
    logs name none, all Delta streams."""
    streams, found = [], []
    for leaf in leaves:
        if leaf.kind != "delta":
            continue
        position = leaf.position_in(state)
        with delta_source(spark, leaf, scratch / f"{leaf.uid}-{leaf.place}") as source:
            streams.append((leaf.uid, source.log.path))
            if position is not None and _changes(source, position.version):
                found.append(streams[-1])
    return found or streams


def _changes(source: DeltaSource, version: int) -> bool:
    read = source.log.read
    return any(b'"metaData"' in (read(each) or b"") for each in range(version, source.log.version() + 1))


def sentence(changed: Sequence[tuple[str, str]]) -> str:
    """The refusal, with a step that reads all rows."""
    which = " or ".join(dict.fromkeys(f"source {uid!r}: the Delta table {table}" for uid, table in changed))
    return (
        f"{which} has had a column renamed, dropped or given another type, and rows, or another such change, from before that are still to be read, "
        f"which Delta does not read by itself: to read on with the columns that the table has now, run once with `--conf {READ_ANYWAY}=true` (a column that was "
        "dropped is missing from rows before that, too)"
    )
