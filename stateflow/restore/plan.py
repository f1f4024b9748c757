"""What a restore would mean. Nothing is written; whatever does not fit is refused here.

What changes between the plan and its application is found by the claim and by the store.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from stateflow.checkpoint.claim import living_epochs
from stateflow.checkpoint.log import Log
from stateflow.checkpoint.records import FileRef, Owner, Prepared, Record
from stateflow.checkpoint.rescale import rescaled_operators
from stateflow.checkpoint.retention import references
from stateflow.checkpoint.roots import open_store
from stateflow.checkpoint.savepoints import verify_savepoint
from stateflow.checks import Check, compare
from stateflow.errors import CorruptError, IncompatibleError, UsageError
from stateflow.flow import Flow, Pipeline
from stateflow.restore.digest import bound, checked_digest, digest
from stateflow.restore.origin import Origin, newest_sinks
from stateflow.restore.parameters import ParameterRestore, Whose, restored_parameters
from stateflow.status import position_of

if TYPE_CHECKING:
    from stateflow.config import Options
    from stateflow.job import Job

ClaimMode = Literal["no_claim", "claim"]
Progress = Callable[[str, int, int], object]
"""progress(what, done, total), in bytes."""


@dataclass(frozen=True)
class SourceRestore:
    uid: str
    verdict: Literal["resumes", "new", "dropped"]
    position: str
    now: str
    """Where the job is at the moment."""
    kind: str = ""
    """delta, file, kafka, other; of a new one, empty unless it is a table."""
    reads: str = ""
    """The table's path, if it is a table."""


@dataclass(frozen=True)
class SinkRestore:
    uid: str
    target: str
    action: Literal["rewinds", "keeps", "starts"]
    note: str
    kind: str
    """append, upsert, or what else it does with rows."""
    before: str = ""
    """Where the job has written so far, if not to `target`: what is taken back is taken back there."""
    back_to: int | None = None
    """Of one that rewinds: the slot whose output stays; None: none of this job's."""
    again: bool = False
    """Whether what followed the snapshot is delivered again."""


@dataclass(frozen=True)
class RestoreRequest:
    """What is wanted, and by whom."""

    job: Job
    pipeline: Pipeline
    origin: Origin
    options: Options
    parameters: Mapping[str, Any] = field(default_factory=dict)
    claim_mode: ClaimMode = "no_claim"
    allow_non_restored_state: bool = False
    rewind_sinks: bool = False
    reset_watermark: bool = False
    parallelism: int = 0
    max_parallelism: int = 0
    takeover: bool = False
    approved: str | None = None
    """The digest of the plan that somebody has approved: any other is refused."""
    owner: Owner = field(default_factory=lambda: Owner(run=uuid.uuid4().hex))
    conf: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Restored:
    """What a restore has done."""

    job: str
    checkpoint: int
    timeline: int
    copied_bytes: int
    sinks: Mapping[str, str]
    """Per rewound sink what came of it."""


@dataclass(frozen=True)
class RestorePlan:
    """What `apply` would do. `print(plan)` shows it."""

    request: RestoreRequest
    new_job: bool
    job_uuid: str
    """Which job of that name; empty until it has a checkpoint."""
    timeline: int
    values: Mapping[str, Any] = field(repr=False)
    """What the pipeline is built with, and what the record keeps."""
    parameters: tuple[ParameterRestore, ...]
    check: Check
    sources: tuple[SourceRestore, ...]
    sinks: tuple[SinkRestore, ...]
    files: int
    bytes: int
    warnings: tuple[str, ...]

    @property
    def copies(self) -> bool:
        """Whether files are brought into the job's own folder."""
        origin, request = self.request.origin, self.request
        if origin.canonical:
            return True
        if origin.savepoint is not None:
            return request.claim_mode == "no_claim"
        return origin.owner is not None and not same_job(origin.owner, request.job)

    @property
    def digest(self) -> str:
        """What an approval names: of any two plans that do something else it is another one."""
        return digest(self)

    def apply(self, progress: Progress = lambda what, done, total: None) -> Restored:
        """Restores. A crash leaves the job as it was or restored; repeating it is safe."""
        from stateflow.restore.apply import RestoreRun

        return RestoreRun(self, progress).run()

    def document(self) -> dict[str, Any]:
        """The plan as programs read it."""
        request, record = self.request, self.request.origin.record
        return {
            "job": request.job.name,
            "new_job": self.new_job,
            "from": request.origin.label,
            "of_job": request.origin.job,
            "checkpoint": record.slot,
            "at": record.at,
            "kind": request.origin.savepoint.kind if request.origin.savepoint else "checkpoint",
            "savepoint": request.origin.savepoint.id if request.origin.savepoint else None,
            "record": {"job": record.job, "slot": record.slot, "writer": record.writer},
            "claim_mode": request.claim_mode if request.origin.savepoint else None,
            "timeline": self.timeline,
            "watermark": None if request.reset_watermark else record.watermark,
            "parameters": [parameter.document() for parameter in self.parameters],
            "operators": [
                {"uid": o.uid, "verdict": o.verdict, "states": dict(o.states)} for o in self.check.operators
            ],
            "sources": [vars(source) for source in self.sources],
            "sinks": [vars(sink) for sink in self.sinks],
            "files": self.files,
            "bytes": self.bytes,
            "copies": self.copies,
            "warnings": list(self.warnings),
            "digest": self.digest,
            "bound": bound(self, shown=True),
        }

    def __str__(self) -> str:
        from stateflow.restore.text import told

        return told(self)


def plan_restore(request: RestoreRequest) -> RestorePlan:
    """Compares snapshot, pipeline and job; raises for the first thing that cannot be."""
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
    own = _newest(log)
    values, parameters = restored_parameters(
        request.pipeline, request.parameters, own=own, snapshot=record, whose=_whose(request)
    )
    flow = request.pipeline.build(values)
    check = compare(flow, job.name, record, allow_non_restored_state=request.allow_non_restored_state)
    if not check.compatible:
        raise IncompatibleError(check.problems[0])
    if log is None:
        # A name that was deleted is refused here, not when all is confirmed.
        living_epochs(job.store, job.layout)
    if request.rewind_sinks and (origin.owner is None or not same_job(origin.owner, job)):
        raise UsageError(
            f"--rewind-sinks takes the outputs of job {job.name!r} back to one of its own checkpoints, and {origin.label} is "
            "not one"
        )
    _refuse_shared_outputs(flow, origin, job)
    parallelism = request.parallelism
    if parallelism:
        # Raises for an operator that cannot have it.
        rescaled_operators(kept_by(record, flow).operators, parallelism, job.name)
    refs = distinct(references(kept_by(record, flow)))
    tables = origin.savepoint.tables if origin.savepoint is not None else {}
    parts = [file for states in tables.values() for files in states.values() for file in files]
    return RestorePlan(
        request=request,
        new_job=log is None,
        job_uuid=own.job if own is not None else "",
        timeline=log.next_timeline if log else 1,
        values=values,
        parameters=parameters,
        check=check,
        sources=tuple(_sources(flow, record, log)),
        sinks=tuple(_sinks(flow, origin, log, request.rewind_sinks)),
        files=len(refs) + len(parts),
        bytes=sum(ref.size for ref in refs) + sum(part.size for part in parts),
        warnings=(*_warnings(request, log), *_brought_outputs(flow, parameters)),
    )


def _newest(log: Log | None) -> Record | None:
    """The record that says what the job is now, carried out or not."""
    if log is None:
        return None
    return log.decided if log.decided is not None and log.decided.carries_state else log.head


def _whose(request: RestoreRequest) -> Whose:
    """A savepoint lies where others may write: that its record names the job says nothing."""
    if request.origin.owner is None:
        return "savepoint"
    return "checkpoint" if same_job(request.origin.owner, request.job) else "other job"


def _refuse_damaged(origin: Origin, job: Job) -> None:
    """A savepoint that has lost a file is found before a job is claimed for it."""
    if origin.savepoint is None:
        return
    store = open_store(origin.url, job.storage_options)
    errors = [f for f in verify_savepoint(store, deep=False) if f.severity == "error"]
    if errors:
        raise CorruptError(f"savepoint {origin.url} is not whole: {errors[0].text}; restore another snapshot")


def same_job(one: Job, other: Job) -> bool:
    return one.store.url == other.store.url and one.name == other.name


def kept_by(record: Record, flow: Flow) -> Record:
    """What of a snapshot the pipeline takes over."""
    operators = {node.uid for node in flow.operators}
    sources = {node.uid for node in flow.sources}
    return msgspec.structs.replace(
        record,
        operators={uid: o for uid, o in record.operators.items() if uid in operators},
        sources={uid: s for uid, s in record.sources.items() if uid in sources},
    )


def distinct(refs: Iterable[FileRef]) -> list[FileRef]:
    return list({(r.base, r.path, r.offset): r for r in refs if r.path}.values())


def _place(target: object) -> str:
    """A table's path in a form that can be compared."""
    path = str(getattr(target, "path", target))
    return path if "://" in path else os.path.normpath(Path(path.removeprefix("file:")).absolute())


def _refuse_shared_outputs(flow: Flow, origin: Origin, job: Job) -> None:
    if origin.job == job.name:
        return
    theirs = {_place(target) for target in origin.targets.values()}
    for sink in flow.sinks:
        if sink.mode in ("append", "upsert") and _place(sink.target) in theirs:
            raise UsageError(
                f"sink {sink.uid!r} of job {job.name!r} would write to {_place(sink.target)}, where job {origin.job!r} "
                "writes: two jobs would mix their output there; give the fork an output of its own, such as "
                "-p output=/another/path"
            )


def _sources(flow: Flow, record: Record, log: Log | None) -> Iterator[SourceRestore]:
    head = log.head if log else None
    uids = [node.uid for node in flow.sources]
    tables = {node.uid: node.factory for node in flow.sources if hasattr(node.factory, "path")}
    for uid in [*uids, *(uid for uid in record.sources if uid not in uids)]:
        state = record.sources.get(uid)
        current = head.sources.get(uid) if head else None
        yield SourceRestore(
            uid=uid,
            verdict="dropped" if uid not in uids else "resumes" if state is not None else "new",
            position=position_of(state) if state is not None else "its own beginning",
            now=position_of(current) if current is not None else "",
            kind=state.kind if state is not None else str(getattr(tables.get(uid), "kind", "")),
            reads=_place(tables[uid]) if uid in tables else "",
        )


def _sinks(flow: Flow, origin: Origin, log: Log | None, rewind: bool) -> Iterator[SinkRestore]:
    newest = newest_sinks(log) if log else {}
    # Of a savepoint it is not known what its job had delivered; of one that was edited, the slot is that of its model.
    still = log is not None and origin.job == log.job and not _moves(flow, origin.record, log)
    commits = log.last_commits if log else {}
    for node in flow.sinks:
        target = _place(node.target) if node.mode in ("append", "upsert") else node.mode
        had, has = origin.last_commits.get(node.uid), commits.get(node.uid)
        sink = partial(
            SinkRestore,
            node.uid,
            target,
            kind=node.mode,
            before=_written_so_far(newest.get(node.uid), target),
        )
        if has is None:
            yield sink("starts", "has nothing of this job yet")
        elif rewind and node.uid in newest and _can_go_back(newest[node.uid]):
            to = f"slot {had}" if had is not None else "before this job's first output"
            yield sink("rewinds", f"back to {to}", back_to=had)
        elif has == had or (still and has <= origin.record.slot):
            yield sink("keeps", "has nothing newer than the snapshot")
        else:
            yield sink(
                "keeps",
                f"keeps its output up to slot {has}: what followed the snapshot will be delivered again",
                again=True,
            )


def _written_so_far(newest: Prepared | None, target: str) -> str:
    """The table that the sink has written to, if it is another one than from now on."""
    if newest is None or not newest.kind.startswith("delta"):
        return ""
    so_far = _place(newest.target)
    return so_far if so_far != target else ""


def _moves(flow: Flow, record: Record, log: Log) -> bool:
    """Whether any source reads something again, or leaves something out."""
    now = log.head.sources if log.head is not None else {}
    return any(
        (record.sources[uid].lines if uid in record.sources else ()) != (now[uid].lines if uid in now else ())
        for uid in (node.uid for node in flow.sources)
    )


def _can_go_back(prepared: Prepared) -> bool:
    from stateflow.spark.sinks.delta_rewind import rewindable

    return rewindable(prepared)


def _warnings(request: RestoreRequest, log: Log | None) -> Iterator[str]:
    if log is not None and log.head is not None and log.head.slot > request.origin.record.slot:
        behind = log.head.slot - request.origin.record.slot
        if request.origin.owner is not None and same_job(request.origin.owner, request.job):
            records, stay = ("1 record", "it stays") if behind == 1 else (f"{behind} records", "they stay")
            yield f"the job goes back by {records}; {stay} restorable until collected by retention"
    if request.claim_mode == "claim" and request.origin.savepoint is not None:
        yield "the savepoint becomes the job's own: it is deleted when no checkpoint needs its files any more"


def _brought_outputs(flow: Flow, parameters: Iterable[ParameterRestore]) -> Iterator[str]:
    """Outputs of a new job that somebody else has chosen."""
    for parameter in parameters:
        if parameter.origin not in ("savepoint", "other job") or not parameter.value:
            continue
        for sink in flow.sinks:
            if sink.mode in ("append", "upsert") and parameter.value in str(
                getattr(sink.target, "path", sink.target)
            ):
                yield (
                    f"sink {sink.uid} will write to {_place(sink.target)}, which parameter {parameter.name} of the snapshot says: "
                    f"give -p {parameter.name}=... if that is not meant"
                )
