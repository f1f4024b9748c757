"""`stateflow restore`: state, timers, watermark and source offsets come back together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stateflow.cli.options import (
    Arguments,
    Conf,
    Count,
    Invocation,
    JobName,
    Note,
    PipelineArguments,
    Settings,
    Strict,
    Takeover,
    Yes,
    command,
    flag,
    new_job_of,
    pairs,
)
from stateflow.cli.text import size
from stateflow.errors import UsageError

if TYPE_CHECKING:
    from stateflow.pipelines.pipeline import Pipeline
    from stateflow.restore.planned import RestorePlan
    from stateflow.restore.together import RestoreTogether


@dataclass(frozen=True, kw_only=True)
class RestoreArguments(Arguments):
    origin: Annotated[
        str,
        flag("--from", metavar="checkpoint:N|tag:NAME|latest|URL", help="The snapshot."),
    ]
    from_job: Annotated[
        str, flag("--from-job", metavar="JOB", help="Whose checkpoint, if not JOB's own.")
    ] = ""
    claim_mode: Annotated[
        str,
        typer.Option(
            metavar="claim|no-claim",
            help="Of a savepoint: no-claim copies it and never touches it again; claim makes it the job's own.",
        ),
    ] = "no-claim"
    rewind_sinks: Annotated[
        bool, typer.Option("--rewind-sinks", help="Take the outputs back to the checkpoint, too.")
    ] = False
    clone_sinks: Annotated[
        bool,
        typer.Option(
            "--clone-sinks",
            help="Of a fork: begin with copies of the other job's tables, as of the checkpoint.",
        ),
    ] = False
    with_readers: Annotated[
        bool,
        typer.Option(
            "--with-readers",
            help="Also take back the jobs of this root that have read what --rewind-sinks undoes, and their readers.",
        ),
    ] = False
    reader: Annotated[
        list[str] | None,
        flag("--reader", metavar="JOB=FILE", help="With --with-readers: the pipeline of such a job."),
    ] = None
    reset_watermark: Annotated[
        bool, typer.Option("--reset-watermark", help="Begin event time anew, as after a drained run.")
    ] = False
    parallelism: Annotated[int | None, flag(min=1, help="Subtasks from now on.")] = None
    max_parallelism: Annotated[int | None, flag(min=1, help="canonical: key groups from now on.")] = None
    plan_digest: Annotated[
        str | None,
        flag(
            metavar="DIGEST", help="Of the plan that was approved: it is carried out as it was, or refused."
        ),
    ] = None
    strict: Strict = False
    count: Count = False
    takeover: Takeover = False
    note: Note = ""
    revision: Annotated[
        str, flag("--revision", help="The version of the pipeline's code, such as a commit.")
    ] = ""
    conf: Conf = None

    def request(self) -> dict[str, Any]:
        """The fields of `RestoreRequest` that are typed."""
        from stateflow.checkpoint.process import this_process

        mode = self.claim_mode.replace("-", "_")
        if mode not in ("claim", "no_claim"):
            raise UsageError(f"--claim-mode {self.claim_mode!r} is neither claim nor no-claim")
        names = ("from_job", "rewind_sinks", "clone_sinks", "reset_watermark", "takeover", "count")
        return {
            **{name: getattr(self, name) for name in names},
            "claim_mode": mode,
            "parallelism": self.parallelism or 0,
            "max_parallelism": self.max_parallelism or 0,
            "approved": self.plan_digest,
            "owner": this_process(note=self.note),
            "conf": pairs(self.conf, "--conf"),
        }

    def readers(self) -> dict[str, Pipeline]:
        """The pipelines of jobs that go back with this one."""
        from stateflow.pipelines.loading import load_pipeline

        files = pairs(self.reader, "--reader")
        found = {name: load_pipeline(file, Path.cwd()).pipeline for name, file in files.items()}
        if found and not self.with_readers:
            raise UsageError("--reader says which pipeline a reader runs: give --with-readers, too")
        return found


@command
def restore(
    call: Invocation,
    job: JobName,
    pipeline: PipelineArguments,
    arguments: RestoreArguments,
    yes: Yes = False,
    option: Settings = None,
) -> None:
    """Restores a job to a checkpoint, a tag or a savepoint; without --yes it prints the plan.

    Into a job that does not exist yet it is a fork. What follows the snapshot stays as another timeline.
    """
    from stateflow.restore.plan import Restored

    options = call.options(option)
    request = {"options": options, **arguments.request()}
    loaded = pipeline.load(arguments.revision)
    found = new_job_of(options, job)
    readers = arguments.readers()
    origin, together = arguments.origin, arguments.with_readers
    plan: RestorePlan | RestoreTogether
    if together:
        plan = found.restore_with_readers(origin, loaded.pipeline, readers, pipeline.values, **request)
    else:
        plan = found.restore(origin, loaded.pipeline, pipeline.values, **request)
    if arguments.strict:
        for each in plan.plans:
            each.check.refuse_evolution()
    if not yes:
        note = f"Nothing was done: --yes restores {'them' if together else 'it'}."
        call.output.answer({**plan.document(), "restored": False}, str(plan), note=note)
        return
    call.output.note(str(plan))
    with call.output.progress(f"restore of {job}", shown=options.progress) as progress:
        done = plan.apply(progress)
    facts: dict[str, Any]
    if isinstance(done, Restored):
        facts = {"record": done.checkpoint, "copied_bytes": done.copied_bytes, "sinks_rewound": done.sinks}
        copied = f", {size(done.copied_bytes)} copied" if done.copied_bytes else ""
        what = f"job {job} is restored: record {done.checkpoint}, timeline {done.timeline}{copied}; the next run goes on from it"
    else:
        facts = {"records": {name: each.checkpoint for name, each in done.items()}}
        jobs = ", ".join(f"{name} (record {record})" for name, record in facts["records"].items())
        what = f"restored, in this order: {jobs}; their next runs go on from there"
    call.output.answer({**plan.document(), "restored": True, **facts}, what)
