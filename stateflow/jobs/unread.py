"""What a job's sources have that the job has not read, seen without Spark: for programs that begin a run when there is something to read.

A look takes a few small reads: of the job's newest record, and of a table's log, a folder's names or a topic's ends.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stateflow.checkpoint.control import read_heartbeat
from stateflow.checkpoint.lineage import Dataset, read_lineage
from stateflow.checkpoint.log import Log
from stateflow.errors import CorruptError, NotFoundError, UsageError
from stateflow.format.records import FileRef, Record, SourceState
from stateflow.format.source_offsets import NOTHING
from stateflow.pipelines.inputs.places import PATTERN, shown
from stateflow.spark.sources.delta_log import Ahead, SourceLog, ahead, log_beside
from stateflow.spark.sources.delta_offset import DeltaOffset
from stateflow.storage.roots import local_folder, open_beside, open_recorded
from stateflow.storage.store import Store

if TYPE_CHECKING:
    from stateflow.jobs.job import Job

TopicEnds = Callable[[Sequence[str], str], Mapping[str, Mapping[int, int]]]
"""The end of each partition of topics, given the topics and the brokers."""


@dataclass(frozen=True, slots=True)
class Unread:
    """One look at a job and its sources. Equal looks are equal values."""

    position: str
    """Where the job stands. A restore to where it stood before is another position: what it reads again calls again."""
    newest: str
    """What is there behind that position; empty if nothing is."""
    epoch: int
    """Of the job's newest run."""
    beats: int | None
    """How often that run has given a sign of life; None when it has ended."""
    text: str = ""
    """For people: what there is to read."""


@dataclass
class Looks:
    """Looks at a job again and again."""

    job: Job
    sources: Sequence[str] = ()
    """Which of the job's; all if there are none."""
    places: Mapping[str, str] = field(default_factory=dict)
    """The place of each source that no run of Airflow has recorded."""
    topic_ends: TopicEnds | None = None
    _read: tuple[tuple[FileRef, ...], frozenset[str]] = ((), frozenset())
    """The files that a record says were read, which are the same until the next record with new ones."""

    def look(self) -> Unread:
        """NotFoundError for a job without a checkpoint, UsageError for a source that it does not have or that nobody can look at."""
        job = self.job
        try:
            log = job.log()
        except NotFoundError as error:
            raise NotFoundError(f"{error}: run it once, or correct its name") from error
        head = log.head
        if head is None:
            raise NotFoundError(
                f"job {job.name!r} in {job.root} has no checkpoint, so nobody knows what it has read: run it once"
            )
        if head.final:
            raise UsageError(
                f"job {job.name!r} was drained for good, and reads nothing any more: take its watcher away"
            )
        named = self.sources or sorted(head.sources)
        if unknown := [uid for uid in named if uid not in head.sources]:
            raise UsageError(
                f"job {job.name!r} has no source {unknown[0]!r}: it has {', '.join(sorted(head.sources))}"
            )
        datasets = self._datasets(log, head, named)
        found = {uid: self._ahead(uid, head.sources[uid], datasets[uid]) for uid in named}
        newest = {uid: text for uid, text in found.items() if text}
        heartbeat = read_heartbeat(job.store, job.layout, log.newest_epoch)
        running = heartbeat is not None and not heartbeat.ended
        return Unread(
            position=_digest(
                (str(head.timeline), *(f"{uid} {line}" for uid in named for line in head.sources[uid].lines))
            ),
            newest=_digest(f"{uid} {text}" for uid, text in newest.items()) if newest else "",
            epoch=log.newest_epoch,
            beats=heartbeat.counter if running and heartbeat is not None else None,
            text="; ".join(f"source {uid}: {text}" for uid, text in newest.items()),
        )

    def _datasets(self, log: Log, head: Record, named: Sequence[str]) -> dict[str, tuple[Dataset, ...]]:
        known: dict[str, tuple[Dataset, ...]] = {
            uid: (Dataset(kind=head.sources[uid].kind, place=place),)
            for uid, place in self.places.items()
            if uid in head.sources
        }
        for epoch in reversed(log.epochs):
            if all(known.get(uid) for uid in named):
                break
            noted = read_lineage(self.job.store, self.job.layout, epoch)
            for endpoint in noted.inputs if noted is not None else ():
                known.setdefault(endpoint.uid, endpoint.datasets)
        if unknown := [uid for uid in named if not known.get(uid)]:
            raise UsageError(
                f"where source {unknown[0]!r} of job {self.job.name!r} lies was not noted, as runs from Airflow note it: run its DAG once, or "
                f"say places={{{unknown[0]!r}: '/data/...'}}"
            )
        return known

    def _ahead(self, uid: str, state: SourceState, datasets: Sequence[Dataset]) -> str:
        """What is there to read, in words that are the same for the same rows; empty for nothing."""
        if len(state.lines) != 1 or state.kind not in ("delta", "file", "kafka"):
            raise UsageError(
                f"source {uid!r} of job {self.job.name!r} is none of the kinds that can be looked at (one Delta table, folder of files, or "
                "topics of Kafka): give its DAG a schedule"
            )
        line = state.lines[0]
        if state.kind == "delta":
            return self._versions(datasets[0].place, line, state.commits.get("0", ""))
        if state.kind == "file":
            return self._files(datasets[0].place, state)
        return self._messages(datasets, line)

    def _versions(self, table: str, line: str, commit: str) -> str:
        log = log_beside(table, self.job.store, self.job.storage_options)
        if log is None:
            raise UsageError(
                f"the log of Delta table {table} cannot be read from here: it has to lie on a disk that this machine has mounted, or in the bucket of "
                f"the checkpoint root {self.job.store.url}"
            )
        return newer_version(log, line, table, commit)

    def _files(self, folder: str, state: SourceState) -> str:
        if PATTERN & set(folder):
            raise UsageError(
                f"the folders of the pattern {folder} cannot be looked at: give the DAG a schedule"
            )
        if self._read[0] != state.files:
            self._read = (state.files, frozenset(self._names(state.files)))
        new = sorted(set(self._listed(folder)) - self._read[1])
        return f"{len(new)} files in {folder} ({_digest(new)[:8]})" if new else ""

    def _listed(self, folder: str) -> Iterator[str]:
        """The paths of the files that Spark would read, as its log has them."""
        local = local_folder(folder)
        if local is not None:
            if not local.is_dir():
                raise NotFoundError(
                    f"the folder {folder} is not on this machine: mount it, or give the DAG a schedule"
                )
            names = (str(path.relative_to(local)) for path in local.rglob("*") if path.is_file())
        else:
            store = open_beside(folder.rstrip("/"), self.job.store, self.job.storage_options)
            if store is None:
                raise UsageError(
                    f"the folder {folder} cannot be listed from here: it has to lie on a disk that this machine has mounted, or in the bucket of "
                    f"the checkpoint root {self.job.store.url}"
                )
            names = (entry.path for entry in store.list(""))
        base = str(local) if local is not None else shown(folder).rstrip("/")
        return (f"{base}/{name}" for name in names if _is_read(name))

    def _names(self, files: Iterable[FileRef]) -> Iterator[str]:
        """The paths in Spark's log of what it has read."""
        for ref in files:
            version, *lines = self._content(ref).decode().split("\n")
            if version != "v1":
                raise CorruptError(
                    f"{ref.name!r} is not a file-source log entry of version v1; run `stateflow verify`"
                )
            for path in (json.loads(line)["path"] for line in lines if line):
                yield shown(str(path))

    def _content(self, ref: FileRef) -> bytes:
        if ref.data is not None:
            return ref.data
        store: Store = (
            open_recorded(ref.base, self.job.storage_options, root=self.job.root)
            if ref.base
            else self.job.store
        )
        return store.read_range(ref.path, ref.offset or 0, ref.size)

    def _messages(self, datasets: Sequence[Dataset], line: str) -> str:
        if self.topic_ends is None or not datasets[0].servers:
            raise UsageError(
                f"nobody can ask for the ends of topic {datasets[0].place}: the brokers are not known"
            )
        ends = self.topic_ends([dataset.place for dataset in datasets], datasets[0].servers)
        return newer_messages(ends, line)


def newer_version(log: SourceLog, line: str, table: str, commit: str = "") -> str:
    """The newest version of a table that has rows behind an offset line. `commit`: what tells the newest one that is read."""
    versions = list(log.versions()) if log.versions is not None else []
    if not versions:
        raise NotFoundError(f"there is no Delta table at {table}")
    if line != NOTHING and ahead(log, DeltaOffset.parse(line), None, commit) is Ahead.NOTHING:
        return ""
    newest = max(versions)
    if log.staged is not None and log.may_have(newest + 1):
        return f"version {newest} of {table}, and perhaps version {max(log.staged())}, of which only its catalog knows"
    return f"version {newest} of {table}"


def newer_messages(ends: Mapping[str, Mapping[int, int]], line: str) -> str:
    """The ends of the partitions that lie behind an offset line."""
    read: dict[str, dict[str, int]] = {} if line == NOTHING else json.loads(line)
    behind = {
        f"{topic}-{partition}": end
        for topic, partitions in ends.items()
        for partition, end in partitions.items()
        if end > read.get(topic, {}).get(str(partition), 0)
    }
    return ", ".join(f"messages up to {end} in {name}" for name, end in sorted(behind.items()))


def _is_read(name: str) -> bool:
    """Whether Spark reads a file below a folder: it goes into folders of partitions alone, and leaves out hidden names."""
    *folders, file = name.split("/")
    return not file.startswith((".", "_")) and all(
        "=" in each and not each.startswith((".", "_")) for each in folders
    )


def _digest(parts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
