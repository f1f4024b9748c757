"""What the run operator asks of a way to start drivers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from stateflow.driver.supervision import Launcher


class LaunchMethod(Protocol):
    """Written into a DAG; `bound` is called when the task runs. Another kind of cluster is another one of these."""

    detached: bool
    """Whether its drivers outlive the task that has started them."""

    def bound(self, spark_conn_id: str) -> Launcher:
        """For one Spark connection. Raises StateflowError before anything is started if it cannot work."""
        ...
