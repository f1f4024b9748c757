"""The connection of a checkpoint root: where it is, the credentials of its store, and the options of its jobs."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException
from airflow.sdk.log import mask_secret

from stateflow.errors import NotFoundError, StateflowError, UsageError

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from stateflow.config.options import Options
    from stateflow.jobs.job import Job

_PREFIX = "STATEFLOW_"
_PLAIN = (
    "region",
    "endpoint",
    "bucket",
    "allow_http",
    "style",
    "timeout",
    "retries",
    "account_name",
    "nameservice",
)
"""Storage options with these parts in their names are no secrets: a log may show them."""


class StateflowHook(BaseHook):
    """A `stateflow` connection. It is looked up when something of it is first needed."""

    conn_name_attr = "stateflow_conn_id"
    default_conn_name = "stateflow_default"
    conn_type = "stateflow"
    hook_name = "Stateflow"

    def __init__(self, stateflow_conn_id: str = default_conn_name, checkpoint_dir: str = "") -> None:
        """`checkpoint_dir` stands in for the connection's root; then the default connection may be missing."""
        super().__init__()
        self.stateflow_conn_id = stateflow_conn_id
        self.checkpoint_dir = checkpoint_dir

    @cached_property
    def root(self) -> str:
        root = self.checkpoint_dir or self._own_root
        if not root:
            raise UsageError(
                f"connection {self.stateflow_conn_id!r} has no checkpoint root: put it into its host, or into its extra as "
                '{"checkpoint_dir": "s3://bucket/checkpoints"}'
            )
        return root

    @cached_property
    def storage_options(self) -> dict[str, str]:
        """Settings and credentials of the store's client."""
        extra = self._extra.get("storage_options")
        if extra in (None, ""):
            return {}
        options = self._mapping("storage_options", extra)
        for name, value in options.items():
            if not any(part in name.lower() for part in _PLAIN) and value.lower() not in ("true", "false"):
                mask_secret(value)
        return options

    @property
    def page_conn_id(self) -> str:
        """For links and upgrades: the connection whose root has the job, however the task writes it; empty when the job lies elsewhere."""
        from stateflow.storage.places import paths_inside  # as in `options`

        own = self._own_root
        if self.checkpoint_dir and not (own and "" in paths_inside(self.checkpoint_dir, own)):
            return ""
        return self.stateflow_conn_id

    def options(self, **overrides: Any) -> Options:
        """The task's options, then the connection's, then those of the worker's environment and its `stateflow.toml`."""
        from stateflow.config.options import load  # a DAG file must not load the options

        settings = {**self._settings, **overrides}
        env = {name: value for name, value in os.environ.items() if not _is_option(name, settings)}
        return load(
            code=settings,
            env=env,
            origin_of_code=f"connection {self.stateflow_conn_id!r} or the task",
        )

    def environment(self) -> dict[str, str]:
        """The options as variables for another process. They hold credentials: never put them on a command line."""
        return {
            _PREFIX + name.upper(): json.dumps(value) if isinstance(value, Mapping) else str(value)
            for name, value in self._settings.items()
        }

    def job(self, name: str, **who: Any) -> Job:
        """A job of the root, which need not exist. `who`: further arguments of `Job`."""
        from stateflow.jobs.job import Job  # loads stateflow.spark, and a DAG file must not

        options = self.options()
        patience = options.heartbeat_timeout.total_seconds()
        return Job(self.root, name, storage_options=self.storage_options, heartbeat_timeout=patience, **who)

    def jobs(self) -> list[str]:
        """Names of the root's jobs."""
        from stateflow.jobs.job import jobs  # as above

        self.require_root()
        return jobs(self.root, storage_options=self.storage_options)

    def require_root(self) -> None:
        """Raises NotFoundError when the root is a folder that is not there, as on a worker that has not mounted it."""
        from stateflow.storage.roots import open_store  # a DAG file must not load stores

        folder = open_store(self.root, self.storage_options).local_root
        if folder is not None and not folder.is_dir():
            source = (
                "argument checkpoint_dir" if self.checkpoint_dir else f"connection {self.stateflow_conn_id!r}"
            )
            raise NotFoundError(
                f"the checkpoint root {folder} does not exist on this worker: check {source}; the first run of a job "
                "creates it"
            )

    def get_conn(self) -> Any:
        """The store of the root."""
        from stateflow.storage.roots import open_store  # as above

        return open_store(self.root, self.storage_options)

    def test_connection(self) -> tuple[bool, str]:
        """For the button in Airflow's UI."""
        try:
            folder = self.get_conn().local_root
            if folder is not None and folder.exists() and not folder.is_dir():
                return False, f"{folder} is a file: a checkpoint root is a folder"
            if folder is not None and not folder.exists():
                # Airflow tests the connection in its API server, under a temporary name.
                return False, (
                    f"{folder} does not exist where Airflow's API server runs: the first run of a job makes it, otherwise "
                    "check the path and what is mounted there"
                )
            jobs = self.jobs()
        except StateflowError as error:
            return False, str(error)
        return True, f"{self.root} has {len(jobs)} job{'' if len(jobs) == 1 else 's'}"

    @cached_property
    def _connection(self) -> Connection | None:
        try:
            connection = self.get_connection(self.stateflow_conn_id)
        except AirflowNotFoundException:
            if self.checkpoint_dir and self.stateflow_conn_id == self.default_conn_name:
                return None
        else:
            if connection.conn_type != self.conn_type:  # its password is for somebody else
                raise UsageError(
                    f"connection {self.stateflow_conn_id!r} is of type {connection.conn_type!r}: name one of type "
                    f"{self.conn_type!r}"
                )
            return connection
        raise NotFoundError(
            f"there is no connection {self.stateflow_conn_id!r}: add it with `airflow connections add "
            f'{self.stateflow_conn_id} --conn-type stateflow --conn-extra \'{{"checkpoint_dir": "s3://bucket/checkpoints"}}\'`'
        )

    @cached_property
    def _extra(self) -> dict[str, Any]:
        extra = self._connection.extra_dejson if self._connection is not None else {}
        if not isinstance(extra, dict):
            raise UsageError(
                f"the extra of connection {self.stateflow_conn_id!r} is no JSON object: write it like "
                '{"checkpoint_dir": "s3://bucket/checkpoints"}'
            )
        return extra

    @cached_property
    def _own_root(self) -> str:
        """The root that the connection itself names."""
        if folder := self._extra.get("checkpoint_dir"):
            return str(folder)
        if self._connection is None:
            return ""
        # In a connection that is written as a URI, the schema holds the path after its first part.
        host, path = self._connection.host or "", self._connection.schema or ""
        return f"{host.rstrip('/')}/{path}" if path else host

    @cached_property
    def _settings(self) -> dict[str, Any]:
        """Every option that the connection sets, the root and its credentials among them."""
        from stateflow.config.options import DECLARATIONS  # as above

        options = self._extra.get("options")
        settings: dict[str, Any] = {}
        if options not in (None, ""):
            for name, value in self._plain_mapping("options", options).items():
                settings[name.replace("-", "_")] = value
        for name in settings:
            if name not in DECLARATIONS:
                raise UsageError(
                    f"option {name!r} in the extra of connection {self.stateflow_conn_id!r} does not exist: "
                    "docs/configuration.md lists the options"
                )
        if self.storage_options:
            settings["storage_options"] = self.storage_options
        return {**settings, "checkpoint_dir": self.root}

    def _plain_mapping(self, field: str, value: Any) -> dict[str, Any]:
        """A table in the extra, or its JSON as the form of Airflow's UI gives it."""
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError:
                value = None
        if not isinstance(value, dict):
            raise self._no_mapping(field)
        return value

    def _mapping(self, field: str, value: Any) -> dict[str, str]:
        from stateflow.config.declaration import read  # as above
        from stateflow.config.options import DECLARATIONS

        try:
            return dict(read(DECLARATIONS[field], value))
        except ValueError:
            raise self._no_mapping(field) from None

    def _no_mapping(self, field: str) -> UsageError:
        # Never with the value: it may be a credential.
        return UsageError(
            f"{field} in the extra of connection {self.stateflow_conn_id!r} is not usable: it has to be a JSON object of "
            "names and plain values"
        )


def _is_option(variable: str, settings: Mapping[str, Any]) -> bool:
    return variable.startswith(_PREFIX) and variable.removeprefix(_PREFIX).lower() in settings
