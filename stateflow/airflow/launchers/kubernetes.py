"""Drivers as pods of Kubernetes, submitted in Spark's cluster mode: no worker, triggerer or scheduler keeps one alive."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from airflow.sdk.exceptions import AirflowNotFoundException

from stateflow.airflow.connections.spark import master_of, submit_hook
from stateflow.airflow.internals.submit_commands import submit_command
from stateflow.airflow.launchers.driver_pods import (
    ABOVE,
    LAUNCH,
    SCHEME,
    TASK,
    DriverPod,
    DriverPods,
    labels,
    new_launch,
    secret_name,
    task_label,
)
from stateflow.airflow.launchers.spark_submit import (
    SparkSubmit,
    require_sizes,
    submission_environment,
    variables_of,
)
from stateflow.driver import supervisor
from stateflow.driver.processes import DriverFolder, DriverProcess
from stateflow.driver.run_spec import DriverSpec
from stateflow.driver.supervision import Launcher
from stateflow.errors import NotFoundError, StateflowError, UsageError
from stateflow.jobs.run_secrets import MOUNTED
from stateflow.masking import is_secret

FOLDER = "/etc/stateflow/run"
"""Where the run's variables are mounted in the driver's pod."""
_DRIVER = "spark.kubernetes.driver."


class Kubernetes:
    """`Kubernetes(image="registry/team/orders:1.2", namespace="jobs")`

    The image has Spark, the library and the pipeline's file. `secrets`: names of Kubernetes secrets, each with the folder of the driver's
    and executors' pods where it is mounted. Other arguments are those of SparkSubmit: `env`, `num_executors`, `driver_memory`, `packages`,
    `jars`.
    """

    detached = True
    template_fields = ("env", "image", "namespace", "submit")
    """For Airflow, which renders them with the operator that the launcher is given to."""

    def __init__(
        self,
        *,
        image: str,
        namespace: str,
        kubernetes_conn_id: str = "kubernetes_default",
        service_account: str = "",
        secrets: Mapping[str, str] | None = None,
        application: str = "local:///opt/stateflow/submitted.py",
        **submit: Any,
    ) -> None:
        if "deploy_mode" in submit:
            raise ValueError(
                "Kubernetes does not take deploy_mode: its drivers are pods, which is cluster mode"
            )
        self.image, self.namespace, self.service_account = image, namespace, service_account
        self.kubernetes_conn_id, self.application = kubernetes_conn_id, application
        self.secrets = dict(secrets or {})
        submitting = SparkSubmit(**submit)
        self.env, self.submit = submitting.env, submitting.submit

    def bound(self, spark_conn_id: str) -> Launcher:
        require_sizes(self.submit)
        _require_cluster(spark_conn_id, master_of(spark_conn_id))
        pods = DriverPods(_client(self.kubernetes_conn_id), self.namespace)
        return _PodSubmission(spark_conn_id, self, pods)

    def conf(self) -> dict[str, str]:
        """Spark's settings for the pods."""
        account = {"spark.kubernetes.authenticate.driver.serviceAccountName": self.service_account}
        mounts = {
            f"spark.kubernetes.{role}.secrets.{name}": folder
            for name, folder in self.secrets.items()
            for role in ("driver", "executor")
        }
        return {
            "spark.kubernetes.container.image": self.image,
            "spark.kubernetes.namespace": self.namespace,
            # The pod is followed through the API, by whoever supervises it at the time.
            "spark.kubernetes.submission.waitAppCompletion": "false",
            **(account if self.service_account else {}),
            **mounts,
        }

    def __repr__(self) -> str:
        # A DAG file that is parsed again must give the same text.
        return f"Kubernetes(image={self.image!r}, namespace={self.namespace!r})"


def pod_of(name: str, kubernetes_conn_id: str) -> DriverPod:
    """A driver by its name, from a process that has not started it."""
    namespace, _, launch = name.removeprefix(SCHEME).partition("/")
    return DriverPod(DriverPods(_client(kubernetes_conn_id), namespace), launch, 0)


@dataclass
class _PodSubmission:
    spark_conn_id: str
    of: Kubernetes
    pods: DriverPods
    task: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    """The environment of the task."""

    def find(self, spec: DriverSpec) -> DriverPod | None:
        """By label, from any host; else the submission that an earlier try began on this host."""
        pod = self.pods.newest({TASK: task_label(spec)})
        submission = DriverFolder.of(spec).newest()
        here = None
        if submission is not None and (launch := _launch_of(submission)):
            here = DriverPod(self.pods, launch, submission.above, submission=submission)
            if here.submitting:
                return here
            # The secret goes with the pod, or now if there is none. The earlier try may have been killed before it saw to that.
            here.look()
        if pod is None:
            return None
        own = pod["metadata"]["labels"]
        if here is not None and here.launch == own[LAUNCH]:
            return here
        return DriverPod(self.pods, own[LAUNCH], int(own.get(ABOVE, 0)))

    def launch(self, spec: DriverSpec) -> DriverPod:
        launch = new_launch()
        own = labels(spec, launch)
        secrets = {name: value for name, value in spec.conf.items() if _hidden(name)}
        shown = replace(spec, conf={n: value for n, value in spec.conf.items() if n not in secrets})
        env = variables_of(self.of.env)
        argv = self._command(spec, self._conf(shown, launch, own, env))
        # Nothing of this is on a command line or in the pod's own description, which more people may read than secrets.
        self.pods.create_secret(secret_name(launch), own, {**env, **spec.variables(secrets)})
        folder = DriverFolder.of(spec)
        environment = submission_environment(self.task, {})
        try:
            submission = folder.start(argv, environment, Path.cwd(), above=spec.above)
        except Exception:
            with suppress(StateflowError):  # why nothing was started says more
                self.pods.delete_secret(secret_name(launch))
            raise
        return DriverPod(self.pods, launch, spec.above, submission=submission)

    def _command(self, spec: DriverSpec, conf: Mapping[str, str]) -> list[str]:
        hook = submit_hook(
            self.spark_conn_id,
            **self.of.submit,
            deploy_mode="cluster",
            conf=dict(conf),
            application_args=spec.arguments(),
            name=f"stateflow {spec.job}",
        )
        return submit_command(hook, self.of.application)

    def _conf(
        self, spec: DriverSpec, launch: str, own: Mapping[str, str], env: Mapping[str, str]
    ) -> dict[str, str]:
        from stateflow.spark.session.settings import (
            DELTA,
            GUARDED,
            with_own,
        )  # a DAG file must not load stateflow.spark

        conf = {
            **DELTA,
            **GUARDED,
            "spark.ui.showConsoleProgress": "false",
            **self.of.conf(),
            **{f"{_DRIVER}label.{name}": value for name, value in own.items()},
            f"{_DRIVER}secrets.{secret_name(launch)}": FOLDER,
            # The driver's JVM reads variables as well, and it starts before anything could take them from the mounted folder.
            **{f"{_DRIVER}secretKeyRef.{name}": f"{secret_name(launch)}:{name}" for name in env},
            f"spark.kubernetes.driverEnv.{MOUNTED}": FOLDER,
        }
        return with_own(conf, spec.conf)


def _require_cluster(spark_conn_id: str, master: str) -> None:
    if not master.startswith("k8s://"):
        raise UsageError(
            f"connection {spark_conn_id!r} leads to {master}, and Kubernetes(...) needs a cluster: name a Spark connection "
            "whose host is k8s://https://ADDRESS"
        )


def _hidden(setting: str) -> bool:
    """Settings that are called like secrets. Those that name Kubernetes' secrets hold none."""
    return is_secret(setting) and not setting.startswith("spark.kubernetes.")


def _launch_of(submission: DriverProcess) -> str:
    """The launch to which a submission of an earlier try belongs."""
    setting = f"{_DRIVER}label.{LAUNCH}="
    command = supervisor.read(submission.folder / "command.json") or {}
    return next(
        (word.removeprefix(setting) for word in command.get("argv", ()) if word.startswith(setting)), ""
    )


def _client(conn_id: str) -> Any:
    try:
        from airflow.providers.cncf.kubernetes.hooks.kubernetes import KubernetesHook
    except ImportError:
        raise NotFoundError(
            "drivers on Kubernetes need Airflow's Kubernetes provider: pip install 'airflow-provider-stateflow[kubernetes]'"
        ) from None
    from kubernetes.config import ConfigException

    try:
        return KubernetesHook(conn_id=conn_id).core_v1_client
    except AirflowNotFoundException:
        raise NotFoundError(
            f"there is no connection {conn_id!r}: add it with `airflow connections add {conn_id} --conn-type kubernetes`, and give it the "
            "cluster's kube config; or name another one as kubernetes_conn_id"
        ) from None
    except ConfigException as error:
        raise UsageError(
            f"connection {conn_id!r} does not lead to Kubernetes ({str(error).rstrip('.')}): give it the cluster's kube config, or check "
            "its field 'In cluster configuration' where Airflow itself runs in the cluster"
        ) from None
