"""Finds Delta sources that are to read changes from a version in which their table kept no feed: Delta refuses to begin there."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from stateflow.format.records import SourceState
from stateflow.spark.internals.delta_log import CHANGE_FEED, DeltaLog, property_is_on
from stateflow.spark.sources.leaves import LeafDescription
from stateflow.spark.sources.positions import delta_source


@dataclass(frozen=True, slots=True)
class FeedGap:
    """Versions in a row without a feed, the first of which a source would have to read next."""

    uid: str
    table: str
    first: int
    last: int
    begins: bool
    """True if an option says where the source begins."""
    ended: bool
    """True if the table keeps a feed again behind `last`."""


def feed_gaps(
    spark: SparkSession,
    leaves: Sequence[LeafDescription],
    state: Mapping[str, SourceState],
    scratch: Path,
) -> list[FeedGap]:
    """The gap of each source that reads changes and stands in one. Delta's own error names no table."""
    gaps = []
    for leaf in leaves:
        if (position := leaf.position_in(state)) is None:
            continue
        with delta_source(spark, leaf, scratch / f"{leaf.uid}-{leaf.place}") as source:
            first = position.version
            if not source.reads_changes() or first > source.log.version():
                continue
            if (last := _last_without_feed(source.log, first)) is not None:
                begins = any(name.startswith("starting") for name in leaf.options)
                ended = last < source.log.version()
                gaps.append(FeedGap(leaf.uid, source.log.path, first, last, begins, ended))
    return gaps


def _last_without_feed(log: DeltaLog, first: int) -> int | None:
    """The last version of the gap that begins with `first`; None if that one has a feed."""
    if property_is_on(log.metadata_at(first)["configuration"], CHANGE_FEED):
        return None
    newest = log.version()
    for version in range(first + 1, newest + 1):
        for line in (log.read(version) or b"").splitlines():
            shape = json.loads(line).get("metaData") if b'"metaData"' in line else None
            if shape is not None and property_is_on(shape.get("configuration", {}), CHANGE_FEED):
                return version - 1
    return newest


def sentence(gap: FeedGap) -> str:
    """The refusal, with the steps that count nothing twice."""
    one = gap.first == gap.last
    versions = f"version {gap.first}" if one else f"the versions from {gap.first} to {gap.last}"
    on = "" if gap.ended else f"let it keep one again ('{CHANGE_FEED}' = 'true'), and "
    anew = ", without the option that says where the source begins" if gap.begins else ""
    later = f"'{gap.last + 1}'" if gap.ended else "the version in which it keeps one again"
    return (
        f"source {gap.uid!r} would have to read {versions} of the Delta table {gap.table} next, where it kept no feed of its changes: {on}run "
        f"the pipeline as a new job (--job NAME) with outputs of its own{anew}, to begin with the table as it is and count nothing twice; or, to let "
        f"stand what was counted without the changes of {'that version' if one else 'these versions'}, give the source a new uid and "
        f"options={{'startingVersion': {later}}}, and run once with --allow-non-restored-state (docs/recipes/changes.md)"
    )
