"""Runs a pipeline that was loaded from a file, for the command line and for a scheduler's task."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stateflow.checkpoint.control import (
    BOUND_BEHIND,
    BOUND_REACHED,
    INPUT_DRAINED,
    RunOutcome,
    newest_heartbeat,
)
from stateflow.errors import NotFoundError
from stateflow.pipelines.bounds import check_bounds, parse_bounds
from stateflow.quantities import time_text

if TYPE_CHECKING:
    from stateflow.config.options import Options
    from stateflow.format.records import Owner
    from stateflow.jobs.job import Job
    from stateflow.pipelines.loading import LoadedPipeline
    from stateflow.pipelines.pipeline import Pipeline
    from stateflow.replay.comparison import ReplayReport
    from stateflow.spark.runner import RunReport

_log = logging.getLogger(__name__)


def checked_parameters(pipeline: Pipeline, job: Job, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The given parameters; for required ones that are missing, the values of the job's last run."""
    return pipeline.parameters_behind(job.log().head if job.exists else None, parameters)


def foreseen(
    pipeline: str,
    job: Job,
    parameters: Mapping[str, str],
    *,
    options: Options,
    until: Sequence[str] = (),
    allow_non_restored_state: bool = False,
) -> RunOutcome | None:
    """The outcome of a run that would have no batch, found without Spark; None when only a run can find out.

    Never a refusal: what is wrong, a run says in its own words.
    """
    from stateflow.pipelines.loading import load_pipeline
    from stateflow.spark.inputs.lookahead import look_ahead, may_tell
    from stateflow.spark.sources.delta_log import Ahead, log_beside

    try:
        _, heartbeat = newest_heartbeat(job.store, job.layout)
        if heartbeat is not None and not heartbeat.ended:
            return None  # a run was lost, and the next one says that the job is well
        log = job.log() if job.exists else None
        bound = parse_bounds(until)
        if not may_tell(log, heartbeat, options, bounded=bound is not None):
            return None
        loaded = load_pipeline(pipeline, Path.cwd(), allow_non_restored_state=allow_non_restored_state)
        flow = loaded.pipeline.build(checked_parameters(loaded.pipeline, job, parameters))
        check_bounds(bound, flow)
        answer = look_ahead(
            flow,
            log,
            lambda path: log_beside(path, job.store, job.storage_options),
            bound,
            now=job.clock(),
            idle_after=options.source_idle_timeout // timedelta(microseconds=1),
        )
    except Exception as error:
        _log.debug("what is ahead cannot be told without Spark: %s", error)
        return None
    if answer is None:
        return None
    stopped = BOUND_BEHIND if answer is Ahead.BEHIND else INPUT_DRAINED if bound is None else BOUND_REACHED
    return RunOutcome(checkpoint=log.head.slot if log and log.head else None, stopped=stopped)


def run_loaded(
    loaded: LoadedPipeline,
    job: Job,
    parameters: Mapping[str, str],
    *,
    options: Options,
    master: str | None = None,
    conf: Mapping[str, str] = {},
    **request: Any,
) -> RunReport:
    """Runs the pipeline as `job`. Spark sends its code to the workers by value, because they do not have its file."""
    return job.run(loaded.pipeline, parameters, options=options, **shipped(loaded, master, conf), **request)


def replay_loaded(
    loaded: LoadedPipeline,
    job: Job,
    first: str,
    last: str,
    parameters: Mapping[str, str],
    *,
    options: Options,
    master: str | None = None,
    conf: Mapping[str, str] = {},
    newest: int | None = None,
    keep: str = "",
    owner: Owner | None = None,
    max_changed: float | None = None,
    **request: Any,
) -> ReplayReport:
    """Runs batches of `job` again with the pipeline, as `Job.replay` does; `newest` of them instead of `first` to `last`.

    `keep` is a name for the report, which is then kept beside the job, with what `max_changed` says of it.
    """
    report = job.replay(
        loaded.pipeline,
        first,
        last,
        parameters,
        newest=newest,
        options=options,
        **shipped(loaded, master, conf),
        **request,
    )
    if keep:
        from stateflow.replay import reports

        if old := reports.find(job.store, job.layout, keep):
            report.notes.append(
                f"the report takes the place of the one kept as {keep!r} on {time_text(old.at)}"
            )
        kept = reports.kept_report(
            report, keep, at=job.clock(), owner=owner or job.owner(), max_changed=max_changed
        )
        reports.keep(job.store, job.layout, kept)
        _refuse_erased(job, report, keep)
    return report


def _refuse_erased(job: Job, report: ReplayReport, name: str) -> None:
    """An erasure deletes the reports that it finds, and this one may have come later. So it is kept first, and the log read then."""
    from stateflow.replay import reports

    erased = [
        record.slot for record in job.log().chain if record.kind == "erase" and record.slot > report.last
    ]
    if erased:
        reports.forget(job.store, job.layout, name)
        raise NotFoundError(
            f"record {erased[-1]} of job {job.name!r} has erased a key while its batches up to {report.last} ran again, so report "
            f"{name!r} is not kept: replay batches that ran since"
        )


def shipped(loaded: LoadedPipeline, master: str | None, conf: Mapping[str, str]) -> dict[str, Any]:
    """How Spark is asked to run code that its workers do not have."""
    from stateflow.spark.session.lent import master_of_host
    from stateflow.spark.session.sent_modules import SentModules
    from stateflow.spark.session.shipping import by_value

    master = master or master_of_host()
    # spark-submit sets the master itself, and it may be a cluster.
    submitted = master is None and "PYSPARK_GATEWAY_PORT" in os.environ
    cluster = submitted or (master is not None and not master.startswith("local"))
    by_value([loaded.module, *(loaded.siblings() if cluster else ())])
    return {
        "master": master,
        "conf": {"spark.executorEnv.PYTHONPATH": str(loaded.folder), **conf},
        "sent_modules": SentModules((str(loaded.folder),))
        if cluster
        else SentModules.of(loaded.pipeline.own_files),
    }
