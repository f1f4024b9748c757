"""The pipeline of a victim on a warm host: `stateflow run murder_hosted.py:hosted --host ...`, as users type it."""

import os

import stateflow as sf
from stateflow.spark.session import lent
from tests.spark import murder_pipelines
from tests.spark.murder_points import arm, tell

AT = "STATEFLOW_MURDER_AT"


@sf.pipeline(murder_pipelines.JOB)
def hosted(flow: sf.Flow, *, folder: str, upsert: bool, straggle: float) -> None:
    murder_pipelines.chain(flow, folder=folder, upsert=upsert, straggle=straggle)


def _tell_of_batches() -> None:
    from stateflow.checkpoint import writer

    complete = writer.Writer.complete

    def completed(*args: object, **kwargs: object) -> object:
        result = complete(*args, **kwargs)  # type: ignore[arg-type]
        tell("batch")
        return result

    writer.Writer.complete = completed  # type: ignore[method-assign,assignment]


if lent.on_host():  # a worker of the run may load this file, too
    arm(os.environ.get(AT, ""))
    _tell_of_batches()
