"""From Spark's scratch checkpoint to a record, and back: a run resumes by seeding a fresh folder.

Spark 4.2 starts a query only if it finds two consecutive offset entries below the next batch. It takes the newest
entry as done when its commit is there. So a seeded folder holds the recorded offsets twice, as the committed batches
0 and 1, and the next batch is 2. A commit entry needs its version line and a watermark.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from stateflow.errors import UsageError
from stateflow.format.records import FileRef, SourceState
from stateflow.format.source_offsets import (
    OffsetEntry,
    SourceLeaves,
    commit_path,
    joined_lines,
    kind_of,
    kinds_of,
    offset_path,
    read_batch_offsets,
    split_lines,
)
from stateflow.spark.sources.file_log import Fetch, Save, log_folder, restore_entries, save_entries

FIRST_BATCH = 2
"""The batch that a seeded folder runs next."""

_SHUFFLE = "spark.sql.shuffle.partitions"
_COMMIT = 'v1\n{"nextBatchWatermarkMs":0}'


def capture(
    location: Path,
    batch_id: int,
    layout: Sequence[SourceLeaves],
    previous: Mapping[str, SourceState],
    save: Save,
) -> dict[str, SourceState]:
    """The position of every source at the end of batch `batch_id`. Call it inside the batch.

    `previous` is the parent record's sources: entries that it already has are not saved again, and its event times
    and activity are taken over. `save(name, path)` stores one entry of a file source's log.
    """
    captured: dict[str, SourceState] = {}
    first_leaf = 0
    for uid, lines in split_lines(layout, read_batch_offsets(location, batch_id).lines).items():
        before = previous.get(uid, SourceState(lines=()))
        known = {reference.name: reference for reference in before.files}
        files: list[FileRef] = []
        for leaf, line in enumerate(lines):
            if kind_of(line) == "file":
                offset = int(json.loads(line)["logOffset"])
                files += save_entries(log_folder(location, first_leaf + leaf), leaf, offset, known, save)
        captured[uid] = SourceState(
            lines=lines,
            files=tuple(files),
            kind=kinds_of(lines),
            event_time=before.event_time,
            active=before.active,
        )
        first_leaf += len(lines)
    return captured


def seed(
    location: Path,
    layout: Sequence[SourceLeaves],
    state: Mapping[str, SourceState],
    fetch: Fetch,
    conf: Mapping[str, str],
    now_ms: int,
    query_id: str,
) -> int:
    """Prepares a fresh folder so that Spark goes on after `state`; returns the id of the next batch.

    Without a recorded source it writes nothing, and the next batch is 0. Sources that are new to the pipeline start at
    their own beginning, removed ones are left out, and the order is that of `layout`. Spark restores the settings
    `conf` with the offsets; they must contain `spark.sql.shuffle.partitions`.
    """
    if not state:
        return 0
    if _SHUFFLE not in conf:
        raise UsageError(
            f"Spark 4.2 does not start from offsets without {_SHUFFLE}: pass the session's value in `conf`"
        )
    if location.exists() and any(location.iterdir()):
        raise UsageError(f"the scratch folder {location} is not empty: seed a fresh one for every run")
    lines = joined_lines(layout, state)
    for folder in ("offsets", "commits", "sources"):
        (location / folder).mkdir(parents=True, exist_ok=True)
    (location / "metadata").write_text(json.dumps({"id": query_id}), encoding="utf-8")
    first_leaf = 0
    for source in layout:
        recorded = state.get(source.uid)
        for leaf in range(source.leaves) if recorded is not None else ():
            assert recorded is not None
            if kind_of(recorded.lines[leaf]) == "file":
                refs = _entries_of(recorded, leaf)
                restore_entries(log_folder(location, first_leaf + leaf), refs, fetch)
        first_leaf += source.leaves
    for batch_id in range(FIRST_BATCH):
        _write_offsets(location, batch_id, lines, conf, now_ms)
        commit_path(location, batch_id).write_text(_COMMIT, encoding="utf-8")
    return FIRST_BATCH


def plan_batch(
    location: Path, batch_id: int, lines: Sequence[str], conf: Mapping[str, str], now_ms: int
) -> None:
    """Fixes where batch `batch_id` ends before Spark runs it.

    A query with trigger `once` on this folder then runs exactly this batch and ends. With `availableNow` it would go
    on to newer data. The folder must be seeded, or have run the batch before.
    """
    if offset_path(location, batch_id).exists() or not commit_path(location, batch_id - 1).exists():
        raise UsageError(f"batch {batch_id} is not the next one of the scratch folder {location}")
    _write_offsets(location, batch_id, lines, conf, now_ms)


def _write_offsets(
    location: Path, batch_id: int, lines: Sequence[str], conf: Mapping[str, str], now_ms: int
) -> None:
    metadata = {
        "batchWatermarkMs": 0,
        "batchTimestampMs": now_ms,
        # If Spark named sources, it would rename their folders and reorder the lines.
        "conf": {**conf, "spark.sql.streaming.queryEvolution.enableSourceEvolution": "false"},
    }
    path = offset_path(location, batch_id)
    path.write_text(OffsetEntry(metadata, tuple(lines)).encode(), encoding="utf-8")


def _entries_of(recorded: SourceState, leaf: int) -> dict[str, FileRef]:
    prefix = f"{leaf}/"
    return {ref.name.removeprefix(prefix): ref for ref in recorded.files if ref.name.startswith(prefix)}
