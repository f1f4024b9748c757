"""Which versions of a job's outputs belong together: what every sink had when a checkpoint was delivered.

It is worked out when somebody asks, from the job's log and those of the tables, and nothing is written down for it. So it is right
after a crash between two sinks, a rewind and a restore, and a batch pays nothing for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from stateflow.checkpoint.handle import JobHandle
from stateflow.checkpoint.log import Log
from stateflow.checkpoint.names import LatestCheckpoint, Slot, Time, head_of, parse, slot_by, slot_of
from stateflow.checkpoint.statistics import HistoryLine, continued, history
from stateflow.errors import DisagreementError, NotFoundError, UsageError
from stateflow.format.records import Prepared
from stateflow.pipelines.inputs.places import canonical
from stateflow.pipelines.inputs.tables import parts_of, sql_name
from stateflow.pipelines.sink_kinds import kind_in_record
from stateflow.spark.internals.delta_log import LoggedCommit
from stateflow.spark.sinks.delta_versions import TableVersion, common_version, version_up_to
from stateflow.spark.sinks.slot import SinkSlot
from stateflow.spark.sources.delta_log import SourceLog, log_beside

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_DELIVERED = ("committed", "already")


@dataclass(frozen=True, slots=True)
class SinkVersion:
    """What one sink had at a checkpoint."""

    sink: str
    kind: str
    target: str
    """A table's path, or another place."""
    slot: int | None
    """The slot of the last output that it had; None for none."""
    version: int | None
    """Of a Delta table; None for another target, or if it is not known."""
    why: str = ""
    """Why there is no version."""
    lacks: tuple[int, ...] = ()
    """Slots up to there whose output was abandoned in this sink."""
    undone: tuple[int, ...] = ()
    """Slots up to there that a restore has undone in the job and not in this sink, whose output it still has."""
    managed_as: str = ""
    """What a catalog calls a table whose commits go through it; empty for any other."""

    def read(self, spark: SparkSession) -> DataFrame:
        """The rows of the table at this version. DisagreementError if there is none."""
        if self.version is None:
            raise DisagreementError(f"sink {self.sink!r} cannot be read as it was: {self.why}")
        at = spark.read.format("delta").option("versionAsOf", self.version)
        return at.table(sql_name(parts_of(self.managed_as))) if self.managed_as else at.load(self.target)


@dataclass(frozen=True, slots=True)
class DeliveredSlot:
    """A checkpoint whose output every sink has, and what each of them had then."""

    slot: int
    at: int
    """When it was decided, in microseconds since 1970; 0 if nobody knows any more."""
    sinks: Mapping[str, SinkVersion]


def sink_versions(job: JobHandle, as_of: str = "latest") -> DeliveredSlot:
    """What the sinks of a job had at a checkpoint: `latest`, a number, `tag:NAME` or a time. One that is collected will do."""
    log = job.log()
    lines = history(job.store, job.layout, log=log)
    return _Outputs(job, log, lines).at(_slot(job, log, lines, as_of))


def kept_versions(job: JobHandle) -> Iterator[DeliveredSlot]:
    """The same for every checkpoint that the job keeps, oldest first."""
    log = job.log()
    outputs = _Outputs(job, log, history(job.store, job.layout, log=log))
    for record in log.chain:
        if record.carries_state and log.slots[record.slot].complete:
            yield outputs.at(record.slot)


def _slot(job: JobHandle, log: Log, lines: Sequence[HistoryLine], as_of: str) -> int:
    name = parse(as_of)
    newest = head_of(log).slot
    match name:
        case LatestCheckpoint():
            return newest
        case Time():
            slot = slot_by(name, job, lines)
            if not slot:
                raise NotFoundError(f"job {job.name!r} had no checkpoint yet at {name}")
            return min(slot, newest)
        case Slot(slot):
            # The newest complete record may be above the newest checkpoint, and has no output then.
            if slot > newest:
                pending = [record.slot for record in log.pending if record.carries_state]
                what = (
                    "is decided, and not every sink has its output yet"
                    if slot in pending
                    else "is not there yet"
                )
                raise NotFoundError(
                    f"checkpoint {slot} of job {job.name!r} {what}: the newest that every sink has is {newest}"
                )
            if slot < 1:
                raise UsageError("checkpoints are counted from 1: name one, or write latest for the newest")
            return slot
    return slot_of(name, job, log)


class _Outputs:
    """The outputs of a job, whose tables' logs are read once."""

    def __init__(self, job: JobHandle, log: Log, lines: Sequence[HistoryLine]) -> None:
        self.job, self.log, self.lines = job, log, lines
        self._commits: dict[str, _Commits] = {}

    def at(self, slot: int) -> DeliveredSlot:
        content = self.log.slots.get(slot)
        outcome = content.outcome if content is not None and content.complete else None
        found: dict[str, SinkVersion] = {}
        tables: dict[str, dict[str, TableVersion]] = {}
        for uid, prepared in sorted(_prepared_by(self.log, slot).items()):
            expected = outcome.last_commits.get(uid) if outcome is not None else None
            made = self._of_sink(uid, prepared, slot, expected, known=outcome is not None)
            lacks = abandoned_slots(self.lines, uid, slot)
            undone = undone_slots(self.lines, uid, slot)
            sink = SinkVersion(uid, prepared.kind, prepared.target, expected, None, "", lacks, undone)
            if isinstance(made, str):
                found[uid] = replace(sink, why=made)
                continue
            tables.setdefault(canonical(prepared.target), {})[uid] = made
            managed_as = prepared.name if prepared.is_managed else ""
            found[uid] = replace(sink, slot=made.slot, managed_as=managed_as)
        for uid in sorted(self.log.last_commits.keys() - found.keys()):
            found[uid] = SinkVersion(uid, "", "", None, None, "no record that is kept says where it writes")
        for sinks in tables.values():
            version = common_version(sinks.values())
            for uid in sinks:
                found[uid] = replace(
                    found[uid],
                    version=version if version >= 0 else None,
                    why="" if version >= 0 else "there was no table yet",
                )
        at = next((line.latest_ack_timestamp * 1000 for line in self.lines if line.id == slot), 0)
        return DeliveredSlot(slot, at, found)

    def _of_sink(
        self, uid: str, prepared: Prepared, slot: int, expected: int | None, *, known: bool
    ) -> TableVersion | str:
        """The version of a table, or why there is none. `expected` is the slot that the table has by the job's log, if that is
        `known`."""
        kind = kind_in_record(prepared.kind)
        if kind is None or not kind.table:
            return self._without_versions(uid, expected)
        if prepared.payload.get("exactly_once") is False:
            return "it is written at least once, so that the table does not say which slots it has"
        commits = self._commits_of(prepared.target)
        newest = next(iter(commits), None)
        if newest is None:
            return "there is no table (any more), or its log cannot be read from here"
        identity = self.log.identity
        assert identity is not None
        app_id = SinkSlot(identity.uuid, self.job.name, uid, slot, 0).app_id
        made = version_up_to(commits, app_id, slot)
        certain = known and made is not None and made.slot == expected
        if not certain and commits.may_have(newest.version + 1):
            return "its catalog may have a newer commit that is not in the table's log yet: the next commit to the table brings it there"
        if made is None:
            return f"the table's log begins at version {commits.read[-1].version}, after slot {slot}"
        if known and (made.slot or 0) < (expected or 0):
            return f"the table has no commit of slot {expected} in its log, which the job's log has: was it recreated or restored?"
        if not known and made.slot is None and self._has_written(uid, slot):
            return f"the table has no commit up to slot {slot} in its log, though the job had written by then: was it recreated?"
        return made

    def _without_versions(self, uid: str, expected: int | None) -> str:
        newest = self.log.last_commits.get(uid)
        pending = [record.slot for record in self.log.pending if uid in record.sinks]
        why = "it has no versions"
        if newest is not None and newest != expected:
            why += f", and has slot {newest} by now"
        return f"{why}, perhaps slot {pending[-1]}" if pending else why

    def _has_written(self, uid: str, slot: int) -> bool:
        return any(line.id <= slot and line.sinks.get(uid) in _DELIVERED for line in self.lines)

    def _commits_of(self, path: str) -> _Commits:
        if path not in self._commits:
            self._commits[path] = _Commits(log_beside(path, self.job.store, self.job.storage_options))
        return self._commits[path]


class _Commits:
    """The commits of a table, newest first, read when somebody comes to them, and once: a log may have many."""

    def __init__(self, log: SourceLog | None) -> None:
        self.read: list[LoggedCommit] = []
        self._log = log
        self._more = log.commits() if log is not None else iter(())

    def may_have(self, version: int) -> bool:
        return self._log is not None and self._log.may_have(version)

    def __iter__(self) -> Iterator[LoggedCommit]:
        yield from self.read
        for commit in self._more:
            self.read.append(commit)
            yield commit


def _prepared_by(log: Log, slot: int) -> dict[str, Prepared]:
    """By sink uid: the newest prepared output up to a slot, else the oldest after it, of a sink that was there since."""
    found: dict[str, Prepared] = {}
    for record in log.chain:
        for uid, prepared in record.sinks.items():
            if record.slot <= slot or uid not in found:
                found[uid] = prepared
    return found


def undone_slots(lines: Sequence[HistoryLine], uid: str, slot: int) -> tuple[int, ...]:
    """The slots up to `slot` that a restore has undone, and whose output a sink still has, as it was not taken back with them. Pure.

    A later restore may have come back to some of them: what the state at `slot` continues is not undone.
    """
    in_state = {line.id for line in _continued_by(lines, slot)}
    there = [line.id for line in _standing(lines, uid, slot) if line.sinks.get(uid) in _DELIVERED]
    return tuple(undone for undone in reversed(there) if undone not in in_state)


def abandoned_slots(lines: Iterable[HistoryLine], uid: str, slot: int) -> tuple[int, ...]:
    """The slots up to `slot` whose output a sink never got, because they were abandoned; without those that a rewind took back. Pure."""
    missing = [line.id for line in _standing(lines, uid, slot) if line.sinks.get(uid) == "abandoned"]
    return tuple(reversed(missing))


def _standing(lines: Iterable[HistoryLine], uid: str, slot: int) -> Iterator[HistoryLine]:
    """The lines up to `slot` that no rewind of the sink took back, the newest first, without these rewinds. One that was abandoned has
    taken nothing back."""
    upto = slot
    for line in sorted(lines, key=lambda each: each.id, reverse=True):
        if line.id > upto:
            continue
        if line.kind == "restore" and line.sinks.get(uid, "abandoned") != "abandoned":
            upto = continued(line)
        else:
            yield line


def _continued_by(lines: Iterable[HistoryLine], slot: int) -> Iterator[HistoryLine]:
    """The lines whose state that of `slot` continues, itself among them, the newest first."""
    upto = slot
    for line in sorted(lines, key=lambda each: each.id, reverse=True):
        if line.id > upto:
            continue
        yield line
        if line.kind == "restore":
            upto = continued(line)
