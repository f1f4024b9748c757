"""Spark's checkpoint folder of a query: where its files lie, what is in them, and what Spark wants there before a query goes on.

The folder is scratch. It is made anew for each run, from a record.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stateflow.errors import CorruptError, UsageError
from stateflow.format.source_offsets import NOTHING
from stateflow.internals import internal

_STREAMING = "org.apache.spark.sql.execution.streaming"
FIRST_BATCH = 2
"""The batch that a seeded folder runs next."""
SHUFFLE = "spark.sql.shuffle.partitions"
"""A setting without which Spark does not start from offsets."""
_COMMIT = 'v1\n{"nextBatchWatermarkMs":0}'
_ENTRY = re.compile(r"(\d+)(\.compact)?\Z")


def offset_path(location: Path, batch_id: int) -> Path:
    return location / "offsets" / str(batch_id)


def commit_path(location: Path, batch_id: int) -> Path:
    return location / "commits" / str(batch_id)


@internal(f"{_STREAMING}[.checkpointing].OffsetSeqLog")
def read_batch_offsets(location: Path, batch_id: int) -> tuple[str, ...]:
    """Where batch `batch_id` ends, in a line per streaming leaf, in plan order; Spark writes it before the batch runs."""
    path = offset_path(location, batch_id)
    try:
        version, _, *lines = path.read_text(encoding="utf-8").split("\n")
    except (FileNotFoundError, ValueError) as error:
        raise CorruptError(
            f"batch {batch_id} has no whole entry in Spark's offset log ({path}); start the run again"
        ) from error
    if version != "v1":
        raise UsageError(
            f"Spark wrote its offset log in format {version!r}, but offsets are recorded by position in format "
            "v1: unset spark.sql.streaming.offsetLog.formatVersion"
        )
    return tuple(lines)


def bounds_of_batch(location: Path, batch_id: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Where batch `batch_id` begins and where it ends."""
    ends = read_batch_offsets(location, batch_id)
    return read_batch_offsets(location, batch_id - 1) if batch_id > 0 else (NOTHING,) * len(ends), ends


@internal(f"{_STREAMING}[.checkpointing].OffsetSeqLog", f"{_STREAMING}[.checkpointing].CommitLog")
def write_beginning(
    location: Path, lines: Sequence[str], conf: Mapping[str, str], now_ms: int, query_id: str
) -> None:
    """Seeds a checkpoint folder, so that a query resumes after `lines` with batch `FIRST_BATCH`.

    Spark 4.2 starts a query only if it finds two consecutive offset entries below the next batch. It takes the newest
    entry as done when its commit is there. So the folder holds the offsets twice, as the committed batches 0 and 1. A commit entry
    needs its version line and a watermark.
    """
    for folder in ("offsets", "commits", "sources"):
        (location / folder).mkdir(parents=True, exist_ok=True)
    (location / "metadata").write_text(json.dumps({"id": query_id}), encoding="utf-8")
    for batch_id in range(FIRST_BATCH):
        write_offsets(location, batch_id, lines, conf, now_ms)
        commit_path(location, batch_id).write_text(_COMMIT, encoding="utf-8")


@internal(
    f"{_STREAMING}[.checkpointing].OffsetSeqLog",
    "spark.sql.streaming.queryEvolution.enableSourceEvolution",
    where_missing="Spark ignores a setting that it does not know, and leaves the order of sources alone",
    seen_in=("pyspark 4.2.0",),
)
def write_offsets(
    location: Path, batch_id: int, lines: Sequence[str], conf: Mapping[str, str], now_ms: int
) -> None:
    """Fixes where a batch ends. Spark restores the settings `conf` with the offsets."""
    metadata = {
        "batchWatermarkMs": 0,
        "batchTimestampMs": now_ms,
        # If Spark named sources, it would rename their folders and reorder the lines.
        "conf": {**conf, "spark.sql.streaming.queryEvolution.enableSourceEvolution": "false"},
    }
    entry = "\n".join(["v1", json.dumps(metadata, separators=(",", ":")), *lines])
    offset_path(location, batch_id).write_text(entry, encoding="utf-8")


@dataclass(frozen=True, slots=True)
class ReadFile:
    """One input file that a log entry lists."""

    path: str
    """A URL-encoded URI, as Spark writes it."""
    modified_ms: int


def log_offset(line: str) -> int:
    """The last entry of its log that a source of files has read; -1: it has read nothing."""
    return -1 if line == NOTHING else int(json.loads(line)["logOffset"])


def log_folder(location: Path, leaf: int) -> Path:
    return location / "sources" / str(leaf)


@internal(f"{_STREAMING}[.runtime].FileStreamSourceLog")
def entries_at(folder: Path, offset: int) -> list[str]:
    """Names of the entries that list the files up to `offset`: the latest compact one, and all later ones."""
    numbered = {int(match[1]): path.name for path in folder.iterdir() if (match := _ENTRY.match(path.name))}
    compacted = [
        number for number, name in numbered.items() if name.endswith(".compact") and number <= offset
    ]
    first = max(compacted, default=0)
    missing = [number for number in range(first, offset + 1) if number not in numbered]
    if missing:
        raise CorruptError(
            f"the file source's log {folder} lacks entry {missing[0]} of {first}..{offset}: "
            "keep Spark from deleting it (spark.sql.streaming.fileSource.log.deletion=false) and start the run again"
        )
    return [numbered[number] for number in range(first, offset + 1)]


def is_entry(name: str) -> bool:
    """Whether a file of this name is an entry of a file source's log."""
    return _ENTRY.match(name) is not None


@internal(f"{_STREAMING}[.runtime].FileStreamSource$FileEntry(String, long, long)")
def newest_files(folder: Path, line: str, most: int) -> list[ReadFile]:
    """The newest of the input files up to an offset line, `most` of them at most."""
    if line == NOTHING:
        return []
    names = entries_at(folder, log_offset(line))
    lines: list[str] = []
    for name in reversed(names):
        # Of a log of a million files nobody parses more than is asked for.
        lines[:0] = _lines(folder / name)[-(most - len(lines)) :]
        if len(lines) >= most:
            break
    items = map(json.loads, lines)
    return [ReadFile(item["path"], item["timestamp"]) for item in items]


@internal(f"{_STREAMING}[.runtime].FileStreamSource$FileEntry(String, long, long)")
def files_between(folder: Path, after: int, up_to: int) -> list[ReadFile]:
    """The input files of the offsets `after + 1 .. up_to`."""
    files: dict[str, ReadFile] = {}
    for entry in entries_at(folder, up_to) if up_to >= 0 else []:
        for line in _lines(folder / entry):
            item = json.loads(line)
            if after < item["batchId"] <= up_to:
                files[item["path"]] = ReadFile(item["path"], item["timestamp"])
    return list(files.values())


def entries_between(folder: Path, after: int, up_to: int) -> list[Path]:
    """The entries that have the input files of the offsets `after + 1 .. up_to`; a compact one has those before, too."""
    return [folder / name for name in entries_at(folder, up_to)[after - up_to :]] if up_to > after else []


def _lines(entry: Path) -> list[str]:
    """One per input file."""
    version, *lines = entry.read_text(encoding="utf-8").split("\n")
    if version != "v1":
        raise CorruptError(f"{entry} is not a file-source log entry of version v1")
    return lines
