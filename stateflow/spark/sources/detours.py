"""Which sources of a run have a table that went back before them, or is another copy, and how they go on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from stateflow.errors import DisagreementError
from stateflow.format.records import Record, SourceState
from stateflow.spark.sources.delta import bound_version
from stateflow.spark.sources.delta_offset import DeltaOffset
from stateflow.spark.sources.delta_restores import Detour, TableRestore, UndoneRead, next_step, restores_in
from stateflow.spark.sources.leaves import LeafDescription
from stateflow.spark.sources.positions import Bound, bound_of, delta_source
from stateflow.spark.sources.read_commits import READ_ANEW, OtherCopy, TableCommits, other_copy, way_back

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

    def is_sound_at(self, record: Record) -> bool:
        """Whether the job had read nothing by then of the undone versions."""
        position = self.leaf.position_in(record.sources)
        if position is None:
            return True
        return position.table == self.position.table and not isinstance(
            next_step(position, self.restores), UndoneRead
        )

    def sentence(self, job: str, slot: int | None) -> str:
        """The refusal of a job that has read undone rows. `slot`: a checkpoint from before that."""
        restore, last = self.step.restore, self.position.newest_read
        if restore.kept is None:
            what = "rows"
        else:
            what = (
                f"version {last}"
                if restore.kept == last - 1
                else f"the versions from {restore.kept + 1} to {last}"
            )
        # Of a first snapshot that is read in part, a new beginning behind the RESTORE would leave the rest out.
        anew = (
            f"or {READ_ANEW}"
            if self.position.snapshot
            else f"or, to let that stand, give the source a new uid and startingVersion={restore.version + 1}, and run once with "
            "--allow-non-restored-state"
        )
        return (
            f"source {self.leaf.uid!r} has read {what} of the Delta table {self.table}, which version {restore.version} undid: it "
            f"took the table back (RESTORE), and what the job has made of these rows is wrong now; "
            f"{way_back(job, slot, 'it read them')}, {anew}"
        )

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
) -> list[LeafDetour | OtherCopy]:
    """The streams whose tables went back after the recorded positions, or are other copies. `unread`: sources that begin at theirs.

    A change feed tells the reader itself of the rows that went. A source that this run does not read is left out.
    """
    found: list[LeafDetour | OtherCopy] = []
    for leaf in leaves:
        position, bound = leaf.position_in(state), bound_of(leaf.uid, until)
        if position is None or (until is not None and bound is None):
            continue
        with delta_source(spark, leaf, scratch / f"{leaf.number}") as source:
            last, commits = source.log.version(), TableCommits.of(source)
            if (other := other_copy(leaf, commits, state)) is not None:
                found.append(other)
                continue
            if source.reads_changes() or position.table != source.table_id:
                continue
            restores = restores_in(commits.read, position.version, last)
            step = next_step(position, restores, unread=leaf.uid in unread)
            if step is not None:
                most = bound_version(source, bound) if bound is not None else None
                found.append(LeafDetour(leaf, source.log.path, position, tuple(restores), step, most))
    return found


def ways_round(
    found: Sequence[LeafDetour | OtherCopy], job: str, checkpoints: Callable[[], Sequence[Record]]
) -> list[tuple[LeafDetour, Detour]]:
    """The detours among what was found. It refuses where the job has read undone rows, or another copy of a table.

    `checkpoints`: the job's, oldest first. The refusal names the newest one that none of its sources makes wrong.
    """
    wrong = [each for each in found if isinstance(each, OtherCopy) or isinstance(each.step, UndoneRead)]
    if wrong:
        sound = (each.slot for each in reversed(checkpoints()) if all(it.is_sound_at(each) for it in wrong))
        raise DisagreementError(wrong[0].sentence(job, next(sound, None)))
    return [
        (each, each.step) for each in found if isinstance(each, LeafDetour) and isinstance(each.step, Detour)
    ]


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
        first, last = leaf.position_in(before), leaf.position_in(after)
        if first is None or last is None or not _LEAVE_OUT & leaf.options.keys():
            continue
        if first.table != last.table or last.version <= first.version:
            continue
        with delta_source(spark, leaf, scratch / f"{leaf.number}") as source:
            if source.reads_changes():
                continue
            restores = restores_in(TableCommits.of(source).read, first.version, last.version - 1)
            found += [(leaf.uid, source.log.path, restore.version) for restore in restores]
    return found
