"""Drivers that are pods: found by their labels from any host, followed and ended through the Kubernetes API."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from stateflow.airflow.launchers.pod_status import CONTAINER, process_status, waits_for
from stateflow.driver.processes import DriverProcess, ProcessStatus
from stateflow.driver.run_spec import DriverSpec
from stateflow.errors import UnavailableError, UsageError

if TYPE_CHECKING:
    from kubernetes.client import CoreV1Api

PREFIX = "stateflow/"
TASK, LAUNCH, ABOVE, JOB = f"{PREFIX}task", f"{PREFIX}launch", f"{PREFIX}above", f"{PREFIX}job"
"""Labels of pods and secrets. A retry on another host, and a later version of this package, find a driver by them."""
SCHEME = "k8s://"
"""Of the name of a driver that is a pod: `k8s://NAMESPACE/LAUNCH`."""
PULL_PATIENCE = 600.0
"""Seconds that a pod may wait for its image or for a node."""
_TIMEOUT = (5, 30)
_KILLED_WITHIN = 3.0
"""Seconds that are waited for a killed submission. Airflow gives a killed task few."""


def task_label(spec: DriverSpec) -> str:
    """The same for every try of a task, and short enough for a label."""
    return hashlib.sha256(f"{spec.dag_run}\n{spec.task}\n{spec.root}".encode()).hexdigest()[:40]


def labels(spec: DriverSpec, launch: str) -> dict[str, str]:
    job = re.sub(r"[^A-Za-z0-9._-]", "-", spec.job)[:63].strip("-._") or "job"
    return {TASK: task_label(spec), LAUNCH: launch, ABOVE: str(spec.above), JOB: job}


@dataclass(frozen=True)
class DriverPods:
    """Pods and secrets of one namespace."""

    api: CoreV1Api
    namespace: str

    def newest(self, selector: Mapping[str, str]) -> dict[str, Any] | None:
        """The pod with these labels that was made last, as JSON."""
        with self._asking("list pods"):
            text = ",".join(f"{name}={value}" for name, value in selector.items())
            listed = self.api.list_namespaced_pod(
                self.namespace, label_selector=f"spark-role=driver,{text}", _request_timeout=_TIMEOUT
            )
        pods: list[dict[str, Any]] = self.api.api_client.sanitize_for_serialization(listed.items)
        return max(pods, key=lambda pod: pod["metadata"]["labels"].get(LAUNCH, ""), default=None)

    def create_secret(self, name: str, own: Mapping[str, str], variables: Mapping[str, str]) -> None:
        body = {
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "labels": dict(own)},
            "type": "Opaque", "stringData": dict(variables), "immutable": True,
        }  # fmt: skip
        with self._asking("create secrets"):
            self.api.create_namespaced_secret(self.namespace, body, _request_timeout=_TIMEOUT)

    def hand_secret_to(self, name: str, pod: Mapping[str, Any]) -> None:
        """Kubernetes deletes the secret with the pod."""
        meta = pod["metadata"]
        owner = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]}
        with self._asking("patch secrets"):
            self.api.patch_namespaced_secret(
                name, self.namespace, {"metadata": {"ownerReferences": [owner]}}, _request_timeout=_TIMEOUT
            )

    def delete_secret(self, name: str) -> None:
        with self._asking("delete secrets"):
            self.api.delete_namespaced_secret(name, self.namespace, _request_timeout=_TIMEOUT)

    def end_after(self, pod: Mapping[str, Any], seconds: float) -> None:
        """The node kills the pod then, whoever is alive to ask for it. A deadline that comes sooner stays."""
        began = pod["status"].get("startTime")
        running = max(0.0, self._now() - datetime.fromisoformat(began).timestamp()) if began else 0.0
        deadline = max(1, int(running + seconds))
        if (pod["spec"].get("activeDeadlineSeconds") or deadline + 1) <= deadline:
            return
        with self._asking("patch pods"):
            self.api.patch_namespaced_pod(
                pod["metadata"]["name"], self.namespace, {"spec": {"activeDeadlineSeconds": deadline}},
                _request_timeout=_TIMEOUT,
            )  # fmt: skip

    def kill(self, pod: Mapping[str, Any]) -> None:
        with self._asking("delete pods"):
            self.api.delete_namespaced_pod(
                pod["metadata"]["name"], self.namespace, grace_period_seconds=0, _request_timeout=_TIMEOUT
            )

    def log(self, pod: Mapping[str, Any], **which: Any) -> list[str]:
        """Lines of the driver's container, as far as the node still has them."""
        lines: list[str] = []
        with self._asking("get pods/log"):
            answer = self.api.read_namespaced_pod_log(
                pod["metadata"]["name"], self.namespace, container=CONTAINER, _preload_content=False,
                _request_timeout=_TIMEOUT, **which,
            )  # fmt: skip
            lines = answer.data.decode(errors="replace").splitlines()
        return lines

    def _now(self) -> float:
        """By the cluster's clock, as the times of its pods are. By a worker's clock that is behind, a deadline would have passed already."""
        headers: Mapping[str, str] = {}
        with self._asking("list pods"):
            _, _, headers = self.api.list_namespaced_pod_with_http_info(
                self.namespace, limit=1, _request_timeout=_TIMEOUT
            )
        said = headers.get("Date")
        return parsedate_to_datetime(said).timestamp() if said else time.time()

    @contextmanager
    def _asking(self, verb: str) -> Iterator[None]:
        """What is gone already is no error. An API server that does not answer may answer soon."""
        from kubernetes.client import ApiException
        from urllib3.exceptions import HTTPError

        try:
            yield
        except ApiException as error:
            if error.status in (401, 403):
                raise UsageError(
                    f"Kubernetes does not let Airflow {verb} in namespace {self.namespace!r}: give the service account of the "
                    "connection a role with get, list, patch and delete on pods, get on pods/log, and create, patch and delete "
                    "on secrets"
                ) from None
            if error.status >= 500 or error.status == 429:
                raise UnavailableError(
                    f"the Kubernetes API answers {error.status} to {verb!r}: {error.reason}"
                ) from None
            if error.status not in (400, 404, 409):  # 400: the container's log is not there yet
                raise UsageError(f"Kubernetes refuses to {verb}: {error.status} {error.reason}") from None
        except HTTPError as error:
            raise UnavailableError(f"the Kubernetes API is out of reach: {error}") from None


class DriverPod:
    """One launch of a driver: the submission, which is a process of this host, and the pod that it makes."""

    def __init__(
        self, pods: DriverPods, launch: str, above: int, *, submission: DriverProcess | None = None
    ) -> None:
        self.above, self.launch = above, launch
        self._pods, self._submission = pods, submission
        self._pod: dict[str, Any] | None = None
        self._last: ProcessStatus | None = None
        self._handed_over = False
        self._waits_since: float | None = None
        self._read_at: float | None = None
        self._stamp = ""
        self._refused = ""
        """Why Kubernetes gives no lines of its log."""

    @property
    def name(self) -> str:
        return f"{SCHEME}{self._pods.namespace}/{self.launch}"

    @property
    def submitting(self) -> bool:
        return self._submission is not None and self._submission.look().running

    @property
    def secret(self) -> str:
        return secret_name(self.launch)

    def look(self) -> ProcessStatus:
        """The pod as it is now. While the API is out of reach, as it was: that is no sign of death."""
        try:
            self._last = self._look()
        except UnavailableError:
            if self._last is None:
                raise
        return self._last

    def _look(self) -> ProcessStatus:
        found = self._pods.newest({LAUNCH: self.launch})
        if found is None:
            return self._without_pod()
        self._pod = found
        self._hand_secret_to(found)
        status = process_status(found)
        if (why := waits_for(found)) and self._waited() > PULL_PATIENCE:
            self._pods.kill(found)
            return ProcessStatus(
                False, 1, reason=f"its pod did not start within {PULL_PATIENCE:.0f} s: {why}"
            )
        return status

    def _hand_secret_to(self, pod: Mapping[str, Any]) -> None:
        if not self._handed_over:
            self._pods.hand_secret_to(self.secret, pod)
            self._handed_over = True

    def _without_pod(self) -> ProcessStatus:
        if self._pod is None and self._submission is not None:
            status = self._submission.look()
            if not status.running:
                self._pods.delete_secret(self.secret)
            # spark-submit ends with 0 once the API has taken the pod. A pod that is gone by now was deleted.
            return (
                status
                if status.running or status.exit_code
                else ProcessStatus(False, reason="its pod was deleted")
            )
        return ProcessStatus(False, reason="its pod was deleted")

    def _waited(self) -> float:
        """Seconds since this process first saw the pod wait. Its age is by the cluster's clock, which this host's clock cannot tell."""
        now = time.monotonic()
        self._waits_since = now if self._waits_since is None else self._waits_since
        return now - self._waits_since

    def output(self) -> list[str]:
        """Lines since the last call: of the submission, then of the pod."""
        lines = self._submission.output() if self._submission is not None else []
        if self._pod is None or waits_for(self._pod):
            return lines
        try:
            return [*lines, *self._new_lines(self._pod)]
        except UnavailableError:
            return lines
        except UsageError as error:  # the run is followed without its lines, too
            told, self._refused = self._refused, str(error)
            return lines if told == self._refused else [*lines, self._refused]

    def _new_lines(self, pod: Mapping[str, Any]) -> Iterator[str]:
        now, since = time.monotonic(), {}
        if self._read_at is not None:
            since = {"since_seconds": int(now - self._read_at) + 10}  # the question takes its time, too
        for line in self._pods.log(pod, timestamps=True, **since):
            stamp, _, text = line.partition(" ")
            if stamp > self._stamp:
                self._stamp = stamp
                yield text
        self._read_at = now

    def last_words(self) -> list[str]:
        """The end of its output."""
        if self._pod is None:
            return self._submission.last_words() if self._submission is not None else []
        try:
            return [line for line in self._pods.log(self._pod, tail_lines=20) if line.strip()]
        except (UnavailableError, UsageError):
            return []

    def stop(self, grace: float) -> None:
        """Within `grace` seconds the pod ends by itself, or its node kills it: a kill loses nothing."""
        found = self._pods.newest({LAUNCH: self.launch})
        if found is None and self._submission is not None:
            self._submission.stop(0)
            end = time.monotonic() + _KILLED_WITHIN
            while self.submitting and time.monotonic() < end:
                time.sleep(0.05)
            found = self._pods.newest({LAUNCH: self.launch})  # it may have made the pod meanwhile
        if found is not None and grace:
            self._pods.end_after(found, grace)
            self._hand_secret_to(found)
            return
        if found is not None:
            self._pods.kill(found)
        if found is not None or not self.submitting:  # a pod that comes without its secret would hang
            self._pods.delete_secret(self.secret)


def secret_name(launch: str) -> str:
    return f"stateflow-{launch}"


def new_launch() -> str:
    """Later launches sort behind earlier ones."""
    return datetime.now(UTC).strftime("%Y%m%d%H%M%S%f")
