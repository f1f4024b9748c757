"""`stateflow run`: the pipeline of a file, to the end of its trigger."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stateflow.cli.options import (
    Conf,
    Debug,
    File,
    Output,
    Parameters,
    Root,
    Settings,
    configured,
    new_job_of,
    pairs,
)
from stateflow.cli.output import err, line, out
from stateflow.cli.progress import batch_document, batch_line, run_document, run_line

if TYPE_CHECKING:
    from stateflow.spark.loop import BatchReport


class AnnouncedStop(threading.Event):
    """A stop that says so at once: the batch under way may take a while."""

    def set(self) -> None:
        said = self.is_set()
        super().set()
        if not said:
            # Rich ends the program when nobody reads what it prints; the batch goes on.
            with suppress(OSError, SystemExit):
                show = err()
                show.print(
                    f"stopping after this batch{'; Ctrl-C ends it at once' if show.is_terminal else ''}"
                )


def run(
    file: File,
    parameter: Parameters = None,
    job: Annotated[
        str | None, typer.Option("--job", help="Name of the job; else the pipeline's.", show_default=False)
    ] = None,
    parallelism: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Subtasks of a keyed operator; another number than before rescales the job.",
            show_default=False,
        ),
    ] = None,
    trigger: Annotated[
        str | None,
        typer.Option(
            metavar="drain|until-stopped|DURATION",
            help="When batches are taken, and whether the run ends by itself.",
            show_default=False,
        ),
    ] = None,
    until: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[SOURCE=]VERSION|TIME",
            help="End at this version or time (ISO, UTC unless it says otherwise), included.",
            show_default=False,
        ),
    ] = None,
    master: Annotated[
        str | None, typer.Option(help="Spark's master, such as local[4].", show_default=False)
    ] = None,
    conf: Conf = None,
    option: Settings = None,
    takeover: Annotated[
        bool, typer.Option("--takeover", help="Fence a live run instead of refusing to start.")
    ] = False,
    allow_non_restored_state: Annotated[
        bool,
        typer.Option(
            "--allow-non-restored-state",
            help="State without an operator may be dropped, and what looks renamed is new.",
        ),
    ] = False,
    final: Annotated[
        bool,
        typer.Option(
            "--final", help="When the input is drained, fire every event-time timer: the job is over then."
        ),
    ] = False,
    note: Annotated[
        str, typer.Option("--note", help="Kept with every record of the run.", show_default=False)
    ] = "",
    dag_run: Annotated[
        str,
        typer.Option(
            "--dag-run",
            help="The scheduler's run that this is part of: kept with every record.",
            show_default=False,
        ),
    ] = "",
    task: Annotated[
        str,
        typer.Option("--task", help="The task of that run; it takes over from itself.", show_default=False),
    ] = "",
    root: Root = None,
    output: Output = "text",
    debug: Debug = False,
) -> None:
    """Runs a pipeline: carries on from its newest checkpoint and takes one per micro-batch.

    Ctrl-C or SIGTERM ends the run at the end of its batch.
    """
    from stateflow import logs
    from stateflow.checkpoint.process import this_process
    from stateflow.jobs.running import checked_parameters, run_loaded
    from stateflow.pipelines.bounds import parse_bounds
    from stateflow.pipelines.loading import load_pipeline

    options = configured(root, option, debug=debug, parallelism=parallelism, trigger=trigger)
    loaded = load_pipeline(file, Path.cwd())
    name = job or loaded.pipeline.name
    given, spark_conf, bound = pairs(parameter, "-p"), pairs(conf, "--conf"), parse_bounds(until)
    found = new_job_of(options, name)
    given = checked_parameters(loaded, found, given)
    logs.about(job=name)
    show = err()

    def finished(report: BatchReport) -> None:
        logs.about(epoch=report.record.epoch, slot=report.slot)
        body = batch_document(report, name)
        if output == "json":
            line(body)
        if options.progress:
            show.print(batch_line(body), markup=False, soft_wrap=True)

    report = run_loaded(
        loaded,
        found,
        given,
        options=options,
        master=master,
        conf=spark_conf,
        until=bound,
        allow_non_restored_state=allow_non_restored_state,
        owner=this_process(dag_run=dag_run, task=task, note=note),
        takeover=takeover,
        drain=final,
        listener=finished,
        stop=AnnouncedStop(),
    )
    if output == "json":
        line(run_document(report))
    else:
        out().print(run_line(report), markup=False, soft_wrap=True)
