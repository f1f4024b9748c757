"""From Spark's scratch checkpoint to a record, and back: a run resumes by seeding a fresh folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from stateflow.errors import IncompatibleError, UsageError
from stateflow.format.records import FileRef, SourceState
from stateflow.format.source_offsets import (
    CONNECTED,
    NOTHING,
    SourceLeaves,
    joined_lines,
    kind_of,
    kinds_of,
    places_of,
    split_lines,
)
from stateflow.spark.internals.scratch_folder import (
    FIRST_BATCH,
    SHUFFLE,
    bounds_of_batch,
    commit_path,
    log_folder,
    log_offset,
    offset_path,
    read_batch_offsets,
    write_beginning,
    write_offsets,
)
from stateflow.spark.sources.file_log import Fetch, Save, entries_of, restore_entries, save_entries
from stateflow.spark.sources.pattern_names import file_like_a_pattern, sentence


def capture(
    location: Path,
    batch_id: int,
    layout: Sequence[SourceLeaves],
    previous: Mapping[str, SourceState],
    save: Save,
) -> dict[str, SourceState]:
    """The position of every source at the end of batch `batch_id`. Call it inside the batch.

    `previous` is the parent record's sources: entries that it already has are not saved again, and its event times,
    activity and left topics are taken over. `save(name, path)` stores one entry of a file source's log.
    """
    captured: dict[str, SourceState] = {}
    connected = {
        source.uid: source.kinds[0] for source in layout if source.kinds and source.kinds[0] in CONNECTED
    }
    first_leaf = 0
    for uid, lines in split_lines(layout, read_batch_offsets(location, batch_id)).items():
        before = previous.get(uid, SourceState(lines=()))
        known = {reference.name: reference for reference in before.files}
        files: list[FileRef] = []
        for leaf, line in enumerate(lines):
            if kind_of(line) == "file":
                folder = log_folder(location, first_leaf + leaf)
                files += save_entries(folder, leaf, log_offset(line), known, save)
        captured[uid] = SourceState(
            lines=lines,
            files=tuple(files),
            kind=connected.get(uid) or kinds_of(lines),
            event_time=before.event_time,
            active=before.active,
            partitions=before.partitions,
            looked=before.looked,
            silent=before.silent,
            left=before.left,
            time_column=before.time_column,
            columns=before.columns,
        )
        first_leaf += len(lines)
    return captured


def refuse_patterns(location: Path, batch_id: int, layout: Sequence[SourceLeaves]) -> None:
    """IncompatibleError for a batch of files that Spark would read twice, since one of them has a name like a pattern. Call it
    inside the batch."""
    uids = [uid for uid, _ in places_of(layout)]
    bounds = bounds_of_batch(location, batch_id)
    for leaf, (uid, begin, end) in enumerate(zip(uids, *bounds, strict=True)):
        if kind_of(end) == "file" and (path := file_like_a_pattern(location, leaf, begin, end)):
            raise IncompatibleError(sentence(uid, path))


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
    if SHUFFLE not in conf:
        raise UsageError(
            f"Spark does not start from offsets without {SHUFFLE}: pass the session's value in `conf`"
        )
    if location.exists() and any(location.iterdir()):
        raise UsageError(f"the scratch folder {location} is not empty: seed a fresh one for every run")
    lines = joined_lines(layout, state)
    write_beginning(location, lines, conf, now_ms, query_id)
    seed_entries(location, layout, state, fetch)
    return FIRST_BATCH


def seed_entries(
    location: Path, layout: Sequence[SourceLeaves], state: Mapping[str, SourceState], fetch: Fetch
) -> None:
    """Lays out the logs of the sources of files as they were at `state`, beside what is there."""
    for number, (uid, place) in enumerate(places_of(layout)):
        recorded = state.get(uid)
        if recorded is not None and kind_of(recorded.lines[place]) == "file":
            restore_entries(log_folder(location, number), entries_of(recorded, place), fetch)


def unread(source: SourceLeaves) -> SourceState:
    """Where a source is of which nothing was read yet."""
    return SourceState(lines=(NOTHING,) * source.leaves)


def plan_batch(
    location: Path, batch_id: int, lines: Sequence[str], conf: Mapping[str, str], now_ms: int
) -> None:
    """Fixes where batch `batch_id` ends before Spark runs it.

    A query with trigger `once` on this folder then runs exactly this batch and ends. With `availableNow` it would go
    on to newer data. The folder must be seeded, or have run the batch before.
    """
    if offset_path(location, batch_id).exists() or not commit_path(location, batch_id - 1).exists():
        raise UsageError(f"batch {batch_id} is not the next one of the scratch folder {location}")
    write_offsets(location, batch_id, lines, conf, now_ms)
