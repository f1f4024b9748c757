"""`stateflow stop`: ends a run after its batch, from anywhere."""

from __future__ import annotations

from typing import Annotated

import typer

from stateflow.cli.options import Debug, JobName, Output, Root, configured, job_of
from stateflow.cli.output import document, out

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
    note: Annotated[str, typer.Option("--note", help="Why: the run reports it.", show_default=False)] = "",
    root: Root = None,
    output: Output = "text",
    debug: Debug = False,
) -> None:
    """Asks the job's run to end after the batch it is in."""
    done = job_of(configured(root, debug=debug), job).stop(wait=timeout if wait else None, reason=note)
    if output == "json":
        document({"job": job, "epoch": done.epoch, "outcome": done.outcome, "checkpoint": done.checkpoint})
        return
    text = _TOLD[done.outcome].format(job=job, epoch=done.epoch, checkpoint=done.checkpoint)
    out().print(text, markup=False, soft_wrap=True)
