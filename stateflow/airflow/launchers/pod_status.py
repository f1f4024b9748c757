"""What a driver's pod says of itself: whether it runs, how it ended, and why. Pure.

A pod is what the Kubernetes API gives as JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stateflow.driver.processes import ProcessStatus

CONTAINER = "spark-kubernetes-driver"
"""Spark's own name for the driver's container."""


def process_status(pod: Mapping[str, Any]) -> ProcessStatus:
    """The pod as a process. Kubernetes says why one ended: OOMKilled, Evicted, DeadlineExceeded."""
    status = pod.get("status") or {}
    phase = status.get("phase")
    if phase == "Succeeded":
        return ProcessStatus(False, 0)
    if phase != "Failed":
        return ProcessStatus(True)
    ended = _terminated(status)
    code = ended.get("exitCode")
    return ProcessStatus(False, int(code) if code else 1, reason=_why(status, ended))


def waits_for(pod: Mapping[str, Any]) -> str:
    """Why a pod has not started: an image that cannot be pulled, no node with room. Empty for one that has."""
    status = pod.get("status") or {}
    if status.get("phase") != "Pending":
        return ""
    for container in status.get("containerStatuses") or ():
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason"):
            return _sentence(waiting)
    for condition in status.get("conditions") or ():
        if condition.get("status") == "False" and condition.get("reason"):
            return _sentence(condition)
    return "it has no node yet"


def _terminated(status: Mapping[str, Any]) -> Mapping[str, Any]:
    for container in status.get("containerStatuses") or ():
        if container.get("name") == CONTAINER or len(status["containerStatuses"]) == 1:
            ended: Mapping[str, Any] = (container.get("state") or {}).get("terminated") or {}
            return ended
    return {}


def _why(status: Mapping[str, Any], ended: Mapping[str, Any]) -> str:
    """The pod's own reason is that of the cluster (Evicted, DeadlineExceeded); the container's `Error` says nothing."""
    if status.get("reason"):
        return _sentence(status)
    return _sentence(ended) if ended.get("reason") not in (None, "", "Error", "Completed") else ""


def _sentence(state: Mapping[str, Any]) -> str:
    message = " ".join(str(state.get("message") or "").split())
    return f"{state['reason']}: {message}" if message else str(state["reason"])
