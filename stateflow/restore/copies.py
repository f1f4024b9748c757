"""Which tables a fork copies from the job that it is forked from, and the version of each that belongs to the checkpoint.

What a table held stands in its log. Nothing here needs Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from stateflow.checkpoint.handle import JobHandle
from stateflow.errors import UsageError
from stateflow.format.records import Prepared
from stateflow.pipelines.inputs.places import canonical, same_place
from stateflow.pipelines.sink_kinds import rewindable
from stateflow.restore.plan import SinkRestore, same_job, table_path
from stateflow.restore.visible import quoted
from stateflow.savepoints.origin import Origin
from stateflow.spark.sinks.delta_copy import TableCopy, is_copied, version_at
from stateflow.spark.sinks.delta_versions import TableVersion, common_version
from stateflow.spark.sinks.slot import SinkSlot
from stateflow.spark.sources.delta_log import commits_of


def refuse_copies(origin: Origin, job: JobHandle) -> None:
    """Refuses a restore that has no tables to copy."""
    if origin.owner is None:
        raise UsageError(
            f"--clone-sinks needs a checkpoint of the other job, and {origin.label} is a savepoint, which does not say what the "
            "tables held: give --from checkpoint:N --from-job JOB, or leave it out"
        )
    if same_job(origin.owner, job):
        raise UsageError(
            f"--clone-sinks copies the tables of another job into a fork, and {origin.label} is of job {job.name!r} itself: "
            "--rewind-sinks takes its tables back"
        )


def with_copies(
    sinks: Sequence[SinkRestore], origin: Origin, job: JobHandle, uuid: str
) -> tuple[SinkRestore, ...]:
    """The sinks of a plan, with the origin of each copied table. `uuid` is the fork's; empty before its first try."""
    assert origin.owner is not None
    theirs = origin.owner.log().newest_sinks
    tables = [sink for sink in sinks if sink.cloned and sink.uid in theirs]
    if not tables:
        raise UsageError(
            f"--clone-sinks finds no table that job {origin.job!r} writes and job {job.name!r} would write, too: leave it out"
        )
    versions = _versions(tables, theirs, origin, job)
    copied = [_with_copy(sink, theirs, versions, job) if sink in tables else sink for sink in sinks]
    sources: dict[str, str] = {}
    for copy in copies_of(copied):
        if not same_place(sources.setdefault(canonical(copy.target), copy.source), copy.source):
            raise UsageError(
                f"--clone-sinks would copy both {quoted(sources[canonical(copy.target)])} and {quoted(copy.source)} into {quoted(copy.target)}: "
                "give each sink an output of its own, or leave it out"
            )
        there = list(commits_of(copy.target, job.store, job.storage_options))
        is_copied(there, copy, uuid)  # refuses another table
    return tuple(copied)


def copies_of(sinks: Iterable[SinkRestore]) -> list[TableCopy]:
    """What is copied: a table once, however many sinks write to it."""
    found = (
        TableCopy(sink.copy_of, sink.copy_version, sink.target)
        for sink in sinks
        if sink.copy_version is not None
    )
    return list(dict.fromkeys(found))


def _versions(
    tables: Sequence[SinkRestore], theirs: Mapping[str, Prepared], origin: Origin, job: JobHandle
) -> dict[str, int]:
    """By path: with several sinks in one table, the version that has the outputs of all of them."""
    versions: dict[str, list[TableVersion]] = {}
    for uid in (sink.uid for sink in tables):
        prepared = theirs[uid]
        if not rewindable(prepared):
            raise UsageError(
                f"--clone-sinks cannot copy {quoted(prepared.target)}: sink {uid!r} of job {origin.job!r} is none that appends or "
                "upserts exactly once, so the table does not say what belongs to the checkpoint: leave it out"
            )
        if prepared.is_managed:
            raise UsageError(
                f"--clone-sinks cannot copy {quoted(prepared.name)}, whose commits go through its catalog: leave it out"
            )
        app = SinkSlot(origin.record.job, origin.job, uid, 0, 0).app_id
        source, last = table_path(prepared.target), origin.last_commits.get(uid)
        found = version_at(list(commits_of(source, job.store, job.storage_options)), app, last, source)
        versions.setdefault(canonical(source), []).append(found)
    return {place: common_version(found) for place, found in versions.items()}


def _with_copy(
    sink: SinkRestore, theirs: Mapping[str, Prepared], versions: Mapping[str, int], job: JobHandle
) -> SinkRestore:
    source = table_path(theirs[sink.uid].target)
    version = versions[canonical(source)]
    if sink.action != "starts":
        raise UsageError(
            f"--clone-sinks is for a fork that has not run: sink {sink.uid!r} of job {job.name!r} has output of its own; leave it out"
        )
    if same_place(source, sink.target):
        raise UsageError(
            f"--clone-sinks would copy {quoted(source)} into itself: give the fork another output, such as -p output=/another/path"
        )
    if version < 0:
        return sink  # the origin had nothing there yet
    note = f"copied from version {version} of {quoted(source)}"
    return replace(sink, action="copies", note=note, copy_of=source, copy_version=version)
