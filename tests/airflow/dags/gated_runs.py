"""A run of the gated pipeline, whose form says as which job and what to do about another live run; and one of a job that reads its output."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG, Param

from stateflow.airflow import StateflowRunOperator
from stateflow.airflow.launchers import SparkSubmit

PIPELINE = Path(__file__).resolve().with_name("gated.py")
FOLDER = os.environ.get("STORY_FOLDER", "/nowhere")

with DAG(
    "gated_runs",
    schedule=None,
    params={"job": Param("gated", type="string"), "on_live": Param("refuse", type="string")},
    max_active_runs=4,
):
    StateflowRunOperator(
        task_id="run",
        job="{{ params.job }}",
        pipeline=f"{PIPELINE}:gated",
        parameters={
            "input": f"{FOLDER}/{{{{ params.job }}}}/orders",
            "output": f"{FOLDER}/{{{{ params.job }}}}/totals",
            "gate": f"{FOLDER}/{{{{ params.job }}}}/gate",
        },
        on_live="{{ params.on_live }}",
        launcher=SparkSubmit(driver_memory="1g"),
        retries=2,
        retry_delay=timedelta(seconds=1),
    )

with DAG("sums", schedule=None):
    StateflowRunOperator(
        task_id="run",
        job="sums",
        pipeline=f"{PIPELINE.with_name('sums.py')}:sums",
        parameters={"input": f"{FOLDER}/gated/totals", "output": f"{FOLDER}/gated/sums"},
        launcher=SparkSubmit(driver_memory="1g"),
    )
