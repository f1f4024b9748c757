"""Checks before a run that every source still has the data at the recorded offsets."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

import msgspec
from pyspark.sql import SparkSession

from stateflow.errors import DisagreementError
from stateflow.format.records import LeftTopic, SourceState
from stateflow.format.source_offsets import (
    NOTHING,
    UNDER_NEW_UIDS,
    check_same_source,
    kind_of,
    left_topics,
    topics_read,
)
from stateflow.spark.internals.file_systems import missing
from stateflow.spark.internals.scratch_folder import files_between, log_folder, log_offset
from stateflow.spark.sources.delta import APPENDED_TWICE, check_offset, pending_files
from stateflow.spark.sources.delta_offset import DeltaOffset
from stateflow.spark.sources.file_log import Fetch, entries_of, restore_entries
from stateflow.spark.sources.kafka import (
    Partitions,
    accepted_losses,
    apart,
    check_kafka,
    check_same_topics,
    cut_beginnings,
    line_of,
    made_anew,
    parse,
    replaced_in_run,
    with_added,
)
from stateflow.spark.sources.kafka_topics import ids_of_topics, topics_of
from stateflow.spark.sources.leaves import LeafDescription, by_source, shape_of
from stateflow.spark.sources.positions import delta_source, open_stream

_CHECKED_FILES = 256
"""How many of the next files to check: the oldest, which a vacuum deletes first."""


@dataclass
class Available:
    """What sources go on with."""

    losses: list[str] = field(default_factory=list)
    """What those go on without that accept a loss."""
    left: list[str] = field(default_factory=list)
    """A sentence for each that has read topics which it does not name any more."""
    moved: dict[str, SourceState] = field(default_factory=dict)
    """Those that go on elsewhere than the record says, since their topics are others: new ones without a beginning are at the offset where
    each begins, and those that are not named any more are left. Spark would take both for a loss."""


def check_available(
    spark: SparkSession, leaves: Sequence[LeafDescription], state: Mapping[str, SourceState], scratch: Path
) -> Available:
    """Raises DisagreementError for offsets that a source can no longer serve."""
    found = Available()
    for uid, own in by_source(leaves).items():
        recorded = state.get(uid)
        if recorded is None:
            continue
        check_same_source(shape_of(uid, own), recorded)
        for leaf, line in zip(own, recorded.lines, strict=True):
            folder = scratch / f"{uid}-{leaf.place}"
            if line == NOTHING:
                continue
            if leaf.kind == "delta":
                _check_delta(spark, leaf, folder, line)
            elif leaf.kind == "kafka" and leaf.reads_micro_batches:
                _check_kafka(spark, leaf, folder, recorded, found)
    return found


def check_topics_stay(spark: SparkSession, leaves: Sequence[LeafDescription]) -> list[str]:
    """DisagreementError for a topic of Kafka that was made anew since the run has opened it. Spark goes on at the old offset of the new one,
    without a word. Returns what those go on without that accept a loss. Call it when a batch has read and is not decided."""
    losses = []
    for leaf in leaves:
        if leaf.topic_ids:
            now = ids_of_topics(spark, leaf.uid, leaf)
            if _must_not_lose(leaf):
                check_same_topics(leaf.uid, leaf.topic_ids, now)
            else:
                losses += replaced_in_run(leaf.uid, made_anew(leaf.topic_ids, now))
    return losses


def check_rewindable(
    spark: SparkSession,
    state: Mapping[str, SourceState],
    head: Mapping[str, SourceState],
    fetch: Fetch,
) -> None:
    """Refuses to rewind from `head` to `state` when input files read between them are gone.

    After a rewind a file source lists its folder again, and would silently leave out deleted files.
    """
    for uid, newer in head.items():
        older = state.get(uid)
        for leaf, line in enumerate(newer.lines):
            if kind_of(line) != "file":
                continue
            line_before = older.lines[leaf] if older is not None and leaf < len(older.lines) else NOTHING
            after = log_offset(line_before)
            with tempfile.TemporaryDirectory(prefix="stateflow-") as folder:
                log = log_folder(Path(folder), leaf)
                restore_entries(log, entries_of(newer, leaf), fetch)
                files = files_between(log, after, log_offset(line))
            gone = missing(spark, [unquote(file.path) for file in files])
            if gone:
                raise DisagreementError(
                    f"source {uid!r} cannot go back to log offset {after}: of {len(files)} input files read "
                    f"since, {len(gone)} are gone, the first is {gone[0]}; put them back, or choose a later "
                    "checkpoint"
                )


def _check_kafka(
    spark: SparkSession, leaf: LeafDescription, folder: Path, recorded: SourceState, found: Available
) -> None:
    uid, ids = leaf.uid, leaf.topic_ids
    line, left = parse(recorded.lines[leaf.place]), _left_before(recorded, leaf.place)
    known_ids = {
        **{name: topic.id for name, topic in recorded.left.items() if topic.id},
        **recorded.topic_ids,
    }
    known = {topic: known_ids.get(f"{leaf.place}/{topic}") for topic in ids}
    with open_stream(spark, leaf, folder) as stream:
        earliest, latest = map(parse, stream.kafka_range())
    # Which topics a pattern matches, only the brokers tell.
    named = topics_of(leaf.options) or {topic for topic, _ in (*line, *earliest)}
    here, away = apart({**left, **line}, named)
    # A partition that a pipeline assigns only now may be as old as its topic.
    expected = here if "assign" in leaf.options else with_added(here, earliest)
    if _must_not_lose(leaf):
        check_same_topics(uid, known, ids)
        check_kafka(uid, expected, earliest, latest)
    else:
        found.losses += accepted_losses(uid, expected, earliest, latest, made_anew(known, ids))
    # Of topics that are all new Spark has to be told more than those that are cut: a line without a topic is none of Kafka.
    goes_on = {**here, **cut_beginnings(expected, earliest)} or {**earliest}
    if goes_on == line:
        return
    found.moved[uid] = _moved(found.moved.get(uid, recorded), leaf.place, goes_on, away, known_ids)
    if now_left := [topic for topic in topics_read(recorded) if topic in {name for name, _ in away}]:
        found.left.append(left_topics(uid, now_left))


def _moved(
    before: SourceState, place: int, goes_on: Partitions, away: Partitions, ids: Mapping[str, str]
) -> SourceState:
    """A source that has left topics, or goes on with others."""
    read = {f"{place}/{topic}" for topic, _ in goes_on}
    left = {
        f"{place}/{topic}": LeftTopic(offsets, ids.get(f"{place}/{topic}", ""))
        for topic, offsets in json.loads(line_of(away)).items()
    }
    lines = [*before.lines]
    lines[place] = line_of(goes_on)
    return msgspec.structs.replace(
        before,
        lines=tuple(lines),
        left={**{name: topic for name, topic in before.left.items() if name not in read}, **left},
        topic_ids={
            **{name: id for name, id in before.topic_ids.items() if name not in left},
            **{name: id for name, id in ids.items() if name in read},
        },
        # A topic that is not read holds no watermark back.
        partitions={
            name: time
            for name, time in before.partitions.items()
            if f"{place}/{name.rpartition('/')[0]}" not in left
        },
    )


def _left_before(recorded: SourceState, place: int) -> dict[tuple[str, int], int]:
    """How far the topics were read that a stream has left."""
    return {
        (name.partition("/")[2], int(partition)): offset
        for name, topic in recorded.left.items()
        if name.startswith(f"{place}/")
        for partition, offset in topic.offsets.items()
    }


def _check_delta(spark: SparkSession, leaf: LeafDescription, folder: Path, line: str) -> None:
    offset = DeltaOffset.parse(line)
    with delta_source(spark, leaf, folder) as source:
        check_offset(source, leaf.uid, offset)
        gone = missing(spark, pending_files(source, offset)[:_CHECKED_FILES])
    if gone:
        raise DisagreementError(
            f"source {leaf.uid!r} has to go on at version {offset.version} of the Delta table {leaf.target}, but its file "
            f"{gone[0]} was vacuumed ({len(gone)} of the next files are gone): restore the table's files, or give the "
            f"source {UNDER_NEW_UIDS} to read the table anew "
            f"({APPENDED_TWICE})"
        )


def _must_not_lose(leaf: LeafDescription) -> bool:
    return leaf.options.get("failondataloss", "true").lower() != "false"
