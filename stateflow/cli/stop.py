"""`stateflow stop`: ends a run after its batch, from anywhere."""

from __future__ import annotations

from typing import Annotated

import typer

from stateflow.cli.options import Invocation, JobName, command, flag, job_of
from stateflow.cli.savepoint import Kind, SavepointTo, kind_of
from stateflow.errors import UsageError

_OUTCOMES = {
    "not running": "job {job} is not running",
    "requested": "the run of job {job} (epoch {epoch}) was asked to end after its batch",
    "stopped": "the run of job {job} (epoch {epoch}) has ended at checkpoint {checkpoint}",
    "lost": "the run of job {job} (epoch {epoch}) shows no sign of life: it has died, and the next run carries on from "
    "checkpoint {checkpoint}",
}


@command
def stop(
    call: Invocation,
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
    to: SavepointTo = "",
    note: Annotated[str, flag("--note", help="Why: the run reports it.")] = "",
) -> None:
    """Asks the job's run to end after the batch it is in; with --savepoint also when it has ended long ago."""
    if not savepoint:
        call.refuse_beside("without a savepoint: give --savepoint", "to", "kind")
        if not wait:
            call.refuse_beside("where nobody waits: give --wait or --savepoint", "timeout")
    wanted = kind_of(kind)
    options = call.options()
    found = job_of(options, job)
    done = found.stop(wait=timeout if wait or savepoint else None, reason=note, drain=drain)
    body = {"job": job, "epoch": done.epoch, "outcome": done.outcome, "checkpoint": done.checkpoint}
    call.output.say(_OUTCOMES[done.outcome].format(job=job, epoch=done.epoch, checkpoint=done.checkpoint))
    # A run that ends for another reason, such as an earlier request, drains nothing.
    if drain and (done.outcome == "lost" or (done.outcome != "requested" and not done.drained)):
        raise UsageError(
            f"job {job!r} is {done.outcome}, and nothing has drained it: run it once more with `stateflow run ... --final`"
        )
    if savepoint:
        found.settle(wait=timeout)
        with call.output.progress(f"savepoint of {job}", shown=options.progress) as progress:
            made = found.savepoint(wanted, options=options, progress=progress, to=to, note=note)
        body["savepoint"] = made.url
        call.output.say(f"{made.url} holds checkpoint {made.savepoint.record.slot}")
    call.output.answer(body)
