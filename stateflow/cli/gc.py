"""`stateflow gc`: deletes what nothing reaches; without --yes it says what that is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from stateflow.cli.options import Debug, JobName, Output, Root, Yes, configured, job_of
from stateflow.cli.output import document, err, number, out, size, table
from stateflow.errors import NotFoundError

if TYPE_CHECKING:
    from stateflow.checkpoint.collection import Plan

_CLAIMED, _OVER, _HALF = (
    "claimed savepoint that nothing names",
    "savepoint whose time is over",
    "savepoint that was never finished",
)


def gc(
    job: JobName,
    yes: Yes = False,
    retained: Annotated[
        int | None,
        typer.Option(
            "--retained", min=1, help="Checkpoints to keep; else retained_checkpoints.", show_default=False
        ),
    ] = None,
    age: Annotated[
        str | None,
        typer.Option(
            "--age",
            metavar="DURATION",
            help="Keep all younger ones, too; else retained_age.",
            show_default=False,
        ),
    ] = None,
    release_pin: Annotated[
        list[str] | None,
        typer.Option(
            "--release",
            metavar="PIN",
            help="Let a pin go whose process, on another host, is gone for good.",
            show_default=False,
        ),
    ] = None,
    root: Root = None,
    output: Output = "text",
    debug: Debug = False,
) -> None:
    """Collects subsumed records and their files, and what crashed runs left. Safe beside a running job."""
    from stateflow.checkpoint.pins import list_pins, release
    from stateflow.jobs.savepoints import (
        dispose_expired,
        dispose_unfinished,
        expired_savepoints,
        unfinished_savepoints,
    )
    from stateflow.liveness.stale_pins import release_stale

    options = configured(root, debug=debug, retained_checkpoints=retained, retained_age=age)
    found = job_of(options, job)
    for pin in release_stale(found.store, found.layout) if yes else ():
        err().print(f"let go of checkpoint {pin.slot}: {pin.kind} of a process that is gone", markup=False)
    for pin_id in release_pin or ():
        if pin_id not in {pin.id for pin in list_pins(found.store, found.layout)}:
            raise NotFoundError(f"job {job!r} has no pin {pin_id}: `stateflow show {job} -o json` lists them")
        if yes:
            release(found.store, found.layout, pin_id)
    plan = found.garbage(options.retained_checkpoints, options.retained_age)
    done = found.collect(options.retained_checkpoints, options.retained_age) if yes else None
    freed = {"over": dispose_expired(found), "half": dispose_unfinished(found)} if yes else {}
    over = list(freed["over"]) if yes else expired_savepoints(found)
    halves = list(freed["half"]) if yes else unfinished_savepoints(found)
    for url, why in (done.undisposed if done else {}).items():
        err().print(f"{url} stays, and so do the records that name it: {why}", markup=False, soft_wrap=True)
    if output == "json":
        document(
            {
                "job": job,
                "deleted": done is not None,
                "records": {
                    slot: reason
                    for slot, reason in plan.records.items()
                    if done is None or slot in done.removed
                },
                "files": done.files if done else len(plan.files),
                "bytes_by_reason": dict(done.bytes_by_reason if done else plan.bytes_by_reason),
                "savepoints": list(done.savepoints if done else plan.savepoints),
                "expired_savepoints": over,
                "unfinished_savepoints": halves,
                "leftovers": list(plan.leftovers),
                "kept": dict(plan.kept),
                "withdrawn": list(done.withdrawn) if done else [],
                "undisposed": dict(done.undisposed) if done else {},
            }
        )
        return
    if done is not None:
        sizes = ", ".join(f"{reason} {size(count)}" for reason, count in sorted(done.bytes_by_reason.items()))
        out().print(
            f"deleted {len(done.removed)} records and {done.files} files ({sizes or 'no bytes'})",
            markup=False,
        )
        gone: list[tuple[str, str]] = [(url, _CLAIMED) for url in done.savepoints]
        for reason, urls in ((_OVER, freed["over"]), (_HALF, freed["half"])):
            gone += [(url, f"{reason}, {size(count)}") for url, count in urls.items()]
        for url, why in gone:
            out().print(f"deleted {url}: {why}", markup=False, soft_wrap=True)
        return
    _show(plan, over, halves)
    if not plan.empty or over or halves:
        err().print(f"Nothing was deleted. `stateflow gc {job} --yes` does it.", markup=False)


def _show(plan: Plan, expired: list[str], unfinished: list[str]) -> None:
    rows: list[tuple[object, ...]] = [
        (f"record {slot}", "keep", reason) for slot, reason in sorted(plan.kept.items())
    ]
    rows += [(f"record {slot}", "delete", reason) for slot, reason in plan.records.items()]
    for reason, count in sorted(plan.bytes_by_reason.items()):
        files = sum(file.reason == reason for file in plan.files)
        rows.append((f"{number(files)} files, {size(count)}", "delete", reason))
    rows += [(url, "delete", _CLAIMED) for url in plan.savepoints]
    rows += [(url, "delete", _OVER) for url in expired]
    rows += [(url, "delete", _HALF) for url in unfinished]
    if plan.leftovers:
        rows.append(
            (f"{len(plan.leftovers)} claims, control files and pins", "delete", "of epochs that are over")
        )
    table("", ("what", "", "why"), rows)
    if plan.empty and not expired and not unfinished:
        out().print("nothing to collect")
