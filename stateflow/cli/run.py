"""`stateflow run`: the pipeline of a file, to the end of its trigger."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from stateflow.cli.options import (
    Arguments,
    Invocation,
    PipelineArguments,
    PipelinesJob,
    Settings,
    SparkArguments,
    Strict,
    command,
    flag,
    new_job_of,
)
from stateflow.cli.output import CommandOutput, ConsoleOutput
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
    from collections.abc import Callable, Mapping

    from stateflow.config.options import Options
    from stateflow.jobs.job import Job
    from stateflow.pipelines.loading import LoadedPipeline
    from stateflow.spark.loop import BatchReport


class AnnouncedStop(threading.Event):
    """A stop that says so at once: the batch under way may take a while."""

    def set(self) -> None:
        said = self.is_set()
        super().set()
        if not said:
            # One of its own: a signal may come while the run is printing.
            output = ConsoleOutput()
            again = "; Ctrl-C ends it at once" if output.interactive else ""
            output.log(f"stopping after this batch{again}")


@dataclass(frozen=True, kw_only=True)
class RunArguments(Arguments):
    job: PipelinesJob = None
    parallelism: Annotated[
        int | None,
        flag(min=1, help="Subtasks of a keyed operator; another number than before rescales the job."),
    ] = None
    trigger: Annotated[
        str | None,
        flag(
            metavar="drain|until-stopped|DURATION",
            help="When batches are taken, and whether the run ends by itself.",
        ),
    ] = None
    until: Annotated[
        list[str] | None,
        flag(
            metavar="[SOURCE=]VERSION|TIME",
            help="End at this version or time (ISO, UTC unless it says otherwise), included.",
        ),
    ] = None
    option: Settings = None
    takeover: Annotated[bool, flag("--takeover", help="Fence a live run instead of refusing to start.")] = (
        False
    )
    strict: Strict = False
    final: Annotated[
        bool,
        flag("--final", help="When the input is drained, fire every event-time timer: the job is over then."),
    ] = False
    note: Annotated[str, flag("--note", help="Kept with every record of the run.")] = ""
    revision: Annotated[
        str, flag("--revision", help="The version of the pipeline's code, such as a commit: kept likewise.")
    ] = ""
    dag_run: Annotated[
        str, flag("--dag-run", help="The scheduler's run that this is part of: kept with every record.")
    ] = ""
    task: Annotated[str, flag("--task", help="The task of that run; it takes over from itself.")] = ""
    user: Annotated[
        str,
        flag(
            "--user",
            help="Who asked for the run: kept with every record; else the user that it runs as.",
        ),
    ] = ""
    host: Annotated[
        str | None, flag("--host", metavar="NAME", help="The warm host to run on; else a driver of its own.")
    ] = None
    host_wait: Annotated[
        str | None, flag("--host-wait", metavar="DURATION", help="How long to wait for a place on it.")
    ] = None
    host_only: Annotated[bool, flag("--host-only", help="Fail rather than start a driver of its own.")] = (
        False
    )
    verbose: Annotated[
        bool, flag("--verbose", "-v", help="All figures of a batch, on a line of its own.")
    ] = False
    fresh: Annotated[
        bool,
        flag(
            "--fresh",
            help="Try the code: a throw-away job from the beginning of its sources, whose outputs are shown and not kept.",
        ),
    ] = False

    def options(self, call: Invocation) -> Options:
        return call.options(
            self.option,
            parallelism=self.parallelism,
            trigger="drain" if self.fresh and not self.trigger else self.trigger,
            host=self.host,
            host_wait=self.host_wait,
            # Without a host for this run, the configuration's host_only does not count.
            host_only="true" if self.host_only else "false" if self.host == "" else None,
        )

    def refuse_beside_fresh(self, pipeline: PipelineArguments) -> None:
        """A fresh run has no other run, state, scheduler or host."""
        given = {
            "--takeover": self.takeover,
            "--strict": self.strict,
            "--allow-non-restored-state": pipeline.allow_non_restored_state,
            "--dag-run": self.dag_run,
            "--task": self.task,
        }
        for name, value in given.items():
            if value:
                raise UsageError(
                    f"--fresh and {name} do not go together: a fresh run is of a throw-away job, which has no "
                    "other run, state or scheduler; leave one of them out"
                )
        if self.host or self.host_only:
            raise UsageError("a fresh run starts a Spark of its own: leave out --host and --host-only")


@command
def run(
    call: Invocation, pipeline: PipelineArguments, spark: SparkArguments, arguments: RunArguments
) -> None:
    """Runs a pipeline: carries on from its newest checkpoint and takes one per micro-batch.

    Ctrl-C or SIGTERM ends the run at the end of its batch.
    """
    from stateflow import logs
    from stateflow.checkpoint.process import this_process
    from stateflow.jobs.run_secrets import handed_over
    from stateflow.jobs.running import run_loaded
    from stateflow.pipelines.bounds import parse_bounds

    fresh = arguments.fresh
    if fresh:
        arguments.refuse_beside_fresh(pipeline)
    options = arguments.options(call)
    if not fresh:
        require_host(options)
    loaded = pipeline.load(arguments.revision)
    name = arguments.job or loaded.pipeline.name
    secrets, bound = handed_over(), parse_bounds(arguments.until)
    given = {**secrets.parameters, **pipeline.values}
    spark_conf = {**secrets.conf, **spark.settings}
    if on := fit_host(options, name, spark.master, spark_conf):
        call.output.log(on)
    logs.about(job=name)
    found = new_job_of(options, name) if options.checkpoint_dir or not fresh else None
    checked = _checked(call.output, loaded, found, given, strict=arguments.strict)
    with ExitStack() as thrown_away:
        if fresh:
            from stateflow.jobs.fresh import fresh_run

            trial = thrown_away.enter_context(fresh_run(loaded, checked, options, spark.master))
            loaded, options = trial.loaded, trial.options(options)
        with call.output.live() as show:
            shown = show if options.progress else None
            report = run_loaded(
                loaded,
                new_job_of(options, name),
                checked,
                options=options,
                master=spark.master,
                conf=spark_conf,
                until=bound,
                owner=this_process(
                    dag_run=arguments.dag_run,
                    task=arguments.task,
                    note=arguments.note,
                    user=arguments.user,
                ),
                takeover=arguments.takeover,
                drain=arguments.final,
                listener=_listener(call.output, name, shown, verbose=arguments.verbose),
                stop=AnnouncedStop(),
            )
        if fresh:
            for table in trial.tables():
                call.output.event(table_document(table), *table_pieces(table))
    call.output.event(run_document(report), run_line(report))


def _checked(
    output: CommandOutput, loaded: LoadedPipeline, job: Job | None, given: dict[str, str], *, strict: bool
) -> dict[str, str]:
    """The parameters of the run. Says which of them are those of the job's last run."""
    from stateflow.jobs.running import checked_parameters

    if job is None:
        loaded.pipeline.arguments(given)
        return given
    checked = checked_parameters(loaded.pipeline, job, given)
    if strict:
        job.check(loaded.pipeline, checked).refuse_evolution()
    if taken := {name: value for name, value in checked.items() if name not in given}:
        document = taken_document(job.name, taken)
        output.event(document)
        output.note(taken_line(document))
    return checked


def _listener(
    output: CommandOutput, job: str, show: Callable[[str], None] | None, *, verbose: bool
) -> Callable[[BatchReport], None]:
    """Prints each batch as it ends: an event for programs, a line for people."""
    from stateflow import logs

    def finished(report: BatchReport) -> None:
        logs.about(epoch=report.record.epoch, slot=report.slot)
        body = batch_document(report, job)
        output.event(body)
        if show is not None and verbose:
            output.log(full_line(body))
        elif show is not None:
            show(batch_line(body))

    return finished


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
