"""How the driver of a run is started. Each is imported when it is asked for."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stateflow.airflow.launchers.in_process import InProcess as InProcess
    from stateflow.airflow.launchers.kubernetes import Kubernetes as Kubernetes
    from stateflow.airflow.launchers.spark_submit import SparkSubmit as SparkSubmit
    from stateflow.airflow.launchers.warm_host import WarmHost as WarmHost

_HOME = {
    "InProcess": "in_process",
    "Kubernetes": "kubernetes",
    "SparkSubmit": "spark_submit",
    "WarmHost": "warm_host",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
