"""What a platform engineer tries in an hour: days that are processed again, DAGs that wait for a table, tasks that hold no slot."""

from __future__ import annotations

import os
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Any

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Asset, AssetAlias, CronDataIntervalTimetable, Param

from stateflow.airflow import StateflowRunOperator
from stateflow.airflow.launchers import InProcess, SparkSubmit

PIPELINE = Path(__file__).resolve().with_name("gated.py")
FOLDER = os.environ.get("STORY_FOLDER", "/nowhere")
TODAY = date.fromisoformat(os.environ.get("STORY_DAY", "2026-01-08"))
"""The test's, which may run over midnight: a DAG's file is read again and again."""


def run(job: str, **arguments: Any) -> StateflowRunOperator:
    """Tried again at once, so that a try that was used up shows."""
    of_job = f"{FOLDER}/{job}"
    return StateflowRunOperator(
        task_id="run",
        job=job,
        pipeline=f"{PIPELINE}:gated",
        parameters={"input": f"{of_job}/orders", "output": f"{of_job}/totals", "gate": f"{of_job}/gate"},
        retries=2,
        retry_delay=timedelta(seconds=1),
        **{"launcher": SparkSubmit(driver_memory="1g"), **arguments},
    )


with DAG(
    "daily_totals",
    schedule=CronDataIntervalTimetable("@daily", timezone="UTC"),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    params={"on_past_until": Param("fail", type="string")},
):
    run("daily", until="{{ data_interval_end }}", on_past_until="{{ params.on_past_until }}")

with DAG(
    "from_the_first_day",
    schedule=CronDataIntervalTimetable("@daily", timezone="UTC"),
    start_date=datetime.combine(TODAY - timedelta(2), time(), UTC),
    end_date=datetime.combine(TODAY - timedelta(1), time(), UTC),
    catchup=True,
    max_active_runs=1,
):
    run("first_day", until="{{ data_interval_end }}", depends_on_past=True)

with DAG("plain_cron", schedule="@daily", start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False):
    EmptyOperator(task_id="nothing")

with DAG("inside", schedule=None):
    run("inside", launcher=InProcess())

with DAG("produced", schedule=None):
    # A text is no asset, and Airflow lets a DAG have it.
    run("chain", table_assets=True, outlets=[AssetAlias("whatever-it-writes"), "s3://lake/text"])

with DAG("consumed", schedule=[Asset(f"file://{FOLDER}/chain/totals")]):
    EmptyOperator(task_id="report")

with DAG("consumed_by_alias", schedule=[AssetAlias("whatever-it-writes")]):
    EmptyOperator(task_id="report")

with DAG("patient", schedule=None, max_active_runs=4):
    run("patient", on_live="wait", deferrable=True)
