"""Spark's offset log (version 1): a line per streaming leaf, in plan order, read and written as text.

The lines are a pipeline's source state. Spark's own folder is scratch; a record holds the lines per source.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from stateflow.errors import IncompatibleError, UsageError
from stateflow.format.records import SourceState

NOTHING = "-"
"""The line of a leaf that has not had data yet."""
_NO_TOPIC = "{}"
"""The line of a leaf of Kafka whose pattern has matched no topic yet. One of another kind may write the same of itself."""
UNDER_NEW_UIDS = "a new uid, and the operators behind it and all their other sources, too, and run once with --allow-non-restored-state"
"""What to give a source that is to be read once more, from its beginning, by operators that begin anew."""
_NO_OFFSET = (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)
"""Errors that may come of reading a line as an offset of a kind."""
_WRITTEN = {
    "delta": '{"sourceVersion":1,"reservoirId":"TABLE ID","reservoirVersion":8,"index":-1,"isStartingVersion":false}',
    "kafka": '{"TOPIC":{"0":12,"1":7}}',
}
CONNECTED = ("iceberg", "package")
"""Kinds of sources that a connector reads. A record says them, as their positions are whatever the connector likes."""
_KINDS = {
    "delta": ("a delta source", "a delta offset"),
    "file": ("a file source", "a file offset"),
    "kafka": ("a kafka source", "a kafka offset"),
    "iceberg": ("an iceberg source", "an iceberg position"),
    "package": ("a package source", "a position of a package's source"),
    "other": ("another stream of Spark's", "an offset of another kind"),
}
"""By kind: a source of it, and where it stands."""


@dataclass(frozen=True, slots=True)
class SourceLeaves:
    """One source of a pipeline and how many streaming leaves of the plan it consists of, in plan order."""

    uid: str
    leaves: int
    kinds: tuple[str, ...] = ()
    """The leaves' kinds when they are known (see `check_frame`); empty: told from the offset lines."""


def places_of(layout: Sequence[SourceLeaves]) -> list[tuple[str, int]]:
    """Source of each stream, and its place within it. Its index here is its number in plan order."""
    return [(source.uid, place) for source in layout for place in range(source.leaves)]


def split_lines(layout: Sequence[SourceLeaves], lines: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The lines of each source."""
    expected = sum(source.leaves for source in layout)
    if expected != len(lines):
        raise UsageError(
            f"the pipeline's sources {[source.uid for source in layout]} have {expected} streams, but "
            f"Spark's plan has {len(lines)}: one stream is read twice or dropped; open each source once and use it once"
        )
    rest: Iterator[str] = iter(lines)
    return {source.uid: tuple(next(rest) for _ in range(source.leaves)) for source in layout}


def joined_lines(layout: Sequence[SourceLeaves], state: Mapping[str, SourceState]) -> tuple[str, ...]:
    """The recorded lines in the order of today's plan: sources may have been added, dropped or reordered."""
    lines: list[str] = []
    for source in layout:
        recorded = state.get(source.uid)
        if recorded is None:
            lines += [NOTHING] * source.leaves
            continue
        check_same_source(source, recorded)
        lines += recorded.lines
    return tuple(lines)


def check_same_source(source: SourceLeaves, recorded: SourceState) -> None:
    """Refuse to hand a source the offsets of something else."""
    if len(recorded.lines) != source.leaves:
        raise IncompatibleError(
            f"source {source.uid!r} now consists of {source.leaves} streams but the checkpoint holds offsets "
            f"for {len(recorded.lines)}: give the changed source a new uid, or split it into sources of one "
            "stream each"
        )
    for leaf, (line, kind) in enumerate(zip(recorded.lines, source.kinds, strict=False)):
        before = recorded.kind if recorded.kind in CONNECTED else kind_of(line)
        if line == NOTHING or (kind == "kafka" and before == "other" and line == _NO_TOPIC):
            before = ""
        if not _goes_on(before, kind, sure=bool(recorded.topic_ids)):
            stream = f" (stream {leaf})" if source.leaves > 1 else ""
            raise IncompatibleError(
                f"source {source.uid!r}{stream} is now {_KINDS[kind][0]} but the checkpoint holds {_KINDS[before][1]} for it: give it a new "
                "uid, with which it reads from its beginning, and the operators behind it and all their other sources new uids, too, unless what they have counted "
                "may stand"
            )


def _goes_on(before: str, kind: str, *, sure: bool) -> bool:
    """Whether a stream of a kind takes up offsets of the kind `before`. `sure`: brokers have told the ids of the topics in them."""
    if before in ("", kind) or not kind:
        return True
    if kind in CONNECTED or kind == "other":
        # A record of an older release says of a connector's position what it looks like, which may be that of Kafka.
        return before == "other" or (before == "kafka" and not sure)
    return False


def check_given(uid: str, kinds: Sequence[str], line: str) -> None:
    """Refuse an offset that somebody has typed, unless it is one of the source's only stream."""
    if len(kinds) != 1:
        raise UsageError(
            f"source {uid!r} consists of {len(kinds)} streams, and the offset of one alone cannot be given: keep those of a "
            "job with --like, or let the source begin at its beginning"
        )
    kind = kinds[0]
    if kind == "file":
        read_until(uid, line)
        return
    if kind in _WRITTEN and not _is_offset(kind, line):
        raise UsageError(
            f"{line!r} is no offset of source {uid!r}, which is a {kind} source: write --offset {uid}='{_WRITTEN[kind]}', "
            "as `stateflow show JOB -o json` has it under `lines`"
        )


def read_until(uid: str, text: str) -> datetime:
    """The offset of a source of files, as somebody types it: when the last of the files was modified that have been read."""
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError:
        raise UsageError(
            f"{text!r} is no offset of source {uid!r}, which reads files: write --offset {uid}=2026-01-31T12:00:00+00:00, and files "
            "modified until then count as read"
        ) from None
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def _is_offset(kind: str, line: str) -> bool:
    try:
        return kind_of(line) == kind and bool(_decoded(line, kind))
    except _NO_OFFSET:
        return False


def kind_of(line: str) -> str:
    """`delta`, `file`, `kafka` or `other` (a connector's too), told from the offset itself; empty for a leaf without data."""
    if line == NOTHING:
        return ""
    try:
        offset = json.loads(line)
    except (ValueError, RecursionError):
        return "other"
    if isinstance(offset, dict):
        if "reservoirId" in offset:
            return "delta"
        if set(offset) == {"logOffset"}:
            return "file"
        if offset and all(_is_partition_map(partitions) for partitions in offset.values()):
            return "kafka"
    return "other"


def kinds_of(lines: Sequence[str]) -> str:
    """One word for a source of several leaves: their common kind, or `other`."""
    kinds = {kind_of(line) for line in lines} - {""}
    return kinds.pop() if len(kinds) == 1 else "other" if kinds else ""


def decode(line: str, kind: str = "") -> dict[str, Any]:
    """An offset for people: what has been read, in the words of the source. A line that is no offset of its source is shown as
    it is, since whoever hands out a savepoint has written its lines."""
    kind = kind or kind_of(line)
    if line == NOTHING:
        return {"kind": kind, "position": "nothing read yet"}
    try:
        return _decoded(line, kind)
    except _NO_OFFSET:
        return {"kind": kind, "offset": line, "position": line}


def _decoded(line: str, kind: str) -> dict[str, Any]:
    match kind:
        case "delta":
            return {"kind": kind, **_decode_delta(json.loads(line))}
        case "file":
            log_offset = json.loads(line)["logOffset"]
            return {"kind": kind, "log_offset": log_offset, "position": f"log entry {log_offset}"}
        case "kafka":
            topics = {
                topic: {int(p): int(o) for p, o in sorted(partitions.items(), key=lambda item: int(item[0]))}
                for topic, partitions in json.loads(line).items()
            }
            position = ", ".join(f"{topic}[{p}]@{o}" for topic, ps in topics.items() for p, o in ps.items())
            return {"kind": kind, "topics": topics, "position": position}
        case _:
            return {"kind": kind, "offset": line, "position": line}


def _decode_delta(offset: dict[str, Any]) -> dict[str, Any]:
    version, index = int(offset["reservoirVersion"]), int(offset["index"])
    snapshot = bool(offset["isStartingVersion"])
    if snapshot and index < 0:
        position = f"before the first snapshot, version {version}"
    elif snapshot:
        position = f"inside the first snapshot, version {version}, after file {index}"
    elif index < 0:
        position = f"version {version - 1} read completely" if version > 0 else "before version 0"
    else:
        position = f"inside version {version}, after file {index}"
    return {
        "version": version,
        "index": index,
        "snapshot": snapshot,
        "table": offset["reservoirId"],
        "position": position,
    }


def topics_read(state: SourceState) -> list[str]:
    """The topics of Kafka that a source has read a message of, as far as its offsets tell it; not those that it has left."""
    offsets = (json.loads(line) for line in state.lines if kind_of(line) == "kafka")
    return sorted(
        {topic for each in offsets for topic, partitions in each.items() if any(partitions.values())}
    )


def left_topics(uid: str, topics: Iterable[str]) -> str:
    """The warning of topics of Kafka that a source has read and does not name any more."""
    return _left(uid, f"Kafka topic {_named(topics)}", "topic")


def left_partitions(uid: str, partitions: Iterable[tuple[str, int]]) -> str:
    """The warning of partitions that a source has read and does not name any more, of topics that it goes on with."""
    named = ", ".join(f"partition {number} of Kafka topic {topic!r}" for topic, number in partitions)
    return _left(uid, named, "partition")


def _left(uid: str, what: str, kind: str) -> str:
    return (
        f"source {uid!r} has read {what}, which it does not name any more: what it has read stays in state and outputs, and checkpoints keep how "
        f"far that was, so that the {kind} goes on there should the source name it again"
    )


def replaced_topics(uid: str, left: Iterable[str], new: Iterable[str]) -> str:
    """The refusal of topics in the place of others: under another name one would be read from its beginning once more."""
    return (
        f"source {uid!r} has read Kafka topic {_named(left)}, which it does not name any more, and topic {_named(new)} is new to it and would be "
        "read from its beginning: name the topic that it has read, or, if the new one has other messages, accept that with "
        "--allow-non-restored-state"
    )


def topic_of_two_streams(uid: str, topic: str, place: int) -> str:
    """The refusal of a topic that a stream of a source names, and that another one has read, if nothing tells that both are the same."""
    return (
        f"source {uid!r}: its stream {place} names Kafka topic {topic!r} now, which another one of its streams has read, and nothing tells that it "
        f"may go on there: let each stream name the topics that it has read, or accept with --allow-non-restored-state that stream {place} reads "
        "what the other one has read once more"
    )


def read_by_two_streams(uid: str, topic: str, place: int) -> str:
    """The warning of such a topic where that is accepted."""
    return (
        f"source {uid!r}: its stream {place} reads Kafka topic {topic!r} as it is allowed to (--allow-non-restored-state), also what another one of "
        "its streams has read of it"
    )


def _named(topics: Iterable[str]) -> str:
    return ", ".join(map(repr, topics))


def _is_partition_map(value: object) -> bool:
    return isinstance(value, dict) and all(
        partition.isdecimal() and type(offset) is int for partition, offset in value.items()
    )
