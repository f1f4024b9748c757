"""Positions of sources, from Spark's log into records: those of a batch, and records without a batch, which only say where sources are."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from stateflow.checkpoint.draft import Draft
from stateflow.checkpoint.statistics import POSITIONS, UNDONE_BY
from stateflow.checkpoint.writer import Writer
from stateflow.format.records import FileRef, SourceState
from stateflow.spark.batch_record import MadeBy, job_time
from stateflow.spark.inputs.open_inputs import OpenInputs
from stateflow.spark.inputs.reread import BEFORE_FIRST_BATCH, is_before_first_batch
from stateflow.spark.inputs.seeding import capture
from stateflow.spark.inputs.silence import recorded_sources
from stateflow.spark.run_warnings import RunWarnings
from stateflow.spark.sources.read_commits import ReadCommits
from stateflow.storage.files import inline, upload_file

_INLINE_LOG_ENTRY = 2048


@dataclass
class SourceRecords:
    inputs: OpenInputs
    writer: Writer
    made_by: MadeBy
    warnings: RunWarnings
    clock: Callable[[], int]
    commits: ReadCommits
    settle: Callable[[], None]
    """Waits for the record that is on its way."""

    def of_batch(self, location: Path, batch_id: int) -> dict[str, SourceState]:
        """How far a batch has read, by Spark's log at the location. What Spark notes of files goes into files of the job's own."""
        inputs, before = self.inputs, recorded_sources(self.writer.parent)
        captured = capture(location, batch_id, inputs.layout, before, self._save_log_entry)
        return {
            uid: msgspec.structs.replace(
                source,
                since=inputs.since[uid],
                topic_ids=inputs.topic_ids.get(uid, {}),
                change_feeds=inputs.change_feeds.get(uid, ()),
            )
            for uid, source in self.commits.noted(captured, before).items()
        }

    def begin(self, sources: Mapping[str, SourceState]) -> None:
        """Writes a record before the first batch of a source, so that the run resolves the source's beginning only once."""
        clock = self.clock()
        active = job_time(clock, self.writer.parent)
        beginnings = {
            uid: msgspec.structs.replace(
                source, active=active, since=self.inputs.since.get(uid, ""), looked=clock
            )
            for uid, source in sources.items()
        }
        # Nobody has looked for rows of the others: they are silent for no longer than before.
        self.extend(beginnings)

    def extend(self, sources: Mapping[str, SourceState]) -> None:
        """Writes a record before the first batch of sources whose topics are others. `sources` are the recorded ones, with the beginnings of the
        new ones and without those that are left."""
        recorded = recorded_sources(self.writer.parent)
        self._write({**recorded, **sources}, {POSITIONS: sorted(sources)})

    def move(self, sources: Mapping[str, SourceState], undone_by: Mapping[str, int]) -> None:
        """Writes a record that puts sources behind undone versions of their tables. `undone_by`: the version that undid them. `sources` are
        the recorded ones, moved."""
        # Nobody has looked for rows: no source is silent for longer than before.
        moved = self.commits.noted(sources, recorded_sources(self.writer.parent))
        self._write(moved, {POSITIONS: sorted(undone_by), UNDONE_BY: dict(undone_by)})

    def _write(self, sources: dict[str, SourceState], noted: Mapping[str, Any]) -> None:
        # A query may end while the record of its last batch is delivered, and no record is decided before the one below it is complete.
        self.settle()
        now = job_time(self.clock(), self.writer.parent)
        if is_before_first_batch(self.writer.parent, self.writer.epoch):
            noted = {**noted, BEFORE_FIRST_BATCH: True}
        record = Draft.continuing(
            "checkpoint",
            self.writer.parent,
            sources=sources,
            now=now,
            parameters=self.made_by.parameters,
            versions=self.made_by.versions,
            statistics={"trigger_timestamp": now // 1000, **noted, **self.warnings.noted()},
        )
        permit = self.writer.decide(record)
        self.writer.complete(permit, {}, {})

    def _save_log_entry(self, name: str, path: Path) -> FileRef:
        data = path.read_bytes()
        if len(data) <= _INLINE_LOG_ENTRY:
            return inline(name, data)
        writer = self.writer
        target = writer.layout.shared_file(writer.epoch, writer.next_slot, uuid.uuid4().hex, ".log")
        return upload_file(writer.store, target, path, name)
