"""`stateflow gc`: deletes what nothing reaches; without --yes it says what that is."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from stateflow.checkpoint.collection import ANNOUNCED
from stateflow.checkpoint.retention import YOUNG
from stateflow.cli.options import Arguments, Invocation, JobName, Yes, command, flag, job_of
from stateflow.cli.output import TextTable
from stateflow.cli.text import several, size
from stateflow.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from stateflow.checkpoint.collection import CollectionReport
    from stateflow.config.options import Options
    from stateflow.jobs.cleaning import CleanUp
    from stateflow.jobs.job import Job

_CLAIMED, _OVER, _HALF = (
    "claimed savepoint that nothing names",
    "savepoint whose time is over",
    "savepoint that was never finished",
)

_LEFT = "claims, control files and pins"
_KEPT = {
    ANNOUNCED: "announced: the job's last run keeps it, by its own retained_checkpoints, retained_age or retention",
    YOUNG: "young: retained_age keeps it, not retained_checkpoints",
}


@dataclass(frozen=True, kw_only=True)
class RetentionArguments(Arguments):
    """Options that stand for those of the configuration."""

    retained_checkpoints: Annotated[
        int | None,
        flag("--retained", min=1, help="Checkpoints to keep; else retained_checkpoints."),
    ] = None
    retained_age: Annotated[
        str | None,
        flag("--age", metavar="DURATION", help="Keep all younger ones, too; else retained_age."),
    ] = None
    retention: Annotated[
        str | None,
        flag(
            "--retention",
            metavar="RULE",
            help="Older ones to keep, too, such as 'hourly for 2 days, daily for 30 days'; else retention.",
        ),
    ] = None


@command
def gc(
    call: Invocation,
    job: JobName,
    kept: RetentionArguments,
    yes: Yes = False,
    explain: Annotated[
        bool,
        flag("--explain", help="Draw what stays and what goes by the retention, and what that costs."),
    ] = False,
    release_pin: Annotated[
        list[str] | None,
        flag(
            "--release",
            metavar="PIN",
            help="Let a pin go whose process, on another host, is gone for good.",
        ),
    ] = None,
) -> None:
    """Collects subsumed records and their files, and what crashed runs left. Safe beside a running job."""
    from stateflow.jobs.cleaning import clean_up

    options = call.options(**vars(kept))
    found = job_of(options, job)
    if explain:
        if yes or release_pin:
            raise UsageError("--explain deletes nothing and lets nothing go: leave out --yes and --release")
        _explain(call, found, options)
        return
    let_go = _let_go(call, found, release_pin or (), yes=yes)
    asked = (options.retained_checkpoints, options.retained_age, options.retention)

    def say(report: CollectionReport) -> None:
        for sentence in report.warnings:
            call.output.log(sentence)

    cleaned = clean_up(found, *asked, delete=yes, without=let_go, collected=say)
    _report(call, job, cleaned, let_go)


def _let_go(call: Invocation, job: Job, named: Sequence[str], *, yes: bool) -> set[str]:
    """Pins and forks of processes that are gone, and the pins that are named. Gives the ids of the pins."""
    from stateflow.checkpoint.pins import read_pins, release
    from stateflow.checkpoint.process import this_process
    from stateflow.liveness.stale_pins import stale
    from stateflow.replay.fork import sweep

    pins, unreadable = read_pins(job.store, job.layout)
    if unknown := next((each for each in named if each not in {*unreadable, *(pin.id for pin in pins)}), ""):
        raise NotFoundError(
            f"job {job.name!r} has no pin {unknown}: `stateflow show {job.name} -o json` lists them"
        )
    for error in (error for pin_id, error in unreadable.items() if pin_id not in named):
        raise error  # it may keep anything; a verification says how to go on
    gone = stale(pins, this_process())
    for pin in gone:
        call.output.log(
            f"{'let' if yes else 'would let'} go of checkpoint {pin.slot}: {pin.kind} of a process that is gone"
        )
    let_go = {*named, *(pin.id for pin in gone)}
    if yes:
        for pin_id in sorted(let_go):
            release(job.store, job.layout, pin_id)
        for fork in sweep(job.store):
            call.output.log(f"deleted {fork}: a replay that is gone has left it")
    return let_go


def _report(call: Invocation, job: str, cleaned: CleanUp, let_go: Collection[str]) -> None:
    plan, done = cleaned.plan, cleaned.done
    body = {
        "job": job,
        "deleted": done is not None,
        "records": cleaned.records,
        "files": cleaned.files,
        "bytes_by_reason": cleaned.bytes_by_reason,
        "savepoints": done.savepoints if done else plan.savepoints,
        "expired_savepoints": cleaned.expired,
        "unfinished_savepoints": cleaned.unfinished,
        "leftovers": plan.leftovers,
        "kept": plan.kept,
        "withdrawn": done.withdrawn if done else [],
        "undisposed": {**done.undisposed, **done.left} if done else {},
    }
    if done is None:
        empty = plan.empty and not (cleaned.expired or cleaned.unfinished or let_go)
        again = "" if empty else f"Nothing was deleted. `{call.again('--yes')}` does it."
        nothing = ["nothing to collect"] if empty else []
        call.output.answer(body, _table(cleaned), *nothing, note=again)
        return
    sizes = ", ".join(f"{reason} {size(count)}" for reason, count in sorted(done.bytes_by_reason.items()))
    gone = [(url, _CLAIMED) for url in done.savepoints]
    for reason, urls in ((_OVER, cleaned.expired), (_HALF, cleaned.unfinished)):
        gone += [(url, f"{reason}, {size(cleaned.freed[url])}") for url in urls]
    call.output.answer(
        body,
        f"deleted {several(len(done.removed), 'record')} and {several(done.files, 'file')} ({sizes or 'no bytes'})",
        *([f"deleted {len(plan.leftovers)} {_LEFT}"] if plan.leftovers else []),
        *(f"deleted {url}: {why}" for url, why in gone),
    )


def _explain(call: Invocation, job: Job, options: Options) -> None:
    from stateflow.checkpoint.retention import Retention
    from stateflow.cli.past_drawing import LEGEND, document, drawing, sentences

    past = job.kept_past(options.retained_checkpoints, options.retained_age, options.retention)
    retention = Retention.of(options, past.now)
    said = list(sentences(past, options.retention)) if options.retention else []
    call.output.answer(
        {"job": job.name, **document(past, retention)},
        drawing(past, retention),
        *said,
        note=f"{LEGEND} Nothing was deleted: a run with this retention decides it, with its next checkpoint.",
    )


def _table(cleaned: CleanUp) -> TextTable:
    plan = cleaned.plan
    rows: list[tuple[object, ...]] = [
        (f"record {slot}", "keep", _KEPT.get(reason, reason)) for slot, reason in sorted(plan.kept.items())
    ]
    rows += [(f"record {slot}", "delete", reason) for slot, reason in plan.records.items()]
    for reason, count in sorted(plan.bytes_by_reason.items()):
        files = sum(file.reason == reason for file in plan.files)
        rows.append((f"{several(files, 'file')}, {size(count)}", "delete", reason))
    rows += [(url, "delete", _CLAIMED) for url in plan.savepoints]
    rows += [(url, "delete", _OVER) for url in cleaned.expired]
    rows += [(url, "delete", _HALF) for url in cleaned.unfinished]
    if plan.leftovers:
        rows.append((f"{len(plan.leftovers)} {_LEFT}", "delete", "of epochs that are over"))
    return TextTable(("what", "", "why"), rows)
