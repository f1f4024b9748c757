"""What Airflow's configuration says of these pages: section `[stateflow]`, or `AIRFLOW__STATEFLOW__...`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from types import MappingProxyType
from urllib.parse import urlsplit

from airflow.configuration import conf

from stateflow.quantities import duration

SECTION = "stateflow"
STALE_AFTER = "26 hours"
"""A day and some slack: what a job that runs once a day may need."""
ACTIONS: Mapping[str, str] = MappingProxyType(
    {
        "savepoint": "stateflow_savepoint",
        "cleanup": "stateflow_cleanup",
        "stop": "stateflow_stop",
        "recovery": "stateflow_recovery",
    }
)
"""What the pages' buttons do, and the DAG that does it unless `[stateflow] <action>_dag` names another."""


def base_path() -> str:
    """The path below which Airflow is served, without a slash at its end."""
    return urlsplit(conf.get("api", "base_url", fallback="") or "").path.rstrip("/")


def named_connections() -> list[str]:
    """`conn_ids`: connections that cannot be found by looking, since a secrets backend holds them."""
    return [each.strip() for each in _text("conn_ids").split(",") if each.strip()]


def action_dags() -> dict[str, str]:
    return {action: _text(f"{action}_dag") or dag_id for action, dag_id in ACTIONS.items()}


class StaleAfter:
    """`stale_after`: `26 hours`, or with what is different of single jobs, `26 hours, orders=15 minutes, replay=never`."""

    def __init__(self, text: str) -> None:
        self._of_all: timedelta | None = duration(STALE_AFTER)
        self._of_job: dict[str, timedelta | None] = {}
        self.problem = ""
        for part in filter(None, (each.strip() for each in text.split(","))):
            job, named, length = part.rpartition("=")
            try:
                bound = None if length.strip() == "never" else duration(length.strip())
            except ValueError as error:
                self.problem = f"[stateflow] stale_after: {error}"
                continue
            if named:
                self._of_job[job.strip()] = bound
            else:
                self._of_all = bound

    def of(self, job: str) -> timedelta | None:
        """How long a job may be without anything new; None: for ever."""
        return self._of_job.get(job, self._of_all)


def stale_after() -> StaleAfter:
    return StaleAfter(_text("stale_after"))


def _text(name: str) -> str:
    return str(conf.get(SECTION, name, fallback="") or "")
