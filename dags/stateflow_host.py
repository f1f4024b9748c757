"""### Keep a warm host

Starts a Spark application on the worker that stays, so that runs of `launcher=WarmHost("team")` begin in a moment. The task waits in
the triggerer, and a host that has died is started again within five minutes. For those who have only Airflow: where systemd,
Compose or Kubernetes keep services, let them keep the host (docs/deploying.md).

Switch this DAG on to have a host. To end it, pause the DAG, then mark the task as failed: the host drains, its runs end by
themselves, and new ones have a driver of their own.

**Several workers.** A host carries out runs of its own machine alone. Give each worker that is to have a host a queue of its own, and
name that queue in the tasks of the host and of its runs. **KubernetesExecutor** ends the host with the task's pod: take the
deployment of docs/deploying.md there.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG
from stateflow_settings import SETTINGS

from stateflow.airflow import StateflowHostOperator

with DAG(
    dag_id="stateflow_host",
    description="Keeps a warm host on the worker",
    doc_md=__doc__,
    # As soon as one run of the DAG has ended, the next one begins.
    schedule="@continuous",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 1000, "retry_delay": timedelta(minutes=1)},
    tags=["stateflow"],
):
    StateflowHostOperator(
        task_id="keep",
        host=SETTINGS.host,
        runs=SETTINGS.host_runs,
        memory=SETTINGS.host_memory,
        lease=timedelta(minutes=15),
        deferrable=True,
    )
