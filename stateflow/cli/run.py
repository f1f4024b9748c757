"""`stateflow run`: the pipeline of a file, to the end of its trigger."""

from __future__ import annotations

import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from stateflow.cli.options import (
    AllowNonRestoredState,
    Conf,
    File,
    Invocation,
    Parameters,
    PipelinesJob,
    Settings,
    Strict,
    command,
    flag,
    new_job_of,
    pairs,
)
from stateflow.cli.output import ConsoleOutput
from stateflow.cli.progress import (
    batch_document,
    batch_line,
    full_line,
    run_document,
    run_line,
    table_document,
    table_pieces,
    taken_document,
    taken_line,
)
from stateflow.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stateflow.config.options import Options
    from stateflow.spark.loop import BatchReport


class AnnouncedStop(threading.Event):
    """A stop that says so at once: the batch under way may take a while."""

    def set(self) -> None:
        said = self.is_set()
        super().set()
        if not said:
            # Rich ends the program when nobody reads what it prints; the batch goes on.
            with suppress(OSError, SystemExit):
                # One of its own: a signal may come while the run is printing.
                output = ConsoleOutput()
                again = "; Ctrl-C ends it at once" if output.interactive else ""
                output.log(f"stopping after this batch{again}")


@command
def run(
    call: Invocation,
    file: File,
    parameter: Parameters = None,
    job: PipelinesJob = None,
    parallelism: Annotated[
        int | None,
        flag(min=1, help="Subtasks of a keyed operator; another number than before rescales the job."),
    ] = None,
    trigger: Annotated[
        str | None,
        flag(
            metavar="drain|until-stopped|DURATION",
            help="When batches are taken, and whether the run ends by itself.",
        ),
    ] = None,
    until: Annotated[
        list[str] | None,
        flag(
            metavar="[SOURCE=]VERSION|TIME",
            help="End at this version or time (ISO, UTC unless it says otherwise), included.",
        ),
    ] = None,
    master: Annotated[str | None, flag(help="Spark's master, such as local[4].")] = None,
    conf: Conf = None,
    option: Settings = None,
    takeover: Annotated[
        bool, flag("--takeover", help="Fence a live run instead of refusing to start.")
    ] = False,
    allow_non_restored_state: AllowNonRestoredState = False,
    strict: Strict = False,
    final: Annotated[
        bool,
        flag("--final", help="When the input is drained, fire every event-time timer: the job is over then."),
    ] = False,
    note: Annotated[str, flag("--note", help="Kept with every record of the run.")] = "",
    revision: Annotated[
        str, flag("--revision", help="The version of the pipeline's code, such as a commit: kept likewise.")
    ] = "",
    dag_run: Annotated[
        str, flag("--dag-run", help="The scheduler's run that this is part of: kept with every record.")
    ] = "",
    task: Annotated[str, flag("--task", help="The task of that run; it takes over from itself.")] = "",
    host: Annotated[
        str | None, flag("--host", metavar="NAME", help="The warm host to run on; else a driver of its own.")
    ] = None,
    host_wait: Annotated[
        str | None, flag("--host-wait", metavar="DURATION", help="How long to wait for a place on it.")
    ] = None,
    host_only: Annotated[
        bool, flag("--host-only", help="Fail rather than start a driver of its own.")
    ] = False,
    verbose: Annotated[
        bool, flag("--verbose", "-v", help="All figures of a batch, on a line of its own.")
    ] = False,
    fresh: Annotated[
        bool,
        flag(
            "--fresh",
            help="Try the code: a throw-away job from the beginning of its sources, whose outputs are shown and not kept.",
        ),
    ] = False,
) -> None:
    """Runs a pipeline: carries on from its newest checkpoint and takes one per micro-batch.

    Ctrl-C or SIGTERM ends the run at the end of its batch.
    """
    from stateflow import logs
    from stateflow.checkpoint.process import this_process
    from stateflow.jobs.run_secrets import handed_over
    from stateflow.jobs.running import checked_parameters, run_loaded
    from stateflow.pipelines.bounds import parse_bounds
    from stateflow.pipelines.loading import load_pipeline

    if fresh:
        _refuse_beside_fresh(
            takeover=takeover,
            strict=strict,
            allow_non_restored_state=allow_non_restored_state,
            dag_run=dag_run,
            task=task,
        )
        if host or host_only:
            raise UsageError("a fresh run starts a Spark of its own: leave out --host and --host-only")
        trigger = trigger or "drain"
    options = call.options(
        option,
        parallelism=parallelism,
        trigger=trigger,
        host=host,
        host_wait=host_wait,
        # Without a host for this run, the configuration's host_only does not count.
        host_only="true" if host_only else "false" if host == "" else None,
    )
    if not fresh:
        require_host(options)
    loaded = load_pipeline(file, Path.cwd(), revision, allow_non_restored_state=allow_non_restored_state)
    name = job or loaded.pipeline.name
    secrets, bound = handed_over(), parse_bounds(until)
    given = {**secrets.parameters, **pairs(parameter, "-p")}
    spark_conf = {**secrets.conf, **pairs(conf, "--conf")}
    if on := fit_host(options, name, master, spark_conf):
        call.output.log(on)
    if fresh and not options.checkpoint_dir:
        loaded.pipeline.arguments(given)
        checked = given
    else:
        found = new_job_of(options, name)
        checked = checked_parameters(loaded, found, given)
    if strict:
        compared = found.check(loaded.pipeline, checked)
        compared.refuse_evolution()
    logs.about(job=name)
    if taken := {n: v for n, v in checked.items() if n not in given}:
        document = taken_document(name, taken)
        call.output.event(document)
        call.output.note(taken_line(document))

    def finished(report: BatchReport) -> None:
        logs.about(epoch=report.record.epoch, slot=report.slot)
        body = batch_document(report, name)
        call.output.event(body)
        if options.progress and verbose:
            call.output.log(full_line(body))
        elif options.progress:
            show(batch_line(body))

    with ExitStack() as thrown_away:
        if fresh:
            from stateflow.jobs.fresh import fresh_run

            trial = thrown_away.enter_context(fresh_run(loaded, checked, options, master))
            loaded, options = trial.loaded, trial.options(options)
            found = new_job_of(options, name)
        with call.output.live() as show:
            report = run_loaded(
                loaded,
                found,
                checked,
                options=options,
                master=master,
                conf=spark_conf,
                until=bound,
                owner=this_process(dag_run=dag_run, task=task, note=note),
                takeover=takeover,
                drain=final,
                listener=finished,
                stop=AnnouncedStop(),
            )
        if fresh:
            for table in trial.tables():
                call.output.event(table_document(table), *table_pieces(table))
    call.output.event(run_document(report), run_line(report))


def require_host(options: Options) -> None:
    """Raises UsageError if the options about hosts cannot be meant."""
    from stateflow.hosts.settings import folder_of
    from stateflow.spark.session.lent import on_host

    if options.host:
        folder_of(options.host)
    elif options.host_only and not on_host():
        raise UsageError("--host-only needs a host: give --host NAME or set host")


def fit_host(options: Options, job: str, master: str | None, conf: Mapping[str, str]) -> str:
    """On a warm host, ends this process before it has done anything, if the host cannot serve the run; else says where the run is.
    Empty outside of one."""
    from stateflow.spark.session import lent

    if not lent.on_host():
        return ""
    wait = round(options.locality_wait.total_seconds() * 1000)
    lent.require_fit(master, {"spark.locality.wait": f"{wait}ms", **conf})
    if options.trigger != "drain":
        lent.note_endless(job)
    return f"runs on the warm host {lent.name_of_host()} ({lent.master_of_host()})"


def _refuse_beside_fresh(**given: object) -> None:
    for name, value in given.items():
        if value:
            raise UsageError(
                f"--fresh and --{name.replace('_', '-')} do not go together: a fresh run is of a throw-away job, which has no "
                "other run, state or scheduler; leave one of them out"
            )
