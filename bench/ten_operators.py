"""A DAG with ten operators, one of each kind at least: how long does Airflow take to parse it?"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG

from stateflow.airflow import (
    CheckpointFreshnessSensor,
    StateflowCleanupOperator,
    StateflowRescaleOperator,
    StateflowRestoreOperator,
    StateflowRunOperator,
    StateflowSavepointOperator,
    StateflowStopOperator,
    StateflowVerifyOperator,
    WatermarkSensor,
    checkpoint_asset,
)

with DAG("ten", schedule="@hourly", catchup=False, default_args={"retries": 3}) as dag:
    StateflowRunOperator(
        task_id="run",
        pipeline="orders.py:orders",
        parameters={"input": "a", "output": "b"},
        until="{{ data_interval_end }}",
        outlets=[checkpoint_asset("orders")],
    )
    StateflowRunOperator(task_id="other", pipeline="clicks.py:clicks", table_assets=True)
    StateflowSavepointOperator(task_id="savepoint", job="orders", expires=timedelta(days=30))
    StateflowCleanupOperator(task_id="cleanup", retained=10, age=timedelta(days=1))
    StateflowVerifyOperator(task_id="verify", job="orders")
    StateflowStopOperator(task_id="stop", job="orders", savepoint=True)
    StateflowRescaleOperator(task_id="rescale", job="orders", parallelism=8)
    StateflowRestoreOperator(
        task_id="plan", job="orders", pipeline="orders.py:orders", origin="checkpoint:42", dry_run=True
    )
    CheckpointFreshnessSensor(task_id="fresh", job="orders", max_age=timedelta(hours=1))
    WatermarkSensor(task_id="complete", job="orders", watermark="{{ data_interval_end }}")
