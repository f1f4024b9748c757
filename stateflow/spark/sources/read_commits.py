"""The newest commit that a source has read of its Delta table. An older copy of the table that took its place, and was written on, has
another commit of that version, and rows before it that the job has not read."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from pyspark.sql import SparkSession

from stateflow.format.records import Record, SourceState
from stateflow.format.source_offsets import UNDER_NEW_UIDS
from stateflow.spark.internals.sources import DeltaSource
from stateflow.spark.sources.delta import APPENDED_TWICE
from stateflow.spark.sources.delta_log import commit_id, local_log_of
from stateflow.spark.sources.delta_offset import DeltaOffset
from stateflow.spark.sources.delta_restores import Read
from stateflow.spark.sources.leaves import LeafDescription
from stateflow.spark.sources.positions import delta_source


@dataclass(frozen=True, slots=True)
class TableCommits:
    """The commits of the table that a stream reads."""

    path: str
    table: str
    read: Read

    @classmethod
    def of(cls, source: DeltaSource) -> TableCommits:
        """Reads them without Spark where they lie on the local disk."""
        local = local_log_of(source.log)
        return cls(source.log.path, source.table_id, source.log.read if local is None else local.read)

    def id_of_last(self, position: DeltaOffset) -> str:
        """Of the newest commit that is read at a position; empty where there is none, or the table's log has it no more."""
        return commit_id(self.read, position) if position.table == self.table else ""


@dataclass(frozen=True, slots=True)
class OtherCopy:
    """A stream whose table is another copy than the one that it has read."""

    leaf: LeafDescription
    commits: TableCommits
    version: int

    def is_sound_at(self, record: Record) -> bool:
        """Whether the job had read nothing else by then than this copy has."""
        position, noted = self.leaf.position_in(record.sources), _noted(self.leaf, record.sources)
        return (
            position is None
            or position.newest_read < 0
            or (noted != "" and noted == self.commits.id_of_last(position))
        )

    def sentence(self, job: str, slot: int | None) -> str:
        """The refusal. `slot`: a checkpoint from before the copies parted."""
        return (
            f"source {self.leaf.uid!r} has read version {self.version} of the Delta table {self.commits.path}, which is another commit there now: an "
            "older copy was put in its place and written on, with rows in versions that count as read; bring the other table back, or "
            f"{way_back(job, slot, 'the two copies parted')}, or {READ_ANEW}"
        )


READ_ANEW = f"give the source {UNDER_NEW_UIDS} to read this one from its beginning ({APPENDED_TWICE})"


def way_back(job: str, slot: int | None, moment: str) -> str:
    """What takes a job back to before a moment. `slot`: the newest checkpoint from before it."""
    if slot is None:
        return f"restore a savepoint from before {moment}"
    return (
        f"take the job back to checkpoint {slot}, from before {moment} (`stateflow restore {job} FILE --from checkpoint:{slot} "
        "--rewind-sinks`)"
    )


def other_copy(
    leaf: LeafDescription, commits: TableCommits, sources: Mapping[str, SourceState]
) -> OtherCopy | None:
    """What is there where the stream's table has another commit than the one that was read; else None."""
    position, noted = leaf.position_in(sources), _noted(leaf, sources)
    if position is None or not noted or commits.id_of_last(position) in ("", noted):
        return None
    return OtherCopy(leaf, commits, position.newest_read)


@dataclass
class ReadCommits:
    """Those of a run's streams."""

    spark: SparkSession
    leaves: Sequence[LeafDescription]
    _opened: dict[int, TableCommits] = field(default_factory=dict)

    def noted(
        self, sources: Mapping[str, SourceState], before: Mapping[str, SourceState]
    ) -> dict[str, SourceState]:
        """The sources, each with the commits that it has read. `before`: as the record before has them."""
        noted = dict(sources)
        for leaf in self.leaves:
            position, was = leaf.position_in(noted), leaf.position_in(before)
            if position is None:
                continue
            # A commit that is read in parts is the same one in each batch, and nothing is read yet where a run has only begun.
            if was is not None and (was.table, was.newest_read) == (position.table, position.newest_read):
                commit = _noted(leaf, before)
            else:
                commit = self._of(leaf).id_of_last(position)
            state = noted[leaf.uid]
            commits = {**state.commits, str(leaf.place): commit}
            noted[leaf.uid] = msgspec.structs.replace(
                state, commits={place: id for place, id in commits.items() if id}
            )
        return noted

    def _of(self, leaf: LeafDescription) -> TableCommits:
        if leaf.number not in self._opened:
            with (
                tempfile.TemporaryDirectory(prefix="stateflow-") as folder,
                delta_source(self.spark, leaf, Path(folder)) as source,
            ):
                self._opened[leaf.number] = TableCommits.of(source)
        return self._opened[leaf.number]


def _noted(leaf: LeafDescription, sources: Mapping[str, SourceState]) -> str:
    state = sources.get(leaf.uid)
    return state.commits.get(str(leaf.place), "") if state is not None else ""
