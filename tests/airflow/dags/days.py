"""One day after the other, as a new job reads its past. The second one fails until somebody has mended what it needs."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG, CronDataIntervalTimetable

FOLDER = Path(os.environ.get("STORY_FOLDER", "."))
TODAY = datetime.fromisoformat(os.environ.get("STORY_DAY", "2026-01-04")).replace(tzinfo=UTC)
FIRST = TODAY - timedelta(days=3)


def work(**context: Any) -> None:
    day: datetime = context["data_interval_start"]
    if day == FIRST + timedelta(days=1) and not (FOLDER / "mended").exists():
        raise ValueError("not mended")
    with (FOLDER / "days").open("a", encoding="utf-8") as days:
        days.write(f"{(day - FIRST).days}\n")


with DAG(
    "days",
    schedule=CronDataIntervalTimetable("@daily", timezone="UTC"),
    start_date=FIRST,
    end_date=TODAY,
    catchup=True,
    max_active_runs=1,
):
    PythonOperator(task_id="run", python_callable=work, depends_on_past=True, retries=0)
