"""The asset that stands for a job's checkpoints: a DAG can be scheduled on it."""

from __future__ import annotations

from airflow.sdk import Asset

from stateflow.airflow.connections.stateflow import StateflowHook


def checkpoint_asset(job: str, stateflow_conn_id: str = StateflowHook.default_conn_name) -> Asset:
    """Give it to a run as `outlets=[...]`: each event then carries checkpoint, offsets, rows, watermark and state size."""
    return Asset(
        name=f"stateflow/{stateflow_conn_id}/{job}",
        uri=f"stateflow://{stateflow_conn_id}/{job}",
        group="stateflow",
    )
