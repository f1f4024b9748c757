"""Drivers by spark-submit, with the Spark provider's hook and connection; each has a supervisor."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk.log import mask_secret

from stateflow.airflow.connections.spark import submit_hook
from stateflow.airflow.internals.submit_commands import submit_command
from stateflow.airflow.launchers.environment import checked, inherited, shown
from stateflow.airflow.launchers.templates import is_template
from stateflow.errors import UsageError

if TYPE_CHECKING:
    from stateflow.driver.processes import DriverProcess
    from stateflow.driver.run_spec import DriverSpec
    from stateflow.driver.supervision import Launcher

_HEAP = re.compile(r"\d+[kmgt]", re.IGNORECASE)
"""With its unit: Java takes a bare number for bytes, where Spark takes it for MiB."""
_SIZE = re.compile(r"\d+(b|[kmgtp]b?)?", re.IGNORECASE)
_TAKEN = ("conf", "conn_id", "application_args", "name", "java_class", "spark_conn_id")


class SparkSubmit:
    """`SparkSubmit(driver_memory="4g", num_executors=8, archives="s3://.../environment.tar.gz#environment")`

    Takes what the provider's SparkSubmitHook takes: packages, jars, py_files, files, archives, properties_file, driver_memory,
    executor_memory, executor_cores, num_executors, total_executor_cores, yarn_queue, deploy_mode, keytab, principal,
    proxy_user, spark_binary and so on. Delta's jars come from the library's own cache unless `packages` or `jars` are given.

    `env`: variables for the driver's environment. No command line, log or page shows their values.
    """

    detached = True
    template_fields = ("env", "submit")
    """For Airflow, which renders them with the operator that the launcher is given to."""

    def __init__(self, *, env: Mapping[str, Any] | None = None, **submit: Any) -> None:
        if "env_vars" in submit:
            raise ValueError(
                "SparkSubmit does not take env_vars, which would stand on a command line: give env={...}"
            )
        wrong = sorted(set(submit) & set(_TAKEN))
        if wrong:
            raise ValueError(
                f"SparkSubmit does not take {', '.join(wrong)}: the operator's own arguments (conf, spark_conn_id, job) say it"
            )
        self.env = checked(env)
        self.submit = {"driver_memory": "2g", **submit}
        if sentence := wrong_size(self.submit):
            raise ValueError(sentence)

    def bound(self, spark_conn_id: str) -> Launcher:
        require_sizes(self.submit)
        return CommandSubmission(spark_conn_id, self.submit, variables_of(self.env))

    def __repr__(self) -> str:
        # A DAG file that is parsed again must give the same text, and Airflow shows it to whoever may see the task.
        arguments = {**self.submit, **({"env": shown(self.env)} if self.env else {})}
        return f"SparkSubmit({', '.join(f'{name}={value!r}' for name, value in sorted(arguments.items()))})"


@dataclass
class CommandSubmission:
    """Starts drivers for one Spark connection."""

    spark_conn_id: str
    submit: Mapping[str, Any]
    env: Mapping[str, str] = field(default_factory=dict)
    task: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    """The environment of the task."""

    def find(self, spec: DriverSpec) -> DriverProcess | None:
        from stateflow.driver.processes import DriverFolder  # a DAG file loads what declares, not what works

        return DriverFolder.of(spec).newest()

    def launch(self, spec: DriverSpec) -> DriverProcess:
        from stateflow.driver.processes import DriverFolder  # as above

        argv, environment, temporary = self.command(spec)
        folder = DriverFolder.of(spec)
        return folder.start(argv, environment, Path.cwd(), above=spec.above, temporary=temporary)

    def command(self, spec: DriverSpec, *, quietly: bool = False) -> tuple[list[str], dict[str, str], str]:
        """The command line and the environment of a driver, and the variable for its temporary files if it has one.

        `quietly`: the task's log does not show it, because it may not be started.
        """
        from stateflow.masking import is_secret  # as above

        # The connection may choose the mode, and some settings are right only for a driver on this host.
        looked_at = self._command(spec, {}, quietly=True)
        cluster = _following(looked_at, "--deploy-mode") == "cluster"
        master = _following(looked_at, "--master")
        if cluster:
            self._require_cluster(master)
        else:
            require_sizes(self.submit, here=True)
        conf = self._conf(spec, master, here=not cluster)
        secrets = {name: value for name, value in conf.items() if is_secret(name)}
        plain = {name: value for name, value in conf.items() if name not in secrets}
        argv = self._command(spec, plain, quietly=quietly)
        variables = spec.variables(secrets)
        if cluster:
            argv = _for_cluster(argv, variables, self.env)
        temporary = "" if self._says_where(argv) else "SPARK_LOCAL_DIRS"
        return argv, {**submission_environment(self.task, self.env), **variables}, temporary

    def _require_cluster(self, master: str) -> None:
        """Spark refuses a Python driver in cluster mode there, and says it among the frames of its own code."""
        if master.startswith(("local", "spark://")):
            raise UsageError(
                f"connection {self.spark_conn_id!r} leads to {master}, which takes no Python driver in cluster mode: leave out "
                "deploy_mode='cluster', also in the connection, or name a Spark connection whose host is yarn"
            )

    def _command(self, spec: DriverSpec, conf: Mapping[str, str], *, quietly: bool = False) -> list[str]:
        """The command line, which the provider's hook logs unless it is only looked at."""
        hook = submit_hook(
            self.spark_conn_id,
            **self.submit,
            conf=dict(conf),
            application_args=spec.arguments(),
            name=f"stateflow {spec.job}",
        )
        return submit_command(hook, _application(), quietly=quietly)

    def _says_where(self, argv: Sequence[str]) -> bool:
        """Whether a setting chooses a place for Spark's temporary files. A file of properties may do so."""
        from stateflow.spark.session.settings import TEMPORARY, says_where

        in_argv = any(word.startswith(f"{TEMPORARY}=") for word in argv)
        by_user = "SPARK_LOCAL_DIRS" in self.env or "properties_file" in self.submit
        return in_argv or says_where({}) or by_user

    def _conf(self, spec: DriverSpec, master: str, *, here: bool) -> dict[str, str]:
        """Settings that Python would make too late: the driver's JVM starts first. `here`: the driver runs on this host."""
        from stateflow.config.options import cache_folder
        from stateflow.spark.session import (  # a DAG file must not load stateflow.spark
            class_data,
            compiling,
        )
        from stateflow.spark.session.java import require_java
        from stateflow.spark.session.settings import (
            DELTA,
            DRIVER_JAVA,
            GUARDED,
            IN_UTC,
            ONE_PROCESS,
            QUIET,
            one_process,
            submit_conf,
            with_own,
        )

        own = dict(DELTA) if self.submit.get("packages") or self.submit.get("jars") else submit_conf()
        if here:
            cache = cache_folder()
            sooner = class_data.options(cache, require_java(cache))
            own[DRIVER_JAVA] = " ".join(filter(None, (QUIET, IN_UTC, sooner, compiling.options())))
            # Otherwise the driver would use the executors' Python, which may exist only in their archive.
            own["spark.pyspark.driver.python"] = sys.executable
        own |= {**GUARDED, "spark.ui.showConsoleProgress": "false"}
        if one_process(master):
            own |= ONE_PROCESS
        return with_own(own, spec.conf)


def wrong_size(submit: Mapping[str, Any], *, here: bool = False) -> str:
    """Why a memory size does not do, in a sentence; empty if all do. `here`: the driver's Java gets its size as it is written."""
    for name, taken in (("driver_memory", _HEAP if here else _SIZE), ("executor_memory", _SIZE)):
        value = submit.get(name)
        if isinstance(value, str) and value and not is_template(value) and not taken.fullmatch(value):
            who = "Java" if taken is _HEAP else "Spark"
            return f"{name}={value!r} is no size that {who} takes: write a whole number and a unit, such as '4g' or '512m'"
    return ""


def require_sizes(submit: Mapping[str, Any], *, here: bool = False) -> None:
    """UsageError for what `wrong_size` says of values that are rendered."""
    if sentence := wrong_size(submit, here=here):
        raise UsageError(sentence)


def submission_environment(task: Mapping[str, str], env: Mapping[str, str]) -> dict[str, str]:
    """For spark-submit: it and Python are those of this very installation, wherever the worker's PATH leads.

    `env`: what the user gives, which wins over what is the task's.
    """
    from stateflow.config.options import cache_folder
    from stateflow.spark.session.java import require_java  # a DAG file must not load stateflow.spark

    given = {**inherited(task), **env}
    return {
        **given,
        "JAVA_HOME": str(require_java(cache_folder())),
        "PYSPARK_PYTHON": given.get("PYSPARK_PYTHON", sys.executable),
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONUNBUFFERED": "1",
        **env,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{given.get('PATH', '')}",
    }


def variables_of(env: Mapping[str, Any]) -> dict[str, str]:
    """Rendered, as text. What is called like a secret is masked in the task's log, where the driver's output ends up."""
    from stateflow.masking import is_secret
    from stateflow.pipelines.parameters import as_texts

    variables = as_texts(env)
    for name, value in variables.items():
        if is_secret(name):
            mask_secret(value)
    return variables


def _following(argv: Sequence[str], flag: str) -> str:
    return argv[argv.index(flag) + 1] if flag in argv else ""


def _application() -> str:
    spec = importlib.util.find_spec("stateflow.application.submitted")
    assert spec is not None
    assert spec.origin is not None
    return spec.origin


def _for_cluster(argv: list[str], variables: Mapping[str, str], env: Mapping[str, str]) -> list[str]:
    """In cluster mode the driver gets only its command line from here, no environment."""
    from stateflow.jobs.run_secrets import HANDED_OVER, handed_over  # as above

    if env:
        raise UsageError(
            f"env ({', '.join(sorted(env))}) cannot reach a driver in cluster mode without standing on a command line: set what is no "
            "secret with conf={'spark.yarn.appMasterEnv.NAME': ...}, let the pipeline read the rest from a secret of the cluster, or "
            "submit in client mode"
        )
    if "STATEFLOW_STORAGE_OPTIONS" in variables:
        raise UsageError(
            "the connection's storage_options cannot reach a driver in cluster mode without standing on a command line: give "
            "the cluster credentials of its own (a role, a secret of Kubernetes) and leave them out of the connection, or "
            "submit in client mode"
        )
    if HANDED_OVER in variables:
        secrets = handed_over(variables)
        names = ", ".join(sorted({*secrets.parameters, *secrets.conf}))
        raise UsageError(
            f"{names} cannot reach a driver in cluster mode without standing on a command line: let the pipeline read it from a "
            "secret of the cluster, put settings of Spark into the cluster's spark-defaults.conf, or submit in client mode"
        )
    options = {
        name.removeprefix("STATEFLOW_").lower(): value
        for name, value in variables.items()
        if name.startswith("STATEFLOW_")
    }
    return [*argv, *(word for name, value in options.items() for word in ("--option", f"{name}={value}"))]
