"""A run of a pipeline that was loaded from a file: what the command line and a scheduler's task have in common."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stateflow.pipelines.parameters import required_parameters

if TYPE_CHECKING:
    from stateflow.config.options import Options
    from stateflow.jobs.job import Job
    from stateflow.pipelines.loading import LoadedPipeline
    from stateflow.spark.runner import RunReport


def checked_parameters(loaded: LoadedPipeline, job: Job, parameters: Mapping[str, str]) -> dict[str, str]:
    """Those given, and those that the pipeline cannot do without as its last run had them.

    Says what is wrong with them before Spark is loaded.
    """
    if job.exists:
        parameters = {**required_parameters(loaded.pipeline.function, job.log().head), **parameters}
    loaded.pipeline.arguments(parameters)
    return dict(parameters)


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
    """Runs it as `job`. Its code travels to the workers by value, since they have no file of that name."""
    from stateflow.spark.session.shipping import by_value

    # Under spark-submit the master is the submit's own, and may well be a cluster.
    submitted = master is None and "PYSPARK_GATEWAY_PORT" in os.environ
    cluster = submitted or (master is not None and not master.startswith("local"))
    by_value([loaded.module, *(loaded.siblings() if cluster else ())])
    return job.run(
        loaded.pipeline,
        parameters,
        options=options,
        master=master,
        conf={"spark.executorEnv.PYTHONPATH": str(loaded.folder), **conf},
        user_paths=[str(loaded.folder)],
        **request,
    )
