"""The plan of a restore. Planning writes nothing, and refuses whatever does not fit.

If something changes between the plan and its application, the claim or the store notices.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial

import msgspec

from stateflow.checkpoint.claim import living_epochs
from stateflow.checkpoint.deletion import is_deleted
from stateflow.checkpoint.handle import JobHandle
from stateflow.checkpoint.lacks import missing, newest_rows
from stateflow.checkpoint.log import Log, read_log
from stateflow.checkpoint.rescale import rescaled_operators
from stateflow.checkpoint.statistics import history
from stateflow.compatibility.flows import begins_empty, compare, other_uid
from stateflow.errors import CorruptError, IncompatibleError, StateflowError, UsageError
from stateflow.format.layout import JobLayout
from stateflow.format.records import FileRef, Prepared, Record, TableFile
from stateflow.format.references import references
from stateflow.observe.status import position_of
from stateflow.pipelines.delivery import taking_ids
from stateflow.pipelines.feed_readers import fed_by
from stateflow.pipelines.flow import Flow
from stateflow.pipelines.graph import SinkNode
from stateflow.pipelines.inputs.files import Files
from stateflow.pipelines.inputs.tables import DeltaTable
from stateflow.pipelines.sink_kinds import kind_in_record, rewindable
from stateflow.restore.copies import refuse_copies, with_copies
from stateflow.restore.digest import checked_digest
from stateflow.restore.parameters import ParameterRestore, Whose, restored_parameters
from stateflow.restore.plan import Plan, RestoreRequest, SinkRestore, SourceRestore, same_job, table_path
from stateflow.restore.readers import Readers, readers_of
from stateflow.restore.visible import quoted
from stateflow.savepoints.format import read_savepoint_claim, require_own_claim, verify_savepoint
from stateflow.savepoints.origin import Origin
from stateflow.spark.sinks.delta_rewind import NoWayBack, find_rewind
from stateflow.spark.sinks.slot import SinkSlot
from stateflow.spark.sources.delta_log import SourceLog, log_beside
from stateflow.spark.sources.undone_output import MOST_COMMITS, MOST_COMMITS_ELSEWHERE, undone_output
from stateflow.storage.roots import local_folder, open_store, why_not_recorded


def make_plan(request: RestoreRequest) -> Plan:
    """Compares snapshot, pipeline and job. Raises the first misfit."""
    job, origin = request.job, request.origin
    record = origin.record
    if request.approved is not None:
        checked_digest(request.approved)
    if record.final and not request.reset_watermark:
        raise IncompatibleError(
            f"{origin.label} of job {origin.job!r} was taken after the job had been drained: its watermark stands at the end "
            "of time and its timers have fired; restore an earlier one, or give --reset-watermark"
        )
    if request.max_parallelism and not origin.canonical:
        raise UsageError(
            f"--max-parallelism needs a canonical savepoint, and {origin.label} is not one: make one with `stateflow "
            f"savepoint create {origin.job} --type canonical`"
        )
    if request.claim_mode == "claim" and origin.savepoint is None:
        raise UsageError(
            f"--claim-mode claim takes over a savepoint, and {origin.label} is a checkpoint, which stays its job's: leave "
            "it out"
        )
    _refuse_damaged(origin, job)
    log = job.log() if job.exists else None
    # Refuses here what the claim would refuse after somebody has approved the plan.
    (log or read_log(job.store, job.layout)).require_sound()
    if request.claim_mode == "claim":
        _refuse_claimed(origin, job, log)
    own = _newest(log)
    values, parameters = restored_parameters(
        request.pipeline.function,
        request.parameters,
        own=own,
        snapshot=record,
        whose=_whose(request),
        typed=request.pipeline.arguments,
    )
    flow = request.pipeline.build(values)
    check = compare(
        flow,
        job.name,
        with_time_anew(record) if request.reset_watermark else record,
        counts=request.counts or origin.rows,
    )
    if not check.compatible:
        raise IncompatibleError(check.problems[0])
    if log is None:
        # Refuses the name of a deleted job here, rather than after the user has confirmed the plan.
        living_epochs(job.store, job.layout)
    if request.rewind_sinks:
        _refuse_way_back(origin, job, log)
    if request.clone_sinks:
        refuse_copies(origin, job)
        _refuse_names(flow)
    shared = list(_shared_outputs(flow, origin, own, job))
    parallelism = request.parallelism
    if parallelism:
        # Raises for an operator that cannot have it.
        rescaled_operators(taken_over(record, flow).operators, parallelism, job.name)
    refs = distinct(references(taken_over(record, flow)))
    tables = origin.savepoint.tables if origin.savepoint is not None else {}
    parts = [file for states in tables.values() for files in states.values() for file in files]
    sinks = tuple(_sinks(flow, origin, own, log, request.rewind_sinks, job))
    if request.clone_sinks:
        tried = log.identity if log is not None else None
        sinks = with_copies(sinks, origin, job, tried.uuid if tried is not None else "")
    rewound = [sink.uid for sink in sinks if sink.action == "rewinds"]
    sinks = tuple(_looked_at(sink, log, job) if log is not None else sink for sink in sinks)
    readers = readers_of(job, origin.last_commits, rewound) if rewound else Readers()
    return Plan(
        request=request,
        new_job=own is None,
        job_uuid=own.job if own is not None else "",
        timeline=log.next_timeline if log else 1,
        values=values,
        parameters=parameters,
        check=check,
        sources=tuple(_sources(flow, record, log)),
        sinks=sinks,
        files=len(refs) + len(parts),
        bytes=sum(ref.size for ref in refs) + sum(part.size for part in parts),
        warnings=(
            *_warnings(request, log),
            *_erased_since(origin, job, log),
            *_other_code(request),
            *(_unhashed([*refs, *parts]) if origin.savepoint is not None else ()),
            *shared,
            *_inherited_outputs(flow, parameters),
            *begins_empty(flow, record),
            *(_new_keys(flow, origin) if own is None else ()),
            *readers.unknown,
            *readers.of_feeds,
        ),
        readers=readers.found,
    )


def _refuse_claimed(origin: Origin, job: JobHandle, log: Log | None) -> None:
    """Here, rather than after somebody has approved the plan: the savepoint is another job's own, or one that no reader of this job's
    records would open."""
    if why := why_not_recorded(origin.url, job.storage_options, root=job.store.url):
        raise UsageError(
            f"the records of job {job.name!r} may not name the savepoint in {origin.url}, since nobody would open it for them ({why}): "
            "restore it with --claim-mode no-claim, which copies its files"
        )
    store = open_store(origin.url, job.storage_options)
    claim = read_savepoint_claim(store)
    own = log.identity.uuid if log is not None and log.identity is not None else ""
    if claim is not None:
        require_own_claim(store, claim, job=own, root=job.store.url)


def _refuse_way_back(origin: Origin, job: JobHandle, log: Log | None) -> None:
    """UsageError for a snapshot of which nobody knows what the job's outputs had."""
    if origin.owner is not None and same_job(origin.owner, job):
        return
    if log is None or not is_own_savepoint(origin, job, log):
        raise UsageError(
            f"--rewind-sinks takes the outputs of job {job.name!r} back to one of its own checkpoints or savepoints, and {origin.label} is "
            "not one: leave it out, and what follows is written once more, or restore a checkpoint or a tag that `stateflow show` lists"
        )
    if origin.outputs.last_commits is None:
        raise UsageError(
            f"--rewind-sinks needs to know what job {job.name!r} had delivered, and {origin.label} does not say it, since it was "
            "made with offsets of its own or by an older stateflow: leave it out, and what follows is written once more"
        )


def is_own_savepoint(origin: Origin, job: JobHandle, log: Log) -> bool:
    """Whether it is a savepoint of this job, whose state is that of one of its own slots."""
    record = origin.record
    if origin.savepoint is None or log.identity is None or log.identity.uuid != record.job:
        return False
    # A copy of the root has a job with the same UUID, which may have made another record of this slot.
    lines = history(job.store, job.layout, log=log)
    return (record.slot, record.writer) in [(line.id, line.writer) for line in lines]


def _looked_at(sink: SinkRestore, log: Log, job: JobHandle) -> SinkRestore:
    """DisagreementError for a Delta table that others have written to since. The plan says of which output it does not know."""
    prepared = log.newest_sinks.get(sink.uid)
    kind = kind_in_record(prepared.kind) if prepared is not None else None
    if sink.action != "rewinds" or prepared is None or kind is None:
        return sink
    unknown = "if it still can go there"
    if kind.rewound_as == "delta_rewind":
        if (table := _table_log(prepared, job)) is not None:
            find_rewind(table.commit, table.newest(), _app_id(log, sink.uid), sink.back_to, prepared)
            return sink
        unknown = "unless somebody else has written to it since"
    return replace(sink, note=f"{sink.note}, {unknown}, which only --yes finds out")


def _table_log(prepared: Prepared, job: JobHandle) -> SourceLog | None:
    """The log of a sink's Delta table; None where only Spark can be sure to read all of it."""
    if prepared.is_managed:
        return None
    table = log_beside(prepared.target, job.store, job.storage_options)
    newest = table.newest() if table is not None else -1
    return None if table is None or newest < 0 or table.may_have(newest + 1) else table


def _app_id(log: Log, sink: str) -> str:
    assert log.identity is not None
    return SinkSlot(log.identity.uuid, log.job, sink, 0, 0).app_id


def _newest(log: Log | None) -> Record | None:
    """The newest record with state, carried out or not."""
    if log is None:
        return None
    return log.decided if log.decided is not None and log.decided.carries_state else log.head


def _whose(request: RestoreRequest) -> Whose:
    """Whose snapshot it is. A savepoint lies where others may write, so the job's name in its record proves nothing."""
    if request.origin.owner is None:
        return "savepoint"
    return "checkpoint" if same_job(request.origin.owner, request.job) else "other job"


def _refuse_damaged(origin: Origin, job: JobHandle) -> None:
    """Refuses a savepoint that has lost a file, before the restore claims the job."""
    if origin.savepoint is None:
        return
    store = open_store(origin.url, job.storage_options)
    errors = [f for f in verify_savepoint(store, deep=False) if f.severity == "error"]
    if errors:
        raise CorruptError(f"savepoint {origin.url} is not whole: {errors[0].text}; restore another snapshot")


def taken_over(record: Record, flow: Flow) -> Record:
    """The snapshot's record with only the operators and sources that the pipeline has."""
    operators = {node.uid for node in flow.operators}
    sources = {node.uid for node in flow.sources}
    return msgspec.structs.replace(
        record,
        operators={uid: o for uid, o in record.operators.items() if uid in operators},
        sources={uid: s for uid, s in record.sources.items() if uid in sources},
    )


def with_time_anew(record: Record) -> Record:
    """The record with event time as before the first row, of every source and of the watermark."""
    return msgspec.structs.replace(
        record,
        watermark=None,
        sources={
            uid: msgspec.structs.replace(
                s, event_time=None, active=None, partitions={}, silent=0, time_column="", columns=()
            )
            for uid, s in record.sources.items()
        },
    )


def distinct(refs: Iterable[FileRef]) -> list[FileRef]:
    return list({(r.base, r.path, r.offset): r for r in refs if r.path}.values())


def is_renamed(origin: Origin, job: JobHandle) -> bool:
    """Whether the snapshot's job was deleted, and goes on under this one's name."""
    maker = _maker(origin, job)
    return maker is not None and is_deleted(job.store, maker.layout, origin.record.job)


def _shared_outputs(flow: Flow, origin: Origin, own: Record | None, job: JobHandle) -> Iterator[str]:
    """UsageError for an output where another job writes; a warning where only its UUID says that it is another one.

    Whoever made the snapshot chose the job's name in it. A job that was deleted, or whose root was lost, comes back under its
    name with another UUID, and writes where it has always written.
    """
    if own is not None and own.job == origin.record.job:
        return
    for sink in flow.sinks:
        if not sink.place or not any(
            sink.sink_kind.is_at(sink.target, theirs, origin.outputs.names.get(uid, ""))
            for uid, theirs in origin.outputs.targets.items()
        ):
            continue
        path = _target(sink)
        if is_renamed(origin, job):
            yield (
                f"sink {sink.uid} writes to {quoted(path)}, where job {quoted(origin.job)} wrote, which is deleted: rows that it wrote behind the "
                "snapshot stand there, and the restored job adds its own"
            )
            continue
        if origin.job != job.name:
            raise UsageError(
                f"sink {sink.uid!r} of job {job.name!r} would write to {quoted(path)}, where job {origin.job!r} "
                "writes: two jobs would mix their output there; give the fork an output of its own, such as "
                "-p output=/another/path"
            )
        yield (
            f"sink {sink.uid} writes to {quoted(path)}, and so does the job {quoted(origin.record.job)} that the snapshot is of, "
            "which is another one of this name: rows that it wrote behind the snapshot stand there, and come again; if it still runs somewhere, give "
            "-p with another output"
        )


def _sources(flow: Flow, record: Record, log: Log | None) -> Iterator[SourceRestore]:
    head = log.head if log else None
    uids = [node.uid for node in flow.sources]
    tables = {node.uid: node.factory for node in flow.sources if isinstance(node.factory, Files | DeltaTable)}
    for uid in [*uids, *(uid for uid in record.sources if uid not in uids)]:
        state = record.sources.get(uid)
        current = head.sources.get(uid) if head else None
        yield SourceRestore(
            uid=uid,
            verdict="dropped" if uid not in uids else "resumes" if state is not None else "new",
            position=position_of(state) if state is not None else "its own beginning",
            now=position_of(current) if current is not None else "",
            kind=state.kind
            if state is not None
            else DeltaTable.kind
            if isinstance(tables.get(uid), DeltaTable)
            else "",
            reads=table_path(tables[uid]) if uid in tables else "",
        )


def _sinks(
    flow: Flow, origin: Origin, own: Record | None, log: Log | None, rewind: bool, job: JobHandle
) -> Iterator[SinkRestore]:
    newest = log.newest_sinks if log else {}
    # The slot of an edited savepoint is that of the snapshot it is like.
    still = log is not None and origin.job == log.job and not _moves(flow, origin.record, log)
    commits = log.last_commits if log else {}
    is_own = own is not None and origin.record.job == own.job
    had_then = origin.last_commits if is_own else {}
    unknown = is_own and origin.outputs.last_commits is None
    since = origin.record.slot if log is not None and origin.job == log.job else None
    for node in flow.sinks:
        target = _target(node) or node.mode
        had, has = had_then.get(node.uid), commits.get(node.uid)
        other = other_uid(node, {uid: newest[uid] for uid in commits if uid in newest})
        sink = partial(
            SinkRestore,
            node.uid,
            target,
            kind=node.mode,
            cloned=node.sink_kind.cloned,
            before=_written_so_far(newest.get(node.uid), node),
        )
        again = bool(other) and (since is None or commits[other] > since)
        stays = f"stays{': what followed the snapshot will be delivered again' if again else ''}"
        rewinds = rewind and node.uid in newest and rewindable(newest[node.uid])
        if log is not None and not rewinds and not fed_by(flow, node):
            for uid in (node.uid, other):
                # Where nobody knows what was delivered, all up to the snapshot may have been.
                counted = origin.record.slot if unknown else had_then.get(uid)
                _refuse_taken_out(log, uid, counted, target, origin, rewinds=rewind)
        if has is None and other:
            yield sink("starts", f"has what the job wrote there as sink {other}, which {stays}", again=again)
        elif has is None or log is None:
            yield sink("starts", node.sink_kind.starts)
        elif rewinds:
            to = f"slot {had}" if had is not None else "before this job's first output"
            others = f" (what the job wrote there as sink {other} {stays})" if other else ""
            yield sink("rewinds", f"back to {to}{others}", back_to=had, again=again)
        elif has == had or _newest_rows(log, node.uid) == (had or 0) or (still and has <= origin.record.slot):
            yield sink("keeps", "has nothing newer than the snapshot")
        elif fed_by(flow, node):
            yield sink("keeps", _told_of_the_restore(newest.get(node.uid), _end(node.uid, log, job), rewind))
        else:
            note = _delivered_again(node, newest.get(node.uid), since, has, _end(node.uid, log, job), rewind)
            yield sink("keeps", note, again=True)
    if log is not None and is_own:
        yield from _left_out(flow, log, had_then, origin.record.slot, rewind, job)


def _newest_rows(log: Log, sink: str) -> int:
    return newest_rows(log.last_commits[sink], log.lacks.get(sink, ()))


def _refuse_taken_out(
    log: Log, sink: str, had: int | None, target: str, origin: Origin, *, rewinds: bool
) -> None:
    """IncompatibleError where the snapshot counts rows as delivered that a way back has taken out of an output since: they would be missing."""
    if had is None or not log.lacks.get(sink):
        return
    slot = origin.record.slot
    then = log.lacked_at(slot)
    lost = missing(log.lacks[sink], None if then is None else then.get(sink, ()), had=had, snapshot=slot)
    if not lost:
        return
    first, last = min(span[0] for span in lost), max(span[1] for span in lost)
    ways = []
    if not rewinds and origin.outputs.last_commits is not None:
        ways.append("give --rewind-sinks, which brings them again where the output can have that")
    ways += [f"restore a checkpoint below {first}"] if first > 1 else []
    ways.append("give the sink a new target and a new uid, which gets only what follows")
    raise IncompatibleError(
        f"sink {sink!r} may lack rows of slots {first} to {last}, which an earlier restore has taken out of {target}, and {origin.label} goes on behind "
        f"them: {', or '.join(ways)}"
    )


def _left_out(
    flow: Flow, log: Log, had_then: Mapping[str, int], since: int, rewind: bool, job: JobHandle
) -> Iterator[SinkRestore]:
    """The sinks that the job has written to since the snapshot and that this code does not have. Code that has one again would deliver again
    what followed the snapshot.

    Those that began behind the snapshot are newer code's, and go back. Of others nobody knows whether any code will write to them again.
    """
    newest, commits = log.newest_sinks, log.last_commits
    known = {node.uid for node in flow.sinks}
    # A sink under another uid has told of these.
    known.update(
        other_uid(node, {uid: newest[uid] for uid in commits if uid in newest}) for node in flow.sinks
    )
    for uid, has in sorted(commits.items()):
        prepared, had = newest.get(uid), had_then.get(uid)
        if uid in known or has == had or has <= since:
            continue
        kind = kind_in_record(prepared.kind) if prepared is not None else None
        target = (prepared.name or prepared.target) if prepared is not None else ""
        sink = partial(SinkRestore, uid, target or "its output", kind=kind.mode if kind else "other")
        is_newer = rewind and had is None
        lost = _lost(uid, prepared, log, job) if is_newer else ""
        if is_newer and prepared is not None and rewindable(prepared) and not lost:
            yield sink("rewinds", "is not in this code, and goes back to before this job's first output")
            continue
        cannot = f"cannot be taken back{f' ({lost})' if lost else ''} and " if is_newer else ""
        again = "delivers again what followed the snapshot"
        if kind is not None and kind.changes == "replace":
            again += ", which replaces the rows of its keys once more"
        elif target and kind is not None and not kind.calls_function:
            again += ": give it a new target and a new uid there"
        yield sink(
            "keeps",
            f"is not in this code, {cannot}keeps its output up to {_end(uid, log, job)}; code that has it again {again}",
            again=True,
        )


def _lost(uid: str, prepared: Prepared | None, log: Log, job: JobHandle) -> str:
    """Why a Delta table that the code no longer writes to cannot go back: it must not keep the others from going. Empty where nobody sees why."""
    kind = kind_in_record(prepared.kind) if prepared is not None else None
    if prepared is None or kind is None or kind.rewound_as != "delta_rewind" or prepared.is_managed:
        return ""
    try:
        table = log_beside(prepared.target, job.store, job.storage_options)
        if table is None or table.newest() < 0:
            return "its table is gone" if table or local_folder(prepared.target) is not None else ""
        find_rewind(table.commit, table.newest(), _app_id(log, uid), None, prepared)
    except NoWayBack as error:
        return error.why
    except (StateflowError, OSError, ValueError) as error:
        return str(error)
    return ""


def _end(uid: str, log: Log, job: JobHandle) -> str:
    """Where the job's rows in an output end. The job's log does not say it of a table that somebody else has restored."""
    prepared, newest = log.newest_sinks.get(uid), _newest_rows(log, uid)
    slot = f"slot {newest}" if newest else "where it was before this job's first output"
    kind = kind_in_record(prepared.kind) if prepared is not None else None
    if prepared is None or kind is None or kind.rewound_as != "delta_rewind":
        return slot
    most = MOST_COMMITS if local_folder(prepared.target) is not None else MOST_COMMITS_ELSEWHERE
    try:
        table = _table_log(prepared, job)
        undone = undone_output(table.commit, table.newest(), _app_id(log, uid), most) if table else None
    except (StateflowError, OSError, ValueError) as error:
        # The restore does without the table.
        return f"{slot}, as the job's log says (the table's cannot be read: {error})"
    if undone is None:
        return slot
    if undone.slot is None:
        return f"where somebody else restored the table to (version {undone.version} of it)"
    return f"slot {undone.slot}, to which somebody else restored the table (version {undone.version} of it)"


def _told_of_the_restore(newest: Prepared | None, end: str, rewind: bool) -> str:
    """What becomes of an output that gets a state's feed. Rows that somebody takes out of it would be missed for good."""
    cannot = "cannot be taken back and " if rewind and newest is not None and not rewindable(newest) else ""
    return (
        f"{cannot}keeps its rows of the feed up to {end}: leave them there, since the next batch tells what the restore changes; if it "
        "cannot, its run warns"
    )


def _delivered_again(
    sink: SinkNode, newest: Prepared | None, since: int | None, has: int, end: str, rewind: bool
) -> str:
    """What becomes of an output that gets once more what followed the snapshot. `since`: the snapshot's slot, if it is of this job.
    `end`: where the job's rows in the output end."""
    said = f"keeps its output up to {end}: what followed the snapshot will be delivered again"
    if newest is None or rewindable(newest) or not sink.place:
        return said
    if rewind:
        said = f"cannot be taken back and {said}"
    if sink.sink_kind.changes == "replace":
        return f"{said}, and replaces the rows of its keys once more"
    rows = "rows" if since is None else f"the rows of slots {since + 1}..{has}"
    return (
        f"{said}, and {rows} will be there twice: give the sink a new target and a new uid, or take them out yourself before the "
        "job goes on"
    )


def _refuse_names(flow: Flow) -> None:
    """UsageError for a copy whose place only a catalog could tell."""
    for sink in flow.sinks:
        if sink.sink_kind.cloned and sink.target.name:
            raise UsageError(
                f"--clone-sinks makes its copies at paths, and sink {sink.uid!r} writes to {sink.target.name}, which a catalog names: give the "
                "fork a path, sf.delta('/another/path'), and add the copy to the catalog afterwards (CREATE TABLE ... USING DELTA LOCATION)"
            )


def _target(sink: SinkNode) -> str:
    """Where a sink writes to, for people; empty if that is no place."""
    return table_path(sink.target) if sink.sink_kind.table else sink.output


def _written_so_far(newest: Prepared | None, sink: SinkNode) -> str:
    """The table that the sink has written to so far, if it is another one from now on."""
    kind = kind_in_record(newest.kind) if newest is not None else None
    if newest is None or kind is None or not kind.dataset:
        return ""
    if sink.sink_kind.is_at(sink.target, newest.target, newest.name):
        return ""
    return newest.name or (table_path(newest.target) if kind.table else newest.target)


def _moves(flow: Flow, record: Record, log: Log) -> bool:
    """Whether any source will read something again, or leave something out."""
    now = log.head.sources if log.head is not None else {}
    return any(
        (record.sources[uid].lines if uid in record.sources else ()) != (now[uid].lines if uid in now else ())
        for uid in (node.uid for node in flow.sources)
    )


def _warnings(request: RestoreRequest, log: Log | None) -> Iterator[str]:
    if log is not None and log.head is not None and log.head.slot > request.origin.record.slot:
        behind = log.head.slot - request.origin.record.slot
        if request.origin.owner is not None and same_job(request.origin.owner, request.job):
            records, stay = (
                ("1 record", "it stays")
                if behind == 1
                else (f"{behind} records", "those of them that are kept now stay")
            )
            yield f"the job goes back by {records}; {stay} restorable until collected by retention"
    if request.claim_mode == "claim" and request.origin.savepoint is not None:
        yield "the savepoint becomes the job's own: it is deleted when no checkpoint needs its files any more"


def _erased_since(origin: Origin, job: JobHandle, log: Log | None) -> Iterator[str]:
    """Notes erasures behind the snapshot, of this job and of the one in this root that made it. Their lines outlive their records."""
    if log is not None:
        yield from _erasures(job, log, origin.record)
    if (maker := _maker(origin, job)) is None:
        return
    try:
        its_log = maker.log() if maker.exists else None
        # Another job of this name has nothing to say.
        if (
            its_log is not None
            and its_log.identity is not None
            and its_log.identity.uuid == origin.record.job
        ):
            yield from _erasures(maker, its_log, origin.record)
    except StateflowError as error:
        # A damaged job is what its savepoints are for.
        yield f"whether a key was erased behind the snapshot is not known: the log of job {quoted(maker.name)} cannot be read ({error})"


def _erasures(job: JobHandle, log: Log, record: Record) -> Iterator[str]:
    if log.identity is None:
        return
    # The slots of two jobs do not say which is older.
    own = log.identity.uuid == record.job
    slots = [
        line.id
        for line in history(job.store, job.layout, log=log)
        if line.kind == "erase"
        and (line.id > record.slot if own else line.latest_ack_timestamp > record.at // 1000)
    ]
    if slots:
        erasures = "the erasure of record" if len(slots) == 1 else "the erasures of records"
        yield (
            f"the snapshot is older than {erasures} {', '.join(map(str, slots))} of job {quoted(job.name)}: a key that was erased "
            "then comes back if the snapshot has it, and has to be erased again behind this restore"
        )


def _maker(origin: Origin, job: JobHandle) -> JobHandle | None:
    """The job that the snapshot says made it, if that is another one; it may be in this root."""
    if origin.job == job.name:
        return None
    try:
        layout = JobLayout(origin.job)
    except UsageError:
        return None  # somebody has written another name into the savepoint
    return JobHandle(job.store, layout, clock=job.clock, ids=job.new_id)


def _other_code(request: RestoreRequest) -> Iterator[str]:
    """The restore goes on with the code that it was given. The snapshot's record says which code made it."""
    made_by, used = request.origin.record.versions, request.pipeline.versions
    if "pipeline" in made_by and used and _code(made_by) != _code(used):
        yield f"the snapshot was made by {quoted(_code(made_by))}, and the job goes on with {quoted(_code(used))}"
    elif "pipeline" in made_by and used and made_by.get("modules") != used.get("modules"):
        yield "a module beside the pipeline's file is another one than when the snapshot was made"


def _code(versions: Mapping[str, str]) -> str:
    """A pipeline's file with the beginning of its checksum, and what is known of its revision."""
    file, revision = versions["pipeline"], versions.get("revision", "")
    name, _, checksum = file.rpartition("@sha256:")
    return f"{name} {checksum[:12]}" + (f" of {revision}" if revision else "")


def _unhashed(refs: Iterable[FileRef | TableFile]) -> Iterator[str]:
    count = sum(1 for ref in refs if not ref.sha256)
    if count:
        yield (
            f"the snapshot's record names {count} files without a SHA-256, so Stateflow did not write it: whoever may write to them "
            "could exchange them without a trace"
        )


def _new_keys(flow: Flow, origin: Origin) -> Iterator[str]:
    """Tells of functions that a new job calls: what they have kept of the snapshot's job says nothing of its deliveries."""
    by_id = taking_ids(flow.sinks)
    for sink in flow.sinks:
        if not sink.sink_kind.calls_function:
            continue
        drops = "; it takes a checkpoint id, which begins again, and would drop rows if it skips ids up to the last one: write it as (frame, delivery)"
        yield (
            f"sink {sink.uid} calls its function under a new key, because this is a new job: what the function has kept of job "
            f"{quoted(origin.job)} does not count, and rows come beside those that it wrote for that job"
            f"{drops if sink.uid in by_id else ''}"
        )


def _names(value: str, place: str) -> bool:
    """Whether a place may begin or go on with a value: a number stands there by itself, and a name begins there."""
    start, end = (r"(?<![^\W_])" if value[0].isalnum() else ""), (r"(?!\w)" if value.isdecimal() else "")
    return re.search(f"{start}{re.escape(value)}{end}", place) is not None


def _inherited_outputs(flow: Flow, parameters: Iterable[ParameterRestore]) -> Iterator[str]:
    """Warns of outputs that a parameter of the snapshot has chosen for a new job."""
    for parameter in parameters:
        if parameter.origin not in ("savepoint", "other job") or not parameter.value:
            continue
        for sink in flow.sinks:
            if sink.place and _names(parameter.value, sink.output):
                yield (
                    f"sink {sink.uid} will write to {quoted(_target(sink))}, which parameter {parameter.name} of the snapshot says: "
                    f"give -p {parameter.name}=... if that is not meant"
                )
