"""A job from outside: what the command line, Airflow and scripts call. Nothing here needs Spark but `run`."""

from __future__ import annotations

from collections.abc import Mapping


from stateflow.checkpoint.layout import JobLayout
from stateflow.checkpoint.log import Log, list_jobs, read_identity, read_log
from stateflow.checkpoint.records import Record
from stateflow.checkpoint.roots import open_store
from stateflow.checkpoint.store import Store
from stateflow.errors import NotFoundError


class Job:
    """`Job("s3://bucket/root", "orders")`"""

    def __init__(self, root: str, name: str, *, storage_options: Mapping[str, str] | None = None) -> None:
        self.root = root
        self.name = name
        self.layout = JobLayout(name)
        self.store: Store = open_store(root, dict(storage_options or {}))

    def log(self) -> Log:
        """Everything that is known of the job's records."""
        if read_identity(self.store, self.layout) is None:
            known = ", ".join(list_jobs(self.store)) or "none"
            raise NotFoundError(f"there is no job {self.name!r} in {self.store.url}; its jobs are: {known}")
        return read_log(self.store, self.layout)

    def checkpoints(self) -> list[Record]:
        """Complete checkpoints, oldest first."""
        return list(self.log().checkpoints)

    def __repr__(self) -> str:
        return f"Job({self.root!r}, {self.name!r})"


def jobs(root: str, *, storage_options: Mapping[str, str] | None = None) -> list[str]:
    """The jobs of a checkpoint root."""
    return list_jobs(open_store(root, dict(storage_options or {})))


