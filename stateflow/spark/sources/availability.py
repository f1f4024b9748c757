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

from stateflow.errors import DisagreementError, IncompatibleError
from stateflow.format.records import LeftTopic, SourceState
from stateflow.format.source_offsets import (
    NOTHING,
    UNDER_NEW_UIDS,
    check_same_source,
    kind_of,
    left_partitions,
    left_topics,
    read_by_two_streams,
    replaced_topics,
    topic_of_two_streams,
)
from stateflow.spark.internals.file_systems import missing
from stateflow.spark.internals.scratch_folder import files_between, log_folder, log_offset
from stateflow.spark.sources.delta import APPENDED_TWICE, check_offset, pending_files
from stateflow.spark.sources.delta_offset import DeltaOffset
from stateflow.spark.sources.file_log import Fetch, entries_of, restore_entries
from stateflow.spark.sources.kafka import (
    Partitions,
    accepted_losses,
    check_kafka,
    check_same_topics,
    cut_beginnings,
    line_of,
    made_anew,
    parse,
    replaced_in_run,
    with_added,
)
from stateflow.spark.sources.kafka_streams import (
    KafkaStream,
    left_and_new,
    left_of_topics,
    recorded_ids,
    recorded_stream,
    settled,
)
from stateflow.spark.sources.kafka_topics import assigned, ids_of_topics, names_topic
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
    """A sentence for each that has read topics, or partitions, which it does not name any more, or that reads some twice, as was accepted."""
    moved: dict[str, SourceState] = field(default_factory=dict)
    """Those that go on elsewhere than the record says, since their topics are others: new ones without a beginning are at the offset where
    each begins, and those that are not named any more are left. Spark would take both for a loss. Or they are those of another stream."""


def check_available(
    spark: SparkSession,
    leaves: Sequence[LeafDescription],
    state: Mapping[str, SourceState],
    scratch: Path,
    *,
    allow_non_restored_state: bool = False,
) -> Available:
    """Raises DisagreementError for offsets that a source can no longer serve, and IncompatibleError for topics of Kafka that it may read twice,
    unless whoever runs it accepts that."""
    found = Available()
    for uid, own in by_source(leaves).items():
        recorded = state.get(uid)
        if recorded is None:
            continue
        check_same_source(shape_of(uid, own), recorded)
        begun = [leaf for leaf in own if recorded.lines[leaf.place] != NOTHING]
        for leaf in begun:
            if leaf.kind == "delta":
                _check_delta(spark, leaf, scratch / f"{uid}-{leaf.place}", recorded.lines[leaf.place])
        if of_kafka := [leaf for leaf in begun if leaf.kind == "kafka" and leaf.reads_micro_batches]:
            _check_kafka(spark, of_kafka, scratch, recorded, found, allowed=allow_non_restored_state)
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
    spark: SparkSession,
    leaves: Sequence[LeafDescription],
    scratch: Path,
    recorded: SourceState,
    found: Available,
    *,
    allowed: bool,
) -> None:
    """The streams of one source."""
    uid = leaves[0].uid
    ranges = {leaf.place: _range_of(spark, leaf, scratch / f"{uid}-{leaf.place}") for leaf in leaves}
    streams = [_stream_of(spark, leaf, recorded, ranges[leaf.place][0]) for leaf in leaves]
    goes_on = settled(streams)
    twice = [
        (topic, place) for place, ats in goes_on.unsure.items() for topic in sorted({at[0] for at in ats})
    ]
    if twice and not allowed:
        raise IncompatibleError(topic_of_two_streams(uid, *twice[0]))
    now_left, new = left_and_new(streams)
    if now_left and new and not allowed:
        raise IncompatibleError(replaced_topics(uid, now_left, new))
    found.left += [read_by_two_streams(uid, *each) for each in twice]
    places: dict[int, Partitions] = {}
    for leaf, stream in zip(leaves, streams, strict=True):
        earliest, latest = ranges[leaf.place]
        here = goes_on.here[leaf.place]
        # A partition that a pipeline assigns only now may be as old as its topic.
        expected = here if "assign" in leaf.options else with_added(here, earliest)
        if _must_not_lose(leaf):
            check_same_topics(uid, stream.known_ids, leaf.topic_ids)
            check_same_topics(uid, stream.ids_back(here), leaf.topic_ids)
            check_kafka(uid, expected, earliest, latest)
        else:
            found.losses += accepted_losses(uid, expected, earliest, latest, stream.made_anew(here))
        # The next run would ask once more about what this one has accepted, unless its record has it.
        unsure = goes_on.unsure.get(leaf.place, ())
        begun = {at: earliest[at] for at in unsure if at in earliest and at not in here}
        # Of topics that are all new Spark has to be told more than those that are cut: a line without a topic is none of Kafka.
        places[leaf.place] = {**here, **cut_beginnings(expected, earliest), **begun} or {**earliest}
    moved = _moved(recorded, streams, places, goes_on.away)
    if (moved.lines, moved.left) == (recorded.lines, recorded.left):
        return
    found.moved[uid] = moved
    if now_left:
        found.left.append(left_topics(uid, now_left))
    if partitions := left_of_topics(streams):
        found.left.append(left_partitions(uid, partitions))


def _range_of(spark: SparkSession, leaf: LeafDescription, folder: Path) -> tuple[Partitions, Partitions]:
    with open_stream(spark, leaf, folder) as stream:
        earliest, latest = map(parse, stream.kafka_range())
    return earliest, latest


def _stream_of(
    spark: SparkSession, leaf: LeafDescription, recorded: SourceState, earliest: Partitions
) -> KafkaStream:
    read, left = recorded_stream(recorded, leaf.place)
    named = assigned(leaf.options)
    if not named:
        here = {topic for topic, _ in (*read, *earliest)}
        topics = {topic for topic in here if names_topic(spark, leaf.options, topic)}
        # Brokers do not tell of a partition that is gone. What other streams have read may be of another cluster.
        named = {at for at in (*earliest, *read, *left) if at[0] in topics}
    known_ids, left_ids = recorded_ids(recorded, leaf.place)
    return KafkaStream(leaf.place, read, left, named, known_ids, leaf.topic_ids, left_ids)


def _moved(
    before: SourceState,
    streams: Sequence[KafkaStream],
    goes_on: Mapping[int, Partitions],
    away: Mapping[int, Partitions],
) -> SourceState:
    """A source whose streams have left topics, or go on with others."""
    lines, ids, left = [*before.lines], {**before.topic_ids}, {**before.left}
    for stream in streams:
        place, here = stream.place, goes_on[stream.place]
        if here != stream.read:
            lines[place] = line_of(here)
        for topic in {at[0] for at in (*stream.read, *stream.left)}:
            ids.pop(f"{place}/{topic}", None)
            left.pop(f"{place}/{topic}", None)
        # The ids under which partitions were read stay until a batch has read them under others. Maybe none comes.
        known = {**stream.ids, **stream.known_ids, **stream.ids_back(here)}
        ids |= {f"{place}/{topic}": known[topic] for topic, _ in here if topic in known}
        left |= {
            f"{place}/{topic}": LeftTopic(
                offsets, stream.id_to_leave([(topic, int(number)) for number in offsets])
            )
            for topic, offsets in json.loads(line_of(away[place])).items()
        }
    read = {at for here in goes_on.values() for at in here}
    gone = {at for others in away.values() for at in others} - read
    return msgspec.structs.replace(
        before,
        lines=tuple(lines),
        left=left,
        topic_ids=ids,
        # A partition that is not read holds no watermark back.
        partitions={name: time for name, time in before.partitions.items() if _partition(name) not in gone},
    )


def _partition(name: str) -> tuple[str, int]:
    topic, _, number = name.rpartition("/")
    return topic, int(number)


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
