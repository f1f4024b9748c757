"""`stateflow run`: the pipeline of a file, to the end of its trigger."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
from stateflow.errors import UsageError

if TYPE_CHECKING:
    from stateflow.spark.loop import BatchReport


class AnnouncedStop(threading.Event):
    """A stop that says so at once: the batch under way may take a while."""

    def set(self) -> None:
        if not self.is_set():
            err().print("stopping after this batch; Ctrl-C again ends at once")
        super().set()


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
        bool, typer.Option("--allow-non-restored-state", help="State without an operator may be dropped.")
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
    root: Root = None,
    output: Output = "text",
    debug: Debug = False,
) -> None:
    """Runs a pipeline: carries on from its newest checkpoint and takes one per micro-batch.

    Ctrl-C or SIGTERM ends the run at the end of its batch.
    """
    from stateflow import logs
    from stateflow.pipelines import load_pipeline

    options = configured(root, option, debug=debug, parallelism=parallelism, trigger=trigger)
    loaded = load_pipeline(file, Path.cwd())
    name = job or loaded.pipeline.name
    given, spark_conf, bound = pairs(parameter, "-p"), pairs(conf, "--conf"), bounds(until)
    from stateflow.parameters import required_parameters

    found = new_job_of(options, name)
    if found.exists:
        given = {**required_parameters(loaded.pipeline, found.log().head), **given}
    loaded.pipeline.arguments(given)  # says what is wrong with them before Spark is loaded
    logs.about(job=name)
    show = err()

    def finished(report: BatchReport) -> None:
        logs.about(epoch=report.record.epoch, slot=report.slot)
        body = batch_document(report, name)
        if output == "json":
            line(body)
        if options.progress:
            show.print(batch_line(body), markup=False, soft_wrap=True)

    from stateflow.identity import this_process
    from stateflow.spark.shipping import by_value

    cluster = master is not None and not master.startswith("local")
    by_value([loaded.module, *(loaded.siblings() if cluster else ())])
    spark_conf.setdefault("spark.executorEnv.PYTHONPATH", str(loaded.folder))
    if options.progress:
        show.print(f"{name}: starting Spark", markup=False)
    report = found.run(
        loaded.pipeline,
        given,
        options=options,
        master=master,
        conf=spark_conf,
        until=bound,
        allow_non_restored_state=allow_non_restored_state,
        owner=this_process(note=note),
        takeover=takeover,
        drain=final,
        user_paths=[str(loaded.folder)],
        listener=finished,
        stop=AnnouncedStop(),
    )
    if output == "json":
        line(run_document(report))
    else:
        out().print(run_line(report), markup=False, soft_wrap=True)


def bounds(given: Iterable[str] | None) -> Any:
    """`--until` as the runner takes it: one bound for all sources, or one per source uid."""
    found: dict[str, int | datetime] = {}
    for text in given or ():
        uid, equals, value = text.partition("=")
        found[uid if equals else ""] = _bound(value if equals else text)
    if not found:
        return None
    if "" in found:
        if len(found) > 1 or len(list(given or ())) > 1:
            raise UsageError("--until is given once for all sources, or as SOURCE=... for each")
        return found[""]
    return found


def _bound(text: str) -> int | datetime:
    if text.strip().isdigit():
        return int(text)
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError:
        raise UsageError(
            f"--until {text!r} is neither a version nor a time: write 17 or 2026-01-31T12:00:00+00:00"
        ) from None
    return at if at.tzinfo else at.replace(tzinfo=UTC)
