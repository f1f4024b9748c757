"""Runs a pipeline that was loaded from a file, for the command line and for a scheduler's task."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from stateflow.pipelines.parameters import required_parameters

if TYPE_CHECKING:
    from stateflow.config.options import Options
    from stateflow.jobs.job import Job
    from stateflow.pipelines.loading import LoadedPipeline
    from stateflow.spark.runner import RunReport


HANDED_OVER = "STATEFLOW_RUN_SECRETS"
"""The variable in which a scheduler hands a driver what no command line may show: every user of a host reads command lines."""


class RunSecrets(msgspec.Struct, frozen=True, omit_defaults=True):
    """Parameters of the pipeline and settings of Spark that are called like secrets."""

    parameters: dict[str, str] = {}
    conf: dict[str, str] = {}

    def variable(self) -> dict[str, str]:
        """For the environment of the driver; empty when there are none."""
        return {HANDED_OVER: msgspec.json.encode(self).decode()} if self.parameters or self.conf else {}


def handed_over(env: Mapping[str, str] = os.environ) -> RunSecrets:
    """What the process that started this one has handed over."""
    return msgspec.json.decode(env.get(HANDED_OVER) or "{}", type=RunSecrets)


def checked_parameters(loaded: LoadedPipeline, job: Job, parameters: Mapping[str, str]) -> dict[str, str]:
    """The given parameters; for required ones that are missing, the values of the job's last run.

    Refuses wrong ones before Spark loads.
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
    """Runs the pipeline as `job`. Spark sends its code to the workers by value, because they do not have its file."""
    from stateflow.spark.session.shipping import by_value

    # spark-submit sets the master itself, and it may be a cluster.
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
