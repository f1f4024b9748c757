"""Sensors in every mode, and the alert of a run that is late."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, AsyncCallback, DeadlineAlert, DeadlineReference, Param

from stateflow.airflow import CheckpointFreshnessSensor, StaleJobs, WatermarkSensor

SEND = "tests.airflow.looking.written"

late = DeadlineAlert(
    reference=DeadlineReference.DAGRUN_QUEUED_AT,
    interval=timedelta(seconds=1),
    callback=AsyncCallback(StaleJobs, kwargs={"older_than": "1 hour", "send": SEND}),
)

with DAG(
    "waiting",
    schedule=None,
    params={"job": Param("seen", type="string"), "until": Param("2026-01-01", type="string")},
    deadline=late,
    default_args={"job": "{{ params.job }}", "poke_interval": 1, "retries": 0},
):
    CheckpointFreshnessSensor(task_id="fresh", max_age="1 hour", deferrable=True)
    CheckpointFreshnessSensor(task_id="rescheduled", max_age="1 hour", mode="reschedule")
    WatermarkSensor(task_id="reached", watermark="{{ params.until }}", deferrable=True)
    CheckpointFreshnessSensor(
        task_id="away",
        max_age="1 hour",
        deferrable=True,
        stateflow_conn_id="unreachable",
        store_patience=timedelta(seconds=1),
        on_failure_callback=StaleJobs("1 hour", stateflow_conn_id="unreachable", send=SEND),
    )
