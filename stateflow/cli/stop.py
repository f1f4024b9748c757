"""`stateflow stop`: ends a run after its batch, from anywhere."""

from __future__ import annotations

from typing import Annotated, Any, cast

import typer

from stateflow.cli.bars import bars
from stateflow.cli.options import Debug, JobName, Output, Root, configured, job_of
from stateflow.cli.output import document, out
from stateflow.cli.savepoint import Kind
from stateflow.errors import UsageError

_TOLD = {
    "not running": "job {job} is not running",
    "requested": "the run of job {job} (epoch {epoch}) was asked to end after its batch",
    "stopped": "the run of job {job} (epoch {epoch}) has ended at checkpoint {checkpoint}",
    "lost": "the run of job {job} (epoch {epoch}) shows no sign of life: it has died, and the next run carries on from "
    "checkpoint {checkpoint}",
}


def stop(
    job: JobName,
    wait: Annotated[
        bool, typer.Option("--wait", help="Return when the run has ended; 8 when time is up.")
    ] = False,
    timeout: Annotated[float, typer.Option("--timeout", min=0, help="Longest wait, in seconds.")] = 600.0,
    drain: Annotated[
        bool, typer.Option("--drain", help="Fire every event-time timer first: the job is over then.")
    ] = False,
    savepoint: Annotated[
        bool, typer.Option("--savepoint", help="Wait, and make a savepoint of where it ended.")
    ] = False,
    kind: Kind = "native",
    to: Annotated[
        str,
        typer.Option(
            "--to", metavar="URL", help="Where to; else into the checkpoint root.", show_default=False
        ),
    ] = "",
    note: Annotated[str, typer.Option("--note", help="Why: the run reports it.", show_default=False)] = "",
    root: Root = None,
    output: Output = "text",
    debug: Debug = False,
) -> None:
    """Asks the job's run to end after the batch it is in; with --savepoint also when it has ended long ago."""
    if kind not in ("native", "canonical"):
        raise UsageError(f"--type {kind!r} is neither native nor canonical")
    options = configured(root, debug=debug)
    found = job_of(options, job)
    done = found.stop(wait=timeout if wait or savepoint else None, reason=note, drain=drain)
    body = {"job": job, "epoch": done.epoch, "outcome": done.outcome, "checkpoint": done.checkpoint}
    if output == "text":
        text = _TOLD[done.outcome].format(job=job, epoch=done.epoch, checkpoint=done.checkpoint)
        out().print(text, markup=False, soft_wrap=True)
    if drain and done.outcome in ("not running", "lost"):
        raise UsageError(
            f"job {job!r} is not running, so nothing could drain it: run it once more with `stateflow run ... --final`"
        )
    if savepoint:
        found.settle()
        with bars(f"savepoint of {job}", shown=options.progress) as progress:
            made = found.savepoint(cast(Any, kind), options=options, progress=progress, to=to, note=note)
        body["savepoint"] = made.url
        if output == "text":
            slot = made.savepoint.record.slot
            out().print(f"{made.url} holds checkpoint {slot}", markup=False, soft_wrap=True)
    if output == "json":
        document(body)
