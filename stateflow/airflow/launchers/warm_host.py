"""Drivers on a warm host of this worker: the run begins in a moment, because Spark runs already."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stateflow.airflow.launchers.environment import checked, inherited, shown
from stateflow.airflow.launchers.spark_submit import CommandSubmission, SparkSubmit, variables_of
from stateflow.airflow.launchers.templates import is_template
from stateflow.hosts.client import NAME, not_a_name

if TYPE_CHECKING:
    from stateflow.driver.processes import DriverProcess
    from stateflow.driver.run_spec import DriverSpec
    from stateflow.driver.supervision import Launcher


class WarmHost:
    """`WarmHost("team")`: the run goes to the host that `stateflow host start team` has started on the worker.

    `wait`: seconds to wait for a place on it. Whatever the host does not take, `otherwise` starts. `only=True`: then the task fails
    instead, also when the host's Spark has died and is not back after `wait`; a host that is full or drains is tried again without using
    up a try. `env`: variables for the run.
    """

    detached = True
    template_fields = ("name", "env", "otherwise")
    """For Airflow, which renders them with the operator that the launcher is given to."""

    def __init__(
        self,
        name: str,
        *,
        wait: float = 30.0,
        only: bool = False,
        otherwise: SparkSubmit | None = None,
        env: Mapping[str, Any] | None = None,
    ) -> None:
        # The name may be a template, which Airflow renders when the task runs.
        if not isinstance(name, str) or not (is_template(name) or NAME.fullmatch(name)):
            raise ValueError(f"WarmHost: {not_a_name(name)}")
        if isinstance(wait, bool) or not isinstance(wait, int | float) or not wait >= 0:
            raise ValueError(
                f"WarmHost takes seconds to wait for a place, such as wait=30, not wait={wait!r}"
            )
        if not isinstance(only, bool):
            raise ValueError(f"WarmHost takes only=True or only=False, not only={only!r}")
        if otherwise is not None and not isinstance(otherwise, SparkSubmit):
            raise ValueError(f"WarmHost takes otherwise=SparkSubmit(...), not otherwise={otherwise!r}")
        self.name = name
        self.wait = float(wait)
        self.only = only
        self.env = checked(env)
        self.otherwise = otherwise or SparkSubmit()

    def bound(self, spark_conn_id: str) -> Launcher:
        given = variables_of(self.env)
        otherwise = CommandSubmission(
            spark_conn_id, self.otherwise.submit, {**given, **variables_of(self.otherwise.env)}
        )
        return _OnHost(self.name, self.wait, self.only, given, otherwise)

    def __repr__(self) -> str:
        env = f", env={shown(self.env)!r}" if self.env else ""
        return f"WarmHost({self.name!r}, wait={self.wait!r}, only={self.only!r}, otherwise={self.otherwise!r}{env})"


@dataclass
class _OnHost:
    name: str
    wait: float
    only: bool
    env: Mapping[str, str]
    otherwise: CommandSubmission
    task: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    """The environment of the task."""

    def find(self, spec: DriverSpec) -> DriverProcess | None:
        return self.otherwise.find(spec)

    def launch(self, spec: DriverSpec) -> DriverProcess:
        from stateflow.driver.processes import DriverFolder  # a DAG file loads what declares, not what works
        from stateflow.hosts import client
        from stateflow.hosts.settings import folder_of
        from stateflow.masking import is_secret

        secrets = {name: value for name, value in spec.conf.items() if is_secret(name)}
        conf = [f"{name}={value}" for name, value in spec.conf.items() if name not in secrets]
        own = {**inherited(self.task), **self.env, **spec.variables(secrets), "PYTHONUNBUFFERED": "1"}
        asked: dict[str, Any] = {
            "folder": str(folder_of(self.name)),
            "wait": self.wait,
            "only": self.only,
            "argv": [*spec.arguments(), *(word for each in conf for word in ("--conf", each))],
        }
        added: dict[str, str] = {}
        temporary = ""
        if not self.only:
            asked["otherwise"], whole, temporary = self.otherwise.command(spec, quietly=True)
            whole["STATEFLOW_HOST_ONLY"] = (
                "false"  # the launcher has been told so, whatever a file says of other runs
            )
            added = {name: value for name, value in whole.items() if own.get(name) != value}
        # What spark-submit needs, such as its PATH, is no part of the run's environment on the host.
        asked["added"] = sorted({*added, *([temporary] if temporary else [])})
        of_run = {client.OF_RUN + name: own[name] for name in asked["added"] if name in own}
        command = [sys.executable, "-I", client.__file__, json.dumps(asked)]
        return DriverFolder.of(spec).start(
            command, {**own, **added, **of_run}, Path.cwd(), above=spec.above, temporary=temporary
        )
