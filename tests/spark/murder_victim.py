"""The driver of a run that will be killed: `python -m tests.spark.murder_victim ERRAND`, with an errand as JSON."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

import stateflow as sf
from tests.quick_java import QUICK_JAVA
from tests.spark import murder_pipelines
from tests.spark.murder_pipelines import JOB, attempts, chain, copies, growing, ready, windows
from tests.spark.murder_points import arm, jump, tell

QUICK = {
    # A run lives for seconds: what the JVM's second compiler and generated code would gain never comes back.
    "spark.driver.extraJavaOptions": QUICK_JAVA,
    "spark.executor.extraJavaOptions": QUICK_JAVA,
    "spark.driver.memory": "1g",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.databricks.delta.snapshotPartitions": "1",
}


class Errand(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one run is to do."""

    folder: str
    master: str = "local[2,4]"
    story: str = "chain"
    takeover: bool = True
    at: str = ""
    """`point:n:kill` or `point:n:stop`: what happens to the process group when a point is passed the n-th time."""
    upsert: bool = False
    straggle: float = 0.0
    """The share of tasks of the first operator whose first attempt takes seconds."""
    release: int = 0
    """Of the code, where the story has several."""
    clock: float = 0.0
    """So many hours at most, either way, does the clock of the driver's Python jump every second or so."""
    kafka: str = ""
    """The address of the broker that has the orders; by default they are in a Delta table in the folder."""
    rows_a_batch: int = 15
    """Of the topic, at most."""
    conf: dict[str, str] = {}
    options: dict[str, Any] = {}


PIPELINES: dict[str, Callable[[Errand], tuple[Any, dict[str, Any]]]] = {
    "chain": lambda e: (
        chain,
        {
            "folder": e.folder,
            "upsert": e.upsert,
            "straggle": e.straggle,
            **({"kafka": e.kafka, "most": e.rows_a_batch} if e.kafka else {}),
        },
    ),
    "attempts": lambda e: (attempts, {"folder": e.folder}),
    "copies": lambda e: (copies, {"folder": e.folder}),
    "growing": lambda e: (growing, {"folder": e.folder, "release": e.release}),
    "ready": lambda e: (ready, {"folder": e.folder}),
    "windows": lambda e: (windows, {"folder": e.folder}),
}


def main(errand: Errand) -> int:
    from stateflow.config.options import load
    from stateflow.spark.runner import RunRequest, run
    from stateflow.spark.session.shipping import by_value
    from tests.spark.murder_jvm import adopt

    if "PYSPARK_GATEWAY_PORT" in os.environ:
        adopt()
    by_value([murder_pipelines])
    arm(errand.at)
    if errand.clock:
        jump(errand.clock)
    folder = Path(errand.folder)
    options = load(
        code={"checkpoint_dir": str(folder / "root"), "cache_dir": str(folder / "cache"), **errand.options},
        env={},
        folder=folder,
    )
    tell("begins")
    pipeline, parameters = PIPELINES[errand.story](errand)
    began = time.perf_counter()

    def told(report: Any) -> None:
        tell(
            "batch",
            slot=report.slot,
            rows=report.rows,
            seconds=round(report.duration, 2),
            free=report.input_free,
        )

    try:
        report = run(
            RunRequest(
                pipeline,
                options,
                parameters,
                job=JOB,
                master=errand.master,
                takeover=errand.takeover,
                listener=told,
                conf={"spark.sql.warehouse.dir": str(folder / "warehouse"), **QUICK, **errand.conf},
            )
        )
    except sf.StateflowError as error:
        tell(
            "error",
            kind=type(error).__name__,
            message=str(error),
            seconds=round(time.perf_counter() - began, 2),
        )
        return error.exit_code
    tell(
        "ended", batches=report.batches, checkpoint=report.checkpoint, stopped=report.stopped,
        seconds=round(time.perf_counter() - began, 2),
    )  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main(msgspec.json.decode(sys.argv[1], type=Errand)))
