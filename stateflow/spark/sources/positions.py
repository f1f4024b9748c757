"""Resolves where sources begin and where bounded runs end, before any batch runs.

A run resolves a source's first position once, and records it in a first record without input. Otherwise a run that
crashed before its first batch would resolve `latest` again, and lose the rows in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TypeVar

from pyspark.sql import SparkSession

from stateflow.errors import UsageError
from stateflow.format.records import SourceState
from stateflow.format.source_offsets import NOTHING, kinds_of
from stateflow.spark.internals.read_limits import Limited, ReadLimit, unlimited
from stateflow.spark.internals.scratch_folder import files_between, log_folder, log_offset
from stateflow.spark.internals.sources import DeltaSource, MicroBatchStream, PlanRefused
from stateflow.spark.sources import delta, kafka
from stateflow.spark.sources.delta import end_offsets, start_offset
from stateflow.spark.sources.delta_offset import DeltaOffset
from stateflow.spark.sources.files import end_lines_until
from stateflow.spark.sources.kafka import end_lines_of
from stateflow.spark.sources.leaves import LeafDescription, by_source, topic_ids_of
from stateflow.storage.file_urls import hadoop_path

Opened = TypeVar("Opened", DeltaSource, MicroBatchStream)
Bound = int | datetime
"""A version of a Delta table, or a time. The run reads it, too."""


def resolve_initial(
    spark: SparkSession,
    leaves: Sequence[LeafDescription],
    known: Mapping[str, SourceState],
    scratch: Path,
    until: Bound | Mapping[str, Bound] | None = None,
) -> dict[str, SourceState]:
    """The first position of every source that `known` lacks. Record it before a query starts.

    Delta: the version that `startingVersion` or `startingTimestamp` stands for, else the snapshot of the newest version,
    or the first commit where that gives the same rows (with a bound, of the bound's version; a source whose table is
    younger than its bound is left out). Kafka and every other source of the newer kind: its own initial offset. The
    file source starts at nothing, and so does any other source of the older kind: Spark resolves its start when it
    plans the first batch. `scratch` is a folder that may be deleted afterwards.
    """
    resolved: dict[str, SourceState] = {}
    for uid, own in by_source(leaves).items():
        if uid in known:
            continue
        bound = bound_of(uid, until)
        found = [_first_line(spark, leaf, scratch / f"{uid}-{leaf.place}", bound) for leaf in own]
        lines = tuple(line for line in found if line is not None)
        if len(lines) < len(found):
            continue  # there is nothing to begin with before the bound
        resolved[uid] = SourceState(
            lines=lines, kind=kinds_of(lines) or own[0].kind, topic_ids=topic_ids_of(own)
        )
    return resolved


def bounded_batches(
    spark: SparkSession,
    location: Path,
    leaves: Sequence[LeafDescription],
    lines: tuple[str, ...],
    until: Bound | Mapping[str, Bound],
    nearer: Mapping[int, int] | None = None,
    limits: Callable[[int], ReadLimit | None] = lambda number: None,
    holds: Callable[[int], bool] = lambda number: False,
    go_on: Callable[[], bool] = lambda: False,
) -> Iterator[tuple[str, ...]]:
    """The offset lines, in plan order, of the end of each batch of a bounded run that begins at `lines`; none when everything is read.
    `nearer`: per number of a stream a version of its Delta table that bounds it instead of `until`. `limits`: per number of a stream what the
    next batch may take of it. `holds`: whether it takes nothing of it. `go_on`: where there is nothing else to read, lets some of those go on,
    and returns whether there were any.

    `location` is the seeded folder. For every tuple call `plan_batch`, start a query with trigger `once`, and wait for
    it. The file source writes its log for one batch at a time, so take the next tuple only when the batch has ended.
    """
    current = list(lines)
    planners: dict[int, Iterator[str]] = {}
    for leaf, line in zip(leaves, lines, strict=True):
        bound = (nearer or {}).get(leaf.number, bound_of(leaf.uid, until))
        if bound is not None:
            log, limit = log_folder(location, leaf.number), partial(limits, leaf.number)
            planners[leaf.number] = end_lines(spark, leaf, bound, line, log, limit)
    while planners:
        free = [number for number in planners if not holds(number)]
        if not free and go_on():
            continue
        advanced = False
        for number in free or list(planners):
            end = next(planners[number], None)
            if end is None:
                del planners[number]
            else:
                current[number], advanced = end, True
        if advanced:
            yield tuple(current)


def ends_at_newest(
    spark: SparkSession, location: Path, leaves: Sequence[LeafDescription], until: Bound | Mapping[str, Bound]
) -> set[str]:
    """The sources whose bound is the newest version of their table, so that nothing waits behind it."""
    found = set()
    for uid, own in by_source(leaves).items():
        bound = bound_of(uid, until)
        if isinstance(bound, int) and all(
            leaf.kind == "delta" and _newest_version(spark, leaf, log_folder(location, leaf.number)) <= bound
            for leaf in own
        ):
            found.add(uid)
    return found


def _newest_version(spark: SparkSession, leaf: LeafDescription, folder: Path) -> int:
    with delta_source(spark, leaf, folder) as source:
        return source.log.version()


def bound_lies_behind(
    spark: SparkSession,
    location: Path,
    leaves: Sequence[LeafDescription],
    lines: tuple[str, ...],
    until: Bound | Mapping[str, Bound],
) -> bool:
    """Whether a source, which is at its `lines`, has been read beyond its bound. Call it when a bounded run had no batch to plan."""
    return any(
        (bound := bound_of(leaf.uid, until)) is not None
        and line != NOTHING
        and _lies_behind(spark, leaf, bound, line, log_folder(location, leaf.number))
        for leaf, line in zip(leaves, lines, strict=True)
    )


def _lies_behind(spark: SparkSession, leaf: LeafDescription, until: Bound, line: str, folder: Path) -> bool:
    if leaf.kind == "delta":
        with delta_source(spark, leaf, folder) as source:
            return delta.lies_behind(source, DeltaOffset.parse(line), until)
    if not isinstance(until, datetime):
        return False
    if leaf.kind == "file":
        offset = log_offset(line)
        # A batch takes the oldest files first, so the last one has the newest.
        newest = (file.modified_ms for file in files_between(folder, offset - 1, offset))
        return max(newest, default=0) > int(until.timestamp() * 1000)
    if leaf.kind == "kafka" and leaf.reads_micro_batches:
        with open_stream(spark, leaf, folder) as stream:
            return kafka.lies_behind(stream, line, until)
    return False


def end_lines(
    spark: SparkSession,
    leaf: LeafDescription,
    until: Bound,
    from_line: str,
    folder: Path,
    limit: Limited = unlimited,
) -> Iterator[str]:
    """The end of each batch of one stream, after `from_line` and through `until`.

    `folder` is the stream's own folder in the seeded location (`sources/<number>`).
    """
    if leaf.kind == "delta":
        with delta_source(spark, leaf, folder) as source:
            start = DeltaOffset.parse(from_line) if from_line != NOTHING else _start(leaf, source, until)
            for end in end_offsets(source, start, until, limit) if start is not None else ():
                yield end.line()
    elif leaf.kind == "file":
        if not isinstance(until, datetime):
            raise UsageError(
                f"the file source {leaf.target} can only be bounded by a time, the files' modification time, not by {until!r}"
            )
        yield from end_lines_until(leaf.relation.files(spark, _folder(folder)), from_line, until, limit)
    elif leaf.kind == "kafka" and leaf.reads_micro_batches and isinstance(until, datetime):
        with open_stream(spark, leaf, folder) as stream:
            start_line = stream.initial() if from_line == NOTHING else from_line
            yield from end_lines_of(stream, start_line, until, limit)
    else:
        raise UsageError(
            f"a bounded run cannot end the {leaf.format} source {leaf.target} at {until!r}: Delta sources end at a "
            "version or time, file and Kafka sources at a time, others not at all; run without a bound"
        )


def limited_batch(
    spark: SparkSession,
    location: Path,
    leaves: Sequence[LeafDescription],
    lines: tuple[str, ...],
    limits: Callable[[int], ReadLimit | None],
) -> tuple[str, ...] | None:
    """The offset lines, in plan order, of the end of a run's first batch under `limits`, which begins at `lines`; None if there is nothing
    to read.

    A query plans its first batch as soon as it starts, under the limits of the sources' options alone. So this one is planned
    before: call `plan_batch`, and the query goes on from there.
    """
    ends = tuple(
        _limited_line(spark, leaf, line, log_folder(location, leaf.number), limits(leaf.number))
        for leaf, line in zip(leaves, lines, strict=True)
    )
    return ends if ends != lines else None


def _limited_line(
    spark: SparkSession, leaf: LeafDescription, line: str, folder: Path, limit: ReadLimit | None
) -> str:
    if leaf.kind == "file":
        end = leaf.relation.files(spark, _folder(folder)).next_end(limit)
        return line if end is None or end[0] < 0 else end[1]
    if line == NOTHING:
        return line
    source: AbstractContextManager[DeltaSource | MicroBatchStream]
    source = delta_source(spark, leaf, folder) if leaf.kind == "delta" else open_stream(spark, leaf, folder)
    with source as opened:
        try:
            return opened.planned_end(line, limit)
        except PlanRefused:
            return line  # the query says why


def bound_of(uid: str, until: Bound | Mapping[str, Bound] | None) -> Bound | None:
    """The bound of a source: one bound for all, or its entry by uid. A source without a bound does not advance."""
    bound = until.get(uid) if isinstance(until, Mapping) else until
    if isinstance(bound, datetime) and bound.tzinfo is None:
        raise UsageError(
            f"the bound {bound.isoformat()} has no time zone: write it as {bound.isoformat()}+00:00"
        )
    return bound


def delta_source(
    spark: SparkSession, leaf: LeafDescription, folder: Path
) -> AbstractContextManager[DeltaSource]:
    """Delta's own source of the stream, on a folder of its own."""
    return _stopped(leaf.relation.delta(spark, _folder(folder)))


def open_stream(
    spark: SparkSession, leaf: LeafDescription, folder: Path
) -> AbstractContextManager[MicroBatchStream]:
    """The reader of a stream of the newer kind, on a folder of its own."""
    return _stopped(leaf.relation.stream(spark, _folder(folder)))


@contextmanager
def _stopped(opened: Opened) -> Iterator[Opened]:
    try:
        yield opened
    finally:
        opened.stop()


def _folder(folder: Path) -> str:
    return hadoop_path(folder.absolute())


def _start(leaf: LeafDescription, source: DeltaSource, until: Bound | None) -> DeltaOffset | None:
    """Delta takes no starting version that is still to come. One behind the newest is where a table goes on that was taken back."""
    asked = leaf.options.get("startingversion", "")
    if asked.isdecimal() and int(asked) == source.log.version() + 1:
        return DeltaOffset(source.table_id, int(asked))
    return start_offset(source, until)


def _first_line(spark: SparkSession, leaf: LeafDescription, folder: Path, until: Bound | None) -> str | None:
    if leaf.kind == "delta":
        with delta_source(spark, leaf, folder) as source:
            start = _start(leaf, source, until)
            return start.line() if start is not None else None
    if leaf.reads_micro_batches:
        with open_stream(spark, leaf, folder) as stream:
            return stream.initial()
    return NOTHING
