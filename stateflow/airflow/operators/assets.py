"""Assets that a DAG can be scheduled on: a job's checkpoints, and the tables that it writes."""

from __future__ import annotations

from airflow.sdk import Asset, AssetAlias

from stateflow.airflow.connections.stateflow import StateflowHook


def checkpoint_asset(job: str, stateflow_conn_id: str = StateflowHook.default_conn_name) -> Asset:
    """Give it to a run as `outlets=[...]`: each event then carries checkpoint, offsets, rows, watermark and state size."""
    return Asset(
        name=f"stateflow/{stateflow_conn_id}/{job}",
        uri=f"stateflow://{stateflow_conn_id}/{job}",
        group="stateflow",
    )


def tables_alias(name: str) -> AssetAlias:
    """Stands for the tables that a run writes: only the run knows them."""
    return AssetAlias(name=f"stateflow/{name}/tables", group="stateflow")


def table_asset(target: str, name: str = "") -> Asset | None:
    """The asset of a Delta table at a path, as others name it: `s3://` for Hadoop's `s3a://`, `file://` for a folder. None if
    others have no name for its place. One that a catalog calls `name` is known by that."""
    if name:
        return Asset(name=name)
    scheme, slashes, rest = target.partition("://")
    if not slashes:
        if target.startswith("file:/"):
            return table_asset(target.removeprefix("file:"))
        return Asset(uri=f"file://{target.rstrip('/')}") if target.startswith("/") else None
    scheme = {"s3a": "s3", "s3n": "s3", "abfss": "abfs"}.get(scheme, scheme)
    return Asset(uri=f"{scheme}://{rest.rstrip('/')}")
