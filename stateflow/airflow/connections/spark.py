"""Airflow's Spark connections, for drivers that are submitted and for sessions in a task's own process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from stateflow.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    from airflow.sdk import Connection

_TYPES = ("spark", "k8s", "yarn", "mesos", "local")
"""Of a connection; all but the first one are the schemes of those that are written as URLs."""


def spark_master(spark_conn_id: str | None) -> tuple[str | None, dict[str, str]]:
    """Master and settings for a session in this process; nothing for no connection."""
    if not spark_conn_id:
        return None, {}
    connection = _connection(spark_conn_id)
    extra = connection.extra_dejson
    if _in_cluster_mode(connection):
        raise UsageError(
            f"connection {spark_conn_id!r} submits in cluster mode, but this task starts Spark in its own process: name a "
            "connection in client mode"
        )
    conf = {}
    if extra.get("queue"):
        conf["spark.yarn.queue"] = str(extra["queue"])
    if extra.get("namespace"):
        conf["spark.kubernetes.namespace"] = str(extra["namespace"])
    return _master(connection), conf


def in_cluster_mode(spark_conn_id: str) -> bool:
    """Whether a connection starts its drivers on the cluster, and not where they are submitted."""
    return _in_cluster_mode(_connection(spark_conn_id))


def master_of(spark_conn_id: str) -> str:
    """Where a connection leads to, as the provider's hook reads it."""
    return _master(_connection(spark_conn_id))


def submit_hook(spark_conn_id: str, **arguments: Any) -> SparkSubmitHook:
    """The provider's hook; a connection that does not exist is refused instead of taken for YARN."""
    _connection(spark_conn_id)
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

    return SparkSubmitHook(conn_id=spark_conn_id, **arguments)


def _connection(spark_conn_id: str) -> Connection:
    try:
        connection = BaseHook.get_connection(spark_conn_id)
    except AirflowNotFoundException:
        raise NotFoundError(
            f"there is no connection {spark_conn_id!r}: add it with `airflow connections add {spark_conn_id} --conn-type spark "
            "--conn-host 'local[2]'` (or spark://HOST:7077, yarn, k8s://...)"
        ) from None
    if connection.conn_type not in _TYPES:
        raise UsageError(
            f"connection {spark_conn_id!r} has the type {connection.conn_type or 'of nothing'}, and Spark is found by one of type spark: name "
            "such a connection as spark_conn_id, or add one with `airflow connections add spark_default --conn-type spark --conn-host "
            "'local[2]'` (or spark://HOST:7077, yarn, k8s://...)"
        )
    return connection


def _in_cluster_mode(connection: Connection) -> bool:
    return bool(connection.extra_dejson.get("deploy-mode") == "cluster")


def _master(connection: Connection) -> str:
    host = connection.host or ""
    if connection.conn_type == "spark" and host and ("://" in host or not connection.port):
        url = host
    else:
        url = f"{connection.conn_type}://{host}"
    return f"{url}:{connection.port}" if connection.port else url
