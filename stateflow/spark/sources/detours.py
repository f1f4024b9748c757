"""Which sources of a run have a table that went back before them, and how they go on."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from stateflow.format.records import Record, SourceState
from stateflow.format.source_offsets import NOTHING
from stateflow.spark.sources.delta import bound_version
from stateflow.spark.sources.delta_offset import DeltaOffset
from stateflow.spark.sources.delta_restores import (
    Detour,
    TableRestore,
    UndoneRead,
    next_step,
    restores_in,
)
from stateflow.spark.sources.leaves import LeafDescription
from stateflow.spark.sources.positions import Bound, bound_of, delta_source
from stateflow.spark.sources.read_commits import reader_of

_LEAVE_OUT = {"skipchangecommits", "ignoredeletes", "ignorechanges"}
"""Options with which Delta reads on silently where rows were removed."""


@dataclass(frozen=True, slots=True)
class LeafDetour:
    """A stream that has to go around undone versions of its table, or that has read them already."""

    leaf: LeafDescription
    table: str
    position: DeltaOffset
    restores: tuple[TableRestore, ...]
    step: Detour | UndoneRead
    bound: int | None = None
    """The last version that the run may read."""

    @property
    def stops(self) -> bool:
        """Whether the run ends before the table went back."""
        return self.bound is not None and self.bound < self.step.restore.version

    def nearer(self, way: Detour) -> int:
        """The last version to read in a run that ends before the table went back."""
        return way.through if self.bound is None else min(way.through, self.bound)


def detours(
    spark: SparkSession,
    leaves: Sequence[LeafDescription],
    state: Mapping[str, SourceState],
    scratch: Path,
    until: Bound | Mapping[str, Bound] | None = None,
    unread: Collection[str] = (),
) -> list[LeafDetour]:
    """The streams whose tables went back after the recorded positions. `unread`: sources that begin at theirs.

    A change feed tells the reader itself of the rows that went. A source that this run does not read is left out.
    """
    found = []
    for leaf in leaves:
        line, bound = leaf.line_in(state), bound_of(leaf.uid, until)
        if leaf.kind != "delta" or line == NOTHING or (until is not None and bound is None):
            continue
        with delta_source(spark, leaf, scratch / f"{leaf.number}") as source:
            position, last = DeltaOffset.parse(line), source.log.version()
            if source.reads_changes() or position.table != source.table_id:
                continue
            restores = restores_in(reader_of(source), position.version, last)
            step = next_step(position, restores, unread=leaf.uid in unread)
            if step is not None:
                most = bound_version(source, bound) if bound is not None else None
                found.append(LeafDetour(leaf, source.log.path, position, tuple(restores), step, most))
    return found


def passed_restores(
    spark: SparkSession,
    leaves: Sequence[LeafDescription],
    before: Mapping[str, SourceState],
    after: Mapping[str, SourceState],
    scratch: Path,
) -> list[tuple[str, str, int]]:
    """Source, table and version of each restore that a query has read across while Delta left the changes out."""
    found = []
    for leaf in leaves:
        lines = (leaf.line_in(before), leaf.line_in(after))
        if leaf.kind != "delta" or not _LEAVE_OUT & leaf.options.keys() or NOTHING in lines:
            continue
        first, last = map(DeltaOffset.parse, lines)
        if first.table != last.table or last.version <= first.version:
            continue
        with delta_source(spark, leaf, scratch / f"{leaf.number}") as source:
            if source.reads_changes():
                continue
            restores = restores_in(reader_of(source), first.version, last.version - 1)
            found += [(leaf.uid, source.log.path, restore.version) for restore in restores]
    return found


def latest_unaffected(checkpoints: Sequence[Record], detour: LeafDetour) -> int | None:
    """The newest checkpoint that has read nothing of the undone versions. The checkpoints come oldest first."""
    for record in reversed(checkpoints):
        line = detour.leaf.line_in(record.sources)
        if line == NOTHING:
            return record.slot
        position = DeltaOffset.parse(line)
        if position.table == detour.position.table and not isinstance(
            next_step(position, detour.restores), UndoneRead
        ):
            return record.slot
    return None


def undone_sentence(each: LeafDetour, step: UndoneRead, job: str, slot: int | None) -> str:
    """The refusal of a job that has read undone rows. `slot`: the newest checkpoint from before that."""
    kept, last = step.restore.kept, each.position.newest_read
    if kept is None:
        what = "rows"
    else:
        what = f"version {last}" if kept == last - 1 else f"the versions from {kept + 1} to {last}"
    way = (
        f"take the job back to checkpoint {slot}, from before it read them (`stateflow restore {job} FILE --from checkpoint:{slot} "
        "--rewind-sinks`)"
        if slot is not None
        else "restore a savepoint from before it read them"
    )
    # Of a first snapshot that is read in part, that would leave the rest out.
    stands = (
        f", or, to let that stand, give the source a new uid and startingVersion={step.restore.version + 1}, and run once with "
        "--allow-non-restored-state"
        if not each.position.snapshot
        else ""
    )
    return (
        f"source {each.leaf.uid!r} has read {what} of the Delta table {each.table}, which version {step.restore.version} undid: it "
        f"took the table back (RESTORE), and what the job has made of these rows is wrong now; {way}{stands}"
    )
